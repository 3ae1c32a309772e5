import random
from collections import namedtuple
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.nn.functional import interpolate
from torch.utils.data import ConcatDataset, Dataset, Subset

from lightning_multigrid.loading import FixedClips, SampleParts, clip_dataset, seeded
from lightning_multigrid.loading.requests import ClipRequest, read_clips

Pair = namedtuple("Pair", "clip label")


def request(frames=4, size=6, seed=0, index=0):
    return ClipRequest(index, frames, size, seed)


def reduce_clip(clip, request, layout="CTHW"):
    return SampleParts(layout).reduced(clip, request)


def numbered_frames(frames=16, size=8):
    """A clip C x T x H x W whose pixels are the number of their frame."""
    return torch.arange(frames).float().view(1, frames, 1, 1).expand(3, frames, size, size)


def test_frames_are_taken_at_the_largest_stride_within_the_clip_and_every_choice_occurs():
    seen = set()
    for seed in range(400):
        taken = reduce_clip(numbered_frames(), request(4, 8, seed))[0, :, 0, 0].long().tolist()
        (stride,) = {b - a for a, b in pairwise(taken)}
        assert taken[0] >= 0
        assert taken[-1] < 16
        seen.add((stride, taken[0]))
    assert seen == {(4, start) for start in range(4)}


def test_what_a_dataset_draws_first_tells_nothing_of_the_start():
    class Jittered(Dataset):
        def __getitem__(self, index):
            return numbered_frames() + 100 * random.randint(0, 3), 0

        def __len__(self):
            return 1

    clips, seen = FixedClips(Jittered()), set()
    for seed in range(400):
        first = int(clips.read_clip(request(4, 8, seed))[0][0, 0, 0, 0])
        seen.add(divmod(first, 100))
    assert seen == {(jitter, start) for jitter in range(4) for start in range(4)}


def test_pixels_are_resized_bilinearly_and_keep_the_aspect_ratio():
    clip = torch.rand(3, 5, 8, 12)
    small = reduce_clip(clip, request(5, 4))
    assert small.shape == (3, 5, 4, 6)
    assert torch.equal(small[:, 2], interpolate(clip[None, :, 2], size=(4, 6), mode="bilinear")[0])


@pytest.mark.parametrize("layout", ["CTHW", "TCHW", "THWC", "HWTC"])
def test_every_layout_gives_the_same_clip(layout):
    clip = torch.rand(3, 8, 10, 12)
    order = ["CTHW".index(axis) for axis in layout]
    reduced = reduce_clip(clip.permute(order), request(4, 5, seed=3), layout)
    assert torch.allclose(reduced, reduce_clip(clip, request(4, 5, seed=3)).permute(order))
    assert reduced.is_contiguous()


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("f4", lambda clip: clip[:, ::-1, :, ::-1]),
        ("u1", np.flip),
        (">f4", lambda clip: clip),
        (">f8", lambda clip: clip[..., ::-1]),
        ("f4", lambda clip: np.rec.fromarrays([clip, clip.astype("u1")], names="pixels,mask").pixels),
    ],
)
def test_arrays_of_any_strides_and_byte_order_are_reduced_as_their_values(kind, change):
    """As a plain training takes them, if its `collate_fn` copies them."""
    clip = change((255 * np.random.default_rng(0).random((3, 8, 10, 12))).astype(kind))
    reduced = reduce_clip(clip, request(4, 5))
    same_values = torch.tensor(clip.astype(clip.dtype.newbyteorder("=")).tolist()).to(torch.float64)
    expected = reduce_clip(same_values, request(4, 5))
    assert reduced.dtype == clip.dtype
    assert np.allclose(reduced, expected, atol=1 if kind == "u1" else 1e-3)


def test_what_follows_a_clip_may_be_in_any_byte_order_too():
    follow = {"boxes": "Nxyxy", "moments": "Tt"}
    sample = {"clip": torch.rand(3, 4, 8, 8), "boxes": np.array([[0, 2, 4, 8]], dtype=">f4"), "moments": np.arange(4)}
    reduced = SampleParts(follow=follow).reduced(sample | {"moments": np.arange(4)[::-1]}, request(4, 4))
    assert reduced["boxes"].tolist() == [[0, 1, 2, 4]]
    assert reduced["moments"].tolist() == [3, 2, 1, 0]


