"""`init`: a first config for a folder or a list of videos, whose comments say why."""

import json
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from shlex import quote
from shutil import disk_usage
from statistics import median
from string import Template
from typing import Any

import torch
import yaml
from rich import filesize

from lightning_multigrid.cli.data_commands import CORES, folder_splits, needed_short_side, video_list
from lightning_multigrid.cli.terminal import say
from lightning_multigrid.files import VIDEO_SUFFIXES, is_url, new_file, of_videos, quoted, write_csv
from lightning_multigrid.prepare import Look, Planes, bytes_of_planes, kind_of, look_at
from lightning_multigrid.sources import Manifest, ManifestError, class_sizes
from lightning_multigrid.video import VideoDataModule

_MACHINES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
_SHARE = 5  # a fifth of each class is held out
_LARGEST = 16  # the clips of the largest mini-batch, for each of the baseline: long cycle x short cycle
_STEPS, _EPOCHS, _LEAST = 10_000, 150, 10  # this many steps of the baseline, in 10 to 150 epochs
_VALIDATIONS = 15  # at most: each takes time that multigrid doesn't shorten
_OPENED, _NAMED = 2000, 5  # videos of which the split knows how they are coded; kinds that are named
_PAYS = 1.3  # how many times the short side that is needed a video has if preparing pays
_SMALL = 100 * 10**9  # bytes of planes, above which H.264 is proposed


