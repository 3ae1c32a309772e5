"""Classes that come equally often, however many videos they have."""

import json
import os
from collections import Counter
from functools import partial
from itertools import chain

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from lightning_multigrid import MultigridCallback, VideoDataModule
from lightning_multigrid.clips.orders import BalancedOrder, RepeatedOrder, balance_sampler, repeat_sampler
from lightning_multigrid.loading.order import order_of
from lightning_multigrid.sources.video_list import VideoList
from tests.helpers.processes import ddp_of_this_process
from tests.helpers.recorder import TINY, Recorder
from tests.helpers.tiny import trainer
from tests.helpers.videos import numbered_frames, write_video

LABELS = [0] * 9 + [1]
SEVERAL = st.lists(st.sampled_from([0, 0, 0, 0, 2, 2, 5, 9]), min_size=1, max_size=60)


@given(SEVERAL, st.integers(0, 3))
@settings(deadline=None)
def test_in_a_pass_classes_come_equally_often_and_each_round_has_all_of_them(labels, number):
    order = BalancedOrder(3, labels)(number)
    assert len(order) == len(labels)
    classes, drawn = {*labels}, [labels[index] for index in order]
    counts = [drawn.count(label) for label in classes]
    assert max(counts) - min(counts) <= 1
    for start in range(0, len(drawn) - len(classes) + 1, len(classes)):
        assert {*drawn[start : start + len(classes)]} == classes


@given(SEVERAL)
@settings(deadline=None)
def test_the_videos_of_a_small_class_come_equally_often_and_those_of_a_large_one_in_turn(labels):
    order, classes = BalancedOrder(3, labels), {*labels}
    rounds, cut = -(-len(labels) // len(classes)), len(labels) % len(classes) != 0  # a cut round leaves videos out
    passes = [Counter(order(number)) for number in range(4)]
    for label in classes:
        videos = [index for index, other in enumerate(labels) if other == label]
        large = len(videos) >= rounds
        for counts in [sum(passes, Counter())] if large else passes:
            times = [counts[index] for index in videos]
            assert max(times) - min(times) <= 1 + (4 if large else 1) * cut


def test_passes_and_seeds_differ_and_are_drawn_again_as_they_were():
    labels = [0] * 30 + [1] * 10
    orders = [BalancedOrder(seed, labels)(number) for seed in (1, 2) for number in (0, 1)]
    assert orders == [BalancedOrder(seed, torch.tensor(labels))(number) for seed in (1, 2) for number in (0, 1)]
    assert len({*map(tuple, orders)}) == 4


@pytest.mark.parametrize(
    ("sampler", "order", "clips"),
    [
        (partial(balance_sampler, LABELS), partial(BalancedOrder, labels=LABELS), 10),
        (partial(repeat_sampler, 7, 3), partial(RepeatedOrder, length=7, repeats=3), 21),
    ],
    ids=["balance", "repeats"],
)
def test_ranks_cut_one_order(sampler, order, clips):
    ranks = [sampler(num_replicas=2, rank=rank, seed=4) for rank in (0, 1)]
    for epoch in (0, 1, 5):
        for rank in ranks:
            rank.set_epoch(epoch)
        expected = order(4)(epoch)
        assert len(expected) == clips
        assert [*chain(*ranks)] == [*expected, *expected[: clips % 2]]  # one more, to make the ranks equal
    assert [*order_of(DataLoader(range(clips), sampler=ranks[1]), seed=8)(2)] == order(8)(2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A list of 30 videos of class 0, eight of class 1 and two of class 2."""
    folder = tmp_path_factory.mktemp("videos")
    write_video(folder / "a.mp4", numbered_frames(12, 24, 32))
    (folder / "list.csv").write_text("a.mp4,0\n" * 30 + "a.mp4,1\n" * 8 + "a.mp4,2\n" * 2)
    return folder


def trained(folder, *callbacks, epochs=2, **options):
    torch.manual_seed(0)
    data = VideoDataModule(folder / "list.csv", balance=True, **{**TINY, "batch_size": 1})
    trainer(*callbacks, max_epochs=epochs).fit(module := Recorder(), datamodule=data, **options)
    return torch.cat([labels for _, labels in module.seen["train"]]), module


def test_a_training_has_as_many_clips_of_each_class_with_the_callback_and_without(folder):
    labels, _ = trained(folder)
    assert [labels[40 * epoch : 40 * (epoch + 1)].bincount().sort().values.tolist() for epoch in (0, 1)] == [
        [13, 13, 14]
    ] * 2
    labels, module = trained(folder, MultigridCallback(seed=5))
    for number in range(len(labels) // 40):
        assert labels[40 * number : 40 * (number + 1)].bincount().sort().values.tolist() == [13, 13, 14]
    clips = [clip for clips, _ in module.seen["train"] for clip in clips]
    assert len({clip.numpy().tobytes() for clip in clips}) > 0.5 * len(clips)  # of one video


class Writes(Recorder):
    """Writes the labels that a rank saw in each mini-batch."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def on_train_end(self):
        seen = [labels.tolist() for _, labels in self.seen["train"]]
        (self.folder / f"{self.global_rank}.json").write_text(json.dumps(seen))


@pytest.mark.skipif(not hasattr(os, "fork") or torch.cuda.is_available(), reason="forks this process")
def test_two_ranks_share_the_classes(folder, tmp_path):
    """Of a baseline; with the callback, of any order each rank has a half of each mini-batch."""
    data = VideoDataModule(folder / "list.csv", balance=True, **{**TINY, "batch_size": 1})
    host = trainer(max_epochs=2, strategy=ddp_of_this_process(), devices=2)
    host.fit(Writes(tmp_path), datamodule=data)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    passes = [[*chain(*first[start : start + 20], *second[start : start + 20])] for start in (0, 20)]
    assert [sorted(Counter(labels).values()) for labels in passes] == [[13, 13, 14]] * 2


def test_a_run_that_continues_has_the_clips_that_it_would_have_had(folder, tmp_path):
    whole, _ = trained(folder, MultigridCallback(seed=5))

    class Stops(Recorder):
        def on_train_epoch_end(self):
            self.trainer.save_checkpoint(tmp_path / "last.ckpt")
            self.trainer.should_stop = True

    torch.manual_seed(0)
    data = VideoDataModule(folder / "list.csv", balance=True, **{**TINY, "batch_size": 1})
    trainer(MultigridCallback(seed=5), max_epochs=2).fit(first := Stops(), datamodule=data)
    rest, _ = trained(folder, MultigridCallback(seed=5), ckpt_path=tmp_path / "last.ckpt")
    assert torch.equal(torch.cat([*(labels for _, labels in first.seen["train"]), rest]), whole)


def test_what_balance_is_not_for(folder):
    with pytest.raises(ValueError, match="`repeats` must be 1 with `balance`, got 2. Leave one of the two out"):
        VideoDataModule(folder / "list.csv", balance=True, repeats=2)
    data = VideoDataModule(VideoList(folder / "list.csv", multi_label=True), balance=True)
    with pytest.raises(ValueError, match=r"`balance` draws a class for each clip, .* may have several labels\."):
        data.setup("fit")
