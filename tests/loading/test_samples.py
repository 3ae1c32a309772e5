"""Samples of several parts: all clips by one draw, what follows them by the same frames and the same resize."""

from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision import tv_tensors

from lightning_multigrid.loading import ClipRequest, FixedClips, SampleParts

Pair = namedtuple("Pair", "clip mask")


def numbered(frames, every=1, height=8, width=8, axes="CTHW"):
    """A clip whose pixels are the number of the source frame that they show, one in `every`."""
    numbers = torch.arange(frames).float() * every
    return numbers.view(1, -1, 1, 1).expand(3, frames, height, width).permute(["CTHW".index(axis) for axis in axes])


def shown(clip, axes="CTHW"):
    """The source frames that a clip shows."""
    return clip.permute([axes.index(axis) for axis in "TCHW"])[:, 0, 0, 0].round().long().tolist()


def reduce(sample, frames, size, seed=0, **parts):
    return SampleParts(**parts).reduced(sample, ClipRequest(0, frames, size, seed))


@st.composite
def layouts(draw):
    return "".join(draw(st.permutations("CTHW")))


# --- Clips ---


@settings(max_examples=60, deadline=None)
@given(
    axes=st.tuples(layouts(), layouts()),
    slow=st.integers(1, 4),
    alpha=st.sampled_from([1, 2, 4]),
    share=st.integers(1, 4),
    seed=st.integers(0, 2**62),
)
def test_pathways_show_the_same_moments_and_keep_their_ratio(axes, slow, alpha, share, seed):
    share = min(share, slow)
    sample = {"fast": numbered(slow * alpha, axes=axes[0]), "slow": numbered(slow, alpha, axes=axes[1])}
    parts = {"clips": {"slow": axes[1], "fast": axes[0]}}
    reduced = reduce(sample, share * alpha, 4, seed, **parts)
    fast, slow = shown(reduced["fast"], axes[0]), shown(reduced["slow"], axes[1])
    assert len(fast) == share * alpha
    assert slow == fast[::alpha]  # as in the sample
    assert len({second - first for first, second in pairwise(fast)}) <= 1


def test_clips_of_other_sizes_keep_the_ratio():
    sample = {"large": torch.rand(3, 8, 32, 48), "small": torch.rand(3, 8, 16, 24), "depth": torch.rand(8, 16, 24)}
    reduced = reduce(sample, 4, 16, clips={"large": "CTHW", "small": "CTHW", "depth": "THW"})
    assert [tuple(clip.shape) for clip in reduced.values()] == [(3, 4, 16, 24), (3, 4, 8, 12), (4, 8, 12)]


def test_axes_that_stay_and_axes_without_channels_are_resized_like_a_clip():
    clip = torch.rand(3, 8, 8, 8)
    expected = reduce(clip, 4, 4, seed=3)
    views = reduce({"views": torch.stack([clip, 1 - clip])}, 4, 4, seed=3, clips={"views": "VCTHW"})["views"]
    torch.testing.assert_close(views, torch.stack([expected, 1 - expected]))
    depth = reduce([clip[0]], 4, 4, seed=3, clips={0: "THW"})[0]
    torch.testing.assert_close(depth, expected[0])


@settings(max_examples=60, deadline=None)
@given(slow=st.integers(1, 12), alpha=st.integers(1, 4), share=st.integers(1, 12), seed=st.integers(0, 2**62))
def test_whole_clips_are_spanned_evenly_and_end_with_their_last_frame(slow, alpha, share, seed):
    share = min(share, slow)
    sample = {"slow": numbered(slow), "fast": numbered(slow * alpha)}
    reduced = reduce(sample, share * alpha, 8, seed, clips=["slow", "fast"], whole_span=True)
    for name, clip in reduced.items():
        frames, taken = sample[name].shape[1], shown(clip)
        assert taken[-1] == frames - 1
        # Each frame stands for itself and those before it, since the one that stays before: as many, within one.
        strides = [later - frame for frame, later in pairwise([-1, *taken])]
        assert max(strides) - min(strides) <= 1
    assert (reduced["fast"] is sample["fast"]) == (share == slow)


def test_an_image_beside_a_clip_is_only_resized():
    video, key = reduce((torch.rand(3, 8, 8, 8), torch.rand(3, 8, 8)), 2, 4, clips=[0, 1])
    assert (video.shape, key.shape) == ((3, 2, 4, 4), (3, 4, 4))


