"""The wall clock of a training on this machine, foretold: its steps, waiting for data, and validations."""

from collections.abc import Sequence
from statistics import fmean

from lightning_multigrid.cli.forecast import Forecast
from lightning_multigrid.cli.plan import Preview
from lightning_multigrid.reports import STEPS, VALIDATION, WAITING, faster_or_slower, ways_out
from lightning_multigrid.schedule import BatchShape, duration
from lightning_multigrid.video import LoadingTimes, VideoDataModule

_FORWARD = 1 / 3  # of a step


def foretold(plan: Preview, forecast: Forecast, loading: LoadingTimes, validations: int, data: VideoDataModule) -> str:
    """Says how long the training and its baseline take, each with so many validations.

    Steps and their number must be known. Start-up and checkpoints are not in it.
    """
    schedule = plan.schedule
    phases = [
        (schedule.cycle(phase.shape), steps) for phase, steps in zip(schedule.phases, plan.steps or [], strict=True)
    ]
    own = _account(forecast, loading, phases, validations)
    baseline = _account(forecast, loading, [([schedule.baseline.shape], plan.baseline_steps or 0)], validations)
    shares = ", ".join(
        f"{kind} {duration(seconds)}" for kind, seconds in own.items() if kind == STEPS or round(seconds)
    )
    if schedule.flat:
        return f"By the clock of this machine about {duration(sum(own.values()))}: {shares}."
    verdict = faster_or_slower(own, baseline, ways_out(data.train_dataloader().dataset))
    return (
        f"By the clock of this machine about {duration(sum(own.values()))}: {shares}. The baseline takes "
        f"{duration(sum(baseline.values()))}, so this is {verdict.rstrip('.')}."
    )


def _account(
    forecast: Forecast, loading: LoadingTimes, parts: Sequence[tuple[Sequence[BatchShape], int]], validations: int
) -> dict[str, float]:
    """Seconds of so many steps on each of some cycles of shapes, and of validations."""
    account = dict.fromkeys((STEPS, WAITING, VALIDATION), 0.0)
    for cycle, steps in parts:
        step = fmean((forecast.seconds(s) or 0.0) + s.clips * loading.resampled[s.frames, s.size] for s in cycle)
        account[STEPS] += steps * step
        account[WAITING] += steps * _waiting(
            loading, fmean(s.clips * loading.clip[s.frames, s.size] for s in cycle), step
        )
    baseline = forecast.schedule.baseline.shape
    forward = _FORWARD * (forecast.seconds(baseline) or 0.0) / baseline.clips
    account[VALIDATION] = validations * loading.videos * (forward + _waiting(loading, loading.video, forward))
    return account


def _waiting(loading: LoadingTimes, seconds: float, meanwhile: float) -> float:
    """What one waits for that takes one process so long to load, while something else takes its time."""
    return max(0.0, seconds / loading.processes - meanwhile) if loading.processes else seconds
