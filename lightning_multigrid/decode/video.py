"""What videos of any kind share: video files, folders of images, files of planes, and stretches of them."""

import operator
from collections.abc import Iterator, Sequence
from typing import TypeVar

from av.video.frame import VideoFrame
from torch import Tensor

from lightning_multigrid.decode.frame_pixels import Box
from lightning_multigrid.decode.frame_table import Damage, FrameTable, Orientation
from lightning_multigrid.pixels import YuvClip

_Own = TypeVar("_Own", bound="Video")


class Video:
    """A video, open until `close` or the end of a `with`: T frames of H x W pixels. Its length is its number of frames.

    Attributes:
        height: H, of a frame as it is shown.
        width: W, of a frame as it is shown.
        rate: Mean frames per second, 0.0 if unknown.
        start: Seconds from the file's start, which may be that of its sound, to the first frame.
        last: Seconds that the last frame is shown, as its packet says; 0.0 if unknown.
        orientation: How to show a frame that iteration yields.
        damage: What was found damaged.
        slow_because: Why its clips are read slowly, for the end of a sentence; empty if they aren't.
        table_does_not_fit: Whether frames of an undamaged file had to be looked for in all of it.
        joined: Whether it may be recordings put together as they are (`cat a.ts b.ts`), each with its own clock.
        lacks: What is not there, by what the container itself says.
    """

    height: int
    width: int
    rate: float
    start: float = 0.0
    last: float = 0.0
    orientation = Orientation()
    damage = Damage()
    slow_because: str = ""
    table_does_not_fit: bool = False
    joined: bool = False
    lacks: str = ""

    def __enter__(self: _Own) -> _Own:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes what is open."""

    def __len__(self) -> int:
        raise NotImplementedError

    def __iter__(self) -> Iterator[VideoFrame]:
        """Yields all frames as they are stored, from the first to the last, with their times."""
        raise NotImplementedError

    def time_of(self, frame: int) -> float:
        """Seconds from the first frame to another one, or to the end of the last; for videos of a known rate."""
        return frame / self.rate

    def counted(self) -> tuple[int, float]:
        """The number of frames and the mean rate, found without decoding all of them."""
        return len(self), self.rate

    def known(self) -> "Video | FrameTable":
        """What is known of the video once all frames were yielded; a `VideoError` if it isn't what its table says."""
        return self

    def read(self, indices: Sequence[int], box: Box | None = None) -> Tensor:
        """Reads frames as a uint8 tensor T x H x W x 3 (RGB), one for each index, in the order of `indices`.

        Args:
            indices: Frames, counted from 0 in presentation order; repeats and any order are allowed.
            box: The part of each frame to return, whose height and width are H and W. The whole frame if None.

        Raises:
            IndexError: If the video has no such frame.
            ValueError: If `box` does not lie within the frame.
            VideoError: If a frame cannot be decoded.
        """
        raise NotImplementedError

    def read_yuv(self, indices: Sequence[int], box: Box | None = None) -> YuvClip | Tensor:
        """Reads frames as they are stored, if that is YUV 4:2:0 of 8 bits, else as `read` does.

        The colours are those of `read` within 3 of 255. The box may begin at any pixel.
        """
        return self.read(indices, box)


def places_of(indices: Sequence[int], length: int, path: str) -> dict[int, list[int]]:
    """Maps each frame of a clip to its places in the clip, or raises an IndexError if the video has no such frame."""
    places: dict[int, list[int]] = {}
    for place, index in enumerate(map(operator.index, indices)):
        if not 0 <= index < length:
            raise IndexError(f"`indices` must lie in 0 to {length - 1} in {path}, got {index}.")
        places.setdefault(index, []).append(place)
    return places
