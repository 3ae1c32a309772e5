from itertools import pairwise, product

import numpy as np
import pytest

from lightning_multigrid.video.shape_clips import draw_clip
from tests.helpers.movement import MOVEMENT, movement

SHAPES = ["cross", "ring", "square", "triangle"]
DIRECTIONS = ["down", "left", "right", "up"]
DIFFICULTIES = ["easy", "hard"]
OPPOSITE = {"down": "up", "up": "down", "left": "right", "right": "left"}


def along_and_across(clip, direction):
    """Pixels per frame that a clip moves to a direction, and at right angles to it."""
    down, right = movement(clip)
    sign_down, sign_right = MOVEMENT[direction]
    return (down * sign_down, right) if sign_down else (right * sign_right, down)


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_clip_played_backwards_is_one_of_the_opposite_direction(direction, difficulty):
    """So the two directions have the same frames, and a single frame cannot tell them apart."""
    for shape in SHAPES:
        clip = draw_clip(shape, direction, np.random.default_rng(3), difficulty)
        backwards = draw_clip(shape, OPPOSITE[direction], np.random.default_rng(3), difficulty)
        np.testing.assert_array_equal(clip[::-1], backwards)


def test_where_the_shapes_are_does_not_tell_the_axis_of_the_movement():
    """Over many clips each pixel is covered as often, whatever the direction."""
    share = {}
    for direction in ("right", "down"):
        clips = [draw_clip("square", direction, np.random.default_rng((9, seed))) for seed in range(80)]
        bright = np.stack([clip[::8].max(axis=3) > 127 for clip in clips])
        share[direction] = bright.reshape(-1, 4, 16, 5, 16).mean(axis=(0, 2, 4))
    np.testing.assert_allclose(share["right"], share["down"], atol=0.06)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_move_one_to_two_pixels_per_frame_to_the_direction(shape, direction):
    along, across = along_and_across(draw_clip(shape, direction, np.random.default_rng(5)), direction)
    assert 0.75 <= along <= 2.25
    assert abs(across) <= 0.25


def test_any_crop_of_a_training_shows_a_shape():
    """The smallest crop is 40 pixels of a short side of 340/224 x 40, of 64 pixels in the file: 42 pixels."""
    for seed, shape in enumerate(SHAPES):
        frame = draw_clip(shape, "right", np.random.default_rng(seed))[0].astype(int)
        shown = (np.abs(frame - np.median(frame, axis=(0, 1))).max(axis=2) > 40).astype(int)
        windows = np.lib.stride_tricks.sliding_window_view(shown, (42, 42))
        assert windows.sum(axis=(2, 3)).min() > 30


def difference(shapes, direction, seed):
    """Where two hard clips that differ in their shape only are not the same: T x H x W, in levels."""
    first, second = (draw_clip(s, direction, np.random.default_rng(seed), "hard").astype(int) for s in shapes)
    return np.abs(first - second).max(axis=3)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_hard_shapes_still_move_as_the_label_says_and_the_clutter_tells_nothing_of_the_shape(direction):
    """What differs between a square and a ring is a part of them; beyond the shapes, clips are equal to the pixel."""
    along, across = along_and_across(difference(("square", "ring"), direction, seed=1)[..., None], direction)
    assert 0.5 <= along <= 2.5
    assert abs(across) <= 0.25
    for shapes in pairwise(SHAPES):
        # Four squares of 17 x 17 pixels, the largest, are a quarter of a frame.
        assert 0.005 < (difference(shapes, direction, seed=4) > 0).mean() < 0.25


def test_a_classifier_of_directions_is_right_less_often_than_on_easy_clips():
    """The direction in which a clip is most like itself some frames later."""
    correct = {}
    for difficulty in DIFFICULTIES:
        found = []
        for seed, (_, shape, direction) in enumerate(product(range(2), SHAPES, DIRECTIONS)):
            clip = draw_clip(shape, direction, np.random.default_rng((seed, 1)), difficulty)
            along, across = along_and_across(clip, direction)
            found.append(along > max(0.5, abs(across)))
        correct[difficulty] = np.mean(found)
    assert correct["easy"] == 1
    assert correct["hard"] < 0.9
