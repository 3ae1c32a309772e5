"""The parts of a run: what each does as its steps begin and end."""

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import torch

from lightning_multigrid.host import LightningModule, MisconfigurationException, Trainer, is_a
from lightning_multigrid.norm import set_sub_batch, sub_batchnorm_layers
from lightning_multigrid.positions import Following
from lightning_multigrid.reports import RunReport, step_values
from lightning_multigrid.schedule import Place, Plan
from lightning_multigrid.training.lightning_internals import step_is_logged
from lightning_multigrid.training.rehearsal import PointsOnPlan
from lightning_multigrid.training.takeover import Takeover
from lightning_multigrid.training.torch_internals import raised_limits


class Part:
    """Something that changes with the steps of a run. A part knows the plan, and no other part."""

    def begin(self, place: Place) -> None:
        """An epoch begins, or the rest of one: its first mini-batch is needed."""

    def before(self, place: Place, mini_batch: Any) -> None:
        """A step begins."""

    def after(self, place: Place) -> None:
        """A step has ended."""

    def end(self) -> None:
        """An epoch has ended, or the script skips the rest of it."""


class Ground(Part):
    """Notices when Lightning no longer does what the plan relies on, in a new version or by another callback."""

    def __init__(self, plan: Plan, trainer: Trainer, loader: Any) -> None:
        self.plan, self._trainer, self._loader = plan, trainer, loader
        self._optimizers = list(trainer.optimizers)
        self._first: Place | None = None  # of the epoch, or of the rest of it
        self._coming = plan.start

    def begin(self, place: Place) -> None:
        # A script may have skipped the rest of the last epoch.
        coming = self.plan.start if self._first is None else Place(self._first.epoch + 1, 0)
        self._check("continues at", coming, place)
        self._first = self._coming = place

    def before(self, place: Place, mini_batch: Any) -> None:
        self._check("is at", self._coming, place)
        self._coming = self.plan.after(place)
        if self._trainer.optimizers != self._optimizers:
            raise MisconfigurationException(
                "MultigridCallback scales the LR of the optimizers that `configure_optimizers` returned, but the "
                "Trainer has other ones now. Keep those."
            )
        if place != self._first:
            return
        batches = len(self.plan.steps(place.epoch))
        if self._trainer.fast_dev_run:  # type: ignore[attr-defined]
            batches = min(batches, int(self._trainer.num_training_batches))
        self._check("plans an epoch of so many mini-batches:", batches, self._trainer.num_training_batches)
        self._check("iterates", self._loader, self._trainer.train_dataloader)

    def _check(self, does: str, planned: Any, found: Any) -> None:
        if planned is not found and planned != found:
            version = sys.modules[type(self._trainer.fit_loop).__module__.partition(".")[0]].__version__
            raise MisconfigurationException(
                f"Lightning {version} {does} {found}, but MultigridCallback has planned {planned}, so the training "
                "would be another one. Does another callback change the loaders or the counters of the Trainer? If "
                "not, install a version of Lightning that the package's requirements name, and report this one."
            )


class SubBatches(Part):
    """How many clips of a mini-batch share BatchNorm statistics."""

    def __init__(self, plan: Plan, module: LightningModule) -> None:
        self._plan, self._module = plan, module

    def before(self, place: Place, mini_batch: Any) -> None:
        step = self._plan.step(place)
        # With fewer clips than this a layer shares statistics with other ranks. All ranks have the same number of them.
        set_sub_batch(self._module, step.sub_batch, of=step.shape.clips, baseline_batches=step.baseline_batches)


class Positions(Part):
    """What a model knows of frames, rows and columns. Whatever runs between two steps has the baseline's grid."""

    def __init__(self, plan: Plan, following: Following) -> None:
        self._plan, self.following = plan, following

    def before(self, place: Place, mini_batch: Any) -> None:
        shape = self._plan.step(place).shape
        self.following.set_grid(shape.frames, shape.size)

    def after(self, place: Place) -> None:
        self.following.restore()

    def end(self) -> None:
        self.following.restore()


