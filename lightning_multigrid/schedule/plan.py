"""A training as it is known before its first step: a schedule, cut into the steps of a number of clips."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import NamedTuple

from lightning_multigrid.schedule.cycles import Step
from lightning_multigrid.schedule.grid import BatchShape
from lightning_multigrid.schedule.schedule import Clips, MultigridSchedule


class Place(NamedTuple):
    """The mini-batch that comes next: its epoch, and its number in the epoch, both from 0."""

    epoch: int
    batch: int


_BEGINNING = Place(0, 0)


@dataclass(frozen=True)
class BaselineEpoch:
    """An epoch of the baseline on one device, in mini-batches.

    A *tick* is one `step()` of an LR scheduler, after epochs or optimizer steps, as its `interval` says.
    """

    batches: int
    accumulate: int = 1  # mini-batches per optimizer step; the last step of an epoch may have fewer

    @property
    def optimizer_steps(self) -> int:
        return math.ceil(self.batches / self.accumulate)

    def _tick_every(self, frequency: int) -> int:
        # Lightning: `(batch_idx + 1) % frequency == 0`, and only after optimizer steps.
        return math.lcm(frequency, self.accumulate)

    def _ticks_per_epoch(self, frequency: int) -> int:
        # If `accumulate` does not divide the batches, the last optimizer step of an epoch comes early.
        early = self.batches % self.accumulate != 0 and self.batches % frequency == 0
        return self.batches // self._tick_every(frequency) + early

    def ticks(self, epoch: Fraction, interval: str, frequency: int) -> int:
        """Returns the ticks that a scheduler has had by a baseline epoch."""
        whole = math.floor(epoch)
        if interval == "epoch":
            return whole // frequency
        done = math.floor((epoch - whole) * self.batches)
        return whole * self._ticks_per_epoch(frequency) + done // self._tick_every(frequency)

    def after_ticks(self, ticks: int, interval: str, frequency: int) -> Fraction:
        """Returns the baseline epoch at which a scheduler has had this many ticks."""
        if interval == "epoch":
            return Fraction(ticks * frequency)
        per_epoch = self._ticks_per_epoch(frequency)
        if not per_epoch:
            return Fraction(10**9)  # never: an epoch has fewer batches than `frequency`
        if ticks == 0:
            return Fraction(0)
        whole, before = divmod(ticks - 1, per_epoch)
        return whole + Fraction(min((before + 1) * self._tick_every(frequency), self.batches), self.batches)


class LRRule(NamedTuple):
    """The LR of a step: that of the baseline at an epoch of it, times a scale."""

    baseline_epoch: Fraction
    scale: float
    weight_decay_scale: float  # with which the decay keeps its timescale in clips


@dataclass(frozen=True)
class Plan:
    """A whole training: the same on every rank and at every restart, and known before the first step.

    Args:
        schedule: The shapes and phases.
        clips: Clips of a rank in an epoch.
        seed: Seed of order and augmentation.
        world: Number of ranks.
        accumulate: Mini-batches per optimizer step.
        drop_last: Drop the last mini-batch of an epoch if it is incomplete.
        batches: Mini-batches of a rank in an epoch of the baseline; by default those of `clips`.
        start: Where the training begins, or resumes.
    """

    schedule: MultigridSchedule
    clips: Clips
    seed: int = 0
    world: int = 1
    accumulate: int = 1
    drop_last: bool = False
    batches: int | None = None
    start: Place = _BEGINNING

    @property
    def epochs(self) -> int:
        return self.schedule.epochs

    @property
    def baseline_epoch(self) -> BaselineEpoch:
        batches = self.clips / self.schedule.baseline.shape.clips
        counted = math.floor(batches) if self.drop_last else math.ceil(batches)
        return BaselineEpoch(counted if self.batches is None else self.batches, self.accumulate)

    # --- Steps ---

    @cached_property
    def steps(self) -> Callable[[int], Sequence[Step]]:
        """`steps(epoch)`: the steps of an epoch, from 0."""
        # Lightning asks for an epoch's length many times. At the boundary of two epochs both are in use.
        clips, accumulate, drop_last = self._cut
        return lru_cache(maxsize=2)(lambda epoch: self.schedule.steps(epoch, clips, accumulate, drop_last))

    @property
    def _cut(self) -> tuple[Clips, int, bool]:
        return self.clips, self.accumulate, self.drop_last

    def step(self, place: Place) -> Step:
        return self.steps(place.epoch)[place.batch]

    def count_shapes(self, epoch: int) -> Counter[tuple[int, BatchShape]]:
        """How many mini-batches of each (index of a phase, shape) an epoch has."""
        return self.schedule.count_shapes(epoch, *self._cut)

    def batches_of(self, epoch: int) -> int:
        """How many mini-batches an epoch has, much faster than by `steps`."""
        return sum(self.schedule.count_steps(epoch, *self._cut))

    @cached_property
    def phase_steps(self) -> list[int]:
        """How many mini-batches each phase has."""
        return self.schedule.phase_steps(*self._cut)

    @property
    def baseline_steps(self) -> int:
        """How many mini-batches the whole baseline has."""
        return self.schedule.baseline_steps(self.clips, self.drop_last)

    @cached_property
    def optimizer_steps(self) -> int:
        return self.optimizer_steps_before(Place(self.epochs, 0))

    def optimizer_steps_before(self, place: Place) -> int:
        whole = (math.ceil(self.batches_of(epoch) / self.accumulate) for epoch in range(place.epoch))
        return sum(whole) + place.batch // self.accumulate

    # --- Places ---

    def whole(self, place: Place) -> Place:
        """The first mini-batch of the optimizer step at a place."""
        return place._replace(batch=place.batch - place.batch % self.accumulate)

    def after(self, place: Place) -> Place:
        """The mini-batch that follows on one: the first of the next epoch after the last."""
        more = place.batch + 1 < len(self.steps(place.epoch))
        return place._replace(batch=place.batch + 1) if more else Place(place.epoch + 1, 0)

    def first_after(self, epoch: int, clips: Clips) -> Place:
        """The first optimizer step of an epoch that has at least this many clips before it, over all ranks."""
        steps = self.steps(epoch)
        for batch in range(0, len(steps), self.accumulate):
            if steps[batch].offset * self.world >= clips:
                return Place(epoch, batch)
        return Place(epoch + 1, 0)

    def position(self, place: Place) -> Fraction:
        """A place in epochs."""
        steps = self.steps(place.epoch)
        offset = steps[place.batch].offset if place.batch < len(steps) else self.clips
        return place.epoch + Fraction(offset) / Fraction(self.clips)

    # --- What a step counts for ---

    def lr(self, place: Place) -> LRRule:
        """The LR of the optimizer step at a place; all of its mini-batches have that of the first one."""
        place = self.whole(place)
        step, schedule = self.step(place), self.schedule
        # A step decays weights by LR x weight decay. With `more` times the clips it must be `more` times as much.
        more = schedule.phases[step.phase].shape.clips / schedule.baseline.shape.clips
        return LRRule(schedule.baseline_epoch(self.position(place)), step.lr_scale, more / step.lr_scale)

    def gradient_scale(self, place: Place) -> float:
        """Factor of the gradient of the optimizer step at a place: see `MultigridSchedule.gradient_scale`."""
        start = self.whole(place).batch
        return self.schedule.gradient_scale(self.steps(place.epoch)[start : start + self.accumulate])