def test_the_ratio_of_frames_that_a_grid_cannot_keep_is_refused():
    clips = FixedClips([{"slow": numbered(8), "fast": numbered(32)}], clips=["slow", "fast"])
    assert (clips.frames, clips.size) == (32, 8)
    assert clips.read_clip(ClipRequest(0, 12, 8, 0))["slow"].shape[1] == 3
    message = (
        "The clips of a sample, of 8 and 32 frames, can't keep this ratio on a grid of 10 frames. Give `long_cycle` "
        "factors that make the frames a multiple of 4"
    )
    with pytest.raises(ValueError, match=message):
        clips.read_clip(ClipRequest(0, 10, 8, 0))


# --- Where parts are ---

CLIP, MASK = torch.rand(3, 8, 8, 8), torch.zeros(8, 8, 8, dtype=torch.long)
Grown = type("Grown", (dict,), {})


@pytest.mark.parametrize(
    ("sample", "clip", "mask", "read"),
    [
        ({"video": CLIP, "mask": MASK, "y": 1}, "video", "mask", lambda s: (s["video"], s["mask"])),
        ((CLIP, MASK, 1), 0, 1, lambda s: s[:2]),
        ([CLIP, MASK, 1], "0", "1", lambda s: s[:2]),
        (Pair(CLIP, MASK), "clip", "mask", tuple),
        (Pair(CLIP, MASK), 0, 1, tuple),
        ((1, {"x": [CLIP]}, {"y": MASK}), "1.x.0", "2.y", lambda s: (s[1]["x"][0], s[2]["y"])),
        ({"a.mp4": CLIP, "b": {"c.npy": MASK}}, "a.mp4", "b.c.npy", lambda s: (s["a.mp4"], s["b"]["c.npy"])),
        (OrderedDict(a=CLIP, b=MASK), "a", "b", lambda s: (s["a"], s["b"])),
        (defaultdict(list, a=CLIP, b=MASK), "a", "b", lambda s: (s["a"], s["b"])),
        (Grown(a=CLIP, b=MASK), "a", "b", lambda s: (s["a"], s["b"])),
        ({"paths": [CLIP], "b": MASK}, "paths", "b", lambda s: (s["paths"][0], s["b"])),
    ],
)
def test_a_name_is_a_key_an_index_an_attribute_or_a_path(sample, clip, mask, read):
    parts = {"clips": [clip], "follow": {mask: "THW"}}
    reduced = reduce(sample, 4, 4, **parts)
    assert type(reduced) is type(sample)
    assert [tuple(part.shape) for part in read(reduced)] == [(3, 4, 4, 4), (4, 4, 4)]
    assert [tuple(part.shape) for part in read(sample)] == [(3, 8, 8, 8), (8, 8, 8)]  # it is the dataset's
    assert reduce(sample, 8, 8, **parts) is sample


def test_a_sample_that_the_collate_fn_leaves_out_passes():
    assert reduce(None, 4, 4, clips=["video"], follow={"mask": "THW"}) is None


# --- What follows ---


@settings(max_examples=60, deadline=None)
@given(
    order=st.permutations("NTHW"),
    frames=st.integers(1, 8),
    size=st.integers(2, 12),
    width=st.integers(12, 20),
    seed=st.integers(0, 2**62),
    dtype=st.sampled_from([torch.bool, torch.uint8, torch.int64, torch.float32, torch.float16]),
)
def test_masks_and_labels_are_those_of_the_same_frames_and_the_nearest_pixels(order, frames, size, width, seed, dtype):
    axes = "".join(order)
    values = torch.randint(2, (2, 8, 12, width)).to(dtype)
    mask = values.permute(["NTHW".index(axis) for axis in axes])
    clip = numbered(8, height=12, width=width)
    sample = {"clip": clip, "mask": mask, "labels": torch.arange(8).numpy(), "list": [*range(8)]}
    follow = {"mask": axes, "labels": "T", "list": "T"}
    reduced = reduce(sample, frames, size, seed, clips=["clip"], follow=follow)
    taken = shown(reduced["clip"])
    assert reduced["labels"].tolist() == reduced["list"] == taken
    assert type(reduced["labels"]) is np.ndarray
    assert reduced["mask"].dtype == dtype
    height, width = reduced["clip"].shape[2:]
    # An independent nearest neighbour that looks where bilinear resizing does.
    expected = torch.nn.functional.interpolate(values[:, taken].float(), (height, width), mode="nearest-exact")
    assert torch.equal(reduced["mask"].permute([axes.index(axis) for axis in "NTHW"]), expected.to(dtype))


