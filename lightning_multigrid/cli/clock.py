"""The wall clock of a training on this machine, foretold: its steps, waiting for data, and validations."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import torch

from lightning_multigrid.cli.forecast import Forecast
from lightning_multigrid.cli.plan import Preview
from lightning_multigrid.clips import collate_clips
from lightning_multigrid.loading import ClipRequest
from lightning_multigrid.pixels import resample_clips
from lightning_multigrid.reports import STEPS, VALIDATION, WAITING, faster_or_slower, ways_out
from lightning_multigrid.schedule import BatchShape, duration
from lightning_multigrid.video import VideoDataModule

_CLIPS = 16  # of each grid that are loaded to measure it
_ROUNDS = 3
_FORWARD = 1 / 3  # of a step


@dataclass(frozen=True)
class Loading:
    """How long one process takes to load, in seconds."""

    clip: Mapping[BatchShape, float]  # a clip of each grid
    resampled: Mapping[BatchShape, float]  # what the process that trains does to it on a CPU
    video: float  # a video of the validation
    videos: int  # of one validation, on each device
    processes: int  # that load for a device at the same time; 0 if the one that trains does


def measure_loading(data: VideoDataModule, grids: Sequence[BatchShape], world: int) -> Loading:
    """Loads a few training videos on each grid, after a first pass that opens their files, and validation videos."""
    dataset = data.train_dataloader().dataset
    rows = range(0, len(dataset), max(1, len(dataset) // _CLIPS))[:_CLIPS]  # type: ignore[arg-type]
    on_cpu = not torch.cuda.is_available()
    clip: dict[BatchShape, list[float]] = {grid.clip: [] for grid in grids}
    resampled: dict[BatchShape, list[float]] = {grid: [] for grid in clip}
    for _ in range(1 + _ROUNDS):
        for grid in clip:
            requests = [ClipRequest(row, grid.frames, grid.size, seed=row) for row in rows]
            started = time.perf_counter()
            batch = collate_clips(dataset.read_clips(requests))  # type: ignore[attr-defined]
            loaded = time.perf_counter()
            if on_cpu:
                resample_clips(batch.crops(), batch.size, flips=batch.flips)
            clip[grid].append((loaded - started) / len(rows))
            resampled[grid].append((time.perf_counter() - loaded) / len(rows))
    video, videos = 0.0, 0
    if data.sources["val"] is not None:
        validated = data.val_dataloader().dataset
        few = range(min(_CLIPS, len(validated)))
        video, videos = _timed(lambda: [validated[row] for row in few]) / len(few), -(-len(validated) // world)
    processes = data.num_workers and max(1, min(data.num_workers, (os.cpu_count() or 1) // world))
    clips, resampling = ({grid: median(times[1:]) for grid, times in of.items()} for of in (clip, resampled))
    return Loading(clips, resampling, video, videos, processes)


def _timed(call: Callable[[], object]) -> float:
    call()  # opens the files
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def foretold(plan: Preview, forecast: Forecast, loading: Loading, validations: int, data: VideoDataModule) -> str:
    """Says how long the training and its baseline take, each with so many validations.

    Steps and their number must be known. Start-up and checkpoints are not in it.
    """
    schedule = plan.schedule
    phases = [
        (schedule.cycle(phase.shape), steps) for phase, steps in zip(schedule.phases, plan.steps or [], strict=True)
    ]
    own = _account(forecast, loading, phases, validations)
    baseline = _account(forecast, loading, [([schedule.baseline.shape], plan.baseline_steps or 0)], validations)
    shares = ", ".join(f"{kind} {duration(seconds)}" for kind, seconds in own.items() if round(seconds))
    if schedule.flat:
        return f"By the clock of this machine about {duration(sum(own.values()))}: {shares}."
    return (
        f"By the clock of this machine about {duration(sum(own.values()))}: {shares}. That is "
        f"{faster_or_slower(own, baseline, ways_out(data.train_dataloader().dataset))}, which takes "
        f"{duration(sum(baseline.values()))}."
    )


def _account(
    forecast: Forecast, loading: Loading, parts: Sequence[tuple[Sequence[BatchShape], int]], validations: int
) -> dict[str, float]:
    """Seconds of so many steps on each of some cycles of shapes, and of validations."""
    account = dict.fromkeys((STEPS, WAITING, VALIDATION), 0.0)
    for cycle, steps in parts:
        step = fmean((forecast.seconds(s) or 0.0) + s.clips * loading.resampled[s.clip] for s in cycle)
        account[STEPS] += steps * step
        account[WAITING] += steps * _waiting(loading, fmean(s.clips * loading.clip[s.clip] for s in cycle), step)
    baseline = forecast.schedule.baseline.shape
    forward = _FORWARD * (forecast.seconds(baseline) or 0.0) / baseline.clips
    account[VALIDATION] = validations * loading.videos * (forward + _waiting(loading, loading.video, forward))
    return account


def _waiting(loading: Loading, seconds: float, meanwhile: float) -> float:
    """What one waits for that takes one process so long to load, while something else takes its time."""
    return max(0.0, seconds / loading.processes - meanwhile) if loading.processes else seconds
