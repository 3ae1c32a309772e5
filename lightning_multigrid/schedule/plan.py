"""A training as it is known before its first step: a schedule, cut into the steps of a number of clips."""

import math
from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate as cumulative
from itertools import pairwise

from lightning_multigrid.schedule.cycles import Place, Step, exact
from lightning_multigrid.schedule.schedule import MultigridSchedule

_NEVER = Fraction(10**9)  # an epoch after any training


@dataclass(frozen=True)
class EpochLength:
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
            return _NEVER  # an epoch has fewer batches than `frequency`
        if ticks == 0:
            return Fraction(0)
        whole, before = divmod(ticks - 1, per_epoch)
        return whole + Fraction(min((before + 1) * self._tick_every(frequency), self.batches), self.batches)


@dataclass(frozen=True, repr=False)
class Plan:
    """A whole training: the same on every rank and at every restart, and known before the first step.

    It is one sequence of steps. Each epoch has the same number of them, and a phase has those from its start to its
    end in epochs. The data are a stream of passes over the dataset, from which each mini-batch takes the next samples,
    so none is smaller than its shape. The short cycle begins anew with each phase, and advances once per optimizer
    step, so the mini-batches of an optimizer step share a shape.

    Args:
        schedule: The shapes and phases.
        clips: Samples of a pass over the data, on all ranks.
        seed: Seed of order and augmentation.
        world: Number of ranks.
        accumulate: Mini-batches per optimizer step.
        batches: Mini-batches of a rank in an epoch of the baseline; by default those of `clips`.

    >>> from lightning_multigrid.schedule import Baseline, BatchShape
    >>> plan = Plan(MultigridSchedule(Baseline(BatchShape(2, 4, 32), epochs=4)), clips=20)
    >>> [str(step.shape) for step in plan.epoch(0)]
    ['8 x 4 x 16', '4 x 4 x 23', '2 x 4 x 32', '8 x 4 x 16', '4 x 4 x 23', '2 x 4 x 32']
    """

    schedule: MultigridSchedule
    clips: int
    seed: int = 0
    world: int = 1
    accumulate: int = 1
    batches: int | None = None

    @property
    def epochs(self) -> int:
        return self.schedule.epochs

    @property
    def baseline_length(self) -> EpochLength:
        """The length of an epoch of the baseline, on one device."""
        batches = math.ceil(Fraction(self.clips, self.world * self.schedule.baseline.shape.clips))
        return EpochLength(batches if self.batches is None else self.batches, self.accumulate)

    # --- How many steps ---

    @cached_property
    def unrounded_steps_per_epoch(self) -> Fraction:
        """Optimizer steps of an epoch that would make exactly `epoch_factor` passes over the data for each epoch.

        If the schedule is the baseline itself, they are the baseline's, whose last mini-batch may not be full.
        """
        if self.schedule.is_baseline:
            return Fraction(self.baseline_length.optimizer_steps)
        clips = self.schedule.clips_per_step * self.world * self.accumulate
        return exact(self.schedule.epoch_factor) * self.clips / clips

    @cached_property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch: at least one."""
        return max(1, round(self.unrounded_steps_per_epoch))

    @property
    def batches_per_epoch(self) -> int:
        """Mini-batches of a rank in an epoch."""
        return self.steps_per_epoch * self.accumulate

    @cached_property
    def optimizer_steps(self) -> int:
        """Optimizer steps of the training. They may end within an epoch, where the script's `max_steps` do."""
        epochs = exact(self.schedule.baseline.epochs)
        if self.schedule.is_baseline:
            whole = self.steps_per_epoch * (math.ceil(epochs) - 1)
            return max(whole + 1, self.baseline_length.ticks(epochs, "step", frequency=1))  # no epoch without a step
        return math.ceil(self.steps_per_epoch * epochs)

    @cached_property
    def phase_steps(self) -> list[int]:
        """How many mini-batches each phase has."""
        return [(end - start) * self.accumulate for start, end in pairwise([*self._starts, self.optimizer_steps])]

    @property
    def baseline_steps(self) -> int:
        """How many mini-batches the whole baseline has."""
        return round(exact(self.schedule.baseline.epochs) * self.baseline_length.batches)

    @property
    def batches_per_baseline_batch(self) -> Fraction:
        """Mini-batches of an epoch for each mini-batch of an epoch of the baseline."""
        return Fraction(self.batches_per_epoch, self.baseline_length.batches)

    # --- Steps ---

    @cached_property
    def _starts(self) -> list[int]:
        """The number of the first optimizer step of each phase: the first that does not begin before its start."""
        return [math.ceil(self.steps_per_epoch * phase.start_epoch) for phase in self.schedule.phases]

    def _clips_in(self, phase: int, steps: int) -> int:
        """The clips of all ranks in the first steps of a phase."""
        clips = [shape.clips for shape, _ in self.schedule.cycles[phase]]
        turns, entry = divmod(steps, len(clips))
        return self.world * self.accumulate * (turns * sum(clips) + sum(clips[:entry]))

    @cached_property
    def _clips_before_phases(self) -> list[int]:
        steps = (end - start for start, end in pairwise(self._starts))
        return [0, *cumulative(self._clips_in(phase, number) for phase, number in enumerate(steps))]

    def step(self, place: Place) -> Step:
        """The mini-batch at a place; after the end of the training, as if its last phase went on."""
        update, part = divmod(place.batch, self.accumulate)
        number = place.epoch * self.steps_per_epoch + update
        index = bisect_right(self._starts, number) - 1  # the last phase goes on
        phase, cycle, within = self.schedule.phases[index], self.schedule.cycles[index], number - self._starts[index]
        shape, sub_batch = cycle[within % len(cycle)]
        # Where `accumulate` doesn't divide the script's mini-batches, its last step of an epoch has fewer of them.
        batches = self.baseline_length.batches if self.schedule.is_baseline else self.batches_per_epoch
        start = place.epoch + Fraction(place.batch - part, batches)
        return Step(
            place,
            shape,
            index,
            self._clips_before_phases[index] + self._clips_in(index, within) + part * self.world * shape.clips,
            sub_batch,
            baseline_batches=max(1.0, phase.shape.clips / self.schedule.baseline.shape.clips),
            starts_update=part == 0,
            baseline_epoch=self.schedule.baseline_epoch(start),
            lr_scale=phase.lr_scale,
        )

    def epoch(self, number: int) -> list[Step]:
        """The steps of an epoch, from 0, in order."""
        return [self.step(Place(number, batch)) for batch in range(self.batches_per_epoch)]

    def after(self, step: Step) -> Step:
        """The mini-batch that follows on one: the first of the next epoch after the last."""
        epoch, batch = step.place
        last = batch + 1 == self.batches_per_epoch
        return self.step(Place(epoch + 1, 0) if last else Place(epoch, batch + 1))

    # --- Places ---

    def start_of_update(self, place: Place) -> Place:
        """The first mini-batch of the optimizer step at a place."""
        return place._replace(batch=place.batch - place.batch % self.accumulate)

    def optimizer_steps_before(self, place: Place) -> int:
        return place.epoch * self.steps_per_epoch + place.batch // self.accumulate

    def position(self, place: Place) -> Fraction:
        """Where a mini-batch begins, in epochs."""
        return place.epoch + Fraction(place.batch, self.batches_per_epoch)

    def first_from(self, position: Fraction) -> Place:
        """The first optimizer step that begins at a position, in epochs, or after it."""
        epoch, update = divmod(math.ceil(position * self.steps_per_epoch), self.steps_per_epoch)
        return Place(epoch, update * self.accumulate)

    @property
    def unit(self) -> str:
        """What `phase_steps` and `baseline_steps` count, in words."""
        return "steps" if self.accumulate == 1 else "mini-batches"

    def __repr__(self) -> str:
        """The schedule's table with the steps of each phase."""
        columns, steps = {self.unit: [str(number) for number in self.phase_steps]}, sum(self.phase_steps)
        instead = "" if self.schedule.is_baseline else f" instead of {self.baseline_steps}"
        return self.schedule.table(columns, [f"{steps} {self.unit}{instead}"])
