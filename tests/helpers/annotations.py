"""Annotation files of datasets: written, read back, and mutated."""

import os
import random
from collections.abc import Callable
from pathlib import Path

from lightning_multigrid.sources.manifest import Manifest
from lightning_multigrid.sources.text import ManifestError
from tests.helpers.mutations import check_rows, mutate


def rows_of(manifest: Manifest) -> list[tuple[str, tuple[int, ...]]]:
    """Rows with paths relative to the root."""
    return [(os.path.relpath(manifest.path(row), manifest.root), manifest.labels(row)) for row in range(len(manifest))]


def write_files(folder: Path, files: dict[str, str]) -> Path:
    """Writes files of these names and contents, and returns their folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    return folder


def read_or_refused(read: Callable[[], Manifest]) -> None:
    """Reads a mutated file: the rows are sound, or the error is a `ManifestError` on one line."""
    try:
        manifest = read()
    except ManifestError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        check_rows(manifest)


def read_mutated(folder: Path, files: dict[str, str], name: str, read: Callable[[], Manifest], seed: int) -> None:
    """Mutates the file `name`, or now and then one beside it, and reads it."""
    rng = random.Random(seed)
    write_files(folder, files)
    broken = name if rng.random() < 0.7 else rng.choice(sorted(files))
    (folder / broken).write_bytes(mutate(files[broken].encode(), rng))
    read_or_refused(read)
