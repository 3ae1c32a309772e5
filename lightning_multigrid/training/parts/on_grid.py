"""What makes a model fit the grid of a step: BatchNorm's groups of clips, momenta, positions, and compiled graphs."""

from contextlib import ExitStack
from typing import Any

from torch import nn

from lightning_multigrid.host import Trainer, tell
from lightning_multigrid.norm import BatchNorm, make_groups, sub_batches
from lightning_multigrid.positions import Following
from lightning_multigrid.schedule import ClipShape, Plan, Step, counted
from lightning_multigrid.training.mini_batches import sizes_of_clips
from lightning_multigrid.training.rehearsal.rules import HOOKS, PointsOnPlan
from lightning_multigrid.training.trainer.changes import Changes
from lightning_multigrid.training.trainer.torch_internals import static_graphs

_INSTANCE_NORM = nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d


class OnGrid:
    """Brings a model to the grid of each step. Whatever runs between two steps finds it on the baseline's grid.

    `points` checks whether the first clips of each grid arrive as large as planned, if the rehearsal could not tell.
    """

    def __init__(self, plan: Plan, trainer: Trainer, following: Following, points: PointsOnPlan | None) -> None:
        self._plan, self._trainer, self._following, self._points = plan, trainer, following, points
        self._module = trainer.lightning_module
        self._arrived = set[ClipShape]()
        self._in_step = ExitStack()  # what is undone when a step ends
        self._running: list[Any] = []  # layers of InstanceNorm that have running statistics
        self._momenta: list[tuple[Any, float]] = []  # these layers' own, while a step has others

    def start(self, changes: Changes) -> None:
        """Lets `torch.compile` make a static graph for each grid."""
        grids = self._plan.schedule.grids_of_statistics
        graphs = 2 * len(grids) + 8  # for training, for validation, and for what else a script may do
        if self._trainer.world_size > 1 and any(shape.clips < sub_batch for shape, sub_batch in grids):
            # Where ranks share statistics, a graph ends before each BatchNorm layer and another begins after it.
            graphs *= 1 + sum(isinstance(layer, BatchNorm) for layer in self._module.modules())
        changes.callback(_tell_compiled, changes.enter_context(static_graphs(graphs)))
        changes.callback(self.restore)

    def begin(self) -> None:
        tracking = (one for one in self._module.modules() if isinstance(one, _INSTANCE_NORM))
        self._running = [one for one in tracking if one.track_running_stats and one.momentum is not None]
        # All ranks make the same groups, those of any step of the run; later epochs find them made.
        if self._trainer.world_size > 1:
            make_groups((shape.clips, sub_batch) for shape, sub_batch in self._plan.schedule.grids_of_statistics)

    def set(self, step: Step, mini_batch: Any) -> None:
        self._in_step.close()
        batches, world = step.baseline_batches, self._trainer.world_size
        self._in_step.enter_context(
            sub_batches(step.sub_batch, step.shape.clips, baseline_batches=batches, world=world)
        )
        # As those of BatchNorm, these statistics look back over the same part of an epoch as in the baseline.
        self._momenta = self._momenta or [(layer, layer.momentum) for layer in self._running]
        for layer, own in self._momenta:
            layer.momentum = 1 - (1 - own) ** step.baseline_batches
        self._following.set_grid(step.shape.frames, step.shape.size)
        if self._points is not None and step.shape.clip not in self._arrived:
            self._arrived.add(step.shape.clip)
            self._points.check(HOOKS, step.shape, sizes_of_clips(mini_batch))

    def restore(self) -> None:
        self._in_step.close()
        self._following.restore()
        for layer, own in self._momenta:
            layer.momentum = own
        self._momenta = []


def _tell_compiled(seconds: list[float]) -> None:
    if seconds:
        tell(
            f"`torch.compile` compiled {counted(len(seconds), 'graph')} in this `fit`, in {sum(seconds):.1f} s. "
            "Each grid has graphs of its own, forward and backward."
        )
