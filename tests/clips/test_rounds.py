"""Evaluation on several devices: each video once, in as many mini-batches on each device."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_multigrid.clips.rounds import Rounds


@given(videos=st.integers(1, 60), batch_size=st.integers(1, 9), ranks=st.integers(1, 8))
def test_each_video_comes_once_and_all_ranks_have_as_many_mini_batches(videos, batch_size, ranks):
    rounds = [Rounds(range(videos), batch_size, ranks, rank) for rank in range(ranks)]
    dealt = [list(each) for each in rounds]
    assert len({len(batches) for batches in dealt} | {len(each) for each in rounds}) == 1
    assert all(1 <= len(batch) <= batch_size for batches in dealt for batch in batches)
    indices = sorted(index for batches in dealt for batch in batches for index in batch)
    if rounds[0].repeats:
        assert set(indices) == set(range(videos))
        assert len(indices) < videos + ranks
    else:
        assert indices == list(range(videos))


@pytest.mark.parametrize(
    ("videos", "batch_size", "repeats"), [(5, 2, False), (5, 1, True), (6, 1, False), (1, 4, True)]
)
def test_videos_are_repeated_only_where_a_rank_has_fewer_than_mini_batches(videos, batch_size, repeats):
    assert Rounds(range(videos), batch_size, num_replicas=2, rank=0).repeats == repeats
