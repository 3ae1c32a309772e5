"""One `fit`: how it begins, and what acts on its steps. Lightning's hooks and the loader call methods of a `Run`."""

from functools import partial
from typing import Any, cast

import torch
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch.utils.data import DataLoader

from lightning_multigrid.host import LightningModule, Trainer, tell
from lightning_multigrid.loading import ClipDataset, FixedClips, MultigridLoader, ScriptLoader, StreamSamples
from lightning_multigrid.positions import Following
from lightning_multigrid.reports import REHEARSAL, Account, Clock, RunReport
from lightning_multigrid.schedule import BatchShape, Place, Plan, Step
from lightning_multigrid.training.arguments import Arguments
from lightning_multigrid.training.checkpoints.continuation import State, describe_run, find_continuation
from lightning_multigrid.training.lr.baseline_lr import BaselineLR
from lightning_multigrid.training.mini_batches import error_text, small_batches
from lightning_multigrid.training.parts.evaluation_statistics import EvaluationStatistics, PopulationEstimate
from lightning_multigrid.training.parts.lightning_loop import LightningLoop, refuse_other
from lightning_multigrid.training.parts.on_grid import OnGrid
from lightning_multigrid.training.parts.reporting import Reporting
from lightning_multigrid.training.plan_loader import clips_of, loading_of, plan_loader
from lightning_multigrid.training.rehearsal.check_grids import UNNOTICED, check_grids
from lightning_multigrid.training.script.planning import check_steps, make_plan
from lightning_multigrid.training.script.recipe import read_recipe, user_loader
from lightning_multigrid.training.script.refusals import refuse_layers, refuse_other_plans, refuse_tables_in_shards
from lightning_multigrid.training.told import tell_plan
from lightning_multigrid.training.trainer import lightning_internals as internals
from lightning_multigrid.training.trainer.changes import Changes


