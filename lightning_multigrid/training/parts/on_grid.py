"""What makes a model fit the grid of a step: BatchNorm's groups of clips, positions, and compiled graphs."""

from contextlib import ExitStack
from typing import Any

from lightning_multigrid.host import Callback, Trainer
from lightning_multigrid.norm import BatchNorm, make_groups, sub_batches
from lightning_multigrid.positions import Following
from lightning_multigrid.schedule import Plan, Step
from lightning_multigrid.training.trainer.changes import Changes
from lightning_multigrid.training.trainer.torch_internals import graph_for_each_grid


class OnGrid(Callback):
    """Brings a model to the grid of each step. Whatever runs between two steps finds it on the baseline's grid."""

    def __init__(self, plan: Plan, trainer: Trainer, following: Following) -> None:
        self._plan, self._trainer, self._following = plan, trainer, following
        self._module = trainer.lightning_module
        self._in_step = ExitStack()  # what is undone when a step ends

    def start(self, changes: Changes) -> None:
        changes.add_callback(self._trainer, self, first=True)  # after a step, others find the baseline's grid
        grids = self._plan.schedule.grids_of_statistics
        graphs = 2 * len(grids) + 8  # for training, for validation, and for what else a script may do
        if self._trainer.world_size > 1 and any(shape.clips < sub_batch for shape, sub_batch in grids):
            # Where ranks share statistics, a graph ends before each BatchNorm layer and another begins after it.
            graphs *= 1 + sum(isinstance(layer, BatchNorm) for layer in self._module.modules())
        changes.enter_context(graph_for_each_grid(graphs))
        changes.callback(self.restore)

    def begin(self) -> None:
        # All ranks make the same groups, those of any step of the run; later epochs find them made.
        if self._trainer.world_size > 1:
            make_groups((shape.clips, sub_batch) for shape, sub_batch in self._plan.schedule.grids_of_statistics)

    def set(self, step: Step) -> None:
        self._in_step.close()
        batches, world = step.baseline_batches, self._trainer.world_size
        groups = sub_batches(step.sub_batch, step.shape.clips, baseline_batches=batches, world=world)
        self._in_step.enter_context(groups)
        self._following.set_grid(step.shape.frames, step.shape.size)

    def restore(self, *_: Any, **__: Any) -> None:
        self._in_step.close()
        self._following.restore()

    on_train_batch_end = restore
