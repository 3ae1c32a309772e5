"""The account of a `fit`: what each second of its wall clock went to."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from lightning_multigrid.schedule import duration

START, REHEARSAL, STEPS, WAITING = "start", "rehearsal", "steps", "waiting for data"
VALIDATION, STATISTICS, CHECKPOINTS, REST = "validation", "BatchNorm statistics", "checkpoints", "the rest"
KINDS = START, REHEARSAL, STEPS, WAITING, VALIDATION, STATISTICS, CHECKPOINTS, REST

# Of steps, to say how fast they are: in shorter trainings, the first ones on each grid are too many.
LEAST_SECONDS = 30.0


class Account:
    """A clock that runs for one kind of time after the other, so that all kinds sum to the wall clock.

    It is the clock of the process. On CUDA, Python runs ahead of the device: `split` then says what was waiting.
    """

    def __init__(self) -> None:
        self._kind, self._since = START, time.perf_counter()
        self.seconds = dict.fromkeys(KINDS, 0.0)

    def turn(self, kind: str) -> str:
        """Lets the clock run for another kind; returns the one before."""
        now, before = time.perf_counter(), self._kind
        self.seconds[before] += now - self._since
        self._kind, self._since = kind, now
        return before

    def belonged(self, kind: str) -> None:
        """What has passed since the last turn was for this kind, as is known only now."""
        self._kind = kind

    @contextmanager
    def during(self, kind: str) -> Iterator[None]:
        before = self.turn(kind)
        try:
            yield
        finally:
            self.turn(before)

    def split(self, stepping: float, waiting: float) -> None:
        """Shares the time of the loop over the mini-batches out by what a device says of it, in seconds."""
        loop = self.seconds[STEPS] + self.seconds[WAITING]
        share = waiting / (stepping + waiting) if stepping + waiting else 0.0
        self.seconds[STEPS], self.seconds[WAITING] = loop * (1 - share), loop * share

    def of_baseline(self, stepping: float, waiting: float) -> dict[str, float]:
        """The seconds of the baseline, whose steps step and wait this long: it has all else but our own parts."""
        return self.seconds | {STEPS: stepping, WAITING: waiting, STATISTICS: 0.0, REHEARSAL: 0.0}

    @property
    def wall(self) -> float:
        return sum(self.seconds.values())

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {seconds:.1f}" for kind, seconds in self.seconds.items())
        return f"Wall clock of `fit`: {self.wall:.1f} s: {kinds}."


def faster_or_slower(own: Mapping[str, float], baseline: Mapping[str, float]) -> str:
    """Says how much faster or slower than its baseline a training was, and why, by accounts of both, in seconds."""
    took, would_take = sum(own.values()), sum(baseline.values())
    clock = f"{duration(took)} instead of {duration(would_take)} by the wall clock"
    if 0.95 < took / would_take < 1.05:
        return f"About as fast as the baseline: {clock}."
    if took <= would_take:
        return f"About {would_take / took:.1f}x faster than the baseline: {clock}."
    most = max(own, key=lambda kind: own[kind] - baseline[kind])
    return (
        f"About {took / would_take:.1f}x SLOWER than the baseline: {clock}, mostly because of {most} "
        f"({own[most]:.0f} s, in the baseline {baseline[most]:.0f} s)."
    )
