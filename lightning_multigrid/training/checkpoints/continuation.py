"""Where a run was when it wrote a checkpoint, and where this run continues.

Lightning keeps the place, and everything else is a function of place and seed (`Plan`). On other devices, or with
another batch size, a run continues at the same point of its epoch and at the next clip of the stream: by one number
that shifts the stream.
"""

import hashlib
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from lightning_multigrid.host import MisconfigurationException, tell
from lightning_multigrid.schedule import MultigridSchedule, Place, Plan, Step, exact
from lightning_multigrid.training.trainer.lightning_internals import LoopCounters

State = dict[str, Any]  # of the callback in a checkpoint, as plain values: checkpoints are loaded with `weights_only`
_VERSION = 6  # of that state
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
        "samples": plan.clips,
        "batches": plan.batches_per_epoch,
        "shares_reads": plan.shares_reads,
    }


def _plan_key(schedule: MultigridSchedule) -> str:
    """Returns a key that schedules share if they differ only in the clips of the baseline's mini-batch."""
    baseline = schedule.baseline
    parts: list[Any] = [baseline.stride, schedule.stepwise, str(exact(baseline.warmup_epochs))]
    parts.append(str(exact(schedule.epoch_factor)))
    for phase in schedule.phases:
        cycle = [(s.frames, s.size, str(Fraction(s.clips, baseline.shape.clips))) for s in schedule.cycle(phase.shape)]
        parts.append((phase.stage, phase.lr_scale, str(phase.start_epoch), str(phase.end_epoch), cycle))
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


# --- Where a run continues ---


@dataclass(frozen=True)
class Continuation:
    """Where a run continues a checkpoint."""

    first: Step  # the next mini-batch
    shift: int  # of the stream
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
    counters, mine = LoopCounters(checkpoint), describe_run(plan)
    if state["plan"] != mine["plan"]:
        raise MisconfigurationException(
            "The checkpoint belongs to another multigrid schedule, so its position means something else here.\n"
            f"{_difference(state['schedule'], mine['schedule'])}\n"
            f"Resume with the settings of the checkpoint, or {_NEW_TRAINING}"
        )
    if state["shares_reads"] != plan.shares_reads:
        raise MisconfigurationException(
            f"The checkpoint is of a run with `share_reads={state['shares_reads']}`, and this run has "
            f"{plan.shares_reads}, so the same place has other samples. Resume with the settings of the checkpoint, or "
            f"{_NEW_TRAINING}"
        )
    if state["seed"] != plan.seed:
        raise MisconfigurationException(
            f"The checkpoint's order of clips has the seed {state['seed']}, and this run's has {plan.seed}: some clips "
            "of the pass over the data would be seen twice, and others never. Resume with "
            f"`MultigridCallback(seed={state['seed']})`."
        )
    place, shift = plan.start_of_update(counters.place), state["shift"]
    if any(state[name] != mine[name] for name in ("clips", "split", "samples")):
        place, shift = _on_other_devices(state, mine, counters.place, plan)
    if plan.optimizer_steps_before(place) >= plan.optimizer_steps:
        tell(
            "The training had ended at this checkpoint, so `fit` does no step. Without `ckpt_path` it trains anew; to "
            f"train longer, {_NEW_TRAINING}"
        )
    elsewhere = counters.optimizer_steps - plan.optimizer_steps_before(place)
    if place != counters.place:
        counters.move(place)
    return Continuation(plan.step(place), shift, elsewhere)


def tell_other_plan(before: Plan, plan: Plan, epoch: int) -> None:
    """Says that a second `fit` of a Trainer goes on within another plan than that of the `fit` before."""
    if epoch and _plan_key(before.schedule) != _plan_key(plan.schedule):
        tell(
            f"This `fit` goes on at epoch {epoch} of a plan of {plan.epochs} epochs; the epochs before were of a plan "
            f"of {before.epochs}. To train by one plan, give its `max_epochs` from the start."
        )


def tell_kept(saved: list[dict[str, float]], given: list[dict[str, float]]) -> None:
    """Says which settings of the script's optimizers have changed, for the first parameter group where each has."""
    changed: dict[str, str] = {}
    for old, new in zip(saved, given, strict=False):
        for name in old.keys() & new.keys():
            if not math.isclose(old[name], new[name]):
                changed.setdefault(name, f"`{name}` is {old[name]:g}, not {new[name]:g}")
    if changed:
        tell(
            "A run that continues keeps the settings of the checkpoint's optimizers, whatever `configure_optimizers` "
            f"gives now: {' and '.join(sorted(changed.values()))}. To train with the new ones, {_NEW_TRAINING}"
        )


def _difference(given: str, own: str) -> str:
    """Returns what differs between two schedules as text: what they save, or the first such phase below its heading."""
    (*rows, saved), (*own_rows, own_saved) = given.splitlines(), own.splitlines()
    if saved != own_saved:
        return f"The checkpoint's: {saved}\nThis run's: {own_saved}"
    for row, own_row in zip(rows, own_rows, strict=False):
        if row != own_row:
            return f"{own_rows[1]}\n{row}  (the checkpoint's)\n{own_row}  (this run's)"
    return "The warm-up or the stride differs, or whether the LR falls in steps."


def _on_other_devices(state: State, mine: State, place: Place, plan: Plan) -> tuple[Place, int]:
    """Returns the first optimizer step that begins at the checkpoint's point of the epoch or later, and the shift."""
    number, seen = divmod(state["clips_seen"], state["samples"])
    entry = number * plan.clips + min(seen, plan.clips)
    batch = place.batch - place.batch % state["split"][1]
    place = plan.first_from(place.epoch + Fraction(batch, state["batches"]))
    message = (
        f"The checkpoint is of {state['split'][0]} rank(s), this run has {mine['split'][0]}, and of {state['clips']} "
        f"clips in an optimizer step of the baseline, this run has {mine['clips']}: it goes on in epoch {place.epoch} "
        f"at batch {place.batch}, and with clip {seen} of pass {number} over the data (both from 0)."
    )
    if state["samples"] != mine["samples"]:
        message += f" A pass had {state['samples']} clips and has {mine['samples']} now."
    tell(message)
    of_epoch = plan.reads_before(Place(place.epoch, 0)) if state["of_epochs"] else 0
    return place, entry - plan.reads_before(place) + of_epoch
