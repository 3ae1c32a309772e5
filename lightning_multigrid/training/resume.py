"""Where a run was when it wrote a checkpoint, and where this run continues.

Lightning keeps the place, and everything else is a function of place and seed (`Plan`). This module is for checkpoints
of other devices or batch sizes: it compares clips of all ranks.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from lightning_utilities.core.rank_zero import rank_zero_info

from lightning_multigrid.host import MisconfigurationException
from lightning_multigrid.schedule import BaselineEpoch, MultigridSchedule, Place, Plan
from lightning_multigrid.training.lightning_internals import LoopCounters

State = dict[str, Any]  # of the callback in a checkpoint, as plain values: checkpoints are loaded with `weights_only`
_VERSION = 4  # of that state

# --- What a checkpoint says ---


def describe_run(plan: Plan, epoch: BaselineEpoch) -> State:
    """Returns what distinguishes a run from others; `epoch` is that in which its LR schedulers count."""
    return {
        "version": _VERSION,
        "schedule": str(plan.schedule),
        "plan": _plan_key(plan.schedule),
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
    return {"clips_seen": seen}


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
    intervals: Sequence[str]  # after which each LR scheduler is stepped
    steps_elsewhere: int = 0  # optimizer steps that Lightning counts beyond those of this run's plan before the place
    message: str = ""  # what a user should know; empty if the run has the settings of the checkpoint


def state_to_continue(state: State | None) -> State:
    """Returns the callback's state in a checkpoint; refuses that of a training without it (None), or of a version."""
    if state is None:
        of, way = "a training without MultigridCallback", "without it"
    elif state.get("version") != _VERSION:
        of = f"another version of lightning-multigrid (its state has version {state.get('version', 1)}, not {_VERSION})"
        way = "with that version"
    else:
        return state
    raise MisconfigurationException(
        f"The checkpoint is of {of}, so its place means nothing here. Continue it {way}, or start a new training from "
        "its weights: `module.load_state_dict(torch.load(path)['state_dict'])`, and no `ckpt_path`."
    )


def find_continuation(checkpoint: dict[str, Any], state: State, plan: Plan) -> Continuation:
    """Finds where a plan continues a checkpoint, and changes the counters in it before Lightning reads them.

    `state` is the callback's.
    """
    counters = LoopCounters(checkpoint)
    found = _continue(state, counters.place, plan)
    elsewhere = counters.optimizer_steps - plan.optimizer_steps_before(found.place)
    if found.place == counters.place:
        counters.close_finished_epoch()
    else:
        counters.move(found.place)
    if found.message:
        rank_zero_info(found.message)
    return replace(found, steps_elsewhere=elsewhere)


def _continue(state: State, place: Place, plan: Plan) -> Continuation:
    mine = describe_run(plan, plan.baseline_epoch)
    if state["plan"] != mine["plan"]:
        raise MisconfigurationException(
            "The checkpoint belongs to another multigrid schedule, so its position means something else here. "
            "Resume with the settings of the checkpoint, or start a new training from its weights.\n"
            f"The checkpoint's:\n{state['schedule']}\nThis run's:\n{plan.schedule}"
        )
    here = Continuation(place, state["ticks"], BaselineEpoch(*state["baseline_epoch_batches"]), state["intervals"])
    if all(state[name] == mine[name] for name in ("clips", "split", "samples")):
        return replace(here, place=plan.whole(place))
    return _on_other_ranks(state, mine, here, plan)


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
