"""A training as it is known before its first step: a schedule, cut into the steps of a number of clips."""

import math
from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate as cumulative
from itertools import pairwise

from lightning_multigrid.schedule.cycles import Place, Step, exact
from lightning_multigrid.schedule.reads import Share, share_reads
from lightning_multigrid.schedule.schedule import MultigridSchedule

NEVER = Fraction(10**9)  # an epoch after any training


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
            return NEVER  # an epoch has fewer batches than `frequency`
        if ticks == 0:
            return Fraction(0)
        whole, before = divmod(ticks - 1, per_epoch)
        return whole + Fraction(min((before + 1) * self._tick_every(frequency), self.batches), self.batches)


@dataclass(frozen=True)
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
        shares_reads: Whether a sample gives a clip to several mini-batches, if their clips have at most half of the
            baseline's frames: see `reads.py`. Else each clip is read for itself.

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
    shares_reads: bool = False

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

    def moments(self, phase: int) -> int:
        """How many clips of a phase a sample has frames for; 1 if reads are not shared."""
        frames = self.schedule.phases[phase].shape.frames
        return self.schedule.baseline.shape.frames // frames if self.shares_reads else 1

    @cached_property
    def _clips_in_cycle(self) -> list[list[int]]:
        """For each phase, the clips of all ranks before each entry of its short cycle, and in all of it."""
        of_update = self.world * self.accumulate
        return [[0, *cumulative(of_update * shape.clips for shape, _ in cycle)] for cycle in self.schedule.cycles]

    def _clips_in(self, phase: int, steps: int) -> int:
        """The clips of all ranks in the first steps of a phase."""
        before = self._clips_in_cycle[phase]
        turns, entry = divmod(steps, len(before) - 1)
        return turns * before[-1] + before[entry]

    def _phase_of(self, number: int) -> int:
        """The phase of an optimizer step; after the end of the training, the last one."""
        return bisect_right(self._starts, number) - 1

    def _parts(self, epoch: int) -> list[tuple[int, int, int]]:
        """The parts of an epoch in one phase each: the phase, and its first optimizer step and the one after it."""
        first, end = epoch * self.steps_per_epoch, (epoch + 1) * self.steps_per_epoch
        starts = [first, *(start for start in self._starts if first < start < end), end]
        return [(self._phase_of(start), start, stop) for start, stop in pairwise(sorted({*starts}))]

    @cached_property
    def _shares(self) -> dict[tuple[int, int, int], list[Share]]:
        return {}

    def _shared(self, phase: int, start: int, end: int) -> list[Share]:
        """How the mini-batches of a part of an epoch share reads; offsets count from its beginning."""
        cycle = self.schedule.cycles[phase]
        entry = (start - self._starts[phase]) % len(cycle)
        key = phase, entry, end - start
        if key not in self._shares:  # epochs are alike
            steps = range(entry, entry + end - start)
            clips = [cycle[step % len(cycle)][0].clips * self.world for step in steps for _ in range(self.accumulate)]
            self._shares[key] = share_reads(clips, self.moments(phase))
        return self._shares[key]

    def _reads_in(self, phase: int, start: int, end: int) -> int:
        """The samples that all ranks read in a part of an epoch."""
        if self.moments(phase) > 1:
            shares = self._shared(phase, start, end)
            clips = self.schedule.cycles[phase]
            last = clips[(end - 1 - self._starts[phase]) % len(clips)][0].clips * self.world
            return shares[-1].before + (last if shares[-1].moment == 0 else 0)
        first = self._starts[phase]
        return self._clips_in(phase, end - first) - self._clips_in(phase, start - first)

    @cached_property
    def _reads_before_epochs(self) -> list[int]:
        return [0]

    def _reads_before_epoch(self, epoch: int) -> int:
        """The samples that all ranks read before an epoch."""
        before = self._reads_before_epochs
        while len(before) <= epoch:
            before.append(before[-1] + sum(self._reads_in(*part) for part in self._parts(len(before) - 1)))
        return before[epoch]

    def _share(self, place: Place) -> Share:
        """What a mini-batch takes of the stream."""
        update, part = divmod(place.batch, self.accumulate)
        number = place.epoch * self.steps_per_epoch + update
        epoch = number // self.steps_per_epoch
        offset = self._reads_before_epoch(epoch)
        for phase, start, end in self._parts(epoch):
            if number < end:
                break
            offset += self._reads_in(phase, start, end)
        if self.moments(phase) > 1:
            share = self._shared(phase, start, end)[(number - start) * self.accumulate + part]
            return share._replace(offset=offset + share.offset, before=offset + share.before)
        shape, _ = self.schedule.cycles[phase][(number - self._starts[phase]) % len(self.schedule.cycles[phase])]
        offset += self._reads_in(phase, start, number) + part * self.world * shape.clips
        return Share(offset, 0, 1, offset)

    def reads_before(self, place: Place) -> int:
        """The samples that all ranks have read before a mini-batch."""
        return self._share(place).before

    @cached_property
    def reads(self) -> int:
        """The samples that all ranks read in the training."""
        return self.reads_before(self.first_from(exact(self.schedule.baseline.epochs)))

    @property
    def baseline_reads(self) -> int:
        """The samples that all ranks read in the baseline."""
        return round(exact(self.schedule.baseline.epochs) * self.clips)

    def step(self, place: Place) -> Step:
        """The mini-batch at a place; after the end of the training, as if its last phase went on."""
        update, part = divmod(place.batch, self.accumulate)
        number = place.epoch * self.steps_per_epoch + update
        index = self._phase_of(number)
        phase, cycle, within = self.schedule.phases[index], self.schedule.cycles[index], number - self._starts[index]
        shape, sub_batch = cycle[within % len(cycle)]
        share = self._share(place)
        # Where `accumulate` doesn't divide the script's mini-batches, its last step of an epoch has fewer of them.
        batches = self.baseline_length.batches if self.schedule.is_baseline else self.batches_per_epoch
        start = place.epoch + Fraction(place.batch - part, batches)
        return Step(
            place,
            shape,
            index,
            share.offset,
            sub_batch,
            baseline_batches=max(1.0, phase.shape.clips / self.schedule.baseline.shape.clips),
            starts_update=part == 0,
            baseline_epoch=self.schedule.baseline_epoch(start),
            lr_scale=phase.lr_scale,
            moment=share.moment,
            moments=share.moments,
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

    def __str__(self) -> str:
        """The schedule's table with the steps of each phase."""
        columns, steps = {self.unit: [str(number) for number in self.phase_steps]}, sum(self.phase_steps)
        instead = "" if self.schedule.is_baseline else f" instead of {self.baseline_steps}"
        savings = [f"{steps} {self.unit}{instead}"]
        if self.shares_reads:
            savings.append(f"{self.reads} samples read instead of {self.baseline_reads}")
        return self.schedule.table(columns, savings)
