"""Where a run was when it wrote a checkpoint, and where this run continues.

Lightning keeps the place, and everything else is a function of place and seed (`Plan`). This module is for checkpoints
of other devices or batch sizes: it compares clips of all ranks.
"""

import hashlib
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from lightning_utilities.core.rank_zero import rank_zero_info

from lightning_multigrid.host import MisconfigurationException
from lightning_multigrid.schedule import MultigridSchedule, Place, Plan, Step
from lightning_multigrid.training.trainer.lightning_internals import LoopCounters

State = dict[str, Any]  # of the callback in a checkpoint, as plain values: checkpoints are loaded with `weights_only`
_VERSION = 4  # of that state
FROM_WEIGHTS = "`--trainer.callbacks+=lightning_multigrid.PretrainedWeights --trainer.callbacks.path=FILE`"
"""Options of `fit` that start a training from the weights of a file, as far as they fit."""
_NEW_TRAINING = (
    "start a new training from its weights, without `ckpt_path`: "
    f"`module.load_state_dict(torch.load(path)['state_dict'])`, or on the command line {FROM_WEIGHTS}."
)

# --- What a checkpoint says ---


def describe_run(plan: Plan) -> State:
    """Returns what distinguishes a run from others."""
    return {
        "version": _VERSION,
        "schedule": str(plan.schedule),
        "plan": _plan_key(plan.schedule),
        "seed": plan.seed,
        # Of a baseline optimizer step.
        "clips": plan.schedule.baseline.shape.clips * plan.world * plan.accumulate,
        "split": [plan.world, plan.accumulate],
        "samples": int(plan.clips * plan.world),
    }


def describe_position(plan: Plan, place: Place) -> State:
    """Returns where a run is, given its next mini-batch, in units that mean the same in another run."""
    start = plan.start_of_update(place)  # checkpoints have no gradients, so an unfinished optimizer step starts again
    seen = plan.epoch(place.epoch)[start.batch].offset * plan.world if start.batch else 0
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
    """Where a run continues a checkpoint."""

    state: State  # of the callback
    first: Step  # the next mini-batch
    epoch: int  # at which Lightning goes on: that of the next mini-batch, or the one before, whose end is not over yet
    steps_elsewhere: int  # optimizer steps that Lightning counts beyond those of this run's plan before it


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
        f"The checkpoint is of {of}, so its place means nothing here. Continue it {way}, or {_NEW_TRAINING}"
    )


def find_continuation(checkpoint: dict[str, Any], state: State, plan: Plan) -> Continuation:
    """Finds where a plan continues a checkpoint, and changes the counters in it before Lightning reads them.

    `state` is the callback's.
    """
    counters = LoopCounters(checkpoint)
    place = _continue(state, counters.place, plan)
    if place.batch and state["seed"] != plan.seed:
        raise MisconfigurationException(
            f"The checkpoint is of the middle of an epoch, whose order of clips has the seed {state['seed']}. With "
            f"{plan.seed}, some clips of this epoch would be seen twice, and others never. Resume with "
            f"`MultigridCallback(seed={state['seed']})`, or from the end of an epoch."
        )
    elsewhere = counters.optimizer_steps - plan.optimizer_steps_before(place)
    if place == counters.place:
        counters.close_finished_epoch()
    else:
        counters.move(place)
    return Continuation(state, plan.epoch(place.epoch)[place.batch], counters.epoch, elsewhere)


def _continue(state: State, place: Place, plan: Plan) -> Place:
    mine = describe_run(plan)
    if state["plan"] != mine["plan"]:
        raise MisconfigurationException(
            "The checkpoint belongs to another multigrid schedule, so its position means something else here.\n"
            f"{_difference(state['schedule'], mine['schedule'])}\n"
            f"Resume with the settings of the checkpoint, or {_NEW_TRAINING}"
        )
    if all(state[name] == mine[name] for name in ("clips", "split", "samples")):
        return plan.start_of_update(place)
    return _on_other_ranks(state, mine, place.epoch, plan)


def _difference(given: str, own: str) -> str:
    """Returns what differs between two schedules as text: what they save, or the first such phase below its heading."""
    (*rows, saved), (*own_rows, own_saved) = given.splitlines(), own.splitlines()
    if saved != own_saved:
        return f"The checkpoint's: {saved}\nThis run's: {own_saved}"
    for row, own_row in zip(rows, own_rows, strict=False):
        if row != own_row:
            return f"{own_rows[1]}\n{row}  (the checkpoint's)\n{own_row}  (this run's)"
    return "The warm-up or the stride differs, or whether the LR falls in steps."


def _on_other_ranks(state: State, mine: State, epoch: int, plan: Plan) -> Place:
    place = plan.first_after(epoch, state["clips_seen"])
    message = (
        f"The checkpoint is of {state['split'][0]} rank(s), this run has {mine['split'][0]}, and of {state['clips']} "
        f"clips in an optimizer step of the baseline, this run has {mine['clips']}: it goes on in epoch {place.epoch} "
        f"at batch {place.batch}, the first after the {state['clips_seen']} clips of its epoch that were seen."
    )
    # A plan of one shape repeats clips to make the ranks equal.
    repeated = max(state["split"][0], mine["split"][0]) if plan.schedule.constant_shape else 1
    if abs(state["samples"] - mine["samples"]) >= repeated:
        message += f" An epoch had {state['samples']} clips and has {mine['samples']} now, so their order differs."
    rank_zero_info(message)
    return place
