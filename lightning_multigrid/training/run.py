"""One `fit`: its plan, its parts in the order in which they act, and what its loader asks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from lightning_utilities.core.rank_zero import rank_zero_info
from torch.utils.data import DataLoader

from lightning_multigrid.host import MisconfigurationException, Trainer
from lightning_multigrid.loading import (
    ClipDataset,
    FixedClips,
    MultigridLoader,
    MultigridSampler,
    ScriptLoader,
    StreamSamples,
    clip_dataset,
    in_worker,
    order_of,
)
from lightning_multigrid.norm import make_groups, sub_batchnorm_layers, tracking_layers
from lightning_multigrid.positions import Following
from lightning_multigrid.reports import (
    Account,
    Clock,
    RunReport,
    short_training,
    tell_changed_meaning,
    tell_few_steps,
    ways_out,
)
from lightning_multigrid.schedule import BatchShape, Place, Plan
from lightning_multigrid.training import lightning_internals as internals
from lightning_multigrid.training.arguments import Arguments
from lightning_multigrid.training.baseline_epochs import count_baseline_epochs
from lightning_multigrid.training.baseline_lr import BaselineLR
from lightning_multigrid.training.parts import (
    ArrivedClips,
    Compiled,
    Ground,
    Part,
    Patience,
    Positions,
    Reporting,
    SubBatches,
)
from lightning_multigrid.training.planning import lr_rule, make_plan
from lightning_multigrid.training.precise_bn import EvaluationStatistics, PopulationEstimate
from lightning_multigrid.training.recipe import read_recipe, user_loader
from lightning_multigrid.training.refusals import refuse_batchnorm, tell_left_alone, warn_of_own_state
from lightning_multigrid.training.rehearsal import PointsOnPlan, check_grids, script_batches
from lightning_multigrid.training.resume import describe_position, describe_run, find_continuation
from lightning_multigrid.training.takeover import Takeover

State = dict[str, Any]  # of the callback in a checkpoint


@dataclass(eq=False)
class Run:
    """One `fit`: hands what happens on to its parts, in their order. `begin_run` makes it.

    Where it is, is Lightning's to say: its counters are the only thing that moves.
    """

    plan: Plan
    trainer: Trainer
    parts: Sequence[Part]
    lr: BaselineLR
    report: RunReport
    following: Following
    patience: Patience
    ground: Ground
    statistics: EvaluationStatistics

    def before(self, batch: int, mini_batch: Any) -> None:
        """A step begins, with the mini-batch of this number in the epoch."""
        for part in self.parts:
            part.before(Place(self.epoch, batch), mini_batch)

    def after(self, batch: int) -> None:
        """A step has ended."""
        for part in self.parts:
            part.after(Place(self.epoch, batch))

    def end(self) -> None:
        """An epoch has ended."""
        for part in self.parts:
            part.end()
        # The next epoch has another number of batches, so Lightning must request the (same) loader again.
        internals.reload_every(self.trainer, 1)

    def make_rank_groups(self) -> None:
        """Makes the groups of ranks that share BatchNorm statistics in any step of this run."""
        plan, schedule = self.plan, self.plan.schedule
        if self.trainer.world_size > 1 and sub_batchnorm_layers(self.trainer.lightning_module):
            tails = (plan.steps(epoch)[-1] for epoch in range(plan.epochs))
            steps = [*schedule.grids_of_statistics, *((step.shape, step.sub_batch) for step in tails)]
            make_groups((shape.clips, sub_batch) for shape, sub_batch in steps)

    def finish(self) -> None:
        """The training has ended."""
        self.report.finish(self.trainer)
        if self.trainer.is_last_batch and self.lr.calls is not None:
            self.lr.calls.check()

    # --- What the loader asks ---

    @property
    def epoch(self) -> int:
        return self.trainer.current_epoch

    def begin(self) -> Place:
        """Begins the current epoch, or the rest of it; returns where."""
        # Lightning knows the place in every case of resuming only when it asks for the first batch, and after a resume
        # in mid-epoch it does not call `on_train_epoch_start`.
        place = Place(self.epoch, internals.batch_index(self.trainer) + 1)
        # Lightning has just requested the training loader. It must not request those for validation again.
        internals.reload_every(self.trainer, 0)
        for part in self.parts:
            part.begin(place)
        return place

    def timed(self, mini_batches: Iterator[Any]) -> Iterator[Any]:
        return self.report.timed(mini_batches)

    # --- Checkpoints ---

    def state_dict(self) -> State:
        """Returns what can't be computed again, as plain values: checkpoints are loaded with `weights_only`."""
        return {**describe_run(self.plan, self.lr.epoch), "seed": self.plan.seed, **self.lr.state_dict()}

    def complete(self, checkpoint: dict[str, Any], state: State) -> None:
        """Adds the position to the callback's state in a checkpoint, and makes the rest fit for any training."""
        counters = internals.LoopCounters(checkpoint)
        state.update(describe_position(self.plan, counters.place))
        if counters.place.batch == 0:
            counters.forget_loader()
        self.patience.complete(checkpoint)

    def resume(self, checkpoint: dict[str, Any], state: State) -> None:
        """Continues from a checkpoint, before Lightning reads its counters."""
        found = find_continuation(checkpoint, state, self.plan)
        self.plan = self.ground.plan = replace(self.plan, start=found.place)
        self.lr.resume(found)