class Compiled(Part):
    """`torch.compile` may make a graph for each grid. A mini-batch that matches none, such as a tail, runs eagerly."""

    def __init__(self, plan: Plan, module: LightningModule, world: int, takeover: Takeover) -> None:
        self._plan, self._grids = plan, frozenset(plan.schedule.grids_of_statistics)
        graphs = 2 * len(self._grids) + 8  # for training, for validation, and for what else a script may do
        if world > 1 and any(shape.clips < sub_batch for shape, sub_batch in self._grids):
            # Where ranks share statistics, a graph ends before each BatchNorm layer and another begins after it.
            graphs *= 1 + len(sub_batchnorm_layers(module))
        takeover.enter_context(raised_limits(graphs))
        self._eager = takeover.enter_context(ExitStack())

    def before(self, place: Place, mini_batch: Any) -> None:
        step = self._plan.step(place)
        if (step.shape, step.sub_batch) not in self._grids:
            self._eager.enter_context(torch.compiler.set_stance("force_eager"))

    def after(self, place: Place) -> None:
        self._eager.close()

    def end(self) -> None:
        self._eager.close()


class ArrivedClips(Part):
    """Whether mini-batches arrive at the step as large as planned."""

    def __init__(self, plan: Plan, points: PointsOnPlan) -> None:
        self._plan, self._points = plan, points

    def before(self, place: Place, mini_batch: Any) -> None:
        self._points.check_real(self._plan.step(place).shape, mini_batch)


class Reporting(Part):
    """Times of steps, and what is logged of them."""

    def __init__(self, plan: Plan, report: RunReport, trainer: Trainer, module: LightningModule) -> None:
        self._plan, self._report, self._trainer, self._module = plan, report, trainer, module

    def begin(self, place: Place) -> None:
        self._report.begin(place)

    def before(self, place: Place, mini_batch: Any) -> None:
        step = self._plan.step(place)
        self._report.announce(step)
        log_values(self._trainer, self._module, lambda: step_values(step))

    def after(self, place: Place) -> None:
        times = self._report.ended(place)
        log_values(self._trainer, self._module, lambda: self._report.scalars(times, self._trainer.world_size))


class Patience(Part):
    """Keeps `EarlyStopping` from running out of patience before the last phase, where it begins to count."""

    def __init__(self, plan: Plan, callbacks: Iterable[Any], takeover: Takeover) -> None:
        self._plan = plan
        self._callbacks = [callback for callback in callbacks if is_a(callback, "callbacks.EarlyStopping")]
        takeover.callback(self._count)

    def after(self, place: Place) -> None:
        schedule = self._plan.schedule
        if schedule.flat or self._plan.step(place).phase == len(schedule.phases) - 1:
            self._count()
            return
        for callback in self._callbacks:
            # It adds one before it compares with a patience of 0 or more.
            callback.wait_count = min(callback.wait_count, -2)

    def _count(self) -> None:
        for callback in self._callbacks:
            callback.wait_count = max(callback.wait_count, 0)

    def complete(self, checkpoint: dict[str, Any]) -> None:
        """A checkpoint is also for trainings without the callback."""
        for callback in self._callbacks:
            state = checkpoint["callbacks"].get(callback.state_key, {})
            state.update(wait_count=max(state.get("wait_count", 0), 0))


def log_values(trainer: Trainer, module: LightningModule, values: Callable[[], Mapping[str, float]]) -> None:
    """Logs values in steps that loggers get, and at the end of an epoch, where callbacks may monitor them."""
    # In other steps, logging would cost more than all the rest of the callback.
    seen = step_is_logged(trainer) or trainer.is_last_batch or trainer.should_stop
    if (seen or trainer.fast_dev_run) and not trainer.barebones:  # type: ignore[attr-defined]
        # As tensors of the CPU: Lightning would send numbers to the device, and wait for it.
        module.log_dict({name: torch.tensor(float(value)) for name, value in values().items()}, batch_size=1)
