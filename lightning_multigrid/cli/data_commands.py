"""The subcommands `prepare`, `check` and `index`: they need videos, and neither a model nor a Trainer."""

import math
import os
import sys
from collections.abc import Mapping
from typing import Literal

from jsonargparse import ArgumentError
from lightning.pytorch import LightningDataModule
from rich import filesize

from lightning_multigrid.cli.terminal import say
from lightning_multigrid.files import StrPath, of_videos, require
from lightning_multigrid.prepare import (
    TASK_SECONDS,
    Encoding,
    Planes,
    bytes_of_planes,
    check,
    index,
    originals,
    prepare,
    tables_folder,
    usable_cores,
    write_report,
)
from lightning_multigrid.sources import Manifest, ManifestError, Source, VideoList, VideoSource, holds_frames
from lightning_multigrid.video import VideoDataModule

CORES = usable_cores()


def prepare_videos(
    datamodule: LightningDataModule | None = None,
    *,
    source: Source | None = None,
    frame_rate: float | None = None,
    output: str,
    workers: int = CORES,
    timeout: float = TASK_SECONDS,
    max_bad_fraction: float = 0.25,
    short_side: int | None = None,
    store: Literal["h264", "planes"] = "h264",
    crf: float = Encoding.crf,
    preset: str = Encoding.preset,
) -> None:
    """Writes small copies of the videos of a dataset, which training reads several times faster, and their list.

        lightning-multigrid prepare videos --output prepared
        lightning-multigrid prepare --config recipe.yaml --output prepared

    The first prepares a list or a folder of videos. The second prepares all splits that a config of `fit` names, each
    into a folder of its own, and prints what to change in the config. If the command was stopped, the same command
    continues; several machines that run it on one folder share the work. `report.csv` names broken videos, which are
    left out, with the reason.

    Args:
        datamodule: That of a config; instead of `source`.
        source: The videos: a list of `path label`, a folder with a folder per class, or with `train` and `val` of that
            kind, or a class with its arguments, such as `--source=lightning_multigrid.sources.VideoList
            --source.source=list.csv --source.root=videos`.
        frame_rate: Images per second, needed if each video of a list or folder is a folder of images.
        output: Folder for all that is written. Required.
        workers: Number of worker processes, by default one for each core. 0 runs in this process, where `--timeout`
            has no effect.
        timeout: Give up on a video after this many seconds and report it as broken. By default 4 hours.
        max_bad_fraction: Exit with 1 if a larger share of videos is broken.
        short_side: Pixels of the shorter side, an even number. Smaller videos keep their size. By default the pixels
            that the clips and views of the config need, or 256 without a config.
        store: `h264` writes compressed videos. `planes` writes decoded frames, which are read many times faster again
            and lose nothing more, except colour between the rows of interlaced videos. They take about 1.5 bytes for
            each pixel of each frame. The command prints how many GB that is before it begins.
        crf: Constant rate factor of x264, from 0 (lossless) to 51. 6 more is about half the bytes. By default 21.
        preset: How much time x264 may take. Faster presets make more bytes (docs/evidence.md), and decode no faster. By
            default `medium`.
    """
    if store == "planes" and (crf, preset) != (Encoding.crf, Encoding.preset):
        raise ArgumentError(None, "`--crf` and `--preset` are for `--store h264`, not for planes. Leave them out")
    splits = _videos("prepare", datamodule, source, frame_rate)
    if short_side is None:
        short_side = 256 if datamodule is None else needed_short_side(datamodule)
    encoding = Planes(short_side) if store == "planes" else Encoding(short_side, crf, preset)
    written = {split: os.path.join(output, split) if split else output for split in splits}
    for split, manifest in splits.items():
        if isinstance(encoding, Planes):
            paths = list(dict.fromkeys(manifest.paths()))
            size = filesize.decimal(bytes_of_planes(paths, encoding, manifest.images_per_second))
            say(f"The planes of {of_videos(len(paths))} take about {size}.")
        bounds = {"timeout": timeout, "max_bad_fraction": max_bad_fraction}
        done = prepare(manifest, written[split], encoding, workers=workers, **bounds)
        why = f" {done.report} says why." if done.broken else ""
        say(f"{done}: {filesize.decimal(done.bytes)} in {written[split]}.{why}")
    say(f"\nThe videos have a short side of {short_side} pixels or less. To train on them, give the data module:")
    say("\ndata:\n  init_args:")
    for split, path in written.items():
        say(f"    {split or 'train'}: {path}")