# --- How a `fit` begins ---


def begin_run(
    arguments: Arguments,
    trainer: Trainer,
    takeover: Takeover,
    checkpoint: dict[str, Any] | None,
    state: State | None,
    account: Account,
) -> Run:
    """Plans the training of a script, tries the plan on the model, and takes the Trainer over, at `on_fit_start`."""
    # Lightning restores the checkpoint's loops and optimizers only after that hook, so its counters may change here.
    module = trainer.lightning_module
    takeover.convert_batchnorm(module, arguments.sub_batch)  # layers that were made after `setup`
    refuse_batchnorm(module)
    tell_left_alone(module)
    source = internals.training_source(trainer).dataloader()
    script = user_loader(source, trainer, arguments.clips_per_epoch)
    streamed = isinstance(script.dataset, StreamSamples)
    if streamed and arguments.precise_bn_batches is not None:
        raise MisconfigurationException(
            "`precise_bn_batches` reads clips of the epoch again, which an iterable dataset can't give. Leave it out."
        )
    loader = _plan_loader(arguments, trainer, script, (state or {}).get("seed"))
    # To a script, its own loader, but for what none can be rebuilt from.
    seen = source if streamed or source.batch_size is not None else script
    front = ScriptLoader(seen, loader, lambda: trainer.current_epoch)
    run = loader.loop = _make_run(arguments, trainer, takeover, loader, front, account)
    if checkpoint is not None and state is not None:
        run.resume(checkpoint, state)
    warn_of_own_state(script, loader)
    plan, schedule = run.plan, run.plan.schedule
    tell_changed_meaning(trainer, schedule, arguments.hold_early_stopping)
    if tracking_layers(module) and arguments.precise_bn_batches is None and not schedule.flat:
        tell_few_steps(trainer, len(plan.steps(0)), schedule.phases[0].lr_scale)
    takeover.show_on_bar(trainer, run.report)
    takeover.add_callback(trainer, run.statistics)
    loaders = internals.loader_with_front(trainer, loader, front)
    takeover.callback(setattr, loaders, "front", source)
    takeover.replace_loader(trainer, loaders)
    takeover.configure_trainer(trainer, plan)
    per_phase = arguments.validations_per_phase
    run.report.baseline_validations = count_baseline_epochs(plan, trainer, takeover, per_phase)
    rank_zero_info(schedule.table(plan.clips, plan.accumulate, plan.drop_last))
    if run.following.names and not schedule.flat:
        rank_zero_info(f"Positions follow the grid: {', '.join(run.following.names)}.")
    rank_zero_info(lr_rule(arguments, schedule, trainer.optimizers))
    if (short := short_training(plan)) is not None and not trainer.fast_dev_run:  # type: ignore[attr-defined]
        rank_zero_info(short)
    return run


