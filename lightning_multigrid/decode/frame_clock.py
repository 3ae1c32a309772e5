"""When the frames of a video are shown: for its table, and for a copy of it."""

from fractions import Fraction

_BACK = Fraction(1, 2)  # seconds; a step back that is larger is not a disorder of a few frames
_AHEAD = Fraction(10)  # seconds; as FFmpeg's program has it, a larger step of a stream that was joined is none in time


class FrameClock:
    """When frames are shown, in ticks of `base` seconds from the first: as the file says, but never two at once.

    A frame without a time follows `usual` seconds after the one before, and so does one at which the times of the file
    begin anew, as where recordings were put one after another.

    The file gives times in units of `tick` seconds (None if it gives none), and `usual` seconds of a frame; `joined`
    says whether it may be one of recordings that were put together as they are, each with its own clock.

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
