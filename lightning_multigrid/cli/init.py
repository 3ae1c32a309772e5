"""`init`: a first config for a folder or a list of videos, whose comments say why."""

import math
import os
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from shlex import quote
from statistics import median
from string import Template
from typing import Any

import torch
import yaml

from lightning_multigrid.cli.data_commands import CORES, folder_splits, needed_short_side, prepare_shown
from lightning_multigrid.cli.held_out import hold_out
from lightning_multigrid.cli.terminal import say
from lightning_multigrid.files import new_file, write_csv
from lightning_multigrid.prepare import Encoding, Look, look_at
from lightning_multigrid.schedule import Baseline, BatchShape, MultigridSchedule, Plan
from lightning_multigrid.sources import MANIFEST_NAME, Manifest, ManifestError, VideoList, read_manifest
from lightning_multigrid.video import VideoDataModule

_MACHINES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
_LOOKED_AT = 32  # videos; the index of each is made, which reads the file once
# Steps of the baseline, if so many epochs suffice, else fewer of both.
_STEPS, _EPOCHS = 10_000, 150
_FEW_STEPS, _FEW_EPOCHS = 4000, 100
_LEAST = 10  # epochs
_VALIDATIONS = 15  # at most: each takes time that multigrid doesn't shorten
_PAYS = 1.3  # how many times the short side that is needed a video has if preparing pays
_NAMED = 10  # broken videos


def init(
    source: str,
    val: str | None = None,
    output: str = "multigrid.yaml",
    no_prepare: bool = False,
    flip: bool = False,
) -> None:
    """Looks at videos, and writes a config of `fit` for them, whose comments say why.

    Videos that are larger than clips of them need are prepared first: written anew, smaller, in a folder beside the
    config.

    Args:
        source: A folder with a folder per class, or with `train` and `val` of that kind, or a list of `path label`.
        val: Validation videos; by default a fifth of each class, in whole recordings. Videos whose names differ in the
            last number only count as one recording.
        output: The config to write.
        no_prepare: Train on the videos as they are.
        flip: Mirror half of the training clips. Only where no class is the mirror image of another.
    """
    path = Path(output)
    if path.exists():
        raise ValueError(f"{path} exists already. Remove it, or give another `--output`.")
    if not str(path.absolute()).isprintable():  # it stands in comments
        raise ValueError(f"{path.absolute()} can't be named in a config. Give another `--output`.")
    if val is None and (splits := folder_splits(source)):
        source, val = splits["train"], splits["val"]
    manifest = read_manifest(source)
    if not manifest.labelled:
        raise ManifestError(
            f"The videos of {source} have no labels. Give a list of `path label`, or a folder per class."
        )
    _in_yaml([*manifest.classes, *map(os.path.abspath, [source, val] if val else [])])  # refuses before the work
    looks, unread = look_at(manifest, _LOOKED_AT)
    whole = [row for row in range(len(manifest)) if row not in unread]
    rows, held, cut = hold_out(manifest, whole) if val is None else (whole, [], 0)
    clip = _clip(looks)
    training = _training(len(rows), clip)
    stem = str(path.with_suffix("").absolute())
    path.parent.mkdir(parents=True, exist_ok=True)
    sources = {"train": os.path.abspath(source), "val": os.path.abspath(val or "")}
    if val is None:
        sources = _write_lists(manifest, {"train": rows, "val": held}, stem)
    needed = needed_short_side(VideoDataModule(frames=clip["frames"], size=clip["size"]))
    prepares = not no_prepare and median(look.short_side for look in looks) >= _PAYS * needed
    broken = {manifest.path(row): reason for row, reason in unread.items()}
    videos = len(rows) + len(held)
    if prepares:
        sources, missing = _prepare(sources, manifest.classes, f"{stem}_prepared", needed)
        broken |= missing
        trained = len(read_manifest(sources["train"]))
        videos = trained if val else trained + len(read_manifest(sources["val"]))
        training = _training(trained, clip)
    elif val is not None:
        others = VideoList(val).read(manifest.classes)
        broken |= {others.path(row): reason for row, reason in look_at(others, _LOOKED_AT)[1].items()}
    values = {**clip, **training, **_words(manifest, looks, flip)}
    values |= {"videos": videos, "why_val": "Labels count the classes."}
    if val is None:
        values["why_val"] = "A fifth of each class is for validation, in whole recordings, by the videos' names."
        if cut:
            values["why_val"] = _cut(cut)
    if prepares:
        values["why_val"] += f" Prepared from the originals, with a short side of {needed} pixels."
    folder = f"{stem}_checkpoints"
    values |= {name: _in_yaml(where) for name, where in (sources | {"checkpoints": folder}).items()}
    values |= {"path": quote(str(path)), "best": quote(os.path.join(folder, "best.ckpt"))}
    text = Template(Path(__file__).with_name("starter.yaml").read_text(encoding="utf-8")).substitute(values)
    with new_file(str(path)) as file:
        file.write(text.encode())
    _say_broken(list(broken.values()), left_out=val is None or prepares)
    if broken and not prepares and len(manifest) > _LOOKED_AT:
        say(f"Only {_LOOKED_AT} videos were looked at: `lightning-multigrid check {quote(source)}` reads all of them.")
    say(f"{videos:,} videos of {manifest.num_classes} classes{values['found']}.\nWritten to {path}.")
    if cut:
        say(f"warning: {_cut(cut)} `--val` takes videos of your own choice.")
    if not flip:
        say("Clips are not mirrored. If no class is the mirror image of another, `--flip` gets more out of the videos.")
    words = "plan --measure", "fit", "compare", "predict FOLDER"
    commands = [f"    lightning-multigrid {word} --config {values['path']}" for word in words]
    commands[-1] += f" --ckpt_path {values['best']}"
    say("\n".join(["Next:\n", *commands]))


