"""`VideoClips`: the clips of videos on disk as a dataset for a script's own loader."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_multigrid.clips import CENTRE, Clip, ClipSampling, VideoDataset, ViewDataset, cut_out
from lightning_multigrid.files import StrPath, require
from lightning_multigrid.loading import ClipRequest, derive_seed, seeded
from lightning_multigrid.pixels import resample_clips
from lightning_multigrid.sources import Manifest, ManifestError, Source, VideoList, VideoSource, read_classes
from lightning_multigrid.video.broken_videos import warn_of
from lightning_multigrid.video.frame_tables import make_tables, with_tables

_FATES = {
    True: "Another video takes its place.",
    False: "Another video takes its place, and counts twice in metrics. Take the broken one out of the list.",
}


class VideoClips(Dataset[tuple[Tensor, Any]]):
    """Clips of videos for a `DataLoader` of one's own: samples are `(clip, label)`.

    In a script, `VideoClips("train.csv", frames=16, size=112, stride=4)` replaces its own dataset. A clip is
    C x T x H x W. The loader's workers decode its frames and resample them. With a `MultigridCallback` they decode only
    what the grid of a mini-batch needs. Without it, or without Lightning, all clips are the baseline's.

    A label is a class id (int), or if videos may have several, a float vector of zeros and ones. Training clips are
    drawn as in `VideoDataModule`, by torch's random state. Warnings name broken and damaged videos as there, and
    another video takes the place of a broken one.

    Args:
        source: The videos, as `train` of `VideoDataModule`.
        frames: Frames per clip (T).
        size: Height and width of a clip, in pixels (S).
        stride: Temporal stride, in source frames, or in frames at `frame_rate`.
        train: Whether clips are random ones for training, or the fixed one of validation: the centre of the video.
        classes: The names of the classes in the order of their labels, or a file with one on each line; by default the
            sorted ones of `source`. If it has names, `train=False` needs `classes` of the training's `VideoClips`.
        transform: Gets each clip at its final size, T x C x H x W as in torchvision's `v2`, and returns one of as many
            frames and pixels. It draws from the random state of torch, NumPy or Python, which is seeded for each clip.
        dtype: `torch.float32` for values from 0 to 1, or `torch.uint8` for 0 to 255, a quarter of the bytes.
        sampling: As in `VideoDataModule`; so are `short_side`, `frame_rate` and `flip`.
        short_side: Smallest and largest short side that a frame is resized to before the random crop, in pixels.
        frame_rate: Frames per second in which `stride` counts; None counts each video's own frames.
        flip: Mirror half of the training clips. Turn it off where left and right have a meaning.
        index: As in `VideoDataModule`; the tables are made now.

    Attributes:
        manifest: Paths and labels of the videos.

    Raises:
        ValueError: If an argument is outside its range, or videos have no labels or other classes.
        ManifestError: If the source can't be read.
    """

    ways_out = VideoDataset.ways_out

    def __init__(
        self,
        source: Source | Manifest,
        frames: int,
        size: int,
        stride: int = 1,
        *,
        train: bool = True,
        classes: Sequence[str] | StrPath = (),
        transform: Callable[[Tensor], Tensor] | None = None,
        dtype: torch.dtype = torch.float32,
        sampling: Literal["stride", "segments"] = "stride",
        short_side: tuple[float, float] | None = None,
        frame_rate: float | None = None,
        flip: bool = True,
        index: bool | str = True,
    ) -> None:
        require(dtype in (torch.float32, torch.uint8), "dtype", dtype, "torch.float32 or torch.uint8")
        self.frames, self.size, self.stride = frames, size, stride
        self.train, self.transform, self.dtype = train, transform, dtype
        self._sampling = ClipSampling(frames, size, stride, sampling, short_side, flip, frame_rate=frame_rate)
        manifest = _read(source, classes, train)
        make_tables([manifest], index)
        self.manifest = with_tables(manifest, index)
        # In memory that workers share: a warning of any of them is the only one.
        self._named = torch.zeros(len(manifest), 3, dtype=torch.bool).share_memory_()  # type: ignore[no-untyped-call]

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes in the order of their labels; empty if `source` numbers them."""
        return self.manifest.classes

    @property
    def num_classes(self) -> int:
        """The number of `classes`, or if they have no names, the largest label + 1."""
        return self.manifest.num_classes

    def __len__(self) -> int:
        return len(self.manifest)

    def __getitem__(self, index: int) -> tuple[Tensor, Any]:
        seed = int(torch.randint(2**63 - 1, ())) if self.train else int(index)
        return self.read_clip(ClipRequest(int(index), self.frames, self.size, seed))

    def read_clip(self, request: ClipRequest) -> tuple[Tensor, Any]:
        """Returns the sample for a request, of its frames and size.

        Raises:
            BrokenVideosError: If no video could be read in many attempts.
            ValueError: If `transform` changes the number of frames or pixels.
        """
        clip, crop = self._training_clip(request) if self.train else self._centre(request)
        self._warn(clip)
        bytes_out = self.dtype == torch.uint8
        scale = 1 / 255 if bytes_out else 1.0
        [pixels] = resample_clips([crop], clip.size, flips=[clip.flip], mean=(0, 0, 0), std=(scale, scale, scale))
        if bytes_out:
            pixels = pixels.round_().to(torch.uint8)
        return self._transformed(pixels, request), self._label(clip)

    def _training_clip(self, request: ClipRequest) -> tuple[Clip, Any]:
        clip = VideoDataset(self.manifest, self._sampling).read_clip(request)
        return clip, clip.crop

    def _centre(self, request: ClipRequest) -> tuple[Clip, Any]:
        """The clip in the centre of a video: on a coarse grid, it spans as much as the baseline's."""
        sampling = replace(
            self._sampling,
            frames=request.frames,
            size=request.size,
            stride=max(self.stride, self.stride * self.frames // request.frames),
            short_side=self._sampling.short_side_range(request.size),
        )
        clip = ViewDataset(self.manifest, sampling, CENTRE)[request.index]
        return clip, cut_out(clip.crop, clip.views[0])

    def _transformed(self, clip: Tensor, request: ClipRequest) -> Tensor:
        if self.transform is None:
            return clip
        before = clip.transpose(0, 1)
        with seeded(derive_seed(request.seed, 3)):  # another seed than the one that the stride and the start follow
            after = self.transform(before)
        if not isinstance(after, Tensor) or after.ndim != 4 or _grid(after) != _grid(before):
            made = f"{tuple(after.shape)}" if isinstance(after, Tensor) else f"a {type(after).__name__}"
            raise ValueError(
                f"`transform` must keep frames, height and width of a clip, which is T x C x H x W, but it made {made} "
                f"of {tuple(before.shape)}. MultigridCallback asks for clips of other frames and sizes. Leave out what "
                "crops, resizes, takes frames or moves axes: VideoClips does so, by `frames`, `size` and `short_side`."
            )
        return after.transpose(0, 1)

    def _label(self, clip: Clip) -> Any:
        if not self.manifest.multi_label:
            [label] = clip.labels
            return label
        return torch.zeros(self.num_classes).index_fill_(0, torch.tensor(clip.labels, dtype=torch.int64), 1)

    def _warn(self, clip: Clip) -> None:
        for video in clip.broken:
            # A slow video is named once for all.
            at = (0, 2) if video.slow else (clip.index, 1) if video.used_anyway else (video.index, 0)
            if not self._named[at]:
                self._named[at] = True
                warn_of(video, _FATES[self.train], stacklevel=4)


def _grid(clip: Tensor) -> tuple[int, ...]:
    return clip.shape[0], *clip.shape[2:]


def _read(source: Source | Manifest, classes: Sequence[str] | StrPath, train: bool) -> Manifest:
    names = read_classes(classes) if isinstance(classes, str | os.PathLike) else tuple(classes)
    if not isinstance(source, Manifest | VideoSource):
        source = VideoList(source)
    manifest = source if isinstance(source, Manifest) else source.read(names)
    if not manifest.labelled:
        raise ManifestError(
            f"The videos of {manifest.origin} have no labels. Give each line a label, or a folder per class; to "
            "predict, give the videos as `predict` of `VideoDataModule`."
        )
    if not train and manifest.classes and not names:
        raise ValueError(
            f"`classes` must be given with `train=False`, because {manifest.origin} has names for labels, and may lack "
            "some of the training's. Give `classes` of the training's VideoClips, or a file with a name on each line."
        )
    if names and manifest.classes != names:
        raise ValueError(
            f"{manifest.origin} has {len(manifest.classes)} classes of its own that are not the {len(names)} of "
            "`classes`, or not in their order. Prepare all splits together, or give them from one dataset."
        )
    return manifest