class Samples(Dataset):
    def __init__(self, wrap):
        self.wrap = wrap

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return self.wrap(torch.full((3, 8, 8, 8), float(index)), index)


def test_baseline_shape_is_read_off_a_sample():
    clips = FixedClips(Samples(lambda clip, label: (clip[:, :, :, :6], label)), layout="CTHW")
    assert (len(clips), clips.frames, clips.size, clips.stride) == (3, 8, 6, 1)


@pytest.mark.parametrize(
    ("axes", "layout"), [("CHW", None), ("HWC", None), ("CHW", "CHW"), ("HWC", "HWC"), ("WCH", "WCH")]
)
def test_an_image_is_a_clip_of_one_frame(axes, layout):
    image = torch.rand(3, 70, 80)
    stored = image.permute(["CHW".index(axis) for axis in axes])
    images = FixedClips(Samples(lambda clip, label: (stored, label)), layout)
    assert (images.frames, images.size) == (1, 70)
    small, label = images.read_clip(request(frames=1, size=35, index=2))
    back = small.permute([axes.index(axis) for axis in "CHW"])
    assert torch.allclose(back, interpolate(image[None], size=(35, 40), mode="bilinear")[0])
    assert label == 2


class MiniBatches(Samples):
    def __getitems__(self, indices):
        return {"clip": torch.stack([self[index][0] for index in indices])}


def test_a_dataset_that_makes_mini_batches_itself_is_refused():
    with pytest.raises(ValueError, match="MiniBatches: `__getitems__` must return a list of samples, got dict"):
        FixedClips(MiniBatches(lambda clip, label: (clip, label)))


def test_a_clip_goes_before_an_image():
    clips = FixedClips(Samples(lambda clip, label: (torch.rand(3, 20, 20), clip, label)))
    assert (clips.frames, clips.size) == (8, 8)
    poster, clip, _ = clips.read_clip(request(4, 4))
    assert (poster.shape, clip.shape) == ((3, 20, 20), (3, 4, 4, 4))


class Several(Dataset):
    """Clips of other lengths and sizes than the first one."""

    shapes = ((3, 8, 24, 32), (3, 20, 24, 32), (3, 5, 48, 40), (3, 8, 24, 32))

    def __len__(self):
        return len(self.shapes)

    def __getitem__(self, index):
        return torch.rand(self.shapes[index])


def test_clips_of_other_lengths_and_sizes_stay_on_the_baselines_grid_and_shrink_by_the_same_factors():
    several = FixedClips(Several(), layout="CTHW")
    assert (several.frames, several.size) == (8, 24)
    assert [tuple(several.read_clip(request(8, 24, index=index)).shape) for index in range(4)] == list(Several.shapes)
    half = [tuple(several.read_clip(request(4, 12, index=index)).shape) for index in range(4)]
    assert half == [(3, 4, 12, 16), (3, 10, 12, 16), (3, 2, 24, 20), (3, 4, 12, 16)]
    assert several.read_clip(request(1, 24, index=2)).shape[1] == 1  # never none


def test_a_smaller_clip_keeps_its_ratio_in_multiples_of_its_own():
    """The divisor is the longest clip's: heat maps at a quarter of its size stay a quarter."""
    sample = {"video": torch.rand(2, 3, 128, 160), "heat": torch.rand(4, 32, 40), "odd": torch.rand(4, 48, 60)}
    maps = FixedClips([sample], clips={"video": "TCHW", "heat": "KHW", "odd": "KHW"})
    maps.divisor = 32
    for size, video, heat, odd in ((96, (96, 128), (24, 32), (36, 48)), (64, (64, 64), (16, 16), (24, 24))):
        found = maps.read_clip(request(2, size))
        assert [tuple(found[name].shape[-2:]) for name in sample] == [video, heat, odd]