def _plan_loader(
    arguments: Arguments, trainer: Trainer, script: DataLoader[Any], saved_seed: int | None
) -> MultigridLoader:
    """Plans the training of a script on this device; returns the loader of its mini-batches."""
    recipe = read_recipe(trainer, script, trainer.world_size)
    dataset = _clips_of(arguments, script)
    shape = BatchShape(cast("int", script.batch_size), dataset.frames, dataset.size)
    given = saved_seed if arguments.seed is None else arguments.seed
    seed, world = internals.global_seed(trainer) if given is None else given, trainer.world_size
    module = trainer.lightning_module
    plan = make_plan(arguments, trainer, module, recipe, shape, dataset.stride, seed=seed, world=world)
    if isinstance(dataset, FixedClips):
        dataset.divisor = plan.schedule.size_divisor
        for grid in plan.schedule.grids:
            dataset.check(grid.frames)
    in_order = range(int(recipe.available * world))
    order = (lambda epoch: in_order) if trainer.overfit_batches else order_of(script, seed)  # type: ignore[attr-defined]
    return MultigridLoader(dataset, MultigridSampler(plan, order, rank=trainer.global_rank), script)


def _clips_of(arguments: Arguments, script: DataLoader[Any]) -> ClipDataset:
    dataset = script.dataset
    known = clip_dataset(dataset)
    if known is not None and (arguments.clips or arguments.follow):
        raise ValueError(
            f"{type(dataset).__name__} brings its samples to a grid itself, in `read_clip`, so `clips` and "
            "`follow` would have no effect. Leave them out."
        )
    look = partial(in_worker, script, dataset)
    return known or FixedClips(dataset, arguments.layout, arguments.clips, arguments.follow, look)


def _make_run(
    arguments: Arguments,
    trainer: Trainer,
    takeover: Takeover,
    loader: MultigridLoader,
    front: ScriptLoader,
    account: Account,
) -> Run:
    """Tries the plan on the model, and makes the parts; the Trainer has the settings of its script."""
    module, plan = trainer.lightning_module, loader.sampler.plan
    grids, points = [plan.schedule.baseline.shape, *plan.schedule.grids], PointsOnPlan()
    boxes_follow = any(set("xywh") & set(axes) for axes in (arguments.follow or {}).values())
    sharded = trainer.strategy.restore_checkpoint_after_setup
    if sharded:
        rank_zero_info(
            f"{type(trainer.strategy).__name__} shards the module, so the grids are tried on shapes alone: clips that "
            "mix, and places that are counted from the first, are not seen."
        )
    host = None if sharded else trainer
    check_grids(module, grids, script_batches(trainer, module, loader), points, boxes_follow, host)
    estimate = None
    if arguments.precise_bn_batches is not None:
        estimate = PopulationEstimate(loader, arguments.precise_bn_batches)
        estimate.check(trainer, module)
    statistics = EvaluationStatistics(estimate, account)
    report = RunReport(plan, loader.num_workers, ways_out(loader.clip_dataset), Clock(module.device), account)
    scales_decay = arguments.weight_decay_scaling == "timescale"
    by_hand = arguments.lr_by_hand is not None
    lr = BaselineLR(plan, trainer, module, takeover, report.lr_curve, scales_decay, by_hand)
    following = Following(module, grids[0].frames, grids[0].size)
    takeover.callback(following.restore)
    held = trainer.callbacks if arguments.hold_early_stopping else []  # type: ignore[attr-defined]
    patience, ground = Patience(plan, held, takeover), Ground(plan, trainer, front)
    parts = (
        ground,
        SubBatches(plan, module),
        Positions(plan, following),
        Compiled(plan, module, trainer.world_size, takeover),
        ArrivedClips(plan, points),
        Reporting(plan, report, trainer, module),
        statistics,
        patience,
        lr,
    )
    return Run(plan, trainer, parts, lr, report, following, patience, ground, statistics)