def _write_lists(manifest: Manifest, splits: Mapping[str, Sequence[int]], stem: str) -> dict[str, str]:
    """Writes a list of the videos in the rows of each split; returns where."""
    lists = {name: f"{stem}_{name}.csv" for name in splits}
    for name, rows in splits.items():
        listed = ((manifest.path(row), str(manifest.label(row))) for row in rows)
        write_csv(lists[name], [("path", "label"), *listed])
    return lists


def _prepare(
    sources: Mapping[str, str], classes: Sequence[str], folder: str, short_side: int
) -> tuple[dict[str, str], dict[str, str]]:
    """Prepares the videos of each split; returns where they are, and which were broken, with the reasons."""
    say(
        f"The videos are larger than their clips need, so they are prepared with a short side of {short_side} pixels, "
        f"in {folder}. `--no-prepare` trains on them as they are."
    )
    prepared: dict[str, str] = {}
    broken: dict[str, str] = {}
    for name, source in sources.items():
        split = os.path.join(folder, name)
        options = {"workers": CORES, "max_bad_fraction": 1.0}  # however many are broken, they are named
        summary = prepare_shown(VideoList(source).read(classes), split, Encoding(short_side=short_side), **options)
        broken |= {path: f"{path}: {reason}" for path, reason in summary.broken.items()}
        prepared[name] = os.path.join(split, MANIFEST_NAME)
    return prepared, broken


def _in_yaml(value: str | list[str]) -> str:
    """Returns text, or a list of it, as YAML on one line; a `ManifestError` for names of files that are no UTF-8."""
    for text in [value] if isinstance(value, str) else value:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ManifestError(f"{text} is no UTF-8, so no config can name it. Rename it.") from None
    flow = {"default_flow_style": True, "default_style": '"', "width": math.inf, "allow_unicode": True}
    return str(yaml.safe_dump(value, **flow)).rstrip("\n")


def _say_broken(reasons: Sequence[str], left_out: bool) -> None:
    for reason in reasons[:_NAMED]:
        say(f"Broken, left out: {reason}" if left_out else f"Broken: {reason}")
    if reasons[_NAMED:]:
        say(f"{len(reasons) - _NAMED:,} more are broken.")
    if reasons and not left_out:
        say("The config names the folder or list as it is; training takes other videos in place of broken ones.")


