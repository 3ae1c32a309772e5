"""What videos of any kind share: video files, folders of images, files of planes, and stretches of them."""

import operator
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import TypeVar

import numpy as np
from av.video.frame import VideoFrame
from torch import Tensor

from lightning_multigrid.decode.frame_pixels import Box
from lightning_multigrid.decode.frame_table import Damage, FrameTable, Integers, Orientation, seconds_of
from lightning_multigrid.pixels import YuvClip

_Own = TypeVar("_Own", bound="Video")

_BACK = Fraction(1, 2)  # seconds; a step back that is larger is not a disorder of a few frames
_AHEAD = Fraction(10)  # seconds; as FFmpeg's program has it, a larger step of a stream that was joined is none in time


class Video:
    """A video, open until `close` or the end of a `with`: T frames of H x W pixels. Its length is T."""

    height: int  # H, of a frame as it is shown
    width: int  # W, of a frame as it is shown
    rate: float  # mean frames per second, 0.0 if unknown
    start: float = 0.0  # seconds from the file's start, which may be that of its sound, to the first frame
    last: float = 0.0  # seconds that the last frame is shown, as its packet says; 0.0 if unknown
    orientation = Orientation()  # how to show a frame that iteration yields
    damage = Damage()  # what was found damaged
    slow_because: str = ""  # why its clips are read slowly, for the end of a sentence; empty if they aren't
    table_does_not_fit: bool = False  # whether frames of an undamaged file had to be looked for in all of it
    joined: bool = False  # whether it may be recordings put together (`cat a.ts b.ts`), each with its own clock
    times: Integers = np.empty(0, np.int64)  # of each frame, in any unit; empty if equally long, or not yet known
    lacks: str = ""  # what is not there, by what the container itself says

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
        return seconds_of(frame, len(self), self.times, self.rate, self.last)

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


class FrameClock:
    """When frames are shown, in ticks of `base` seconds from the first: as the file says, but never two at once.

    A frame without a time follows `usual` seconds after the one before, and so does one at which the times of the file
    begin anew, as where recordings were put one after another. The file gives times in units of `tick` seconds (None if
    it gives none), and the `usual` seconds of a frame; `joined` is that of the `Video`.

    >>> clock = FrameClock(tick=Fraction(1, 25), usual=Fraction(1, 25), base=Fraction(1, 25))
    >>> [clock.ticks(time) for time in (10, 11, 11, 15, None, 0, 1)]
    [0, 1, 2, 5, 6, 7, 8]
    """

    def __init__(self, tick: Fraction | None, usual: Fraction, base: Fraction, *, joined: bool = False) -> None:
        self._tick, self._usual, self._base = tick, usual, base
        self._before: Fraction | None = None
        self._ahead = _AHEAD if joined else None
        self._ticks, self._seconds = -1, Fraction(0)

    def ticks(self, time: int | None) -> int:
        """The ticks of the next frame, whose time in the file is given."""
        now = None if self._tick is None or time is None else time * self._tick
        step = None if now is None or self._before is None else now - self._before
        if self._ticks >= 0:
            anew = step is None or step < -_BACK or (self._ahead is not None and step > self._ahead)
            self._seconds += self._usual if step is None or anew else step
        self._before = now
        self._ticks = max(self._ticks + 1, round(self._seconds / self._base))
        return self._ticks
