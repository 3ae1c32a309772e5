"""A training as it is known before its first step: a schedule, cut into the steps of a number of clips."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

from lightning_multigrid.schedule.cycles import Place, Step
from lightning_multigrid.schedule.grid import BatchShape
from lightning_multigrid.schedule.schedule import MultigridSchedule

Clips = int | Fraction


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
            return Fraction(10**9)  # never: an epoch has fewer batches than `frequency`
        if ticks == 0:
            return Fraction(0)
        whole, before = divmod(ticks - 1, per_epoch)
        return whole + Fraction(min((before + 1) * self._tick_every(frequency), self.batches), self.batches)


@dataclass(frozen=True)
class Plan:
    """A whole training: the same on every rank and at every restart, and known before the first step.

    Args:
        schedule: The shapes and phases.
        clips: Clips of a rank in an epoch. A fraction if the ranks can't share the dataset evenly: a rank gets whole
            clips, and the fraction lets phases change at the same clip on any number of ranks.
        seed: Seed of order and augmentation.
        world: Number of ranks.
        accumulate: Mini-batches per optimizer step.
        drop_last: Drop the last mini-batch of an epoch if it has fewer clips than its shape asks for.
        batches: Mini-batches of a rank in an epoch of the baseline; by default those of `clips`.

    >>> from lightning_multigrid.schedule import Baseline
    >>> plan = Plan(MultigridSchedule(Baseline(BatchShape(2, 4, 32), epochs=4)), clips=20)
    >>> [str(step.shape) for step in plan.epoch(0)]
    ['8 x 4 x 16', '4 x 4 x 23', '2 x 4 x 32', '6 x 4 x 16']
    """

    schedule: MultigridSchedule
    clips: Clips
    seed: int = 0
    world: int = 1
    accumulate: int = 1
    drop_last: bool = False
    batches: int | None = None

    @property
    def epochs(self) -> int:
        return self.schedule.epochs

    @property
    def baseline_length(self) -> EpochLength:
        """The length of an epoch of the baseline, on one device."""
        batches = self.clips / self.schedule.baseline.shape.clips
        counted = math.floor(batches) if self.drop_last else math.ceil(batches)
        return EpochLength(counted if self.batches is None else self.batches, self.accumulate)

    # --- Steps ---

    @cached_property
    def epoch(self) -> Callable[[int], Sequence[Step]]:
        """`epoch(number)`: the steps of an epoch, from 0, in order.

        The position at which an optimizer step starts decides the shape of all its mini-batches. The short cycle
        restarts each epoch and advances once per optimizer step. Beyond the last phase the schedule stays on it. A
        ValueError if the first mini-batch needs more clips than there are.
        """
        # Lightning asks for an epoch's length many times. At the boundary of two epochs both are in use.
        return lru_cache(maxsize=2)(self._steps_of)

    def after(self, step: Step) -> Step:
        """The mini-batch that follows on one: the first of the next epoch after the last."""
        epoch, batch = step.place
        steps = self.epoch(epoch)
        return steps[batch + 1] if batch + 1 < len(steps) else self.epoch(epoch + 1)[0]

    def _steps_of(self, number: int) -> Sequence[Step]:
        self.refuse_few_clips(number)
        schedule, steps, offset = self.schedule, list[Step](), 0
        cut = [
            (phase, shape, sub_batch)
            for phase, mini_batches, times in self._blocks(number)
            for shape, sub_batch in mini_batches * times
        ]
        for start in range(0, len(cut), self.accumulate):
            update = cut[start : start + self.accumulate]
            index = update[0][0]
            phase, counted = schedule.phases[index], [self._baseline_batches(shape, index) for _, shape, _ in update]
            more = phase.shape.clips / schedule.baseline.shape.clips
            gradient = 1.0
            if counted[-1] < more:  # a tail
                gradient = schedule.lr_scale_of(sum(counted) / len(counted)) / phase.lr_scale
            clock = schedule.baseline_epoch(number + Fraction(offset) / Fraction(self.clips))
            for batch, ((_, shape, sub_batch), count) in enumerate(zip(update, counted, strict=True), start):
                of_update = batch == start, clock, phase.lr_scale, gradient
                steps.append(Step(Place(number, batch), shape, index, offset, sub_batch, count, *of_update))
                offset += shape.clips
        return steps

    @cached_property
    def _baseline_batches(self) -> Callable[[BatchShape, int], float]:
        return lru_cache(maxsize=None)(self.schedule.baseline_batches)

    def refuse_few_clips(self, epoch: int) -> None:
        """Refuses an epoch whose first mini-batch needs more clips than there are (ValueError)."""
        phases = self.schedule.phases
        start = next((i for i, phase in enumerate(phases) if epoch < phase.end_epoch), len(phases) - 1)
        needed = self.schedule.cycles[start][0][0].clips
        if needed > self.clips:
            raise ValueError(
                f"The first mini-batch of phase {start} has {needed} clips, but this rank has "
                f"{math.floor(self.clips)}. Use a smaller baseline `batch_size`, fewer `long_cycle` shapes, or more "
                "data."
            )

    def _blocks(self, epoch: int) -> Iterator[tuple[int, list[tuple[BatchShape, int]], int]]:
        """An epoch as blocks (phase, mini-batches, times): the mini-batches repeated so many times, block by block."""
        # A block is whole short cycles where they fit into the rest of the phase, else a single optimizer step. So an
        # epoch has a few blocks per phase, and its steps are counted without making them. `available`, `offset`, `end`
        # and `of_cycle` count clips; `turn` is the next entry of the short cycle. All cycles have the same length.
        schedule, accumulate = self.schedule, self.accumulate
        last = len(schedule.phases) - 1
        available = self._clips_in(epoch)
        offset = turn = 0
        for index, (phase, cycle) in enumerate(zip(schedule.phases, schedule.cycles, strict=True)):
            # Where the phase ends: the smallest integer with epoch + offset / clips >= end.
            end = min(math.ceil((phase.end_epoch - epoch) * self.clips), available) if index < last else available
            of_cycle = accumulate * sum(shape.clips for shape, _ in cycle)
            while offset < end:
                times = (end - offset) // of_cycle if turn == 0 else 0
                if times:
                    yield index, [mini_batch for mini_batch in cycle for _ in range(accumulate)], times
                    offset += times * of_cycle
                    continue
                shape, sub_batch = cycle[turn]
                whole_batches = min(accumulate, (available - offset) // shape.clips)
                yield index, [(shape, sub_batch)] * whole_batches, 1
                offset += whole_batches * shape.clips
                if whole_batches < accumulate:  # the end of the epoch
                    if offset < available and not self.drop_last:
                        yield index, [(BatchShape(available - offset, shape.frames, shape.size), sub_batch)], 1
                    return
                turn = (turn + 1) % len(cycle)

    def _clips_in(self, epoch: int) -> int:
        """Whole clips of an epoch: fewer in the last one of a baseline that `max_steps` ends within it."""
        whole = math.floor(self.clips)
        share = self.schedule.phases[-1].end_epoch - epoch
        if not 0 < share < 1:
            return whole
        batch = self.schedule.baseline.shape.clips  # that of all mini-batches, as only a plan of one shape ends so
        return min(whole, max(1, round(share * (whole // batch if self.drop_last else -(-whole // batch)))) * batch)

    # --- Counts, much faster than by making the steps ---

    def count_shapes(self, epoch: int) -> Counter[BatchShape]:
        """How many mini-batches of each shape an epoch has."""
        counts: Counter[BatchShape] = Counter()
        for _, mini_batches, times in self._blocks(epoch):
            for shape, _ in mini_batches:
                counts[shape] += times
        return counts

    @cached_property
    def shapes_and_sub_batches(self) -> list[tuple[BatchShape, int]]:
        """Every pair (shape, sub-mini-batch) of the training once, with the tails of its epochs."""
        pairs = (
            pair for epoch in range(self.epochs) for _, mini_batches, _ in self._blocks(epoch) for pair in mini_batches
        )
        return list(dict.fromkeys(pairs))

    def batches_of(self, epoch: int) -> int:
        """How many mini-batches an epoch has."""
        return self.count_shapes(epoch).total()

    @cached_property
    def phase_steps(self) -> list[int]:
        """How many mini-batches each phase has."""
        counts = [0] * len(self.schedule.phases)
        for epoch in range(self.epochs):
            for phase, mini_batches, times in self._blocks(epoch):
                counts[phase] += len(mini_batches) * times
        return counts

    @property
    def baseline_steps(self) -> int:
        """How many mini-batches the whole baseline has."""
        batch, clips = self.schedule.baseline.shape.clips, self.clips
        # Lightning makes the ranks equal by repeated samples.
        of_epoch = math.ceil(clips) // batch if self.drop_last else math.ceil(clips / batch)
        return round(self.schedule.baseline.epochs * of_epoch)

    @cached_property
    def optimizer_steps(self) -> int:
        return self.optimizer_steps_before(Place(self.epochs, 0))

    def optimizer_steps_before(self, place: Place) -> int:
        whole = (math.ceil(self.batches_of(epoch) / self.accumulate) for epoch in range(place.epoch))
        return sum(whole) + place.batch // self.accumulate

    # --- Places ---

    def start_of_update(self, place: Place) -> Place:
        """The first mini-batch of the optimizer step at a place."""
        return place._replace(batch=place.batch - place.batch % self.accumulate)

    def first_after(self, epoch: int, clips: Clips) -> Place:
        """The first optimizer step of an epoch that has at least this many clips before it, over all ranks."""
        starts = (step for step in self.epoch(epoch) if step.starts_update)
        return next((step.place for step in starts if step.offset * self.world >= clips), Place(epoch + 1, 0))

    def position(self, step: Step) -> Fraction:
        """Where a step begins, in epochs."""
        return step.place.epoch + Fraction(step.offset) / Fraction(self.clips)

    @property
    def unit(self) -> str:
        """What `phase_steps` and `baseline_steps` count, in words."""
        return "steps" if self.accumulate == 1 else "mini-batches"

    def __str__(self) -> str:
        """The schedule's table with the steps of each phase."""
        columns, number = {self.unit: [str(number) for number in self.phase_steps]}, sum(self.phase_steps)
        return self.schedule.table(columns, [f"{number} {self.unit} instead of {self.baseline_steps}"])
