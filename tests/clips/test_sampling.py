import math
import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_multigrid.clips.sampling import ClipSampling

KINETICS = ClipSampling(frames=32, size=224, stride=2)
HD = {"height": 1080, "width": 1920}


def draws(sampling, count=3000, **video):
    return [sampling.draw(**video, rng=random.Random(seed)) for seed in range(count)]


def strides(grid):
    return {b - a for a, b in pairwise(grid.indices)}


# --- in time ---


def test_strides_of_a_coarse_grid_are_uniform_integers_from_2_to_8():
    grids = draws(KINETICS, length=300, **HD, frames=8, size=112)
    assert all(len(strides(grid)) == 1 for grid in grids)
    counts = Counter(min(strides(grid)) for grid in grids)
    assert set(counts) == {2, 3, 4, 5, 6, 7, 8}  # [2, 2 * 32 / 8]
    assert all(abs(count - 3000 / 7) < 5 * math.sqrt(3000 / 7) for count in counts.values())


def test_a_baseline_clip_has_the_baseline_stride():
    assert {2} == set.union(*map(strides, draws(KINETICS, 100, length=300, **HD, frames=32, size=224)))


def test_starts_are_uniform_over_the_places_where_the_span_fits():
    grids = draws(KINETICS, length=70, **HD, frames=32, size=224)  # a span of 64 frames
    counts = Counter(grid.indices[0] for grid in grids)
    assert set(counts) == {0, 1, 2, 3, 4, 5, 6}
    assert all(abs(count - 3000 / 7) < 5 * math.sqrt(3000 / 7) for count in counts.values())


def test_a_short_video_repeats_its_last_frame():
    sampling = ClipSampling(frames=4, size=16, stride=2)
    for grid in draws(sampling, 20, length=5, height=20, width=20, frames=4, size=16):
        assert grid.indices == (0, 2, 4, 4)


# --- segments ---


def test_segments_give_one_frame_each():
    sampling = ClipSampling(frames=10, size=224, stride=2, mode="segments")
    grids = draws(sampling, 500, length=40, **HD, frames=10, size=224)
    seen = [set(places) for places in zip(*(grid.indices for grid in grids), strict=True)]
    assert seen == [{4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3} for i in range(10)]


def test_segments_of_a_fractional_length_cover_every_frame_alike():
    sampling = ClipSampling(frames=4, size=224, stride=2, mode="segments")
    counts = Counter(index for grid in draws(sampling, length=10, **HD, frames=4, size=224) for index in grid.indices)
    assert set(counts) == set(range(10))
    assert all(abs(count - 1200) < 5 * math.sqrt(1200) for count in counts.values())  # 3000 * 4 / 10


# --- in space ---


@pytest.mark.parametrize(
    ("size", "low", "high"),
    [(224, 256, 340), (158, 256 * 158 / 224, 340), (112, 128, 340)],  # [256 h/H, 340]
)
def test_the_crop_is_the_share_of_the_short_side_that_the_paper_draws(size, low, high):
    shares = [grid.box[2] / 1080 for grid in draws(KINETICS, length=300, **HD, frames=32, size=size)]
    assert size / high == pytest.approx(min(shares), abs=0.003)
    assert size / low == pytest.approx(max(shares), abs=0.003)
    # The mean of size / u for u uniform in [low, high].
    assert size * math.log(high / low) / (high - low) == pytest.approx(sum(shares) / len(shares), abs=0.012)


def test_other_baseline_sizes_see_the_same_share_of_the_frame():
    sampling = ClipSampling(frames=32, size=112, stride=2)
    shares = [grid.box[2] / 1080 for grid in draws(sampling, length=300, **HD, frames=32, size=112)]
    assert min(shares) == pytest.approx(224 / 340, abs=0.003)
    assert max(shares) == pytest.approx(224 / 256, abs=0.003)


def test_the_lower_end_of_a_given_short_side_scales_with_the_grid():
    assert ClipSampling(32, 224, 2, short_side=(256, 320)).short_side_range(112) == (128, 320)


def test_an_inverse_uniform_short_side_makes_the_side_of_the_crop_uniform():
    sampling = ClipSampling(frames=32, size=224, stride=2, short_side_sampling="inverse_uniform")
    for size, low, high in ((224, 256, 340), (112, 128, 340)):
        sides = [grid.box[2] for grid in draws(sampling, length=300, **HD, frames=32, size=size)]
        smallest, largest = 1080 * size / high, 1080 * size / low
        quarters = Counter(int(4 * (side - smallest) / (largest + 1 - smallest)) for side in sides)
        assert set(quarters) == {0, 1, 2, 3}
        assert all(abs(count - 750) < 5 * math.sqrt(750 * 0.75) for count in quarters.values())


@pytest.mark.parametrize(("height", "width"), [(1080, 1920), (1920, 1080)])
def test_crops_lie_anywhere_in_the_frame(height, width):
    grids = draws(KINETICS, length=300, height=height, width=width, frames=32, size=224)
    tops = [grid.box.top / (height - grid.box.height) for grid in grids]
    lefts = [grid.box.left / (width - grid.box.width) for grid in grids]
    for room in (tops, lefts):
        assert min(room) < 0.01
        assert max(room) > 0.99
        assert sum(room) / len(room) == pytest.approx(0.5, abs=0.03)


def test_half_of_the_clips_are_flipped_unless_turned_off():
    flips = [grid.flip for grid in draws(KINETICS, length=300, **HD, frames=32, size=224)]
    assert sum(flips) / len(flips) == pytest.approx(0.5, abs=0.05)
    still = ClipSampling(frames=32, size=224, stride=2, flip=False)
    assert not any(grid.flip for grid in draws(still, 100, length=300, **HD, frames=32, size=224))


@given(
    length=st.integers(1, 400),
    height=st.integers(1, 500),
    width=st.integers(1, 500),
    frames=st.integers(1, 32),
    size=st.integers(1, 224),
    mode=st.sampled_from(["stride", "segments"]),
    seed=st.integers(0, 2**63 - 1),
)
def test_a_grid_lies_within_its_video(length, height, width, frames, size, mode, seed):
    sampling = ClipSampling(32, 224, 2, mode=mode)
    grid = sampling.draw(length, height, width, frames, size, random.Random(seed))
    assert len(grid.indices) == frames
    assert all(0 <= a <= b < length for a, b in pairwise(grid.indices))
    assert 0 <= grid.indices[0] <= grid.indices[-1] < length
    top, left, crop_height, crop_width = grid.box
    assert 1 <= crop_height == crop_width <= min(height, width)
    assert 0 <= top <= height - crop_height
    assert 0 <= left <= width - crop_width


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"frames": 0}, "`frames` must be at least 1, got 0"),
        ({"size": -224}, "`size` must be at least 1, got -224"),
        ({"mode": "dense"}, "`sampling` must be 'stride' or 'segments', got 'dense'"),
        ({"short_side": (340, 256)}, r"`short_side` must be two increasing numbers .* got \(340, 256\)"),
        ({"frame_rate": 0.0}, r"`frame_rate` must be above 0 .*, got 0.0"),
        ({"frame_rate": 30, "mode": "segments"}, "beside `sampling='stride'`, got 30"),
        ({"short_side_sampling": "inverse"}, "must be 'uniform' or 'inverse_uniform', got 'inverse'"),
        ({"short_side": (200, 256)}, r"not below `size=224`.* got \(200, 256\)"),
    ],
)
def test_bad_sampling(arguments, message):
    with pytest.raises(ValueError, match=message):
        ClipSampling(**{"frames": 32, "size": 224, "stride": 2, **arguments})
