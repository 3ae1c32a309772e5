"""The subcommands `prepare` and `check`: they need videos, and neither a model nor a Trainer."""

import os
import sys
from argparse import RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from typing import Any

from jsonargparse import ArgumentError, ArgumentParser, DefaultHelpFormatter, Namespace
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from rich import filesize
from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from lightning_multigrid.cli.explain import explained
from lightning_multigrid.prepare import Encoding, Progress, Summary, check, prepare, write_report
from lightning_multigrid.sources import MANIFEST_NAME, Manifest, ManifestError, Source, VideoList, VideoSource
from lightning_multigrid.video import VideoDataModule

DATA_COMMANDS = ("prepare", "check")
# The options of `prepare` that go to the function as they are.
_OPTIONS = ("part", "merge", "workers", "timeout", "max_bad_fraction", "keep_damaged")

_PREPARE = """\
Transcodes a dataset for training: small videos that decode several times faster, their list and their index.

    lightning-multigrid prepare --source videos/train.csv --output prepared/train
    lightning-multigrid prepare --config recipe.yaml --output prepared

The first prepares one list or folder of videos. The second prepares all splits that a config of `fit` names, each into
a folder of its own, and says what to change in the config. If it was stopped, the same command continues from there.
Broken and damaged videos are left out, and `report.csv` names them with the reason.

Several machines share the work with `--part 1/64` to `--part 64/64`, in any order or at once, into one folder. Then
`--merge`, with the same other options, writes the list and the index that one machine would have written."""
_CHECK = """\
Reads every video of a dataset, and says which are broken or damaged, and how. Exits with 1 if any is.

Four frames of each are decoded, from the keyframes before them. Damage elsewhere is found by --full only.

    lightning-multigrid check --source videos/train.csv
    lightning-multigrid check --config recipe.yaml --full --report broken.csv"""


