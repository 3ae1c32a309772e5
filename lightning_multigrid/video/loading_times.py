"""How long one process takes to load clips of each grid, and videos of the validation, on this machine."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from lightning_multigrid.clips import collate_clips
from lightning_multigrid.loading import ClipRequest
from lightning_multigrid.pixels import resample_clips
from lightning_multigrid.video.datamodule import VideoDataModule

_CLIPS = 16  # of each grid that are loaded
_ROUNDS = 3
Grid = tuple[int, int]  # frames and size of a clip


@dataclass(frozen=True)
class LoadingTimes:
    """How long one process takes to load, in seconds."""

    clip: Mapping[Grid, float]  # a clip of each grid
    resampled: Mapping[Grid, float]  # what the process that trains does to it on a CPU
    video: float  # a video of the validation
    videos: int  # of one validation, on each device
    processes: int  # that load for a device at the same time; 0 if the one that trains does


def measure_loading(data: VideoDataModule, grids: Sequence[Grid], world: int) -> LoadingTimes:
    """Loads a few training videos on each grid, after a first pass that opens their files, and validation videos."""
    dataset = data.train_dataloader().dataset
    rows = range(0, len(dataset), max(1, len(dataset) // _CLIPS))[:_CLIPS]  # type: ignore[arg-type]
    on_cpu = not torch.cuda.is_available()
    clip: dict[Grid, list[float]] = {grid: [] for grid in grids}
    resampled: dict[Grid, list[float]] = {grid: [] for grid in clip}
    for _ in range(1 + _ROUNDS):
        for grid in clip:
            requests = [ClipRequest(row, *grid, seed=row) for row in rows]
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
    return LoadingTimes(clips, resampling, video, videos, processes)


def _timed(call: Callable[[], object]) -> float:
    call()  # opens the files
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