def test_numbers_scale_with_the_axis_that_they_are_measured_along():
    clip = torch.rand(3, 4, 20, 40)
    sample = {
        "clip": clip,
        "wide": torch.tensor([[4.0, 4, 2, 2]]),
        "flat": torch.tensor([4.0, 6, 8, 2]),  # two points
        "points": np.array([[[8, 6, 1]]] * 4),  # x, y, visible, per frame
        "lists": [torch.full((frame, 5), 8.0) for frame in range(4)],  # boxes with a score, as many as a frame has
    }
    follow = {"wide": "Nxywh", "flat": "xyxy", "points": "T Nxyv", "lists": "TNxyxys"}
    reduced = reduce(sample, 2, 10, seed=1, clips=["clip"], follow=follow)
    assert reduced["wide"].tolist() == [[2, 2, 1, 1]]
    assert reduced["flat"].tolist() == [2, 3, 4, 1]
    assert reduced["points"].tolist() == [[[4, 3, 1]]] * 2
    assert reduced["points"].dtype == sample["points"].dtype
    assert [len(boxes) for boxes in reduced["lists"]] in ([0, 1], [1, 2], [2, 3], [0, 2], [1, 3])
    assert all(boxes.tolist() == [[4.0, 4, 4, 4, 8]] * len(boxes) for boxes in reduced["lists"])


def test_what_follows_has_the_frames_of_its_own_clip():
    sample = {"fast": numbered(16), "slow": numbered(4, 4), "labels": torch.arange(4) * 4}
    reduced = reduce(sample, 8, 8, seed=2, clips=["fast", "slow"], follow={"labels": "T"})
    assert reduced["labels"].tolist() == shown(reduced["slow"])


