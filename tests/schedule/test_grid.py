import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_multigrid.schedule.grid import BatchShape, frame_indices, short_side_range, span, stride_range


@pytest.mark.parametrize(
    ("frames", "size", "clips"),
    # Sec. 3.2: 8B, 4B, 2B, B on the long cycle; 2x and 4x more on the short cycle.
    [(8, 158, 8 * 64), (16, 158, 4 * 64), (16, 224, 2 * 64), (32, 224, 64), (8, 112, 16 * 64), (32, 112, 4 * 64)],
)
def test_equation_1_gives_the_published_batch_sizes(frames, size, clips):
    assert BatchShape(64, 32, 224).rescaled(frames, size) == BatchShape(clips, frames, size)


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 320), st.integers(1, 64), st.integers(1, 320))
def test_rescaled_has_at_least_one_clip_and_about_the_same_points(clips, frames, size, t, s):
    shape = BatchShape(clips, frames, size)
    rescaled = shape.rescaled(t, s)
    assert rescaled.clips >= 1
    exact = clips * frames * size**2 / (t * s**2)
    # The factor is rounded: off by half a baseline mini-batch where there are more clips, by half a clip where fewer.
    assert abs(rescaled.clips - exact) <= max(1, clips / 2)


@pytest.mark.parametrize("name", ["clips", "frames", "size"])
def test_shapes_refuse_bad_numbers(name):
    good = {"clips": 1, "frames": 1, "size": 1}
    with pytest.raises(ValueError, match=f"`{name}` must be at least 1, got -2"):
        BatchShape(**good | {name: -2})
    with pytest.raises(TypeError, match=rf"`{name}` must be an integer, got 1\.5"):
        BatchShape(**good | {name: 1.5})
    with pytest.raises(TypeError, match=f"`{name}` must be an integer, got True"):
        BatchShape(**good | {name: True})


def test_strides_are_the_papers():
    # Sec. 4: t frames with random stride in [2, 2 T/t].
    assert [stride_range(t, 32, 2) for t in (8, 16, 32)] == [(2, 8), (2, 4), (2, 2)]
    assert stride_range(3, 13, 1) == (1, 4)  # 13/3, rounded down


@given(st.integers(1, 64), st.integers(1, 8), st.data())
def test_no_clip_spans_more_than_a_baseline_clip(baseline_frames, stride, data):
    frames = data.draw(st.integers(1, baseline_frames))
    for chosen in stride_range(frames, baseline_frames, stride):
        assert stride <= chosen
        assert span(frames, chosen) <= span(baseline_frames, stride)


def test_short_side_is_the_papers_for_224_and_in_proportion_for_others():
    assert short_side_range(224, 224) == (256, 340)
    assert short_side_range(112, 224) == (128, 340)
    assert short_side_range(320, 320) == (256 * 320 / 224, 340 * 320 / 224)
    low, high = short_side_range(64, 64)
    assert 64 / low == pytest.approx(0.875)  # a crop is 7/8 to 2/3 of the short side
    assert 64 / high == pytest.approx(224 / 340)


def test_frame_indices_repeat_the_ends_of_the_video():
    assert frame_indices(length=10, frames=5, stride=3, start=-1) == [0, 2, 5, 8, 9]