class Run:
    """One `fit`: says which part does what in a step, and in which order. It is the `Loop` of its loader.

    Lightning's counters say where it is. `_next` is what the plan expects there, and any difference is refused.
    What the parts change goes through `_changes`, which `close` undoes, also after an error at any point.
    """

    def __init__(
        self,
        plan: Plan,
        trainer: Trainer,
        report: RunReport,
        *,
        loop: LightningLoop,
        grid: OnGrid,
        reporting: Reporting,
        statistics: EvaluationStatistics,
        lr: BaselineLR,
    ) -> None:
        self.plan, self.report, self.timed = plan, report, report.timed
        self._loop, self._grid, self._reporting = loop, grid, reporting
        self._statistics, self._lr = statistics, lr
        self._trainer: Trainer | None = trainer
        self._planned: Place | None = None  # where the next epoch begins; without a checkpoint, Lightning says where
        self._next: Step | None = None
        self._in_step = False
        self._changes = Changes()
        self._saved: State = {}  # when it was closed

    @property
    def trainer(self) -> Trainer:
        if self._trainer is None:
            raise RuntimeError("This `fit` of MultigridCallback has ended. Its `plan` and `report` are still there.")
        return self._trainer

    def start(self) -> None:
        for part in (self._loop, self._grid, self._reporting, self._statistics, self._lr):
            part.start(self._changes)

    # --- A step ---

    @property
    def step(self) -> Step:
        """The step that is under way; between two, the next one."""
        if self._trainer is None or self._next is None:
            raise RuntimeError("No step is under way: the `fit` has not begun its first epoch, or has ended.")
        return self._next

    @property
    def at(self) -> Step:
        """The step that is under way, or the next one; before and after the training the first of an epoch."""
        if self._next is None or self._trainer is None:
            return self.plan.step(Place(0 if self._trainer is None else self._trainer.current_epoch, 0))
        return self._next

    def before(self, batch: int) -> None:
        step = self._step_at(batch)
        self._loop.check(step)
        self._grid.set(step)
        self._reporting.announce(step, self._lr.baseline_lr)
        self._loop.hold_patience(step)
        self._lr.check(step)
        self._in_step = True

    def after(self, batch: int) -> None:
        if not self._in_step:  # Lightning skips a mini-batch of None, which trains nothing, but has its place
            self.before(batch)
        step = self._step_at(batch)
        following = self._next = self.plan.after(step)
        self._in_step = False
        self._grid.restore()
        self._reporting.ended(step, following, lambda: self._lr.in_use(step))
        self._statistics.ended(step.place)
        self._lr.go_on(following)

    def _step_at(self, batch: int) -> Step:
        found = Place(self.trainer.current_epoch, batch)
        if self._next is None or self._next.place != found:
            refuse_other(self.trainer, "is at", None if self._next is None else self._next.place, found)
        return self._next

    # --- An epoch, and the end ---

    def begin(self) -> Step:
        """The loader asks: begins the current epoch, or the rest of it; returns its first step."""
        # Lightning knows the place in every case of resuming only when it asks for the first batch, and after a resume
        # in mid-epoch it does not call `on_train_epoch_start`.
        found = Place(self.trainer.current_epoch, internals.batch_index(self.trainer) + 1)
        if self._planned not in (None, found):
            refuse_other(self.trainer, "continues at", self._planned, found)
        first = self._next = self.plan.step(found)
        self._planned = Place(found.epoch + 1, 0)  # a script may skip the rest of this one
        self._in_step = False
        self._loop.begin(first)
        self._grid.begin()
        self.report.begin(first)
        self._statistics.begin()
        self._lr.begin(first)
        return first

    def end(self) -> None:
        """An epoch has ended, or the script skips the rest of it."""
        self._grid.restore()
        self._lr.end()

    def finish(self) -> None:
        """The training has ended without an error."""
        self._statistics.finish()
        self.report.finish(self.trainer)

    def close(self) -> None:
        """Undoes all changes, and lets the Trainer go. The plan, the report and the state remain."""
        if self._trainer is None:
            return
        self._saved = self.save()
        try:
            self._changes.close()
        finally:
            del self._loop, self._grid, self._reporting, self._statistics, self._lr
            self._trainer = None

    # --- Checkpoints ---

    def save(self) -> State:
        """Returns what can't be computed again, as plain values: checkpoints are loaded with `weights_only`."""
        return self._saved or {**describe_run(self.plan), **self._loop.save(), **self._lr.save()}

    def complete(self, checkpoint: dict[str, Any], state: State, *, validating: bool, stopped: bool) -> None:
        """Adds the position to the callback's state in a checkpoint, and makes the rest fit for any training."""
        counters = internals.LoopCounters(checkpoint)
        # A step that is under way at the end of an epoch is one where the script skips the rest of it.
        following = None if self._in_step or self._next is None else self._next.place
        if stopped and following and following.batch and counters.place == Place(following.epoch + 1, 0):
            counters.reopen_epoch(following)
        counters.settle(self.plan.batches_per_epoch, validating)
        if counters.place.batch == 0:
            counters.forget_loader()
        # Checkpoints have no gradients, so an unfinished optimizer step starts again.
        start = self.plan.start_of_update(counters.place)
        state["clips_seen"] = self.plan.step(start).offset + state["shift"]
        under_way = self._in_step and self._next is not None and self._next.place == counters.place
        state["within_step"] = under_way or counters.place != start
        if self._trainer is not None:
            self._lr.make_ordinary(checkpoint)

    def load(self, checkpoint: dict[str, Any], state: State) -> None:
        """Continues from a checkpoint, before Lightning reads its counters."""
        found = find_continuation(checkpoint, state, self.plan)
        self._planned = found.first.place
        self._loop.load(found)
        self._lr.load(state)


