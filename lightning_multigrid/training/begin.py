"""How a `fit` begins: what the script says is planned, tried on the model, and made into a `Run`."""

from functools import partial
from typing import Any, cast

import torch
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch.utils.data import DataLoader

from lightning_multigrid.host import LightningModule, Trainer, tell
from lightning_multigrid.loading import ClipDataset, FixedClips, MultigridLoader, ScriptLoader, StreamSamples
from lightning_multigrid.norm import tracking_layers
from lightning_multigrid.positions import Following
from lightning_multigrid.reports import REHEARSAL, Account, Clock, RunReport, tell_changed_meaning, tell_few_steps
from lightning_multigrid.schedule import BatchShape, Plan, counted
from lightning_multigrid.training.arguments import Arguments
from lightning_multigrid.training.checkpoints.continuation import State
from lightning_multigrid.training.lr.baseline_lr import BaselineLR
from lightning_multigrid.training.mini_batches import error_text
from lightning_multigrid.training.parts.evaluation_statistics import EvaluationStatistics, PopulationEstimate
from lightning_multigrid.training.parts.lightning_loop import LightningLoop
from lightning_multigrid.training.parts.on_grid import OnGrid
from lightning_multigrid.training.parts.patience import Patience
from lightning_multigrid.training.parts.reporting import Reporting
from lightning_multigrid.training.plan_loader import clips_of, loading_of, plan_loader
from lightning_multigrid.training.rehearsal.batches import small_batches
from lightning_multigrid.training.rehearsal.check_grids import check_grids
from lightning_multigrid.training.rehearsal.rules import PointsOnPlan
from lightning_multigrid.training.rehearsal.shared_memory import tell_small_shared_memory
from lightning_multigrid.training.rehearsal.tried import what_was_tried
from lightning_multigrid.training.run import Run
from lightning_multigrid.training.script.optimizers import lr_rule, tell_own_warmups
from lightning_multigrid.training.script.planning import check_steps, make_plan
from lightning_multigrid.training.script.recipe import read_recipe, user_loader
from lightning_multigrid.training.script.refusals import (
    refuse_lazy,
    refuse_other_plans,
    refuse_synced_batchnorm,
    refuse_tables_in_shards,
)
from lightning_multigrid.training.trainer import lightning_internals as internals


def begin_run(arguments: Arguments, trainer: Trainer, state: State, account: Account) -> Run:
    """Plans the training of a script, tries the plan on the model, and makes its run, which has not started.

    It is called at `on_fit_start`, when the Trainer has the settings, optimizers and schedulers of its script.
    `state` is the callback's in the checkpoint that the `fit` continues; else it is empty.
    """
    module = trainer.lightning_module
    of_script = torch.initial_seed()  # before anything is read: a dataset may seed
    refuse_synced_batchnorm(module)
    refuse_lazy(module)
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
        tried, points = what_was_tried(plan.schedule, module), None
        if arguments.rehearse and state.get("tried") != tried and not plan.schedule.is_baseline:
            tell_small_shared_memory(loader, trainer.num_devices)  # the rehearsal also gets its mini-batches there
            points = _try_grids(arguments, trainer, loader)
    report = RunReport(loading_of(loader, trainer.num_devices), Clock(module.device), account, lambda: loader.reading)
    batches = arguments.precise_bn_batches
    estimate = None if batches is None else PopulationEstimate(loader, batches, trainer)
    grid = OnGrid(plan, trainer, following, points)
    run = loader.loop = Run(
        plan,
        trainer,
        report,
        tried if arguments.rehearse and points is None else None,
        loop=LightningLoop(plan, trainer, source, loader, seen),
        grid=grid,
        reporting=Reporting(trainer, report),
        statistics=EvaluationStatistics(trainer, estimate, account),
        patience=Patience(plan, trainer),
        # The steps of the baseline are those of the script, by which it may write the LR.
        lr=BaselineLR(plan, trainer, by_hand=plan.schedule.is_baseline or arguments.lr_by_hand is not None),
    )
    _tell_plan(arguments, trainer, run, following.names)
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
        check_steps(plan)
    if isinstance(dataset, FixedClips):
        dataset.divisor = plan.schedule.size_divisor
    return plan, dataset


def _try_grids(arguments: Arguments, trainer: Trainer, loader: MultigridLoader) -> PointsOnPlan | None:
    """Rehearses every grid of the plan on the module; see `check_grids`."""
    module, schedule = trainer.lightning_module, loader.sampler.plan.schedule
    grids = [schedule.baseline.shape, *schedule.grids]
    boxes_follow = any(callable(axes) or set("xywh") & set(axes) for axes in (arguments.follow or {}).values())
    try:
        return check_grids(module, grids, partial(small_batches, loader), trainer, boxes_follow)
    except torch.OutOfMemoryError as error:
        rank_zero_warn(
            "The memory is too small to rehearse the grids, which takes a copy of the module "
            f"({error_text(error)}). So a grid that a step can't take fails only in training; places that are counted "
            "from the first, or a loss that is a sum over the clips, are not noticed. `rehearse=False` "
            "leaves the rehearsal out."
        )
        return PointsOnPlan()


def _tell_plan(arguments: Arguments, trainer: Trainer, run: Run, following: list[str]) -> None:
    """Says what is planned, and what of the script means something else."""
    plan, schedule = run.plan, run.plan.schedule
    if not schedule.is_baseline:
        tell_changed_meaning(trainer, schedule)
        if tracking_layers(trainer.lightning_module) and arguments.precise_bn_batches is None:
            tell_few_steps(trainer, plan)
    tell(str(plan))
    every = trainer.check_val_every_n_epoch or 0  # 0: by steps
    if trainer.enable_validation and not trainer.fast_dev_run and every and plan.epochs % every:  # type: ignore[attr-defined]
        epochs = counted(plan.epochs, "epoch")
        if every > plan.epochs:
            tell(f"Nothing is validated: `check_val_every_n_epoch={every}` is more than the {epochs} of the training.")
        else:
            tell(
                f"The last {plan.epochs % every} of {epochs} are not validated (`check_val_every_n_epoch={every}`), "
                "nor saved by a `ModelCheckpoint` that follows validations. `NewestCheckpoint` saves the end."
            )
    if tracking_layers(trainer.lightning_module):
        clips, script = schedule.sub_batch, schedule.baseline.shape.clips
        beside = "" if clips == script else f", the script's over {script}"
        fewer = " (all of a mini-batch that has fewer)" if script * plan.world < clips else ""
        more = ", in the short cycle over more" if schedule.has_short_cycle else ""
        tell(f"BatchNorm has statistics over {counted(clips, 'clip')}{fewer}{more}{beside}.")
    if following:
        tell(f"Positions follow the grid: {', '.join(following)}.")
    tell(lr_rule(arguments, schedule, trainer.optimizers))
    if arguments.lr_by_hand is not None:
        tell(
            f"For an LR by hand: `trainer.estimated_stepping_batches` is {plan.optimizer_steps} from now on. Before, "
            "as in `configure_optimizers`, it was the baseline's."
        )
    tell_own_warmups(plan, trainer.optimizers)
