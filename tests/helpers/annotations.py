"""Annotation files of datasets: written and read back."""

import os
from collections.abc import Callable
from pathlib import Path

from lightning_multigrid.sources import Manifest, ManifestError
from tests.helpers.mutations import check_rows


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
