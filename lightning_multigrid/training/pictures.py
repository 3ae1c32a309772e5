"""What a model sees on each grid: pictures of a script's own clips, before any training."""

import random
from collections.abc import Callable, Iterator
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_multigrid.loading import ClipDataset, ClipRequest, FixedClips, SampleParts, all_parts, derive_seed
from lightning_multigrid.positions import patch_divisors
from lightning_multigrid.reports import write_sheet
from lightning_multigrid.schedule import Baseline, BatchShape
from lightning_multigrid.training.arguments import Arguments, schedule_of
from lightning_multigrid.training.plan_loader import clips_of

Shown = tuple[Tensor, str]  # a clip, T x C x H x W from 0 to 1, and what is to be said of it


def show_grids(
    loader: DataLoader[Any],
    folder: str | PathLike[str] = "shown",
    callback: Arguments | None = None,
    clips: int = 4,
    seed: int = 0,
    show: Callable[[ClipRequest], Shown] | None = None,
    module: nn.Module | None = None,
) -> list[Path]:
    """Draws some clips of a training loader on each grid of the schedule; returns the pictures, one for each grid.

    The same clips are drawn on all grids, as the dataset gives them: what the `collate_fn`, transfer hooks and the
    module do to mini-batches comes later. Pixels are stretched between the least and the greatest value of a clip, as
    they may be normalised; bytes, and values from 0 to 1, are shown as they are.

    Args:
        loader: The training loader of a script, with a `batch_size`, of a map-style dataset.
        folder: It is made. A picture is `FRAMESxSIZE.png`.
        callback: The script's `MultigridCallback`, for its cycles and what it says of a sample. None is one without
            arguments.
        clips: How many clips to draw.
        seed: Seed of the choice of clips, and of what is drawn for them.
        show: Returns the picture of a request and its text; None takes both off the sample.
        module: The model, if its patches round the frames and sizes of the grids.

    Raises:
        ValueError: If the dataset's samples hold no clip of 1 or 3 channels.
    """
    arguments = Arguments() if callback is None else callback
    dataset = clips_of(arguments, loader)
    shape = BatchShape(cast("int", loader.batch_size), dataset.frames, dataset.size)
    twice = Baseline(shape, epochs=2, milestones=(1,), stride=dataset.stride)  # a long cycle, and then the fine phase
    divisors = (1, 1) if module is None else patch_divisors(module)
    schedule = arguments.schedule or schedule_of(arguments, twice, divisors=divisors)
    chosen = random.Random(seed).sample(range(len(dataset)), min(clips, len(dataset)))
    grids = {grid.clip: None for grid in (*schedule.grids, shape)}
    Path(folder).mkdir(parents=True, exist_ok=True)
    pictures = []
    for frames, size in sorted(grids):
        requests = [ClipRequest(index, frames, size, derive_seed(seed, index)) for index in chosen]
        pictures.append(Path(folder) / f"{frames}x{size}.png")
        write_sheet(pictures[-1], [show(one) if show else _off_sample(dataset, one) for one in requests])
    return pictures


def _off_sample(dataset: ClipDataset, request: ClipRequest) -> Shown:
    parts = dataset.parts if isinstance(dataset, FixedClips) else SampleParts()
    sample = dataset.read_clip(request)
    found = parts.find_clips(sample)
    for clip in found.values():
        values, axes = torch.as_tensor(clip.values), clip.axes
        for missing in {*"TC"} - {*axes}:
            values, axes = values.unsqueeze(0), missing + axes
        if {*axes} == {*"TCHW"} and values.shape[axes.index("C")] in (1, 3):
            numbers = "; ".join(islice(_numbers(sample), 8))
            text = f"sample {request.index}" + (f": {numbers}" if numbers else "")
            return _stretched(values.permute([axes.index(axis) for axis in "TCHW"])), text
    shapes = ", ".join(f"{clip.axes} of {tuple(clip.values.shape)}" for clip in found.values())
    raise ValueError(
        f"A picture needs a clip of 1 or 3 channels, got {shapes or 'none'}. Give `show`, which draws one."
    )


def _stretched(clip: Tensor) -> Tensor:
    if not clip.is_floating_point():
        return clip / 255
    least, greatest = clip.min(), clip.max()
    return clip if least >= 0 and greatest <= 1 else (clip - least) / (greatest - least)


def _numbers(sample: Any) -> Iterator[str]:
    for path, part in all_parts(sample):
        if isinstance(part, (int, float, str)) or getattr(part, "ndim", None) == 0:
            value, names = part.item() if hasattr(part, "item") else part, [key for key in path if isinstance(key, str)]
            yield " ".join([*names[-1:], str(value)])
