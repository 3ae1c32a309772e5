from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from lightning_multigrid.pixels import PackedCrops, YuvClip, YuvFormat, resample_clips
from lightning_multigrid.pixels import packed as packed
from lightning_multigrid.pixels import resample as resample
from tests.helpers.operations import Operations

IDENTITY = {"mean": (0.0, 0.0, 0.0), "std": (1 / 255, 1 / 255, 1 / 255)}  # leaves the values of the pixels alone


def random_crop(frames: int, height: int, width: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (frames, height, width, 3), dtype=torch.uint8, generator=generator)


def bilinear(image: np.ndarray, size: int) -> np.ndarray:
    """One output pixel after the other, from the definition: points at the centres of `size` x `size` equal areas."""
    height, width = image.shape
    out = np.empty((size, size))
    for i in range(size):
        for j in range(size):
            y = min(max((i + 0.5) * height / size - 0.5, 0), height - 1)
            x = min(max((j + 0.5) * width / size - 0.5, 0), width - 1)
            top, left = int(y), int(x)
            bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
            v, u = y - top, x - left
            out[i, j] = (1 - v) * ((1 - u) * image[top, left] + u * image[top, right]) + v * (
                (1 - u) * image[bottom, left] + u * image[bottom, right]
            )
    return out


@pytest.mark.parametrize(("height", "width"), [(23, 23), (9, 9), (17, 31), (1, 1), (16, 16)])
def test_equals_bilinear_interpolation_by_definition(height: int, width: int) -> None:
    crop = random_crop(2, height, width)
    clip = resample_clips([crop], 16, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))[0]
    for channel, (mean, std) in enumerate([(0.1, 0.5), (0.2, 0.6), (0.3, 0.7)]):
        for frame in range(2):
            expected = (bilinear(crop[frame, :, :, channel].numpy(), 16) / 255 - mean) / std
            np.testing.assert_allclose(clip[channel, frame].numpy(), expected, atol=1e-4)


def test_antialias_equals_pillow() -> None:
    crop = random_crop(1, 50, 50)
    clip = resample_clips([crop], 16, antialias=True, **IDENTITY)[0]
    for channel in range(3):
        image = Image.fromarray(crop[0, :, :, channel].numpy().astype(np.float32))
        expected = np.asarray(image.resize((16, 16), Image.Resampling.BILINEAR))
        np.testing.assert_allclose(clip[channel, 0].numpy(), expected, atol=1e-2)


def test_black_and_white_under_the_default_normalisation() -> None:
    black, white = torch.zeros(1, 7, 7, 3, dtype=torch.uint8), torch.full((1, 7, 7, 3), 255, dtype=torch.uint8)
    clips = resample_clips([black, white], 5)
    torch.testing.assert_close(clips[0], torch.full((3, 1, 5, 5), -2.0))  # (0 - 0.45) / 0.225
    torch.testing.assert_close(clips[1], torch.full((3, 1, 5, 5), 0.55 / 0.225))


@pytest.mark.parametrize("antialias", [False, True])
def test_flipping_twice_changes_nothing(antialias: bool) -> None:
    crop = random_crop(2, 21, 30)
    once = resample_clips([crop], 16, flips=[True], antialias=antialias, **IDENTITY)
    twice = once.flip(-1)
    torch.testing.assert_close(twice, resample_clips([crop], 16, antialias=antialias, **IDENTITY), atol=1e-2, rtol=0)


def test_clips_do_not_see_each_other() -> None:
    crops = [random_crop(3, side, side + seed, seed) for seed, side in enumerate([20, 31, 20, 9])]
    flips = [True, False, True, False]
    together = resample_clips(crops, 16, flips=flips)
    alone = [resample_clips([crop], 16, flips=[flip]) for crop, flip in zip(crops, flips, strict=True)]
    assert torch.equal(together, torch.cat(alone))


# --- All at once, as on a GPU ---


def random_yuv(frames: int, height: int, width: int, top: int, left: int, **colours: Any) -> YuvClip:
    format = YuvFormat(frames, height, width, top, left, **colours)
    return format.view(random_crop(1, 1, format.nbytes).flatten()[: format.nbytes])


def mixed_crops() -> list[Tensor | YuvClip]:
    return [
        *(random_crop(2, height, width) for height, width in [(23, 23), (9, 30), (1, 1), (40, 16)]),
        random_yuv(2, 23, 23, 0, 1),
        random_yuv(2, 9, 30, 1, 1, matrix="bt709"),
        random_yuv(2, 1, 1, 1, 0),
        random_yuv(2, 40, 16, 0, 0, matrix="bt709", full_range=True),
    ]