@settings(max_examples=100, deadline=None)
@given(
    frames=st.integers(1, 16),
    seed=st.integers(0, 2**62),
    stretch=st.tuples(st.integers(0, 16), st.integers(0, 16)).map(sorted),
    real=st.integers(1, 16),
    whole_span=st.booleans(),
)
def test_numbers_of_frames_count_the_frames_that_stay(frames, seed, stretch, real, whole_span):
    start, end = stretch
    box = torch.tensor([[1.0, 2.0, float(start)]])
    sample = {"clip": numbered(16), "stretch": torch.tensor([[start, end]]), "list": [start, end], "box": box}
    sample |= {"end": np.int64(end), "number": end, "seconds": torch.tensor(float(end)), "real": real}
    follow = {"stretch": "Ntt", "list": "tt", "end": "t", "number": "t", "seconds": "t", "box": "Nxyt", "real": "f"}
    reduced = reduce(sample, frames, 8, seed, clips=["clip"], follow=follow, whole_span=whole_span)
    taken = shown(reduced["clip"])
    within = [place for place, frame in enumerate(taken) if start <= frame < end]
    first, last = reduced["list"]
    assert [*range(first, last)] == within
    assert reduced["stretch"].tolist() == [[first, last]]
    assert reduced["end"] == reduced["number"] == last
    assert type(reduced["end"]) is np.int64
    assert type(reduced["number"]) is int
    assert last - 1 <= reduced["seconds"].item() <= last
    assert abs(reduced["box"][0, 2].item() - first) <= 1
    # Padding is behind what is real, and where it can be, none of it is taken.
    assert reduced["real"] == sum(frame < real for frame in taken) >= 1
    if whole_span:
        assert taken[reduced["real"] - 1] == real - 1
        return
    step = taken[1] - taken[0] if frames > 1 else 1
    assert reduced["real"] == frames or taken[0] == 0
    assert reduced["real"] >= min(frames, 1 + (real - 1) // step)


def test_anything_else_is_a_function_of_the_values_and_of_how_the_clip_changes():
    def camera(matrix, change):
        scale = np.diag([change.width / change.width_before, change.height / change.height_before, 1])
        return scale @ matrix

    def rate(fps, change):
        return fps * len(change.frames) / change.frames_before

    sample = {"clip": numbered(8, height=80, width=160), "K": np.eye(3), "fps": 24.0}
    follow = {"K": camera, "fps": rate}
    reduced = reduce(sample, 4, 20, whole_span=True, follow=follow)
    assert reduced["K"].tolist() == [[0.25, 0, 0], [0, 0.25, 0], [0, 0, 1]]
    assert reduced["fps"] == 12
    assert reduce(sample, 8, 80, follow=follow) is sample


@settings(max_examples=60, deadline=None)
@given(share=st.integers(1, 4), seed=st.integers(0, 2**62), whole_span=st.booleans())
def test_labels_at_a_whole_share_or_a_multiple_of_the_frames_are_those_of_the_same_moments(share, seed, whole_span):
    # One label for four frames, and two for each.
    sample = {"clip": numbered(16), "few": torch.arange(4), "many": [*range(32)], "same": torch.arange(16)}
    follow = {"few": "T", "many": "T", "same": "T"}
    reduced = reduce(sample, 4 * share, 8, seed, follow=follow, whole_span=whole_span)
    taken = shown(reduced["clip"])
    assert reduced["same"].tolist() == taken
    assert reduced["many"] == [2 * frame + part for frame in taken for part in (0, 1)]
    groups = taken[3::4] if whole_span else taken[::4]  # which end, or begin, with the moment
    assert reduced["few"].tolist() == [frame // 4 for frame in groups]
    if taken[1] - taken[0] == 1 and not whole_span:
        assert reduced["few"].repeat_interleave(4).tolist() == [frame // 4 for frame in taken]


@pytest.mark.parametrize("shape", [(3, 16, 25, 2), (3, 16, 17, 1), (16, 25, 3), (3, 16, 25)])
def test_joints_are_not_resized_as_pixels(shape):
    with pytest.raises(ValueError, match="may be joints or landmarks.*`short_cycle=ShortCycle"):
        FixedClips([(torch.rand(shape), 1)])


@pytest.mark.parametrize("shape", [(3, 16, 28, 28), (1, 20, 64, 64), (3, 8, 72, 96), (3, 28, 28)])
def test_ordinary_small_videos_need_no_argument(shape):
    FixedClips([(torch.rand(shape), 1)])


@pytest.mark.parametrize("shape", [(16, 2, 32, 32), (2, 16, 32, 32)])
def test_other_channels_than_1_and_3_need_a_layout(shape):
    with pytest.raises(ValueError, match="no axis of 1 or 3 channels tells its layout.*`layout='CTHW'`"):
        FixedClips([(torch.rand(shape), 1)])
    layout = "TCHW" if shape[0] == 16 else "CTHW"
    assert FixedClips([(torch.rand(shape), 1)], layout=layout).frames == 16


def test_frames_are_those_of_the_longest_clip():
    sample = {"slow": numbered(4, 4), "fast": numbered(16), "end": 8}
    for seed in range(20):
        reduced = reduce(sample, 8, 8, seed, clips=["slow", "fast"], follow={"end": "t"})
        assert reduced["end"] == sum(frame < 8 for frame in shown(reduced["fast"]))


@dataclass(frozen=True)
class Target:
    mask: torch.Tensor
    label: int


def test_parts_of_a_dataclass_are_found_and_follow():
    sample = {"video": CLIP, "target": Target(MASK, 3)}
    with pytest.raises(ValueError, match=r"'target.mask', of 8 x 8 x 8, may belong .*follow=\{'target.mask': 'THW'\}"):
        FixedClips([sample])
    reduced = reduce(sample, 4, 4, follow={"target.mask": "THW"})
    assert (type(reduced["target"]), reduced["target"].label) == (Target, 3)
    assert (reduced["target"].mask.shape, sample["target"].mask.shape) == ((4, 4, 4), (8, 8, 8))


def test_a_mapping_that_can_not_be_written_is_made_anew():
    sample = MappingProxyType({"video": CLIP, "label": 3})
    reduced = reduce(sample, 4, 4)
    assert (type(reduced), [*reduced], reduced["label"]) == (MappingProxyType, ["video", "label"], 3)
    assert (reduced["video"].shape, sample["video"]) == ((3, 4, 4, 4), CLIP)


def test_torchvisions_kinds_stay():
    boxes = tv_tensors.BoundingBoxes([[2, 2, 6, 6]], format="XYXY", canvas_size=(8, 8))
    sample = (tv_tensors.Image(torch.rand(3, 8, 8)), {"boxes": boxes, "mask": tv_tensors.Mask(torch.ones(1, 8, 8))})
    parts = {"clips": [0], "follow": {"1.boxes": "Nxyxy", "1.mask": "NHW"}}
    image, target = reduce(sample, 1, 4, **parts)
    kinds = [type(part) for part in (image, target["boxes"], target["mask"])]
    assert kinds == [tv_tensors.Image, tv_tensors.BoundingBoxes, tv_tensors.Mask]
    assert (target["boxes"].tolist(), target["boxes"].canvas_size) == ([[1, 1, 3, 3]], (4, 4))
    with pytest.raises(ValueError, match=r"'1.boxes', of 1 x 4, may belong to a clip .*follow=\{'1.boxes': 'Nxyxy'\}"):
        FixedClips([sample], clips=[0], follow={"1.mask": "NHW"})


# --- Refusals ---


def test_frames_in_a_list_are_to_be_stacked():
    with pytest.raises(ValueError, match=r"got 4, .* of a clip, stack them: `torch.stack\(frames, 1\)`\. Say"):
        FixedClips([([*CLIP[:, :4].unbind(1)], 1)])


@pytest.mark.parametrize(
    ("sample", "line"),
    [
        ((CLIP, CLIP), r"clips=\[0, 1\]\)"),
        ({"video": CLIP, "mask": MASK[None]}, r"clips=\['video'\], follow=\{'mask': 'CTHW'\}\)"),
        ({"video": {"rgb": CLIP, "depth": CLIP[:1]}}, r"clips=\['video.rgb', 'video.depth'\]\)"),
        (([CLIP, CLIP], (CLIP > 0.5).float()), r"clips=\['0.0', '0.1'\], follow=\{1: 'CTHW'\}\)"),
        # Classes of each pixel, also as MONAI's float32.
        ((CLIP, 5 * (CLIP > 0.5).to(torch.uint8)), r"clips=\[0\], follow=\{1: 'CTHW'\}\)"),
        ((CLIP, 5.0 * (CLIP > 0.5)), r"clips=\[0\], follow=\{1: 'CTHW'\}\)"),
    ],
)
def test_several_clips_are_refused_with_the_line_that_works(sample, line):
    said = r"must hold one clip, got [23], of .* for instance `MultigridCallback\("
    with pytest.raises(ValueError, match=said + line) as error:
        FixedClips([sample])
    written = str(error.value).split("MultigridCallback")[-1].strip("`.")
    FixedClips([sample], **eval(f"dict{written}"))


@pytest.mark.parametrize(
    ("sample", "line"),
    [
        ((CLIP, MASK), r"1, of 8 x 8 x 8, may belong to a clip of 8 x 8 x 8 \(T x H x W\).*follow=\{1: 'THW'\}"),
        ((torch.rand(3, 90, 80), MASK[0, :8, :8], torch.rand(90, 80)), r"2, of 90 x 80, may belong .*follow=\{2: 'HW'"),
        ((torch.rand(3, 8, 90, 80), MASK[0, 0]), r"1, of 8, may belong to a clip of 8 x 90 x 80 \(T x H x W\).*follow"),
        ((torch.rand(3, 5, 6, 6), torch.rand(2, 5)), r"1, of 2 x 5, may belong to a clip .*follow=\{1: 'AT'\}"),
        ((torch.rand(3, 5, 6, 6), 1, [*"abcde"]), r"2, of 5, may belong to a clip .*follow=\{2: 'T'\}"),
        ((torch.rand(3, 5, 6, 6), [torch.rand(n, 4) for n in range(5)]), r"1, of 5, may belong .*follow=\{1: 'T'\}"),
        ((torch.rand(3, 5, 6, 6), torch.zeros(2, 5, 6, 6)[0]), r"1, of 5 x 6 x 6, may belong .*follow=\{1: 'THW'\}"),
    ],
)
def test_a_mask_without_a_name_is_refused_with_the_line_that_works_and_one_that_leaves_it(sample, line):
    with pytest.raises(ValueError, match=line) as error:
        FixedClips([sample])
    written, leave = str(error.value).split("follow=")[1].split(")`, or ")[:2]
    FixedClips([sample], follow=eval(written))
    [name] = eval(written)
    kept = FixedClips([sample], follow={name: eval(leave.split()[0])}).read_clip(ClipRequest(0, 1, 4, 0))[name]
    assert kept is sample[name]


@pytest.mark.parametrize(
    ("sample", "staying"),
    [
        ((CLIP, 8), []),  # a label
        ((CLIP, 3, 0.5), ["1", "2"]),
        ({"video": CLIP, "sound": torch.rand(16_000), "name": "a"}, ["'sound'"]),
        ({"video": CLIP, "label": 8, "boxes": {"scores": np.ones(2)}}, ["'label'", "'boxes.scores'"]),
    ],
)
def test_the_parts_that_stay_on_every_grid_are_known_by_name(sample, staying):
    assert FixedClips([sample]).staying == staying
    assert FixedClips([sample], follow=dict.fromkeys((eval(name) for name in staying), "")).staying == []


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"clips": ["vidoe"]}, r"no part 'vidoe', which MultigridCallback names. It is a dict of 'video', 'mask', 'y'"),
        ({"clips": ["video"], "follow": {"masks": "THW"}}, "no part 'masks', which MultigridCallback names"),
        ({"clips": ["video.rgb"]}, "no part 'rgb', which MultigridCallback names. It is a Tensor of no parts"),
        ({"clips": ["y"]}, "The clip 'y' of a sample must hold tensors or arrays, got 1"),
        ({"clips": {"video": "THW"}}, r"A clip of 3 x 8 x 8 x 8 can't have the axes 'THW'. Name each of its axes"),
        ({"clips": ["video", "mask"]}, r"a tensor of 8 x 8 x 8, which may be an image .*clips=\{'depth': 'THW'"),
        ({"clips": {"mask": "THW"}}, r"clip 'mask' is of torch.int64, but only uint8 .*follow=\{'mask': 'THW'\}"),
        (
            {"clips": ["video"], "follow": {"mask": "CTHW"}},
            r"'mask' of a sample has to follow a clip with the axes 'CTHW', but it is \(8, 8, 8\), and the clip "
            r"\(3, 8, 8, 8\) \(CTHW\)",
        ),
        ({"clips": ["video"], "follow": {"y": "T", "mask": "THW"}}, "'y' of a sample .* but it is 1, and the clip"),
    ],
)
def test_names_and_axes_that_do_not_fit_are_refused(parts, message):
    with pytest.raises(ValueError, match="list: .*" + message):
        FixedClips([{"video": CLIP, "mask": MASK, "y": 1}], **parts)