def _cut(recordings: int) -> str:
    return (
        f"Recordings, by the videos' names, that are in training as well as in validation: {recordings:,}. Accuracy on "
        "new recordings may be lower."
    )


def _clip(looks: Sequence[Look]) -> dict[str, Any]:
    """Returns the shape of the baseline's clips, and why."""
    machine = _MACHINES["gpu" if torch.cuda.is_available() else "cpu"]
    length, rate, short = (median(column) for column in zip(*looks, strict=True))
    shortest = sorted(look.frames for look in looks)[len(looks) // 10]
    frames = next((number for number in (16, 8, 4) if number <= min(shortest, machine["frames"])), 2)
    stride = max(1, min(round(2 * rate / frames), int(shortest) // frames))
    return {
        "frames": frames,
        "stride": stride,
        "size": max(32, min(machine["size"], int(short * 7 / 8) // 16 * 16)),
        "why_stride": f"so that a clip lasts {frames * stride / rate:.1f} s of a video's {length / rate:.1f} s",
        "why_size": f"of videos with a short side of {short:.0f}{machine['about_size']}",
    }


def _training(videos: int, clip: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the baseline's training on so many videos, and why."""
    machine = _MACHINES["gpu" if torch.cuda.is_available() else "cpu"]
    shapes = [BatchShape(clips, clip["frames"], clip["size"]) for clips in (8, 4, 2, 1)]
    batches = [shape.clips for shape in shapes if _fits(shape, videos)]
    if not batches:
        raise ManifestError(f"There are {videos} training videos, too few for the large mini-batches of multigrid.")
    batch, epochs = _batch_and_epochs(videos, batches)
    every = ceil(epochs / _VALIDATIONS)
    epochs = every * ceil(epochs / every)  # the last one is validated
    # Beside a GPU, two cores are for the main process and for pinning memory; a CPU computes with those that are left.
    workers = max(1, CORES - 2 if torch.cuda.is_available() else min(8, CORES - 1))
    why_batch = "enough videos for mini-batches 16 times as large" if batch == 8 else "few, for steps enough"
    if torch.cuda.is_available():
        why_batch += "; if one doesn't fit into the GPU, halve this and lr"
    return {
        **{name: machine[name] for name in ("model", "why_model", "precision", "why_precision", "channels_last")},
        "batch_size": batch,
        "why_batch": why_batch,
        "epochs": epochs,
        "every": every,
        "steps": epochs * videos // batch,
        "lr": f"{machine['lr'] * batch / 8:.3g}",
        "cores": CORES,
        "workers": workers,
        "precise": max(1, min(10, videos // batch)),
    }


def _batch_and_epochs(videos: int, batches: Sequence[int]) -> tuple[int, int]:
    """Returns the clips of a mini-batch, of those that are possible, and the epochs of the baseline."""
    for batch in (batch for batch in batches if batch >= 4):  # BatchNorm of fewer clips is another baseline
        epochs = ceil(_STEPS * batch / videos)
        if epochs <= _EPOCHS:
            return batch, max(_LEAST, epochs)
    return batches[0], max(_LEAST, min(_FEW_EPOCHS, round(_FEW_STEPS * batches[0] / videos)))


def _fits(shape: BatchShape, videos: int) -> bool:
    baseline = Baseline(shape, epochs=10, milestones=(4, 6, 8))
    try:
        Plan(MultigridSchedule(baseline), videos).refuse_few_clips(0)
    except ValueError:  # the first mini-batch has more clips
        return False
    return True


def _words(manifest: Manifest, looks: Sequence[Look], flip: bool) -> dict[str, object]:
    ends = [(f"{min(values):.4g}", f"{max(values):.4g}") for values in zip(*looks, strict=True)]
    frames, rate, short = (least if least == most else f"{least} to {most}" for least, most in ends)
    return {
        "classes": manifest.num_classes,
        "names": _in_yaml(list(manifest.classes)),
        "found": f", short side {short} pixels, {frames} frames at {rate} per second",
        "flip": str(flip).lower(),
        "why_flip": "as `--flip` says" if flip else "mirrors clips: only if no class mirrors another",
    }
