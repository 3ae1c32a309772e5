"""The plan of a config, without data or GPU: what `lightning-multigrid plan` says."""

import math
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from operator import mul
from statistics import mean, median
from typing import Any, cast

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.optim import SGD
from torch.utils.data import DataLoader

from lightning_multigrid.cli.terminal import say
from lightning_multigrid.files import of_videos
from lightning_multigrid.norm import ranks_needed, sub_batches
from lightning_multigrid.positions import Following
from lightning_multigrid.prepare import missing_tables
from lightning_multigrid.reports import Clock, LRPoint
from lightning_multigrid.schedule import LR_POWERS, BatchShape, Plan, counted, duration, text_table, three_digits
from lightning_multigrid.training import (
    BaselineLR,
    Changes,
    MultigridCallback,
    attach,
    auto_lr_scaling,
    check_parts,
    check_steps,
    lr_rule,
    make_optimizers,
    make_plan,
    measure,
    read_recipe,
    replace_loader,
    tell_notes,
    user_loader,
)
from lightning_multigrid.video import MovingShapesDataModule, VideoClassifier, VideoDataModule

MIXED = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}
StepSeconds = dict[BatchShape, float]

# Mini-batches of an epoch if their number is not known, and if a rough number is enough, so that LR curves are quick.
_UNKNOWN_BATCHES, _CURVE_BATCHES = 1000, 200
_POINTS_PER_PHASE = 24
_MOMENT = Fraction(1, 10**6)  # before the end of a phase, as a share of it