def test_a_sample_with_other_lengths_than_its_clip_is_refused_whenever_it_is_read():
    samples = [(CLIP, torch.zeros(8)), (CLIP, torch.zeros(7))]
    clips = FixedClips(samples, follow={1: "T"})
    with pytest.raises(ValueError, match=r"1 of a sample has to follow a clip with the axes 'T', but it is \(7,\)"):
        clips.read_clip(ClipRequest(1, 8, 8, 0))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"clips": {"depth": "TH"}}, "`clips` must name each axis of 'depth' by a capital .* got 'TH'"),
        ({"clips": {"depth": "CTHWW"}}, "`clips` must name each axis of 'depth' by a capital .* got 'CTHWW'"),
        ({"clips": {"depth": "thw"}}, "`clips` must name each axis of 'depth' by a capital .* got 'thw'"),
        ({"follow": {"mask": "TH"}}, "`follow` must name each axis of 'mask' .* H and W both or neither, .* got 'TH'"),
        ({"follow": {"mask": "xyT"}}, "`follow` must name each axis of 'mask' .* got 'xyT'"),
        ({"follow": {"mask": "ff"}}, "`follow` takes the letter f alone, .*, got 'ff' for 'mask'"),
        ({"follow": {"mask": "Tf"}}, "`follow` takes .* without axes, got 'Tf' for 'mask'"),
        ({"follow": {"mask": "T*"}}, "`follow` must name each axis of 'mask' .* got"),
        ({"layout": "NCHW"}, "`layout` must name C, T, H and W once, or C"),
    ],
)
def test_bad_axes_are_refused_where_they_are_written(parts, message):
    with pytest.raises(ValueError, match=message):
        SampleParts(**parts)


@pytest.mark.parametrize("clips", ["video", 0, []])
def test_clips_are_a_list(clips):
    with pytest.raises(TypeError, match="`clips` must be a list of names, or a dict of axes by name, got"):
        SampleParts(clips=clips)
