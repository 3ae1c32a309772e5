"""`init`: a first config for a folder or a list of videos, whose comments say why."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from shlex import quote
from statistics import median
from string import Template

import torch
import yaml

from lightning_multigrid.cli.data_commands import CORES, folder_splits, printable
from lightning_multigrid.files import VIDEO_SUFFIXES, new_file, write_csv
from lightning_multigrid.host import say
from lightning_multigrid.prepare import Look, look_at
from lightning_multigrid.schedule import Baseline, BatchShape, MultigridSchedule
from lightning_multigrid.sources import Manifest, ManifestError, read_manifest

_MACHINES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
_LOOKED_AT = 32  # videos; the index of each is made, which reads the file once
_STEPS = 4000  # of the baseline, as far as 10 to 100 epochs allow


def init(source: str, val: str | None = None, output: str = "multigrid.yaml") -> None:
    """Looks at videos, and writes a config of `fit` for them, whose comments say why.

    Args:
        source: A folder with a folder per class, or with `train` and `val` of that kind, or a list of `path label`.
        val: Validation videos; by default a fifth of each class.
        output: The config to write.
    """
    path = Path(output)
    if path.exists():
        raise ValueError(f"{path} exists already. Remove it, or give another `--output`.")
    if val is None and (splits := folder_splits(source)):
        source, val = splits["train"], splits["val"]
    manifest = read_manifest(source)
    if not manifest.labelled:
        raise ManifestError(
            f"The videos of {source} have no labels. Give a list of `path label`, or a folder per class."
        )
    looks, broken = look_at(manifest, _LOOKED_AT)
    labels = [manifest.label(row) for row in range(len(manifest))]
    whole = [row for row in range(len(manifest)) if row not in broken]
    rows, held = _held_out(manifest, labels, whole) if val is None else (whole, [])
    values = _choose(len(rows), looks) | _words(manifest, looks)
    stem = str(path.with_suffix("").absolute())
    lists, folder = {name: f"{stem}_{name}.csv" for name in ("train", "val")}, f"{stem}_checkpoints"
    values["why_val"] = "Labels count the classes."
    path.parent.mkdir(parents=True, exist_ok=True)
    if val is None:
        for name, chosen in (("train", rows), ("val", held)):
            write_csv(lists[name], [("path", "label"), *((manifest.path(row), str(labels[row])) for row in chosen)])
        values["why_val"] = "The last fifth of each class, by name, is for validation: neighbours may be of one scene."
    sources = lists if val is None else {"train": os.path.abspath(source), "val": os.path.abspath(val)}
    values |= {name: json.dumps(where) for name, where in (sources | {"checkpoints": folder}).items()}
    values |= {"path": quote(str(path)), "folder": folder, "best": quote(os.path.join(folder, "best.ckpt"))}
    text = Template(Path(__file__).with_name("starter.yaml").read_text(encoding="utf-8")).substitute(values)
    with new_file(str(path)) as file:
        file.write(text.encode("utf-8", "surrogateescape"))
    for line in _left_out(source, manifest, broken):
        say(line)
    said = f"{len(manifest):,} videos of {manifest.num_classes} classes{values['found']}.\nWritten to {path}. Next:\n"
    say("\n".join([said, *(f"    lightning-multigrid {word} --config {values['path']}" for word in ("plan", "fit"))]))


def _left_out(source: str, manifest: Manifest, broken: Mapping[int, str]) -> Iterator[str]:
    """What the config leaves out: videos that can't be read, and files that are no videos by their names."""
    for reason in broken.values():
        yield f"Broken, left out: {printable(reason)}"
    if broken and len(manifest) > _LOOKED_AT:
        yield f"Only {_LOOKED_AT} videos were looked at: `lightning-multigrid check {quote(source)}` reads all of them."
    others = [
        os.path.join(folder, name)
        for folder, _, names in os.walk(source)
        for name in sorted(names)
        if name[0] != "." and os.path.splitext(name)[1].lower() not in VIDEO_SUFFIXES
    ]
    if others:
        more = f" and {len(others) - 3:,} more" if len(others) > 3 else ""
        yield f"No videos by their names, left out: {printable(', '.join(others[:3]))}{more}"


def _held_out(manifest: Manifest, labels: Sequence[int], whole: Sequence[int]) -> tuple[list[int], list[int]]:
    """Returns the rows for training, and those for validation: of the whole videos the last fifth of each class."""
    ordered = sorted(whole, key=lambda row: (labels[row], manifest.path(row)))
    by_class = [list(rows) for _, rows in groupby(ordered, key=lambda row: labels[row])]
    held = [row for rows in by_class for row in rows[len(rows) - len(rows) // 5 :]]
    if not held:
        raise ManifestError(
            f"No class of {manifest.origin} has 5 videos, so none can be held out for validation. Give `--val`."
        )
    return sorted(set(whole) - set(held)), sorted(held)


def _choose(videos: int, looks: Sequence[Look]) -> dict[str, object]:
    """Returns the baseline for so many training videos, and why."""
    machine, cores = _MACHINES["gpu" if torch.cuda.is_available() else "cpu"], CORES
    length, rate, short = (median(column) for column in zip(*looks, strict=True))
    shortest = sorted(look.frames for look in looks)[len(looks) // 10]
    frames = next((number for number in (16, 8, 4) if number <= min(shortest, machine["frames"])), 2)
    stride = max(1, min(round(2 * rate / frames), int(shortest) // frames))
    size = max(32, min(machine["size"], int(short * 7 / 8) // 16 * 16))
    batch = next((clips for clips in (8, 4, 2, 1) if _fits(BatchShape(clips, frames, size), videos)), None)
    if batch is None:
        raise ManifestError(f"There are {videos} training videos, too few for the large mini-batches of multigrid.")
    epochs = max(10, min(100, round(_STEPS * batch / videos)))
    workers = max(1, min(8, cores - 1))
    reason = "enough videos for mini-batches 16 times as large" if batch == 8 else "so few, as mini-batches grow"
    numbers = {"batch_size": batch, "frames": frames, "stride": stride, "size": size, "epochs": epochs, "cores": cores}
    return {
        **machine,
        **numbers,
        "lr": f"{machine['lr'] * batch / 8:.3g}",
        "why_batch": reason,
        "why_stride": f"so that a clip lasts {frames * stride / rate:.1f} s of a video's {length / rate:.1f} s",
        "why_size": f"of videos with a short side of {short:.0f}{machine['about_size']}",
        "workers": workers,
        "threads": "null" if torch.cuda.is_available() else max(1, cores - workers),
        "steps": epochs * videos // batch,
        "precise": max(1, min(10, videos // batch)),
    }


def _fits(shape: BatchShape, videos: int) -> bool:
    try:
        MultigridSchedule(Baseline(shape, epochs=10, milestones=(4, 6, 8))).steps(0, videos)
    except ValueError:  # the first mini-batch has more clips
        return False
    return True


def _words(manifest: Manifest, looks: Sequence[Look]) -> dict[str, object]:
    ends = [(f"{min(values):.4g}", f"{max(values):.4g}") for values in zip(*looks, strict=True)]
    frames, rate, short = (least if least == most else f"{least} to {most}" for least, most in ends)
    sided = any(word in name.lower() for name in manifest.classes for word in ("left", "right"))
    return {
        "videos": len(manifest),
        "classes": manifest.num_classes,
        "names": json.dumps(list(manifest.classes), ensure_ascii=False),
        "found": f", short side {short} pixels, {frames} frames at {rate} per second",
        "flip": str(not sided).lower(),
        "why_flip": "classes tell left from right" if sided else "turn it off if a class tells left from right",
    }
