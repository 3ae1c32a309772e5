"""A folder that holds a folder per class, each with its videos."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from lightning_multigrid.files import VIDEO_SUFFIXES, is_frame, quoted
from lightning_multigrid.sources.text import ManifestError, refuse_unlisted

_log = logging.getLogger(__name__)
_OF_THE_SYSTEM = ("lost+found", "@eaDir")  # folders: of a file system, and of thumbnails that a NAS makes
_SPLITS = ("train", "training", "val", "valid", "validate", "validation", "test", "testing")


def class_names(source: str, *, frames: bool) -> list[str]:
    """Names of the folders in `source`, sorted, without hidden and empty ones; numbers from 0 on are sorted as numbers.

    A `ManifestError` if there are videos beside them, which would have no class; with `frames`, videos are folders.
    """
    _, folders, files = next(os.walk(source, onerror=refuse_unlisted))
    names = sorted(filter(_counts, folders))
    empty = [name for name in names if not any(_files_below(os.path.join(source, name)))]
    if empty and len(empty) < len(names):
        names = [name for name in names if name not in empty]
        _log.warning("%s has empty folders, which are left out: %s.", source, ", ".join(map(quoted, empty)))
    if names and all(name.lower() in _SPLITS for name in names):
        split = os.path.join(source, names[0])
        raise ManifestError(f"{source} holds splits; a folder per class is required. Give one split, such as {split}.")
    videos = [] if frames else sorted(filter(_is_video, files))
    if names and videos:
        raise ManifestError(
            f"{source} holds videos, such as {quoted(videos[0])}, beside folders, such as {quoted(names[0])}. All of "
            f"them in folders, one for each class, or no folders are required. Move the {len(videos):,} into a folder "
            "of their class, or give a list of the paths."
        )
    numbers = [str(number) for number in range(len(names))]
    return numbers if names == sorted(numbers) else names  # as text, 10 is before 2, and in a list it is label 10


def no_videos(folder: str, *, frames: bool) -> ManifestError:
    """Returns the error for a folder without videos, or with `frames`, without folders of images."""
    kinds = ("folders of images", "videos") if frames else ("videos", "folders of images")
    if next(videos_below(folder, frames=not frames), None) is None:
        return ManifestError(f"{folder} holds no {kinds[0]}. Add some, or remove the folder.")
    way_out = "Leave `frame_rate` out" if frames else "Give a `VideoList` with `frame_rate`, the images per second"
    return ManifestError(f"{folder} holds {kinds[1]}, and no {kinds[0]}. {way_out}.")


def videos_below(folder: str, *, frames: bool, left_out: set[str] | None = None) -> Iterator[str]:
    """Yields the paths of the videos below a folder, sorted; with `frames`, those of the folders that hold images.

    Hidden files are skipped. Links are followed, but no folder is entered twice, nor one that holds this folder.
    `left_out` gets the suffixes of other files.
    """
    chosen = is_frame if frames else _is_video
    for place, names in _files_below(folder):
        files = sorted(filter(chosen, names))
        if left_out is not None:
            left_out.update(os.path.splitext(name)[1].lower() or "none" for name in names if not chosen(name))
        if frames and files:
            yield place
        elif not frames:
            yield from (os.path.join(place, name) for name in files)


def _files_below(folder: str) -> Iterator[tuple[str, list[str]]]:
    """Yields the folders below a folder, and itself, that hold files, with the names of these; without hidden ones."""
    holding = (*Path(os.path.abspath(folder)).parents, *Path(os.path.realpath(folder)).parents)
    seen = set(map(os.path.realpath, holding))
    for place, folders, names in os.walk(folder, followlinks=True, onerror=refuse_unlisted):
        real = os.path.realpath(place)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(filter(_counts, folders))
        if files := [name for name in names if name[0] != "."]:
            yield place, files


def _counts(folder: str) -> bool:
    """Whether a folder counts, by its name."""
    return folder[0] != "." and folder not in _OF_THE_SYSTEM


def _is_video(name: str) -> bool:
    return name[0] != "." and os.path.splitext(name)[1].lower() in VIDEO_SUFFIXES
