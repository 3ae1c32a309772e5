"""Where a run was when it wrote a checkpoint, and where this run continues.

Lightning keeps the position, and everything else is a function of position and seed (`Fit.start`). This module is for
checkpoints of other devices or batch sizes, or of the baseline: it compares clips of all ranks, and baseline epochs.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, get_args

from lightning_utilities.core.rank_zero import rank_zero_info

from lightning_multigrid.lightning import LRSchedulerConfig, MisconfigurationException
from lightning_multigrid.loading import MultigridSampler
from lightning_multigrid.schedule import LongCycle, LRScaling, MultigridSchedule, ShortCycle
from lightning_multigrid.training.baseline_lr import BaselineEpoch, BaselineLR
from lightning_multigrid.training.lightning_internals import LoopCounters, Place

State = dict[str, Any]  # of the callback in a checkpoint, as plain values: checkpoints are loaded with `weights_only`

# --- What a checkpoint says ---


def describe_run(sampler: MultigridSampler, epoch: BaselineEpoch) -> State:
    """Returns what distinguishes a run from others."""
    return {
        "version": 2,
        "schedule": str(sampler.schedule),
        "plan": _plan_key(sampler.schedule),
        "baseline_plan": _plan_key(_without_cycles(sampler.schedule)),
        # Of a baseline optimizer step.
        "clips": sampler.schedule.baseline.shape.clips * sampler.world * sampler.accumulate,
        "split": [sampler.world, sampler.accumulate],
        "samples": int(sampler.clips * sampler.world),
        "baseline_epoch_batches": [epoch.batches, epoch.accumulate],
    }


def describe_stand(sampler: MultigridSampler, place: Place) -> State:
    """Returns the position of a run, given its next mini-batch, in units that mean the same in another run."""
    start = _window_start(place, sampler.accumulate)
    seen = sampler.steps(place.epoch)[start.batch].offset * sampler.world if start.batch else 0
    position = place.epoch + seen / (sampler.clips * sampler.world)
    return {"clips_seen": seen, "baseline_epoch": str(sampler.schedule.baseline_epoch(position))}


def _without_cycles(schedule: MultigridSchedule) -> MultigridSchedule:
    """The baseline itself, as a schedule."""
    return replace(schedule, long_cycle=LongCycle(((1, 1),)), short_cycle=ShortCycle((1,)), epoch_factor=1)


def _plan_key(schedule: MultigridSchedule) -> str:
    """Returns a key that schedules share if they differ only in the clips of the baseline's mini-batch."""
    baseline = schedule.baseline
    parts: list[Any] = [baseline.stride, str(Fraction(str(baseline.warmup_epochs)))]
    for phase in schedule.phases:
        places = phase.start_epoch, (phase.start_epoch + phase.end_epoch) / 2, phase.end_epoch
        clock = [(str(place), str(schedule.baseline_epoch(place))) for place in places]
        cycle = [(s.frames, s.size, str(Fraction(s.clips, baseline.shape.clips))) for s in schedule.cycle(phase.shape)]
        parts.append((phase.stage, phase.lr_scale, clock, cycle))
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def _window_start(place: Place, accumulate: int) -> Place:
    # Checkpoints have no gradients, so an unfinished optimizer step starts again.
    return place._replace(batch=place.batch - place.batch % accumulate)


# --- Where a run continues ---


def take_up(checkpoint: dict[str, Any], state: State | None, sampler: MultigridSampler, lr: BaselineLR) -> Continuation:
    """Finds where this run continues a checkpoint, and changes the counters in it before Lightning reads them."""
    # `state` is None if a run without the callback wrote the checkpoint.
    counters = LoopCounters(checkpoint)
    if state is None:
        found = _from_baseline(counters, sampler, lr.epoch, lr.configs)
    else:
        found = _from_multigrid(state, counters.place, sampler, lr.epoch)
    elsewhere = counters.optimizer_steps - optimizer_steps_before(sampler, found.place)
    if found.place == counters.place:
        counters.close_finished_epoch()
    else:
        counters.move(found.place)
    if found.message:
        rank_zero_info(found.message)
    return replace(found, steps_elsewhere=elsewhere)


@dataclass(frozen=True)
class Continuation:
    """How a run continues a checkpoint."""

    place: Place  # the next mini-batch
    ticks: Sequence[int]  # that each LR scheduler has had
    lr_scale: float  # of the last step
    epoch: BaselineEpoch  # in which the LR schedulers, which are the checkpoint's, count
    intervals: Sequence[str] = ()  # after which each LR scheduler is stepped, where the checkpoint says so
    steps_elsewhere: int = 0  # optimizer steps that Lightning counts beyond those of this run's plan before the place
    message: str = ""  # what a user should know; empty if the run has the settings of the checkpoint