def init(source: str, val: str | None = None, output: str = "multigrid.yaml", frame_rate: float | None = None) -> None:
    """Looks at videos, and writes a config of `fit` for them, whose comments say why.

    Args:
        source: A folder with a folder per class, or with `train` and `val` of that kind, or a list of `path label`.
            Required.
        val: Validation videos. By default a fifth of each class is held out, in whole recordings, and of each codec and
            size where it has 5 videos. Videos whose names differ in the last number only count as one recording.
        output: The config to write.
        frame_rate: Images per second. Required if each video is a folder of images.
    """
    if is_url(source):
        raise ManifestError(f"`init` looks at videos on a disk, and {source} is a URL. Write a config that names it.")
    splits = folder_splits(source)
    if val is not None and os.path.realpath(splits.get("train", source)) == os.path.realpath(val):
        held_out = f"{splits['val']} is taken" if splits else "a fifth of each class is held out"
        raise ValueError(
            f"`--val` is {val}, the videos of training, whose accuracy would say little. Give others, or leave `--val` "
            f"out: then {held_out}."
        )
    path = Path(output)
    if val is None and splits:
        source, val = splits["train"], splits["val"]
    stem = str(path.with_suffix(""))
    lists = {split: f"{stem}_{split}.csv" for split in ("train", "val")} if val is None else {}
    files = [str(path), *lists.values()]
    if there := list(filter(os.path.exists, files)):
        them = "them" if len(there) > 1 else "it"
        raise ValueError(f"`init` would write over {', '.join(there)}. Move {them} away, or give another `--output`.")
    manifest = video_list(source, frame_rate).read()
    if not manifest.labelled:
        raise ManifestError(
            f"The videos of {source} have no labels. Give a list of `path label`, or a folder per class."
        )
    if val is not None:
        video_list(val, frame_rate).read(manifest.classes)  # an error if there is none, or of other classes
    looks, broken = look_at(manifest)
    kinds = [kind_of(path) for path in manifest.paths()] if val is None and len(manifest) <= _OPENED else []
    train, held, cut = hold_out(manifest, kinds) if val is None else (range(len(manifest)), (), 0)
    sources = {"train": source, "val": val} if val is not None else lists
    folder = f"{stem}_checkpoints"
    columns = zip(*((look.frames, look.rate, min(look.height, look.width)) for look in looks), strict=True)
    medians = [median(column) for column in columns]
    frames, rate, short = (f"{number:,.2f}".rstrip("0").rstrip(".") for number in medians)
    clip = _clip(looks, *medians[1:])
    values = {
        **clip,
        **_training(len(train), len(held)),
        "videos": len(manifest),
        "classes": manifest.num_classes,
        "names": _in_yaml(manifest.classes),
        "of_frames": "" if frame_rate is None else f", frame_rate: {frame_rate}",
        "found": f", short side {short} pixels, {frames} frames at {rate} per second",
        "why_val": "Labels count the classes." if val else "A fifth of each class is for validation.",
        **{name: _in_yaml(os.path.abspath(where)) for name, where in (sources | {"checkpoints": folder}).items()},
        "path": quote(str(path)),
        "best": quote(os.path.join(folder, "best.ckpt")),
    }
    if manifest.num_classes < 2:
        raise ManifestError(
            f"All videos of {source} have one class, at least 2 are required. Give the folder that holds the folders "
            "of all classes, or a list with the labels of all."
        )
    text = Template(Path(__file__).with_name("starter.yaml").read_text(encoding="utf-8")).substitute(values)
    path.parent.mkdir(parents=True, exist_ok=True)
    for name, rows in zip(lists.values(), (train, held), strict=False):
        _write_list(manifest, rows, name)
    with new_file(str(path)) as file:
        file.write(text.encode())
    say(f"{of_videos(len(manifest))} of {manifest.num_classes} classes{values['found']}.")
    say(f"Classes: {class_sizes(manifest, manifest.num_classes)}.\n{_split_text(train, held, kinds)}")
    say(f"Written: {', '.join(files)}.")
    span = clip["frames"] * clip["stride"]
    if shorter := sum(look.frames < span for look in looks):
        say(
            f"warning: Videos shorter than the {span} frames that a clip spans: {shorter} of {len(looks)} that were "
            "looked at. Their clips repeat the last frame. Give a smaller `stride`, or fewer `frames`."
        )
    if broken:
        say(
            f"warning: Broken videos: {len(broken)} of the {len(looks) + len(broken)} that were looked at, such as "
            f"{broken[0]}. Training takes other videos in their place. `lightning-multigrid check "
            f"--config {values['path']}` names all broken ones."
        )
    labels = {manifest.label(row) for row in train} - {manifest.label(row) for row in held}
    if labels and val is None:
        names = [quoted(manifest.classes[label]) if manifest.classes else str(label) for label in sorted(labels)]
        say(
            f"warning: Classes of fewer than 5 videos, of which none is for validation: {len(names)}, such as "
            f"{names[0]}. `--val` takes videos of your own choice."
        )
    if cut:
        say(
            f"warning: By the videos' names, training and validation share recordings: {cut:,}. "
            "Accuracy on new recordings may be lower. `--val` takes videos of your own choice."
        )
    needed = needed_short_side(VideoDataModule(frames=clip["frames"], size=clip["size"]))
    planes = bytes_of_planes(list(dict.fromkeys(manifest.paths())), Planes(needed), frame_rate)
    if planes <= min(_SMALL, disk_usage(path.parent).free // 2):
        say(
            f"Their decoded frames take about {filesize.decimal(planes)}: `lightning-multigrid prepare --config "
            f"{values['path']} --output prepared --store planes` writes them, and clips are read without a decoder."
        )
    elif medians[2] >= _PAYS * needed:
        say(
            f"The videos are larger than their clips need: `lightning-multigrid prepare --config {values['path']} "
            "--output prepared` writes copies that decode several times faster."
        )
    words = "check", "plan --measure", "fit", "compare", "predict FOLDER"
    commands = [f"    lightning-multigrid {word} --config {values['path']}" for word in words]
    commands[-1] += f" --ckpt_path {values['best']}"
    say("\n".join(["Next:\n", *commands]))


def _in_yaml(names: str | Sequence[str]) -> str:
    """Names in YAML on one line, rare line separators and the like by their numbers; a ManifestError without UTF-8."""
    for name in [names] if isinstance(names, str) else names:
        if any("\ud800" <= c <= "\udfff" for c in name):  # as which Python reads such bytes
            raise ManifestError(f"The name {quoted(name)} is not UTF-8, which a config must be. Rename the folder.")
    text = json.dumps(names, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)


def _write_list(manifest: Manifest, rows: Sequence[int], path: str) -> None:
    written, folder = [["path", "label", "start", "end"]], os.path.dirname(os.path.abspath(path))
    as_names = all(map(_is_name, manifest.classes))  # else one would be read as something else
    names = manifest.classes if as_names and manifest.classes else [*map(str, range(manifest.num_classes))]
    for row in rows:
        times = [str(seconds) if 0 < seconds < math.inf else "" for seconds in manifest.stretch(row)]
        video = manifest.path(row)
        relative = os.path.relpath(video, folder)
        if is_url(video) or relative.startswith("..") or relative != relative.strip():  # a list can't say it so
            relative = video
        written.append([relative, names[manifest.label(row)], *times])
    write_csv(path, written)


def _is_name(label: str) -> bool:
    number_or_path = re.fullmatch("[0-9;, ]*", label) or label.lower().endswith(VIDEO_SUFFIXES)
    return not number_or_path and label == label.strip()


def _split_text(train: Sequence[int], held: Sequence[int], kinds: Sequence[str]) -> str:
    if not held:
        return f"Training: {of_videos(len(train))}."
    counts = [Counter(kinds[row] for row in rows if kinds) for rows in (train, held)]
    most = [kind for kind, _ in (counts[0] + counts[1]).most_common(_NAMED) if kind]
    by_kind = "".join(f"; {kind}: {counts[0][kind]:,} and {counts[1][kind]:,}" for kind in most if len(most) > 1)
    return f"Training and validation: {len(train):,} and {of_videos(len(held))}{by_kind}."


def _clip(looks: Sequence[Look], rate: float, short: float) -> dict[str, int]:
    machine = _MACHINES["gpu" if torch.cuda.is_available() else "cpu"]
    shortest = sorted(look.frames for look in looks)[len(looks) // 10]
    frames = next((number for number in (16, 8, 4) if number <= min(shortest, machine["frames"])), 2)
    return {
        "frames": frames,
        "stride": max(1, min(round(2 * rate / frames), int(shortest) // frames)),
        "size": max(32, min(machine["size"], int(short * 7 / 8) // 16 * 16)),
    }


def _training(videos: int, held: int = 0) -> dict[str, Any]:
    machine = _MACHINES["gpu" if torch.cuda.is_available() else "cpu"]
    batch = next((clips for clips in (8, 4, 2, 1) if _LARGEST * clips <= videos), None)
    if batch is None:
        beside = f", beside {held} held out for validation" if held else ""
        other = ", or give validation videos of their own as `--val`" if held and videos + held >= _LARGEST else ""
        raise ManifestError(
            f"There are {videos} training videos{beside}; at least {_LARGEST} are required, as the largest mini-batch "
            f"of multigrid has {_LARGEST} clips for each of the baseline's. Add videos{other}."
        )
    if batch == 8 and _STEPS * batch > _EPOCHS * videos:
        batch = 4  # for more steps; BatchNorm of fewer clips is another baseline
    epochs = max(_LEAST, min(_EPOCHS, math.ceil(_STEPS * batch / videos)))
    every = math.ceil(epochs / _VALIDATIONS)
    epochs = every * math.ceil(epochs / every)  # the last one is validated
    return {
        **{name: machine[name] for name in ("model", "why_model", "precision", "why_precision")},
        "channels_last": str(machine["channels_last"]).lower(),
        "batch_size": batch,
        "epochs": epochs,
        "every": every,
        "steps": epochs * videos // batch,
        "lr": f"{machine['lr'] * batch / 8:.3g}",
        "cores": CORES,
        # Beside a GPU, two cores are for the main process and for pinning memory; a CPU computes with those left.
        "workers": max(1, CORES - 2 if torch.cuda.is_available() else min(8, CORES - 1)),
        "precise": max(1, min(10, videos // batch)),
    }


def recording_name(path: str, class_name: str = "") -> str:
    """Returns what the videos of a recording have in common: the path without its class and its name's last number.

    >>> recording_name("jump/match1_07.mp4", "jump"), recording_name("run/match1_12.mp4", "run")
    ('match1_', 'match1_')
    """
    folder, name = os.path.split(os.path.splitext(path)[0])
    parts = [part for part in folder.split("/") if part != class_name]
    return "/".join([*parts, re.sub(r"[0-9]+(?=[^0-9]*$)", "", name)])


def hold_out(manifest: Manifest, kinds: Sequence[str] = ()) -> tuple[list[int], list[int], int]:
    """Returns rows for training, rows for validation, and how many recordings, whose clips are alike, are in both.

    `kinds` say how each row is coded. A kind with at least 5 videos in a class is held out like a class of its own.
    Held out is the end of each class in the order of names: from where a recording begins, as near to a fifth as there
    is one; a recording is cut where that would be less than a tenth, or more than half.
    """
    rows = range(len(manifest))
    labels = [manifest.label(row) for row in rows]
    names = [manifest.classes[label] if manifest.classes else "" for label in labels]
    recordings = [recording_name(manifest.path(row), names[row]) for row in rows]
    held: list[int] = []
    groups = _groups(labels, recordings, kinds or [""] * len(rows))
    # A group is together in this order, and what is rare comes first, so that it is not held out.
    by_name = sorted(rows, key=lambda row: (groups[row], recordings[row], manifest.path(row), row))
    for _, of_class in groupby(by_name, key=lambda row: groups[row][:2]):
        own = list(of_class)
        share = len(own) // _SHARE
        whole = (
            number
            for number in range(max(1, share // 2), len(own) // 2 + 1)
            if recordings[own[-number]] != recordings[own[-number - 1]]
        )
        if share:
            held += own[-min(whole, key=lambda number: abs(number - share), default=share) :]
    if not held:
        raise ManifestError(
            f"No class of {manifest.origin} has {_SHARE} videos, so none can be held out for validation. Give `--val`."
        )
    train = sorted({*rows} - {*held})
    cut = {recordings[row] for row in train} & {recordings[row] for row in held}
    return train, sorted(held), len(cut)


def _groups(labels: Sequence[int], recordings: Sequence[str], kinds: Sequence[str]) -> list[tuple[int, str, bool]]:
    """For each row its class, its recording's kind, and whether that is frequent; else the class's most frequent."""
    of_class = defaultdict[int, dict[str, str]](dict)
    for label, recording, kind in zip(labels, recordings, kinds, strict=True):
        of_class[label].setdefault(recording, kind)
    # A class without recordings is one by the names of its videos, which is cut in any case.
    own = [
        kind if len(of_class[label]) == 1 else of_class[label][recording]
        for label, recording, kind in zip(labels, recordings, kinds, strict=True)
    ]
    groups = [*zip(labels, own, strict=True)]
    numbers = Counter(groups)
    most = {label: kind for (label, kind), _ in reversed(numbers.most_common())}
    frequent = [numbers[group] >= _SHARE or most[group[0]] == group[1] for group in groups]
    pairs = zip(groups, frequent, strict=True)
    return [(label, kind if often else most[label], often) for (label, kind), often in pairs]
