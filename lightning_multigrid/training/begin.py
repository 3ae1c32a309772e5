"""How a `fit` begins: what the script says is planned, tried on the model, and made into a `Run`."""

from functools import partial
from typing import Any, cast

import torch
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch.utils.data import DataLoader

from lightning_multigrid.host import LightningModule, Trainer, tell
from lightning_multigrid.loading import ClipDataset, FixedClips, MultigridLoader, ScriptLoader, StreamSamples
from lightning_multigrid.positions import Following
from lightning_multigrid.reports import REHEARSAL, Account, Clock, RunReport
from lightning_multigrid.schedule import BatchShape, Plan
from lightning_multigrid.training.arguments import Arguments
from lightning_multigrid.training.checkpoints.continuation import State
from lightning_multigrid.training.lr.baseline_lr import BaselineLR
from lightning_multigrid.training.mini_batches import error_text, small_batches
from lightning_multigrid.training.parts.evaluation_statistics import EvaluationStatistics, PopulationEstimate
from lightning_multigrid.training.parts.lightning_loop import LightningLoop
from lightning_multigrid.training.parts.on_grid import OnGrid
from lightning_multigrid.training.parts.reporting import Reporting
from lightning_multigrid.training.plan_loader import clips_of, loading_of, plan_loader
from lightning_multigrid.training.rehearsal.check_grids import check_grids
from lightning_multigrid.training.rehearsal.rules import UNNOTICED
from lightning_multigrid.training.run import Run
from lightning_multigrid.training.script.planning import check_steps, make_plan
from lightning_multigrid.training.script.recipe import read_recipe, user_loader
from lightning_multigrid.training.script.refusals import refuse_layers, refuse_other_plans, refuse_tables_in_shards
from lightning_multigrid.training.told import tell_plan
from lightning_multigrid.training.trainer import lightning_internals as internals


def begin_run(arguments: Arguments, trainer: Trainer, state: State, account: Account) -> Run:
    """Makes the run of a script at `on_fit_start`; `state` is the callback's in a checkpoint to continue, or empty."""
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