def _from_multigrid(state: State, place: Place, sampler: MultigridSampler, epoch: BaselineEpoch) -> Continuation:
    saved_epoch = BaselineEpoch(*state.get("baseline_epoch_batches", (epoch.batches, epoch.accumulate)))
    here = Continuation(place, state["ticks"], state["lr_scale"], saved_epoch, state.get("intervals", ()))
    mine = describe_run(sampler, epoch)
    # Version 1 had only the schedule of a device.
    key = "plan" if "plan" in state else "schedule"
    if state[key] == mine[key]:
        if all(state.get(name, mine[name]) == mine[name] for name in ("clips", "split", "samples")):
            return replace(here, place=_window_start(place, sampler.accumulate))
        return _on_other_ranks(state, mine, here, sampler)
    if state.get("baseline_plan") == mine["baseline_plan"] in (state.get("plan"), mine["plan"]):
        both = "the baseline", "a multigrid training"
        _refuse_mid_epoch(place, *(both if mine["plan"] != mine["baseline_plan"] else both[::-1]))
        return _cross(here, Fraction(state["baseline_epoch"]), sampler)
    for scaling in get_args(LRScaling):
        if state.get("plan") == _plan_key(replace(sampler.schedule, lr_scaling=scaling)):
            raise MisconfigurationException(
                f"The LR of the checkpoint grows by `lr_scaling={scaling!r}`, that of this run by "
                f"{sampler.schedule.lr_scaling!r}. Since version 0.2 the default depends on the optimizer. Continue "
                f"with `MultigridCallback(lr_scaling={scaling!r})`, or start a new training from the weights."
            )
    raise MisconfigurationException(
        "The checkpoint belongs to another multigrid schedule, so its position means something else here. "
        "Resume with the settings of the checkpoint, or start a new training from its weights.\n"
        f"The checkpoint's:\n{state['schedule']}\nThis run's:\n{sampler.schedule}"
    )


def _on_other_ranks(state: State, mine: State, here: Continuation, sampler: MultigridSampler) -> Continuation:
    place = _first_after(sampler, here.place.epoch, state["clips_seen"])
    where = f"in epoch {place.epoch} at batch {place.batch}"
    ranks = f"{state['split'][0]} rank(s), this run has {mine['split'][0]}"
    if state["clips"] == mine["clips"]:
        message = f"The checkpoint is of {ranks}. This run goes on {where}, with the same mini-batches."
    else:
        message = (
            f"The checkpoint is of {ranks}, and of {state['clips']} clips in an optimizer step of the baseline, this "
            f"run has {mine['clips']}: it goes on {where}, the first after the {state['clips_seen']} clips of its "
            "epoch that were seen. The baseline's LR is the checkpoint's."
        )
    repeated = max(state["split"][0], mine["split"][0]) if sampler.schedule.flat else 1  # to make the ranks equal
    if abs(state["samples"] - mine["samples"]) >= repeated:
        message += f" An epoch had {state['samples']} clips and has {mine['samples']} now, so their order differs."
    return replace(here, place=place, message=message)


def _from_baseline(
    counters: LoopCounters, sampler: MultigridSampler, epoch: BaselineEpoch, configs: Sequence[LRSchedulerConfig]
) -> Continuation:
    done = counters.place
    _refuse_mid_epoch(done, "a training without MultigridCallback", "a training with it")
    if counters.optimizer_steps != done.epoch * epoch.optimizer_steps:
        raise MisconfigurationException(
            f"The checkpoint is of a training without MultigridCallback, with {counters.optimizer_steps} optimizer "
            f"steps in {done.epoch} epoch(s), but the baseline of this script has {epoch.optimizer_steps} in each. Use "
            "the data, `batch_size` and devices of that training, or start a new training from the weights."
        )
    ticks = [epoch.ticks(Fraction(done.epoch), config.interval, config.frequency) for config in configs]
    return _cross(Continuation(done, ticks, 1.0, epoch), Fraction(done.epoch), sampler)


def _refuse_mid_epoch(place: Place, of: str, this: str) -> None:
    if place.batch:
        raise MisconfigurationException(
            f"The checkpoint is of {of}, in the middle of its epoch {place.epoch} (batch {place.batch}). This run is "
            f"{this}: its mini-batches are others, so it can only continue from the end of an epoch. Let the script "
            "that wrote the checkpoint continue to the end of an epoch, and resume from the checkpoint written there."
        )


def _cross(found: Continuation, baseline_epoch: Fraction, sampler: MultigridSampler) -> Continuation:
    """Moves to the first optimizer step at or after an epoch of the baseline."""
    schedule = sampler.schedule
    position = schedule.position_of(baseline_epoch)
    epoch = math.floor(position)
    place = _first_after(sampler, epoch, (position - epoch) * sampler.clips * sampler.world)
    trains = "the baseline" if _plan_key(schedule) == _plan_key(_without_cycles(schedule)) else "multigrid"
    message = (
        f"The checkpoint is of another training of this baseline, at its epoch {float(baseline_epoch):g} of "
        f"{float(schedule.baseline.epochs):g}. This run trains {trains}, and goes on where its LR is that of the same "
        f"baseline epoch: in epoch {place.epoch} of {schedule.epochs} at batch {place.batch}."
    )
    return replace(found, place=place, message=message)


def optimizer_steps_before(sampler: MultigridSampler, place: Place) -> int:
    """Returns the optimizer steps of the plan before a place."""
    split = sampler.clips, sampler.accumulate, sampler.drop_last
    batches = (sum(sampler.schedule.count_steps(epoch, *split)) for epoch in range(place.epoch))
    return sum(math.ceil(count / sampler.accumulate) for count in batches) + place.batch // sampler.accumulate


def _first_after(sampler: MultigridSampler, epoch: int, clips: Fraction | int) -> Place:
    """The first optimizer step of an epoch that has at least this many clips before it, over all ranks."""
    steps = sampler.steps(epoch)
    for batch in range(0, len(steps), sampler.accumulate):
        if steps[batch].offset * sampler.world >= clips:
            return Place(epoch, batch)
    return Place(epoch + 1, 0)
