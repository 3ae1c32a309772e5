"""Multi-view testing: the score of a video is made of the scores of several clips and crops of it.

A worker sends frames that views share once, and views become the model's input a few at a time: 30 views of
32 x 256 x 256 are 750 MB as floats, but the 300 frames of 256 x 340 under all of them are 78 MB as bytes.

Legend: B videos, V views of each, T frames and S size of a view.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_multigrid.clips.batch import Clip, ClipBatch
from lightning_multigrid.clips.sampling import ClipSampling, SourceGrid, crop_side, segment_frame
from lightning_multigrid.decode import Box
from lightning_multigrid.files import require
from lightning_multigrid.pixels import YuvClip, to_device
from lightning_multigrid.schedule import frame_indices, span


@dataclass(frozen=True)
class Views:
    """The clips and crops that the score of a video is made of.

    The protocols of the paper and of its code base, for models of 224 pixels:

    | protocol | arguments |
    | --- | --- |
    | Kinetics, 10 views (Sec. 4) | `Views(clips=10)` |
    | Kinetics, 30 views | `Views(clips=10, crops=3, size=256)` |
    | Kinetics, model of 320 pixels | `Views(clips=10, size=320, short_side=352)` |
    | Something-Something V2, and as its code base resizes | `Views(clips=1)`, `Views(clips=1, short_side=224)` |
    | Charades, with the maximum over views | `Views(clips=10, crops=3, size=256, positions="charades")` |

    `positions` has no effect on a single clip, which is the centre of the video. It has none in the sampling mode
    `segments` either: each clip takes its frames at another place of the same segments, a single clip in their middle.

    Args:
        clips: Temporal positions.
        crops: 1 for the centre; 3 for left, centre and right, or top, centre and bottom of an upright frame.
        size: Height and width of a view, in pixels (S); None means the size of a baseline clip.
        short_side: Short side that a frame is resized to before the crop, in pixels. None means that of validation for
            one crop (256 for 224 pixels, in proportion to `size`), and `size` for three.
        positions: How the starts of clips are spread over the d frames that lie before the last possible start:
            `kinetics` takes floor(d i / n) for clip i of n, which never reaches the end; `offset` takes
            i floor(d / (n - 1)), PySlowFast's `USE_OFFSET_SAMPLING`; `charades` takes round(d i / (n - 1)), its last
            clip ending with the last frame.

    Raises:
        ValueError: If one of them is out of range.
    """

    clips: int = 10
    crops: int = 1
    size: int | None = None
    short_side: float | None = None
    positions: Literal["kinetics", "offset", "charades"] = "kinetics"

    def __post_init__(self) -> None:
        require(self.clips >= 1, "clips", self.clips, "at least 1")
        require(self.size is None or self.size >= 1, "size", self.size, "at least 1 pixel, or None")
        require(self.crops in (1, 3), "crops", self.crops, "1 (centre) or 3 (left, centre and right)")
        known = self.positions in ("kinetics", "offset", "charades")
        require(known, "positions", self.positions, "'kinetics', 'offset' or 'charades'")

    @property
    def per_video(self) -> int:
        """Views of each video (V)."""
        return self.clips * self.crops

    def pixels(self, sampling: ClipSampling) -> tuple[int, float]:
        """Size of a view and short side of its frame, in pixels, for a model trained on clips of `sampling`.

        Raises:
            ValueError: If the short side is smaller than the view.
        """
        size = sampling.size if self.size is None else self.size
        usual = size if self.crops == 3 else sampling.short_side_range(size)[0]
        short_side = usual if self.short_side is None else self.short_side
        require(short_side >= size, "short_side", short_side, f"at least the size of a view, {size} pixels")
        return size, short_side

    def grids(self, sampling: ClipSampling, length: int, height: int, width: int) -> tuple[SourceGrid, ...]:
        """Where the views of a video of `length` x `height` x `width` lie in it: all crops of a clip, then the next."""
        size, short_side = self.pixels(sampling)
        side = crop_side(height, width, size, short_side)
        top, left = (height - side) // 2, (width - side) // 2
        corners = [(top, left)]
        if self.crops == 3 and height > width:
            corners = [(0, left), (top, left), (height - side, left)]
        elif self.crops == 3:
            corners = [(top, 0), (top, left), (top, width - side)]
        boxes = [Box(*corner, side, side) for corner in corners]
        clips = [tuple(self._frames(sampling, length, clip)) for clip in range(self.clips)]
        return tuple(SourceGrid(indices, box, flip=False) for indices in clips for box in boxes)

    def _frames(self, sampling: ClipSampling, length: int, clip: int) -> Sequence[int]:
        frames, stride = sampling.frames, sampling.stride
        if sampling.mode == "segments":
            return [segment_frame(length, frames, i, (clip + 0.5) / self.clips) for i in range(frames)]
        spare = max(0, length - span(frames, stride))
        if self.clips == 1:
            start = spare // 2
        elif self.positions == "kinetics":
            start = spare * clip // self.clips
        elif self.positions == "offset":
            start = clip * (spare // (self.clips - 1))
        else:
            # From the first frame to the last, without the frames that the stride skips after it.
            spare = max(0, length - span(frames - 1, stride) - 1)
            start = round(spare * clip / (self.clips - 1))
        return frame_indices(length, frames, stride, start)


CENTRE = Views(clips=1)
"""The view of validation: the centre of the video and of the frame."""


def share_frames(grids: Sequence[SourceGrid]) -> tuple[list[int], Box, tuple[SourceGrid, ...]]:
    """Returns the frames and the box that some grids cover, and the grids as they lie in those."""
    frames = sorted({index for grid in grids for index in grid.indices})
    place = {index: number for number, index in enumerate(frames)}
    boxes = [grid.box for grid in grids]
    top, left = min(box.top for box in boxes), min(box.left for box in boxes)
    bottom, right = max(box.top + box.height for box in boxes), max(box.left + box.width for box in boxes)
    moved = []
    for grid in grids:
        box = grid.box._replace(top=grid.box.top - top, left=grid.box.left - left)
        moved.append(replace(grid, indices=tuple(place[index] for index in grid.indices), box=box))
    return frames, Box(top, left, bottom - top, right - left), tuple(moved)


def cut_out(pixels: Tensor | YuvClip, grid: SourceGrid) -> Tensor | YuvClip:
    """Copies the frames and the box of a grid out of a clip that holds them: T x h x w x 3, or YUV planes."""
    if isinstance(pixels, YuvClip):
        return pixels.cut(grid.indices, *grid.box)
    top, left, height, width = grid.box
    crop = pixels[:, top : top + height, left : left + width]  # first, so that only its pixels are copied
    return crop[to_device(torch.tensor(grid.indices), crop.device)]


def collate_views(videos: Sequence[Clip]) -> ClipBatch:
    """Makes the mini-batch of some videos without the substitutes, so that metrics leave broken videos out.

    If all are substitutes, one stays, as a model needs one. Metrics see from its index that it counts elsewhere.
    """
    own = [video for video in videos if all(tried.used_anyway for tried in video.broken)]
    batch = ClipBatch(own or videos[:1])
    batch.broken = tuple(tried for video in videos for tried in video.broken)
    return batch


class VideoBatch(Sequence[Any]):
    """Videos on the device: the pair `(clips, labels)` for any module, and more for one that knows of views.

    A sequence of two, so that scripts unpack it and Lightning finds the batch size; not a tuple, because the clips are
    made when they are asked for. They are all views at once, B V x 3 x T x S x S with the views of a video next to
    each other. The labels are those of each view's video; without labels, its path. The attribute `labels` is B or
    B x C, None in prediction; `indices` is B, int64; `per_video` is V. `paths` and `stretches`, in s, have an entry for
    each video; `left_out` has those of videos that can't be read, by their indices.
    """

    def __init__(
        self,
        batch: ClipBatch,
        resample: Callable[[list[Tensor | YuvClip], int], Tensor],
        labels: Tensor | None,
        paths: Sequence[str],
        stretches: Sequence[tuple[float, float]],
        classes: tuple[str, ...],
        most: int,
        left_out: Mapping[int, tuple[str, tuple[float, float]]],
    ) -> None:
        self.labels, self.paths, self.stretches, self.classes = labels, tuple(paths), tuple(stretches), classes
        self.indices = to_device(torch.tensor(batch.indices), batch.device)
        self.left_out, self.per_video = left_out, len(batch.views[0])
        self._batch, self._resample, self._most = batch, resample, most

    def __len__(self) -> int:
        return 2

    def __getitem__(self, item: Any) -> Any:
        if self.labels is None:
            return (self._clips, [path for path in self.paths for _ in range(self.per_video)])[item]
        return (self._clips, self.labels.repeat_interleave(self.per_video, dim=0))[item]

    def chunks(self) -> Iterator[Tensor]:
        """The clips of all views, at most `most` at a time: n x 3 x T x S x S."""
        rest = self._crops()
        while crops := list(islice(rest, self._most)):
            yield self._resample(crops, self._batch.size)

    @cached_property
    def _clips(self) -> Tensor:
        return self._resample(list(self._crops()), self._batch.size)

    def _crops(self) -> Iterator[Tensor | YuvClip]:
        for crop, views in zip(self._batch.crops(), self._batch.views, strict=True):
            for view in views:
                yield cut_out(crop, view)