def test_random_state_is_given_back():
    def draw():
        return torch.rand(1).item(), np.random.rand(), random.random()

    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    expected = draw()
    torch.manual_seed(1), np.random.seed(1), random.seed(1)

    def fail():
        with seeded(7):
            draw()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert draw() == expected


def test_refusals():
    with pytest.raises(ValueError, match="Samples: A sample must hold a clip: a tensor of four axes"):
        FixedClips(Samples(lambda clip, label: (clip[0, 0], label)))
    message = r"got tuple with a tensor of 1 x 3 x 8 x 8 x 8. If that is a clip, name its axes, .*clips=\{0: 'NCTHW'\}"
    with pytest.raises(ValueError, match=message):
        FixedClips(Samples(lambda clip, label: (clip[None], torch.tensor(label))))
    # As images, the frames of these clips would be taken for channels.
    message = "a tensor of 8 x 8 x 8, which may be an image or the frames of a clip. Images need 1 or 3 channels"
    with pytest.raises(ValueError, match=message):
        FixedClips(Samples(lambda clip, label: (clip[0], label)))
    with pytest.raises(ValueError, match="Samples: A sample must hold a clip"):
        FixedClips(Samples(lambda clip, label: (clip, label)), layout="CHW")
    with pytest.raises(ValueError, match="The grid needs 9 frames, but the clip has 4. Clips must have one length"):
        reduce_clip(torch.rand(3, 4, 8, 8), request(9, 8))


class Read(Dataset):
    """A `ClipDataset` whose labels are the indices."""

    frames, size, stride = 4, 8, 1

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return self.read_clip(ClipRequest(index, 4, 8, seed=0))

    def read_clip(self, request):
        return torch.zeros(3, request.frames, request.size, request.size), request.index


class ReadMany(Read):
    def read_clips(self, requests):
        return [self.read_clip(request) for request in requests]


class OtherClip(ReadMany):
    def read_clip(self, request):
        return relabelled(super().read_clip(request))


def relabelled(sample):
    clip, label = sample
    return clip, label + 100


class Relabelled:
    """A `__getitem__` before that of another class."""

    def __getitem__(self, index):
        return relabelled(super().__getitem__(index))

    def __getitems__(self, indices):
        return [self[index] for index in indices]


class OtherSample(Relabelled, ReadMany): ...


class OtherSubset(Relabelled, Subset): ...


class OtherConcat(Relabelled, ConcatDataset): ...


class Wrapped(Dataset):
    """Passes on the attributes of what it wraps."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __getattr__(self, name):
        if name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        return relabelled(self.dataset[index])


class Reads:
    frames, size, stride = 4, 8, 1
    __len__, read_clip = Read.__len__, Read.read_clip


class Mixed(Dataset, Reads):
    """The `__getitem__` before its `read_clip` is that of torch, which only raises."""


class PlainSubset(Subset):
    """Adds nothing to the samples."""


@pytest.mark.parametrize(
    ("dataset", "labels", "forwarded"),
    [
        (Read(), [0, 5], True),
        (ReadMany(), [0, 5], True),
        (Mixed(), [0, 5], True),
        (PlainSubset(ReadMany(), range(6)), [0, 5], True),
        (ConcatDataset([Read(), ReadMany()]), [0, 5], True),
        (OtherClip(), [100, 105], True),
        (OtherSample(), [100, 105], False),
        (OtherSubset(ReadMany(), range(6)), [100, 105], False),
        (OtherConcat([Read()]), [100, 105], False),
        (Wrapped(Read()), [100, 105], False),
        (Subset(Wrapped(Read()), range(6)), [100, 105], False),
    ],
)
def test_samples_are_those_of_the_script_whatever_wraps_a_clip_dataset(dataset, labels, forwarded):
    known = clip_dataset(dataset)
    assert (known is not None) == forwarded
    samples = read_clips(known or FixedClips(dataset), [ClipRequest(index, 2, 4, seed=0) for index in (0, 5)])
    assert [label for _, label in samples] == labels
    assert all(clip.shape == (3, 2, 4, 4) for clip, _ in samples)
