"""One `fit`: its plan, and its parts in the order in which they act."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from lightning_multigrid.host import Trainer
from lightning_multigrid.reports import RunReport
from lightning_multigrid.schedule import Place, Plan, Step
from lightning_multigrid.training.checkpoints.continuation import (
    State,
    describe_position,
    describe_run,
    find_continuation,
)
from lightning_multigrid.training.parts.lightning_loop import refuse_other
from lightning_multigrid.training.parts.part import Part
from lightning_multigrid.training.trainer import lightning_internals as internals


class Run:
    """One `fit`: hands what happens on to its parts, in their order. It is the `Loop` of its loader.

    Lightning's counters say where it is. `_next` is what the plan expects there, and any difference is refused.
    `begin.py` makes a run.
    """

    def __init__(self, plan: Plan, trainer: Trainer, parts: Sequence[Part], report: RunReport) -> None:
        self.plan, self.report, self.parts = plan, report, parts
        self._trainer: Trainer | None = trainer
        self._planned = Place(trainer.current_epoch, 0)  # where the next epoch begins; of a second `fit`, not at 0
        self._next: Step | None = None
        self._in_step = False
        self._saved: State = {}  # when it was closed
        self._epoch = 0  # likewise
        self.timed = report.timed

    @property
    def trainer(self) -> Trainer:
        if self._trainer is None:
            raise RuntimeError("This `fit` of MultigridCallback has ended. Its `plan` and `report` are still there.")
        return self._trainer

    def start(self) -> None:
        for part in self.parts:
            part.start()

    def before(self, batch: int, mini_batch: Any) -> None:
        """A step begins, with the mini-batch of this number in the epoch."""
        step = self._step_at(batch)
        for part in self.parts:
            part.before(step, mini_batch)
        self._in_step = True

    def after(self, batch: int) -> None:
        if not self._in_step:  # Lightning skips a mini-batch of None, which trains nothing, but has its place
            self.before(batch, None)
        step = self._step_at(batch)
        following = self._next = self.plan.after(step)
        self._in_step = False
        for part in self.parts:
            part.after(step, following)
            part.rest()

    def end(self) -> None:
        for part in self.parts:
            part.end()
            part.rest()

    def finish(self) -> None:
        for part in self.parts:
            part.finish()

    def close(self) -> None:
        """Undoes all changes, and lets the Trainer go. The plan, the report and the state remain."""
        if self._trainer is None:
            return
        self._saved, self._epoch = self.save(), self.epoch
        with ExitStack() as closing:  # if one fails, the others are closed all the same
            for part in self.parts:
                closing.callback(part.close)
            self.parts, self._trainer, self._next = (), None, None

    def _step_at(self, batch: int) -> Step:
        found = Place(self.epoch, batch)
        if self._next is None or self._next.place != found:
            refuse_other(self.trainer, "is at", None if self._next is None else self._next.place, found)
        return self._next

    # --- What the loader asks ---

    @property
    def epoch(self) -> int:
        return self._epoch if self._trainer is None else self._trainer.current_epoch

    def begin(self) -> Step:
        """Begins the current epoch, or the rest of it; returns its first step."""
        # Lightning knows the place in every case of resuming only when it asks for the first batch, and after a resume
        # in mid-epoch it does not call `on_train_epoch_start`.
        found = Place(self.epoch, internals.batch_index(self.trainer) + 1)
        if found != self._planned:
            refuse_other(self.trainer, "continues at", self._planned, found)
        first = self._next = self.plan.epoch(found.epoch)[found.batch]
        self._planned = Place(found.epoch + 1, 0)  # a script may skip the rest of this one
        self._in_step = False
        for part in self.parts:
            part.begin(first)
        return first

    # --- Checkpoints ---

    def save(self) -> State:
        """Returns what can't be computed again, as plain values: checkpoints are loaded with `weights_only`."""
        parts = (part.save() for part in self.parts)
        return self._saved or {
            **describe_run(self.plan),
            **{name: value for one in parts for name, value in one.items()},
        }

    def complete(self, checkpoint: dict[str, Any], state: State, validating: bool) -> None:
        """Adds the position to the callback's state in a checkpoint, and makes the rest fit for any training."""
        counters = internals.LoopCounters(checkpoint)
        counters.settle(self.plan.batches_of(counters.epoch), validating)
        state.update(describe_position(self.plan, counters.place))
        if counters.place.batch == 0:
            counters.forget_loader()
        for part in self.parts:
            part.make_ordinary(checkpoint)

    def load(self, checkpoint: dict[str, Any], state: State) -> None:
        """Continues from a checkpoint, before Lightning reads its counters."""
        found = find_continuation(checkpoint, state, self.plan)
        self._planned = found.first.place
        for part in self.parts:
            part.load(found)