class _Help(RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """Keeps the lines of a description."""


def run_data_command(args: Sequence[str]) -> None:
    """Runs `prepare` or `check`, whichever is the first of the arguments, with the others.

    Exits with 1 if `check` finds a broken video, with 130 at Ctrl-C.
    """
    command = args[0]
    parser = _parser(command)
    with explained(parser):
        config = parser.instantiate_classes(parser.parse_args(list(args[1:])))
    if (config.source is None) == (config.config is None):
        raise ArgumentError(
            None,
            f"`{command}` needs either --source, a list or folder of videos, or --config, a config of `fit`. "
            f"See `lightning-multigrid {command} --help`",
        )
    splits = _splits(config) if config.source is None else {"": _read(config)}
    try:
        (_prepare if command == "prepare" else _check)(config, splits)
    except KeyboardInterrupt:
        goes_on = " What is there is whole, and the same command goes on from it." if command == "prepare" else ""
        print(f"Stopped.{goes_on}", file=sys.stderr)
        raise SystemExit(130) from None  # the exit status of a program that Ctrl-C ends


def _parser(command: str) -> ArgumentParser:
    parser = ArgumentParser(
        prog=f"lightning-multigrid {command}",
        description=_PREPARE if command == "prepare" else _CHECK,
        exit_on_error=False,
        formatter_class=_Help,
    )
    add = parser.add_argument
    flag: dict[str, Any] = {"action": "store_true"}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    add(
        "--source",
        type=Source | None,
        help="The videos: a list of `path label`, a folder with a folder per class, or the `class_path` of a source "
        "such as `lightning_multigrid.sources.Kinetics` with its arguments.",
    )
    add("--config", type=str | None, help="A config of `fit`; all of its splits are taken.")
    add("--root", type=str | None, help="Folder that relative paths of a list start from.")
    add("--multi_label", **flag, help="Whether videos may have several labels.")
    add("--existing_only", **flag, help="Leave out what is listed but not on disk.")
    add("--allow_outside_root", **flag, help="Accept lists whose paths lead out of the root.")
    add("--workers", type=int, default=cores, help="Processes; 0 works in this one, without `timeout`.")
    add("--timeout", type=float, default=300.0, help="Seconds without a frame after which a video is broken.")
    if command == "prepare":
        add("--output", type=str, required=True, help="Folder for all that is written.")
        parser.add_class_arguments(Encoding, instantiate=False)
        add("--part", type=str | None, help="K/N: do only part K of N; K counts from 1.")
        add("--merge", **flag, help="Make one dataset of the parts; encode nothing.")
        add("--max_bad_fraction", type=float, default=0.25, help="Exit with 1 if a larger share of videos is broken.")
        add("--keep_damaged", **flag, help="Write damaged videos as FFmpeg decodes them, too.")
    else:
        add("--frames", type=int, default=4, help="Frames of each video that are decoded.")
        add("--full", **flag, help="Decode all frames, and so find all damage.")
        add("--report", type=str | None, help="File to write: a CSV of the broken videos.")
    return parser


def _read(config: Any) -> Manifest:
    source: Source = config.source
    if not isinstance(source, VideoSource):
        flags = {name: config[name] for name in ("multi_label", "existing_only", "allow_outside_root")}
        source = VideoList(source, config.root, **flags)
    return source.read()


def _splits(config: Any) -> Mapping[str, Manifest]:
    """Reads the videos of each split that a config of `fit` names."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--config", action="config")
    parser.add_class_arguments(Trainer, "trainer", instantiate=False, sub_configs=True)
    for name, kind in (("model", LightningModule), ("data", LightningDataModule)):
        parser.add_subclass_arguments(kind, name, instantiate=name == "data", required=name == "data")
    for name in ("seed_everything", "ckpt_path", "weights_only", "threads", "about", "next"):
        parser.add_argument(f"--{name}", type=Any)
    given = parser.parse_args([f"--config={config.config}"])
    only_data = Namespace({"data": given.data})  # type: ignore[no-untyped-call]
    data = parser.instantiate_classes(only_data).data
    if not isinstance(data, VideoDataModule):
        raise ManifestError(
            f"{config.config} has {type(data).__name__} as `data`; a VideoDataModule is required. Give the list or "
            "folder of videos as --source."
        )
    return {str(split): manifest for split, manifest in data.manifests().items()}


def _prepare(config: Any, splits: Mapping[str, Manifest]) -> None:
    encoding = Encoding(config.short_side, config.crf, config.preset, config.gop, config.b_frames)
    written: dict[str, str] = {}
    for split, manifest in splits.items():
        output = os.path.join(config.output, split) if split else config.output
        with _bar() as bar:
            task = bar.add_task(split or os.path.basename(os.path.normpath(output)), total=None, count="")

            def show(now: Progress, bar: Bar = bar, task: Any = task) -> None:
                count = f"{now.done:,} of {now.total:,} videos" + (f", {now.broken:,} broken" if now.broken else "")
                bar.update(task, completed=now.done_bytes, total=max(1, now.total_bytes), count=count)

            options = {name: config[name] for name in _OPTIONS}
            summary = prepare(manifest, output, encoding, **options, progress=show)
        written[split] = os.path.join(output, MANIFEST_NAME)
        print(_said(summary))
    if config.part is not None:
        print(f"\nPart {config.part} is done. After the last part, run this with `--merge` instead of `--part`.")
        return
    print("\nTo train on them, give the data module:\n\ndata:\n  init_args:")
    for split, path in written.items():
        print(f"    {split or 'train'}: {path}")


def _said(summary: Summary) -> str:
    there = f", {summary.kept:,} were there" if summary.kept else ""
    ratio = f", {summary.bytes / summary.source_bytes:.2f} times the originals" if summary.source_bytes else ""
    broken = f"; {len(summary.broken):,} broken ones are left out, {summary.report} says why" if summary.broken else ""
    return f"{summary.made:,} videos prepared{there}: {filesize.decimal(summary.bytes)}{ratio}{broken}."


def _check(config: Any, splits: Mapping[str, Manifest]) -> None:
    broken: dict[str, str] = {}
    read = 0
    for split, manifest in splits.items():
        with _bar() as bar:
            task = bar.add_task(split or "check", total=len(manifest), count="")
            frames = None if config.full else config.frames
            for path, reason in check(manifest, frames=frames, workers=config.workers, timeout=config.timeout):
                read += 1
                if reason is not None:
                    broken[path] = reason
                    line = f"{_one_line(path)}: {_one_line(reason)}"
                    bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
                bar.update(task, advance=1, count=f"{len(broken):,} broken")
    if config.report is not None:
        write_report(config.report, broken)
    print(f"{read:,} videos read, {len(broken):,} broken.")
    if broken:
        raise SystemExit(1)


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def _bar() -> Bar:
    return Bar(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[count]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
