"""Where a run was when it wrote a checkpoint, and where this run continues.

Lightning keeps the place, and everything else is a function of place and seed (`Plan`). A run continues at the same
place; where epochs have other steps than in the checkpoint, as on other devices, at the same point of the epoch. One
number shifts the stream, so that the next clip is the next one, whatever the plan takes before that place.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from lightning_multigrid.host import MisconfigurationException, tell
from lightning_multigrid.schedule import Place, Plan, Step, exact
from lightning_multigrid.training.trainer.lightning_internals import LoopCounters

State = dict[str, Any]  # of the callback in a checkpoint, as plain values: checkpoints are loaded with `weights_only`
_VERSION = 7  # of that state
FROM_WEIGHTS = "`--trainer.callbacks+=lightning_multigrid.PretrainedWeights --trainer.callbacks.path=FILE`"
"""Options of `fit` that start a training from the weights of a file, as far as they fit."""
_NEW_TRAINING = (
    "start a new training from its weights, without `ckpt_path`: "
    f"`module.load_state_dict(torch.load(path)['state_dict'])`, or on the command line {FROM_WEIGHTS}."
)


def describe_run(plan: Plan) -> State:
    """Returns what distinguishes a run from others."""
    return {
        "version": _VERSION,
        "schedule": str(plan.schedule),
        "seed": plan.seed,
        "clips": plan.schedule.baseline.shape.clips * plan.world * plan.accumulate,  # of a baseline optimizer step
        "split": [plan.world, plan.accumulate],
        "samples": plan.clips,
        "batches": plan.batches_per_epoch,
        "epochs": str(exact(plan.schedule.baseline.epochs)),
    }


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
    """Finds where a plan continues a checkpoint, and changes the counters in it before Lightning reads them."""
    counters, mine = LoopCounters(checkpoint), describe_run(plan)
    # Other devices, other data and more epochs give an epoch other steps: the same point of the epoch is found.
    as_before = all(state[name] == mine[name] for name in ("clips", "split", "samples", "epochs"))
    if as_before and state["batches"] != mine["batches"]:
        raise MisconfigurationException(
            f"The checkpoint is of a run with {state['batches']} mini-batches in an epoch, and this run has "
            f"{mine['batches']}, so the same place means something else. The checkpoint's plan was:\n"
            f"{state['schedule']}\nThis run's is:\n{mine['schedule']}\nResume with the settings of the checkpoint, or "
            f"{_NEW_TRAINING}"
        )
    if state["seed"] != plan.seed:
        raise MisconfigurationException(
            f"The checkpoint's order of clips has the seed {state['seed']}, and this run's has {plan.seed}: some clips "
            "of the pass over the data would be seen twice, and others never. Resume with "
            f"`MultigridCallback(seed={state['seed']})`."
        )
    place, shift = _continues_at(state, mine, counters.place, plan)
    if state["schedule"] != mine["schedule"]:
        tell(
            f"The plan differs from the checkpoint's. From epoch {place.epoch}, batch {place.batch} (from 0), on, "
            "phases and LR scales are those of this run; schedulers keep their numbers, such as the `T_max` of a "
            f"cosine. The checkpoint's plan was:\n{state['schedule']}"
        )
    if state["within_step"]:
        tell(
            "The checkpoint was written within an optimizer step, which is trained again. So what the step had changed "
            "by then, such as BatchNorm's running statistics, counts its clips twice. `NewestCheckpoint` writes "
            "between steps."
        )
    if plan.optimizer_steps_before(place) >= plan.optimizer_steps:
        tell(
            "The training had ended at this checkpoint, so `fit` does no step. Without `ckpt_path` it trains anew; "
            "with a larger `max_epochs` or `max_steps` it goes on."
        )
    elsewhere = counters.optimizer_steps - plan.optimizer_steps_before(place)
    if place != counters.place or state["batches"] != mine["batches"]:  # by which Lightning knows that an epoch is over
        counters.move(place)
    return Continuation(plan.step(place), shift, elsewhere)


def _continues_at(state: State, mine: State, place: Place, plan: Plan) -> tuple[Place, int]:
    """Returns the optimizer step where a plan continues a checkpoint's place, and how far the stream is shifted."""
    number, seen = divmod(state["clips_seen"], state["samples"])
    if any(state[name] != mine[name] for name in ("clips", "split", "samples", "batches")):
        batch = place.batch - place.batch % state["split"][1]
        place = plan.first_from(place.epoch + Fraction(batch, state["batches"]))
        tell(
            "The checkpoint is of other devices, `accumulate_grad_batches`, clips, or steps of an epoch. So the run "
            f"goes on at the same point of the training: epoch {place.epoch}, batch {place.batch}, and clip {seen} of "
            f"pass {number} over the data (all from 0)."
        )
    place = plan.start_of_update(place)
    entry = number * plan.clips + min(seen, plan.clips)  # of the stream
    return place, entry - plan.step(place).offset