def check_videos(
    datamodule: LightningDataModule | None = None,
    *,
    source: Source | None = None,
    frame_rate: float | None = None,
    output: str | None = None,
    workers: int = CORES,
    timeout: float = TASK_SECONDS,
    report: str | None = None,
) -> None:
    """Names the videos of a dataset that are broken, damaged, or shorter than their containers say.

    Exits with 1 if there is such a video.

    The command makes the frame tables that videos lack, as `index` does, and reads the answer from the tables. So `fit`
    and another `check` decode no video again, and another `check` does not see damage that has come since.

        lightning-multigrid check videos
        lightning-multigrid check --config recipe.yaml --report broken.csv

    Args:
        datamodule: That of a config; instead of `source`.
        source: The videos, as in `prepare`.
        frame_rate: Images per second, as in `prepare`.
        output: Folder for the frame tables, as in `index`.
        workers: As in `prepare`.
        timeout: As in `prepare`.
        report: File to write: a CSV of the broken and damaged videos.
    """
    in_folder = report is None or os.path.isdir(os.path.dirname(os.path.abspath(report)))
    require(in_folder, "--report", report, "in a folder that is there")
    splits = _videos("check", datamodule, source, frame_rate)
    folder = tables_folder(getattr(datamodule, "index", None) if output is None else output)
    broken: dict[str, str] = {}
    for manifest in splits.values():
        broken |= check(manifest, folder, workers, timeout)
    if report is not None:
        write_report(report, broken)
    _name(broken)
    checked = {path for manifest in splits.values() for path in manifest.paths()}
    say(f"{of_videos(len(checked))} checked, {len(broken):,} broken, damaged or cut.")
    if broken:
        raise SystemExit(1)


def index_videos(
    datamodule: LightningDataModule | None = None,
    *,
    source: Source | None = None,
    frame_rate: float | None = None,
    output: str | None = None,
    workers: int = CORES,
    timeout: float = TASK_SECONDS,
) -> None:
    """Makes the frame tables of videos that are not prepared, so that their clips are read fast.

    `fit` makes missing tables itself. This command makes them before, or on another machine. If the command was
    stopped, the same command continues. Exits with 1 if a video is broken.

        lightning-multigrid index videos
        lightning-multigrid index --config recipe.yaml

    Args:
        datamodule: That of a config; instead of `source`.
        source: The videos, as in `prepare`.
        frame_rate: Images per second, as in `prepare`.
        output: Folder for the frame tables. Give the data module the same folder as `index`. By default the folder of
            the config, or the user's cache, where `fit` looks for tables.
        workers: As in `prepare`.
        timeout: As in `prepare`.
    """
    splits = _videos("index", datamodule, source, frame_rate)
    folder = tables_folder(getattr(datamodule, "index", None) if output is None else output)
    videos = [(manifest.root, originals(manifest)) for manifest in splits.values()]
    done = index(videos, folder, workers, timeout)
    if not (done.made or done.there or done.broken):
        say("Nothing to do: prepared videos need no frame tables, and neither do folders of frames.")
        return
    _name(done.broken)
    say(f"Frame tables of {done}. They are in {folder}.")
    if done.broken:
        raise SystemExit(1)


def _name(broken: Mapping[str, str]) -> None:
    for path, reason in broken.items():
        say(f"{path}: {reason}", sys.stderr)


def folder_splits(source: StrPath) -> dict[str, str]:
    """Returns the folders `train` and `val` of a folder, if it has both."""
    splits = {name: os.path.join(source, name) for name in ("train", "val")}
    return splits if all(map(os.path.isdir, splits.values())) else {}


def video_list(source: StrPath, frame_rate: float | None) -> VideoList:
    """A list or folder of videos as it is given to a command; a ManifestError if a `frame_rate` is missing."""
    if frame_rate is None and holds_frames(source):
        raise ManifestError(
            f"The videos of {os.fspath(source)} are folders of images, which do not say how many are shown per second. "
            "Give `--frame_rate`, such as `--frame_rate 30`."
        )
    return VideoList(source, frame_rate=frame_rate)


def _videos(
    command: str, data: LightningDataModule | None, source: Source | None, frame_rate: float | None
) -> Mapping[str, Manifest]:
    if (source is None) == (data is None):
        raise ArgumentError(
            None, f"`{command}` needs either a list or folder, or --config. See `lightning-multigrid {command} --help`"
        )
    if source is not None and not isinstance(source, VideoSource):
        if not (splits := folder_splits(source)):
            return {"": video_list(source, frame_rate).read()}
        train = video_list(splits["train"], frame_rate).read()
        return {"train": train, "val": video_list(splits["val"], frame_rate).read(train.classes)}
    if frame_rate is not None:
        raise ArgumentError(
            None,
            f"--frame_rate={frame_rate:g} is for a list or folder given by its path. A config, or a class as --source, "
            "has its own: write it there, as `frame_rate` of `VideoList`",
        )
    if source is not None:
        return {"": source.read()}
    if not isinstance(data, VideoDataModule):
        raise ManifestError(
            f"`data` is {type(data).__name__}, a VideoDataModule is required. Give a list or folder of videos instead."
        )
    return {str(split): manifest for split, manifest in data.manifests().items()}


def needed_short_side(data: LightningDataModule) -> int:
    """The least short side of which no clip of training, nor view of the test, is an enlarged crop as a rule: even."""
    assert isinstance(data, VideoDataModule)
    least, _ = data.clip_sampling.short_side_range(data.size)
    _, of_test = data.test_views.pixels(data.clip_sampling)
    return max(16, 2 * math.ceil(max(least, of_test) / 2))
