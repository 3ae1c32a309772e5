"""A manifest as a file of JSON, which `prepare` writes beside the videos, to be moved together with them.

Nothing in it is believed: each row is checked as that of a list is.
"""

import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import replace

from lightning_multigrid.files import StrPath, is_url, new_file, path_argument
from lightning_multigrid.sources.builder import ManifestBuilder
from lightning_multigrid.sources.manifest import Manifest
from lightning_multigrid.sources.text import ManifestError, read_json

MANIFEST_NAME = "manifest.json"

_BEGINNING = re.compile(rb'{\s*"version": [0-9]+,\s*"root": ')  # other programs write files of this name, too
_VERSION = 5


def save_manifest(manifest: Manifest, path: StrPath) -> None:
    """Writes a manifest of video files below the folder of `path`, to be moved together; others are a ValueError."""
    folder = os.path.dirname(os.path.abspath(path))
    root = os.path.relpath(manifest.root, folder)
    if root.split(os.sep)[0] == os.pardir or manifest.frame_rate is not None:
        raise ValueError(f"The videos of a manifest file must be files in its folder {folder}, got {manifest!r}.")
    rows = []
    for row in range(len(manifest)):
        labels, spans = manifest.spans(row)
        name = manifest.path(row).removeprefix(os.path.join(manifest.root, ""))
        start, end = manifest.stretch(row)
        rows.append([name, labels, [] if (0.0, math.inf) in spans else spans, start, None if math.isinf(end) else end])
    content = {"version": _VERSION, "root": root, "classes": manifest.classes, "multi_label": manifest.multi_label}
    with new_file(path) as file:
        file.write(json.dumps({**content, "rows": rows}, indent=0).encode())


def prepared_manifest(path: str) -> str | None:
    """Returns the manifest file of a prepared folder, given either of them; None for anything else."""
    if os.path.basename(path) == MANIFEST_NAME:
        return path
    file = os.path.join(path, MANIFEST_NAME)
    if is_url(path):  # nothing there is looked for: what has no suffix is a folder
        return None if os.path.splitext(path)[1] else file
    if os.path.isfile(file):
        with open(file, "rb") as opened:
            return file if _BEGINNING.match(opened.read(64)) else None
    return None


def load_manifest(path: StrPath, classes: Sequence[str] = (), *, existing_only: bool = False) -> Manifest:
    """Reads a manifest file, unless it is damaged or a path in it leads out of its folder.

    `classes` count if it has none itself; with `existing_only`, videos that are not on disk are left out.
    """
    path = path_argument("path", path)
    content = read_json(path)
    try:
        if content["version"] != _VERSION:
            raise ValueError(f"it is of version {content['version']}, and version {_VERSION} is required")
        root = os.path.normpath(content["root"])
        if os.path.isabs(root) or root.split(os.sep)[0] == os.pardir:
            raise ValueError("`root` leads out of its folder")
        builder = ManifestBuilder(
            path,
            os.path.join(os.path.dirname(path if is_url(path) else os.path.abspath(path)), root),
            classes=content["classes"] or classes,
            multi_label=content["multi_label"],
            existing_only=existing_only,
        )
        for number, (name, labels, spans, start, end) in enumerate(content["rows"], start=1):
            stretch, spans = (start, math.inf if end is None else end), [(low, high) for low, high in spans]
            builder.add(name, labels, where=f"row {number}", spans=spans, stretch=stretch)
        return replace(builder.build(), prepared=True)
    except ManifestError:
        raise
    except (ValueError, TypeError, LookupError, OverflowError) as error:
        raise ManifestError(
            f"{path} is no manifest of prepared videos, or damaged ({type(error).__name__}: {error}). Run "
            "`lightning-multigrid prepare` again, which keeps the finished videos."
        ) from None
