"""Where a run was when it wrote a checkpoint, and where this run continues.

Lightning keeps the place, and everything else is a function of place and seed (`Plan`). This module is for checkpoints
of other devices or batch sizes, or of the baseline: it compares clips of all ranks, and baseline epochs.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, get_args

from lightning_utilities.core.rank_zero import rank_zero_info

from lightning_multigrid.host import MisconfigurationException
from lightning_multigrid.schedule import BaselineEpoch, LongCycle, LRScaling, MultigridSchedule, Place, Plan, ShortCycle
from lightning_multigrid.training.lightning_internals import LoopCounters
from lightning_multigrid.training.scheduler_calls import Driven

State = dict[str, Any]  # of the callback in a checkpoint, as plain values: checkpoints are loaded with `weights_only`

# --- What a checkpoint says ---


def describe_run(plan: Plan, epoch: BaselineEpoch) -> State:
    """Returns what distinguishes a run from others; `epoch` is that in which its LR schedulers count."""
    return {
        "version": 3,
        "schedule": str(plan.schedule),
        "plan": _plan_key(plan.schedule),
        "baseline_plan": _plan_key(_without_cycles(plan.schedule)),
        # Of a baseline optimizer step.
        "clips": plan.schedule.baseline.shape.clips * plan.world * plan.accumulate,
        "split": [plan.world, plan.accumulate],
        "samples": int(plan.clips * plan.world),
        "baseline_epoch_batches": [epoch.batches, epoch.accumulate],
    }


def describe_position(plan: Plan, place: Place) -> State:
    """Returns where a run is, given its next mini-batch, in units that mean the same in another run."""
    start = plan.whole(place)  # checkpoints have no gradients, so an unfinished optimizer step starts again
    seen = plan.steps(place.epoch)[start.batch].offset * plan.world if start.batch else 0
    position = place.epoch + seen / (plan.clips * plan.world)
    return {"clips_seen": seen, "baseline_epoch": str(plan.schedule.baseline_epoch(position))}


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


# --- Where a run continues ---


@dataclass(frozen=True)
class Continuation:
    """How a run continues a checkpoint."""

    place: Place  # the next mini-batch
    ticks: Sequence[int]  # that each LR scheduler has had
    epoch: BaselineEpoch  # in which the LR schedulers, which are the checkpoint's, count
    intervals: Sequence[str] = ()  # after which each LR scheduler is stepped, where the checkpoint says so
    steps_elsewhere: int = 0  # optimizer steps that Lightning counts beyond those of this run's plan before the place
    message: str = ""  # what a user should know; empty if the run has the settings of the checkpoint


def find_continuation(
    checkpoint: dict[str, Any], state: State | None, plan: Plan, schedulers: Sequence[Driven]
) -> Continuation:
    """Finds where a plan continues a checkpoint, and changes the counters in it before Lightning reads them.

    `state` is the callback's; None if a run without the callback wrote the checkpoint. `schedulers` are the script's.
    """
    counters = LoopCounters(checkpoint)
    if state is None:
        found = _from_baseline(counters, plan, schedulers)
    else:
        found = _from_multigrid(state, counters.place, plan)
    elsewhere = counters.optimizer_steps - plan.optimizer_steps_before(found.place)
    if found.place == counters.place:
        counters.close_finished_epoch()
    else:
        counters.move(found.place)
    if found.message:
        rank_zero_info(found.message)
    return replace(found, steps_elsewhere=elsewhere)


def _from_multigrid(state: State, place: Place, plan: Plan) -> Continuation:
    mine, epoch = describe_run(plan, plan.baseline_epoch), plan.baseline_epoch
    epoch = BaselineEpoch(*state.get("baseline_epoch_batches", (epoch.batches, epoch.accumulate)))
    here = Continuation(place, state["ticks"], epoch, state.get("intervals", ()))
    # Version 1 had only the schedule of a device.
    key = "plan" if "plan" in state else "schedule"
    if state[key] == mine[key]:
        if all(state.get(name, mine[name]) == mine[name] for name in ("clips", "split", "samples")):
            return replace(here, place=plan.whole(place))
        return _on_other_ranks(state, mine, here, plan)
    if state.get("baseline_plan") == mine["baseline_plan"] in (state.get("plan"), mine["plan"]):
        both = "the baseline", "a multigrid training"
        _refuse_mid_epoch(place, *(both if mine["plan"] != mine["baseline_plan"] else both[::-1]))
        return _cross(here, Fraction(state["baseline_epoch"]), plan)
    for scaling in get_args(LRScaling):
        if state.get("plan") == _plan_key(replace(plan.schedule, lr_scaling=scaling)):
            raise MisconfigurationException(
                f"The LR of the checkpoint grows by `lr_scaling={scaling!r}`, that of this run by "
                f"{plan.schedule.lr_scaling!r}. Since version 0.2 the default depends on the optimizer. Continue "
                f"with `MultigridCallback(lr_scaling={scaling!r})`, or start a new training from the weights."
            )
    raise MisconfigurationException(
        "The checkpoint belongs to another multigrid schedule, so its position means something else here. "
        "Resume with the settings of the checkpoint, or start a new training from its weights.\n"
        f"The checkpoint's:\n{state['schedule']}\nThis run's:\n{plan.schedule}"
    )


def _on_other_ranks(state: State, mine: State, here: Continuation, plan: Plan) -> Continuation:
    place = plan.first_after(here.place.epoch, state["clips_seen"])
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
    repeated = max(state["split"][0], mine["split"][0]) if plan.schedule.flat else 1  # to make the ranks equal
    if abs(state["samples"] - mine["samples"]) >= repeated:
        message += f" An epoch had {state['samples']} clips and has {mine['samples']} now, so their order differs."
    return replace(here, place=place, message=message)


def _from_baseline(counters: LoopCounters, plan: Plan, schedulers: Sequence[Driven]) -> Continuation:
    done, epoch = counters.place, plan.baseline_epoch
    _refuse_mid_epoch(done, "a training without MultigridCallback", "a training with it")
    if counters.optimizer_steps != done.epoch * epoch.optimizer_steps:
        raise MisconfigurationException(
            f"The checkpoint is of a training without MultigridCallback, with {counters.optimizer_steps} optimizer "
            f"steps in {done.epoch} epoch(s), but the baseline of this script has {epoch.optimizer_steps} in each. Use "
            "the data, `batch_size` and devices of that training, or start a new training from the weights."
        )
    ticks = [epoch.ticks(Fraction(done.epoch), driven.interval, driven.frequency) for driven in schedulers]
    return _cross(Continuation(done, ticks, epoch), Fraction(done.epoch), plan)


def _refuse_mid_epoch(place: Place, of: str, this: str) -> None:
    if place.batch:
        raise MisconfigurationException(
            f"The checkpoint is of {of}, in the middle of its epoch {place.epoch} (batch {place.batch}). This run is "
            f"{this}: its mini-batches are others, so it can only continue from the end of an epoch. Let the script "
            "that wrote the checkpoint continue to the end of an epoch, and resume from the checkpoint written there."
        )


def _cross(found: Continuation, baseline_epoch: Fraction, plan: Plan) -> Continuation:
    """Moves to the first optimizer step at or after an epoch of the baseline."""
    schedule = plan.schedule
    position = schedule.position_of(baseline_epoch)
    epoch = math.floor(position)
    place = plan.first_after(epoch, (position - epoch) * plan.clips * plan.world)
    trains = "the baseline" if _plan_key(schedule) == _plan_key(_without_cycles(schedule)) else "multigrid"
    message = (
        f"The checkpoint is of another training of this baseline, at its epoch {float(baseline_epoch):g} of "
        f"{float(schedule.baseline.epochs):g}. This run trains {trains}, and goes on where its LR is that of the same "
        f"baseline epoch: in epoch {place.epoch} of {schedule.epochs} at batch {place.batch}."
    )
    return replace(found, place=place, message=message)