@dataclass(frozen=True)
class Preview:
    """What will happen in a training."""

    plan: Plan  # for an assumed number of clips, if it is not known
    counted: bool  # whether the number of clips is known
    lrs: tuple[LRPoint, ...]  # over the training on these devices, `_POINTS_PER_PHASE` per phase
    lr_notes: tuple[str, ...]  # how the LR grows with the clips, and what it is on other devices than the config's

    @property
    def steps(self) -> list[int] | None:
        """Mini-batches of each phase; None if the training videos are not known."""
        return self.plan.phase_steps if self.counted else None

    @property
    def shapes(self) -> list[tuple[BatchShape, int]]:
        """Every shape of the baseline and the schedule once, with the number of clips that share BN statistics."""
        schedule, baseline = self.plan.schedule, self.plan.schedule.baseline.shape
        first = baseline, schedule.sub_batch_of(baseline, baseline)
        return list(dict([first, *schedule.grids_of_statistics]).items())

    def table(self, seconds: StepSeconds) -> str:
        schedule, steps, world = self.plan.schedule, self.steps, self.plan.world
        ends = zip(self.lrs[::_POINTS_PER_PHASE], self.lrs[_POINTS_PER_PHASE - 1 :: _POINTS_PER_PHASE], strict=True)
        columns = {"LR": [" to ".join(dict.fromkeys(f"{point.lr:.3g}" for point in phase)) for phase in ends]}
        if steps:
            columns[self.plan.unit] = [str(number) for number in steps]
        table = schedule.phase_table(columns, f" on each of {world} devices" if world > 1 else "")
        phases = tuple({phase.shape: phase for phase in schedule.phases}.values())
        needs = {
            "base shape": [str(phase.shape).replace(" ", "") for phase in phases],
            "BN clips": [self._bn(phase.shape) for phase in phases],
        }
        if seconds:
            cycles = [schedule.cycle(phase.shape) for phase in phases]
            of_cycle = [sum(seconds[shape] for shape in cycle) for cycle in cycles]
            clips = [world * sum(shape.clips for shape in cycle) for cycle in cycles]
            needs["ms/step"] = [three_digits(1000 * s / len(cycle)) for s, cycle in zip(of_cycle, cycles, strict=True)]
            needs["clips/s"] = [three_digits(number / s) for s, number in zip(of_cycle, clips, strict=True)]
        needs["short cycle"] = [schedule.cycle_text(phase) for phase in phases]
        table += f"\n\n{text_table(list(needs), list(zip(*needs.values(), strict=True)))}\n"
        table += "BN clips: clips that share BatchNorm statistics\n"
        table += "ms/step, clips/s: means over the short cycle; clips of all devices\n" if seconds else ""
        return "\n".join([table, *self._totals(seconds)])

    def _bn(self, shape: BatchShape) -> str:
        clips, sub_batch = shape.clips, self.plan.schedule.sub_batch_of(shape, shape)
        ranks = ranks_needed(clips, sub_batch, self.plan.world)
        return f"{ranks * clips} of {ranks} ranks" if ranks > 1 else str(clips // max(1, clips // sub_batch))

    def _totals(self, seconds: StepSeconds) -> list[str]:
        schedule, steps = self.plan.schedule, self.steps
        instead = "" if schedule.is_baseline else f" instead of {self.plan.baseline_steps}"
        parts = [] if steps is None else [f"{sum(steps)} {self.plan.unit}{instead}"]
        lines = [", ".join([*parts, *schedule.savings]) + "."]
        if seconds and steps:
            cycles = (schedule.cycle(phase.shape) for phase in schedule.phases)
            means = (mean(seconds[shape] for shape in cycle) for cycle in cycles)
            own, whole = sum(map(mul, steps, means)), self.plan.baseline_steps * seconds[schedule.baseline.shape]
            lines.append(
                f"About {duration(own)} of steps"
                + ("" if schedule.is_baseline else f" instead of {duration(whole)}, {whole / own:.2f}x faster")
                + " if all loaders together give these clips/s; validation and start-up come on top."
            )
        return [*lines, *self.lr_notes]


def count_clips(data: VideoDataModule) -> int | None:
    """Counts the training videos of a data module, if their list, folder or annotation file is on this machine."""
    if isinstance(data, MovingShapesDataModule):  # which writes them when they are first needed
        return data.train_videos
    try:
        data.setup("fit")
    except ValueError as error:
        say(f"warning: Steps are not counted: {error} `--clips` says how many videos there are.", sys.stderr)
        return None
    return len(data.train_dataloader().dataset)  # type: ignore[arg-type]


def measure_loader(
    planned: Preview, trainer: Trainer, module: LightningModule, data: VideoDataModule, seconds: StepSeconds
) -> str:
    """Reads mini-batches by the config's workers; says what the training takes on this machine, and what limits it."""
    if isinstance(data, MovingShapesDataModule):  # of other data, `count_clips` has set them up
        data.prepare_data()
        data.setup("fit")
    loader, plan = data.train_dataloader(), planned.plan
    dataset: Any = loader.dataset
    if missing := missing_tables(dataset.manifest):
        return (
            f"The loader is not measured, as {of_videos(len(missing))} lack frame tables. Make them first, with "
            "`lightning-multigrid index` and this config."
        )
    with Changes() as changes:
        attach(trainer, module, changes)
        script = user_loader(loader, trainer)
        return str(measure(plan, dataset, trainer, module, script, seconds[plan.schedule.baseline.shape]))


def preview(
    callback: MultigridCallback,
    trainer: Trainer,
    module: LightningModule,
    data: VideoDataModule,
    *,
    clips: int | None,
    world: int,
    configured_world: int,
) -> Preview:
    """Returns what `fit` does on this many devices (`world`); Trainer and module are afterwards as before.

    `clips` is the number of videos, `configured_world` that of the devices that the LR of the config is for.
    """
    check_parts(callback, "VideoDataset")
    with Changes() as changes:
        attach(trainer, module, changes)
        known = clips * data.repeats if clips is not None else _UNKNOWN_BATCHES * data.batch_size * world
        recipe = read_recipe(trainer, _stand_in(data, known), world)
        replace_loader(trainer, _stand_in(data, math.ceil(known / world)), changes)
        make_optimizers(trainer)
        in_epochs = isinstance(module, VideoClassifier) and trainer.max_steps == -1
        if clips is None and not in_epochs and any(c.interval == "step" for c in trainer.lr_scheduler_configs):
            raise MisconfigurationException(
                "The LR scheduler counts steps, but the videos are elsewhere. Give their number with `--clips`."
            )
        shape = BatchShape(data.batch_size, data.frames, data.size)
        plan = make_plan(callback, trainer, module, recipe, shape, data.stride, seed=0, world=world)
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            check_steps(plan, data)
        tell_notes(callback, trainer, plan)
        quick = plan
        if in_epochs and recipe.epoch.batches > _CURVE_BATCHES:
            # The module's arguments are in epochs, so shorter epochs give the same curve.
            replace_loader(trainer, _stand_in(data, _CURVE_BATCHES * data.batch_size), changes)
            make_optimizers(trainer)
            quick = replace(plan, batches=_CURVE_BATCHES)
        group = trainer.optimizers[0].param_groups[0]
        configured = float(group.get("initial_lr", group["lr"]))  # torch's name for it, if there is a scheduler
        notes = [lr_rule(callback, plan.schedule, trainer.optimizers)]
        lr = BaselineLR(quick, trainer)
        lr.start(changes)
        scaling = plan.schedule.lr_scaling
        if world != configured_world and callback.schedule is None and callback.lr_scaling == "auto":
            scaling = auto_lr_scaling(trainer.optimizers)  # a plan of one shape needs none, more devices do
        of_devices = (world / configured_world) ** LR_POWERS[scaling]
        if world != configured_world:
            devices = f"{counted(configured_world, 'device')} x {counted(plan.schedule.baseline.shape.clips, 'clip')}"
            notes.append(
                f"The config is for {devices}, at the LR {configured:g}. For {world}, as in this table, write "
                f"the LR {configured * of_devices:.3g}."
            )
        return Preview(plan, clips is not None, tuple(_lr_points(plan, lr, of_devices)), tuple(notes))


def _stand_in(data: VideoDataModule, clips: int) -> DataLoader[Any]:
    return DataLoader(cast("Any", range(clips)), data.batch_size, drop_last=data.drop_last)


def _lr_points(plan: Plan, lr: BaselineLR, factor: float) -> Iterator[LRPoint]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of a scheduler's step before the first of its optimizer
        for position, scale in _places(plan):
            lr.go_to(plan.schedule.baseline_epoch(position))
            baseline = factor * float(lr.baseline_lr)
            yield LRPoint(float(position), baseline * scale, baseline)


def _places(plan: Plan) -> Iterator[tuple[Fraction, float]]:
    """Yields `_POINTS_PER_PHASE` positions of each phase, each with the scale of the LR."""
    for phase, part in product(plan.schedule.phases, range(_POINTS_PER_PHASE)):
        # The last point is just before the end, as the next phase starts there.
        share = min(Fraction(part, _POINTS_PER_PHASE - 1), 1 - _MOMENT)
        yield phase.start_epoch + share * (phase.end_epoch - phase.start_epoch), phase.lr_scale


def seconds_by_points(shapes: Sequence[tuple[BatchShape, int]], baseline: BatchShape, seconds: float) -> StepSeconds:
    """Returns the seconds of a step on each shape by its points b t s^2, from those of the baseline (Eq. 1)."""
    return {shape: seconds * shape.points / baseline.points for shape, _ in shapes}


def measure_steps(
    module: LightningModule,
    shapes: Sequence[tuple[BatchShape, int]],
    device: torch.device,
    *,
    precision: str = "32-true",
    rounds: int = 10,
) -> StepSeconds:
    """Returns the seconds of a step (forward, backward, SGD) on each shape: the median of several rounds.

    The shapes take turns, so a machine whose speed drifts favours none of them. The first round, which chooses kernels
    and takes memory, does not count. Each shape comes with the clips that share BN statistics. Every `precision` that
    is not mixed is measured at 32 bits. The module is trained.
    """
    module.train().to(device)
    optimizer = SGD(module.parameters(), lr=1e-6, momentum=0.9)
    following = Following(module, shapes[0][0].frames, shapes[0][0].size)
    seconds: dict[BatchShape, list[float]] = {shape: [] for shape, _ in shapes}
    for _ in range(1 + rounds):
        for shape, sub_batch in shapes:
            following.set_grid(shape.frames, shape.size)
            try:
                with sub_batches(sub_batch, of=shape.clips):
                    seconds[shape].append(_step(module, optimizer, shape, device, precision))
            except torch.OutOfMemoryError as error:
                raise ValueError(
                    f"A step on {shape} (clips x frames x size) does not fit into the memory of {device}. Use a "
                    "smaller `batch_size`, or a `precision` such as `16-mixed`."
                ) from error
    return {shape: median(of_shape[1:]) for shape, of_shape in seconds.items()}


def _step(module: LightningModule, optimizer: SGD, shape: BatchShape, device: torch.device, precision: str) -> float:
    clips, clock = torch.randn(shape.clips, 3, shape.frames, shape.size, shape.size, device=device), Clock(device)
    start = clock.now()
    with torch.autocast(device.type, MIXED.get(precision), enabled=precision in MIXED):
        logits: Tensor = module(clips)
        loss = logits.float().square().mean()
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    end = clock.now()
    clock.wait(end)
    return clock.seconds(start, end)
