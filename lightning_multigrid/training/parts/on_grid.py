"""The parts that make a step fit its grid: statistics, positions, compiled code, and the clips that arrive."""

from contextlib import ExitStack
from typing import Any

import torch

from lightning_multigrid.host import Trainer
from lightning_multigrid.norm import make_groups, set_sub_batch, sub_batchnorm_layers
from lightning_multigrid.positions import Following
from lightning_multigrid.schedule import BatchShape, Plan, Step
from lightning_multigrid.training.mini_batches import sizes_of_clips
from lightning_multigrid.training.parts.part import Part
from lightning_multigrid.training.rehearsal.rules import HOOKS, PointsOnPlan
from lightning_multigrid.training.trainer.torch_internals import raised_limits


class SubBatches(Part):
    """How many clips of a mini-batch share BatchNorm statistics."""

    def begin(self, first: Step) -> None:
        # All ranks make the same groups, those of any step of the run; later epochs find them made.
        if self.trainer.world_size > 1 and sub_batchnorm_layers(self.module):
            make_groups((shape.clips, sub_batch) for shape, sub_batch in self.plan.shapes_and_sub_batches)

    def before(self, step: Step, mini_batch: Any) -> None:
        # With fewer clips than this a layer shares statistics with other ranks. All ranks have the same number of them.
        set_sub_batch(self.module, step.sub_batch, of=step.shape.clips, baseline_batches=step.baseline_batches)


class Positions(Part):
    """What a model knows of frames, rows and columns. Whatever runs between two steps has the baseline's grid."""

    def __init__(self, plan: Plan, trainer: Trainer) -> None:
        super().__init__(plan, trainer)
        shape = plan.schedule.baseline.shape
        self.following = Following(self.module, shape.frames, shape.size)

    def before(self, step: Step, mini_batch: Any) -> None:
        self.following.set_grid(step.shape.frames, step.shape.size)

    def rest(self) -> None:
        self.following.restore()


class CompiledGraphs(Part):
    """`torch.compile` may make a graph for each grid. A mini-batch that matches none, such as a tail, runs eagerly."""

    def __init__(self, plan: Plan, trainer: Trainer) -> None:
        super().__init__(plan, trainer)
        self._grids, self._eager = frozenset(plan.schedule.grids_of_statistics), ExitStack()

    def start(self) -> None:
        graphs = 2 * len(self._grids) + 8  # for training, for validation, and for what else a script may do
        if self.trainer.world_size > 1 and any(shape.clips < sub_batch for shape, sub_batch in self._grids):
            # Where ranks share statistics, a graph ends before each BatchNorm layer and another begins after it.
            graphs *= 1 + len(sub_batchnorm_layers(self.module))
        self.changes.enter_context(raised_limits(graphs))

    def before(self, step: Step, mini_batch: Any) -> None:
        if (step.shape, step.sub_batch) not in self._grids:
            self._eager.enter_context(torch.compiler.set_stance("force_eager"))

    def rest(self) -> None:
        self._eager.close()


class ArrivedClips(Part):
    """Whether mini-batches arrive at the step as large as planned."""

    def __init__(self, plan: Plan, trainer: Trainer, points: PointsOnPlan) -> None:
        super().__init__(plan, trainer)
        self._points, self._seen = points, set[BatchShape]()

    def before(self, step: Step, mini_batch: Any) -> None:
        if step.shape.clip not in self._seen:
            self._seen.add(step.shape.clip)
            self._points.check(HOOKS, step.shape, sizes_of_clips(mini_batch))