def begin_run(arguments: Arguments, trainer: Trainer, state: State, account: Account) -> Run:
    """Makes a run, not yet started, at `on_fit_start`, when the Trainer has its script's optimizers and schedulers."""
    # `state` is the callback's in the checkpoint that the `fit` continues, or empty.
    module = trainer.lightning_module
    of_script = torch.initial_seed()  # before anything is read: a dataset may seed
    refuse_layers(module)
    source = internals.training_source(trainer).dataloader()
    script = user_loader(source, trainer, arguments.clips_per_epoch)
    given = state.get("seed") if arguments.seed is None else arguments.seed
    seed = internals.global_seed(trainer) if given is None else given
    loader = plan_loader(*plan_of(arguments, trainer, module, script, trainer.world_size, seed), trainer, script)
    loader.noise = 0 if of_script == trainer.strategy.broadcast(of_script) else trainer.global_rank
    # `trainer.train_dataloader` should look like the script's loader. One without a batch size can't be copied, so the
    # converted one is shown.
    own = source if isinstance(script.dataset, StreamSamples) or source.batch_size is not None else script
    plan = loader.sampler.plan
    seen = ScriptLoader(own, loader, lambda: run.at)
    refuse_other_plans(plan)
    following = Following(module, *plan.schedule.baseline.shape.clip)
    for shape in plan.schedule.grids:
        refuse_tables_in_shards(trainer.strategy, following.resized(*shape.clip))
    with account.during(REHEARSAL):
        if arguments.rehearse and not plan.schedule.is_baseline:
            _try_grids(arguments, trainer, loader)
    report = RunReport(loading_of(loader, trainer.num_devices), Clock(module.device), account, lambda: loader.reading)
    batches = arguments.precise_bn_batches
    estimate = None if batches is None else PopulationEstimate(loader, batches, trainer)
    run = loader.loop = Run(
        plan,
        trainer,
        report,
        loop=LightningLoop(plan, trainer, source, loader, seen),
        grid=OnGrid(plan, trainer, following),
        reporting=Reporting(trainer, report),
        statistics=EvaluationStatistics(trainer, estimate, account),
        # The steps of the baseline are those of the script, by which it may write the LR.
        lr=BaselineLR(plan, trainer, by_hand=plan.schedule.is_baseline or arguments.lr_by_hand is not None),
    )
    tell_plan(arguments, trainer, plan, following.names)
    tell(str(plan))
    return run


def plan_of(
    arguments: Arguments, trainer: Trainer, module: LightningModule, script: DataLoader[Any], world: int, seed: int
) -> tuple[Plan, ClipDataset]:
    """Plans the training of a script on `world` devices; also returns its clips."""
    recipe = read_recipe(trainer, script, world)
    dataset = clips_of(arguments, script)
    shape = BatchShape(cast("int", script.batch_size), dataset.frames, dataset.size)
    plan = make_plan(arguments, trainer, module, recipe, shape, dataset.stride, seed=seed, world=world)
    if not trainer.fast_dev_run:  # type: ignore[attr-defined]
        check_steps(plan, getattr(trainer, "datamodule", None))
    if isinstance(dataset, FixedClips):
        dataset.divisor = plan.schedule.size_divisor
        if dataset.staying and not plan.schedule.is_baseline:
            tell(
                f"These parts of a sample stay as they are on every grid: {', '.join(dataset.staying)}. `follow` names "
                "what has to follow the clip, as boxes or a number of frames. Sound needs `whole_span=True`."
            )
    return plan, dataset


def _try_grids(arguments: Arguments, trainer: Trainer, loader: MultigridLoader) -> None:
    module, schedule = trainer.lightning_module, loader.sampler.plan.schedule
    grids = [schedule.baseline.shape, *schedule.grids]
    boxes_follow = any(callable(axes) or set("xywh") & set(axes) for axes in (arguments.follow or {}).values())
    try:
        check_grids(module, grids, partial(small_batches, loader), trainer, boxes_follow)
    except torch.OutOfMemoryError as error:
        rank_zero_warn(
            "The memory is too small to rehearse the grids, which takes a copy of the module "
            f"({error_text(error)}). {UNNOTICED} `rehearse=False` leaves the rehearsal out."
        )
