"""The subcommands `prepare` and `check`: they need videos, and neither a model nor a Trainer."""

import os
import sys
from collections.abc import Mapping
from typing import Any

from jsonargparse import ArgumentError, ArgumentParser, Namespace
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from rich import filesize
from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from lightning_multigrid.prepare import Encoding, Progress, Summary, check, prepare, write_report
from lightning_multigrid.sources import MANIFEST_NAME, Manifest, ManifestError, Source, VideoList, VideoSource
from lightning_multigrid.video import VideoDataModule

# The options of `prepare` that go to the function as they are.
_OPTIONS = ("part", "merge", "workers", "timeout", "max_bad_fraction", "keep_damaged")


def run_data_command(command: str, config: Namespace) -> None:
    """Runs `prepare` or `check`. Exits with 1 if `check` finds a broken video, with 130 at Ctrl-C."""
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
                    said = f"{path}: {reason}"
                    line = "".join(
                        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in said
                    )
                    bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
                bar.update(task, advance=1, count=f"{len(broken):,} broken")
    if config.report is not None:
        write_report(config.report, broken)
    print(f"{read:,} videos read, {len(broken):,} broken.")
    if broken:
        raise SystemExit(1)


def _bar() -> Bar:
    columns = TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[count]}")
    return Bar(SpinnerColumn(), *columns, TimeRemainingColumn(), console=Console(stderr=True))