def together(crops: Any, size: int, flips: list[bool], **normalisation: Any) -> Tensor:
    """Crops resampled as on a GPU."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(resample, "_ONE_BY_ONE", set())
        return resample_clips(crops, size, flips=flips, **normalisation)


@pytest.mark.parametrize("size", [1, 16, 37])
@pytest.mark.parametrize("kind", [slice(4), slice(4, 8), slice(8)], ids=["rgb", "yuv", "both"])
def test_crops_resampled_together_are_those_resampled_alone(kind: slice, size: int) -> None:
    crops, flips = mixed_crops()[kind], ([True, False] * 4)[kind]
    for turn in (flips, flips[::-1]):
        one, other = together(crops, size, turn, **IDENTITY), resample_clips(crops, size, flips=turn, **IDENTITY)
        torch.testing.assert_close(one, other, atol=2e-3, rtol=0)


@pytest.mark.parametrize("make", [random_crop, partial(random_yuv, top=0, left=1)], ids=["rgb", "yuv"])
def test_any_number_of_crops_takes_as_many_operations(make: Callable[[int, int, int], Tensor | YuvClip]) -> None:
    """On a GPU each costs about the same, however small. A worker sends crops packed."""
    numbers = set()
    for clips in (3, 9, 128):
        crops = [make(2, 20 + clip % 5, 21) for clip in range(clips)]
        apart = PackedCrops.of(crops)
        whole = PackedCrops([torch.cat(apart.pieces)], apart.formats)
        with Operations() as operations:
            clip = together(whole, 16, [True] * clips)
        numbers.add(operations.number)
        torch.testing.assert_close(clip, resample_clips(crops, 16, flips=[True] * clips), atol=1e-3, rtol=0)
    assert len(numbers) == 1
    assert max(numbers) < 30


def parts_of(crops: list[Tensor | YuvClip]) -> list[range]:
    return [range(len(crops))[block.part] for block in PackedCrops.of(crops).blocks()]


def test_blocks_are_of_one_kind_and_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "_MOST_VALUES", 3 * 3 * 2 * 40 * 30)  # three crops of the largest sides
    crops = [*mixed_crops()[:4], *mixed_crops()[4:], *mixed_crops()[:1]]
    assert parts_of(crops) == [range(3), range(3, 4), range(4, 7), range(7, 8), range(8, 9)]
    flips = [True, False, True, False, False, True, False, True, True]
    torch.testing.assert_close(together(crops, 16, flips), resample_clips(crops, 16, flips=flips), atol=1e-3, rtol=0)


def test_packed_crops_are_the_crops() -> None:
    crops = mixed_crops()
    again = PackedCrops.of(crops)
    assert len(again) == 8
    assert PackedCrops.of(again) is again
    for crop, same in zip(crops, again, strict=True):
        assert type(crop) is type(same)
        ours, theirs = (one.data if isinstance(one, YuvClip) else one for one in (crop, same))
        assert torch.equal(ours, theirs)
    assert torch.equal(resample_clips(again, 16), resample_clips(crops, 16))
    lengths = PackedCrops.of([random_crop(2, 8, 8), random_crop(3, 8, 8)])
    with pytest.raises(ValueError, match="one length, got crops of 2 and 3 frames"):
        resample_clips(lengths, 4)


def test_other_devices_than_the_cpu_have_the_same_clips() -> None:
    """By their shapes alone; with values where there is a GPU."""
    crops = [
        crop.format.view(crop.data.to("meta")) if isinstance(crop, YuvClip) else crop.to("meta")
        for crop in mixed_crops()
    ]
    clips = resample_clips(crops, 16, flips=[True] * 8)
    assert (clips.shape, clips.device.type) == ((8, 3, 2, 16, 16), "meta")


@pytest.mark.cuda
@pytest.mark.parametrize("antialias", [False, True])
def test_gpu_equals_cpu(antialias: bool) -> None:
    crops, flips = mixed_crops(), [True, False] * 4
    expected = resample_clips(crops, 16, flips=flips, antialias=antialias)
    on_gpu = [crop.format.view(crop.data.cuda()) if isinstance(crop, YuvClip) else crop.cuda() for crop in crops]
    actual = resample_clips(on_gpu, 16, flips=flips, antialias=antialias)
    assert actual.is_cuda
    torch.testing.assert_close(actual.cpu(), expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"flips": [True]}, "`flips` must have one entry per crop: got 1 for 2 crops"),
        ({"std": (0.2, 0.2, 0.0)}, "`std` above 0; got mean=.* and std=.*0.0"),
        ({"mean": (0.5,)}, "must have 3 entries"),
        ({"crops": [random_crop(2, 8, 8), random_crop(3, 8, 8)]}, "one length, got crops of 2 and 3 frames"),
        ({"crops": [random_crop(2, 8, 8).movedim(3, 0)]}, r"must be frames x height x width x 3, got \(3, 2, 8, 8\)"),
        ({"crops": [torch.empty(2, 0, 8, 3, dtype=torch.uint8)]}, r"must be frames x height .* got \(2, 0, 8, 3\)"),
        ({"crops": [random_crop(2, 8, 8), torch.zeros(2, 8, 8, 3)]}, "must be uint8, got torch.float32 for crop 1"),
    ],
)
def test_bad_values(arguments: dict[str, object], message: str) -> None:
    valid = {"crops": [random_crop(2, 8, 8)] * 2, "size": 4}
    with pytest.raises((ValueError, TypeError), match=message):
        resample_clips(**{**valid, **arguments})  # type: ignore[arg-type]
