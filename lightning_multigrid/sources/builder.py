"""Builds a manifest row by row, and checks each row."""

import logging
import math
import os
import re
from array import array
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from itertools import chain
from typing import Any
from unicodedata import normalize

import numpy as np
import torch

from lightning_multigrid.files import (
    StrPath,
    is_url,
    name_below,
    name_in_url,
    on_disk,
    path_argument,
    quoted,
    require,
    url_fault,
)
from lightning_multigrid.sources.manifest import Manifest, Rows
from lightning_multigrid.sources.text import ManifestError

_NO_NAME = re.compile("[\0\ud800-\udc7f\udd00-\udfff]")  # half a pair of surrogates is in no name of a file
_log = logging.getLogger(__name__)


class ManifestBuilder:
    """Collects checked rows for a `Manifest`; errors name `origin`. The other arguments are those of `VideoList`.

    Only the text of a path is judged. Links are followed: the owner of the disk made them, not the author of the list.
    """

    def __init__(
        self,
        origin: StrPath,
        root: StrPath | None = None,
        *,
        classes: Sequence[str] = (),
        multi_label: bool = False,
        frame_rate: float | None = None,
        existing_only: bool = False,
        allow_outside_root: bool = False,
    ) -> None:
        self._origin = path_argument("origin", origin)
        folder = os.path.dirname(self._origin) or os.curdir if root is None else path_argument("root", root)
        self._remote = is_url(folder)
        if self._remote:
            _check_root(folder, of_frames=frame_rate is not None, existing_only=existing_only)
        # With one name twice, labels would mean other classes.
        different = not isinstance(classes, str) and len(set(classes)) == len(classes)
        require(different, "classes", classes, "a sequence of different names")
        if bad := [name for name in classes if not name or name != name.strip() or {*"\r\n"} & {*name}]:
            raise ManifestError(f"The class {quoted(bad[0])} fits no line of a file of classes. Rename it.")
        rate = frame_rate is None or 0 < frame_rate < math.inf
        require(rate, "frame_rate", frame_rate, "above 0 (frames per second), or None")
        self._root = folder.rstrip("/") if self._remote else os.path.abspath(folder)
        self._prefix = os.path.join(self._root, "")
        self._classes, self._beyond = tuple(classes), len(classes) or math.inf
        self._multi_label, self._frame_rate, self._outside = multi_label, frame_rate, allow_outside_root
        # A list from elsewhere must not name the files of this machine.
        self._absolute = allow_outside_root or (root is None and not self._remote)
        self._names_in = cache(_names_in) if existing_only else None  # lists each folder once
        self._missing = 0
        self._paths, self._path_offsets = bytearray(), array("q", [0])
        self._labels, self._label_offsets = array("i"), array("q", [0])
        self._spans, self._stretches = array("d"), array("d")

    def add(
        self,
        path: str,
        labels: Sequence[int] = (),
        *,
        where: str | int,
        spans: Sequence[tuple[float, float]] = (),
        stretch: tuple[float, float] = (0.0, math.inf),
    ) -> None:
        """Adds a checked video from `where` (the number of a line, or words), or its `stretch` [start, end) in s.

        `spans` has [start, end) of each label in s of the video; without them, labels hold for all of it.
        """
        name = self._checked_path(path, where)
        self._check_labels(labels, where)
        if spans and len(spans) != len(labels):
            raise self.error(where, f"{len(labels)} labels with {len(spans)} spans. Give every label its span, or none")
        start, end = stretch
        if not 0 <= start < end:
            raise self.error(where, f"a stretch from {start:g} to {end:g} s. Give a start from 0, and an end after it")
        folder, base = os.path.split(os.path.join(self._root, name))
        if self._names_in is not None and normalize("NFC", base) not in self._names_in(folder):
            self._missing += 1
            return
        self._paths += name.encode("utf-8", "surrogateescape")
        self._path_offsets.append(len(self._paths))
        self._labels.extend(labels)
        self._label_offsets.append(len(self._labels))
        self._spans.extend(chain.from_iterable(spans) if spans else (0.0, math.inf) * len(labels))
        self._stretches.extend(stretch)

    def build(self, names: Sequence[str] = ()) -> Manifest:
        """Returns the manifest, once. `names` are what labels count without `classes`: sorted, they are the classes."""
        rows = len(self._path_offsets) - 1
        if not rows and self._missing:
            raise ManifestError(
                f"None of the {self._missing:,} videos listed in {self._origin} lies in {self._root}. "
                "Give the folder that their paths start from."
            )
        if not rows:
            raise ManifestError(
                f"{self._origin} lists no videos. Give it a row, `path label`, or a video in the folder."
            )
        if self._missing:
            counts = f"{self._missing:,} of the {self._missing + rows:,} videos"
            _log.warning("%s listed in %s are not on disk and are left out.", counts, self._origin)
        labels, classes = _seen(self._labels), self._classes or tuple(sorted(names))
        if not self._classes and names:
            places = {name: place for place, name in enumerate(classes)}
            labels = np.array([places[name] for name in names], labels.dtype)[labels]
        spans, stretches = (_seen(seconds).reshape(-1, 2) for seconds in (self._spans, self._stretches))
        columns = _seen(self._paths), _seen(self._path_offsets), labels, _seen(self._label_offsets), spans, stretches
        stored = Rows(*map(torch.from_numpy, columns))
        return Manifest(self._origin, self._root, classes, self._multi_label, self._frame_rate, self._missing, stored)

    def error(self, where: str | int, what: str) -> ManifestError:
        """Returns the error for a row; `what` says what is wrong, then how to go on."""
        place = f"line {where}" if isinstance(where, int) else where
        return ManifestError(f"{self._origin}, {place}: {what}.")

    def _checked_path(self, path: str, where: str | int) -> str:
        url = "://" in path
        if not path or _NO_NAME.search(path) or (url and not is_url(path)):
            raise self.error(
                where, f"{quoted(path)} is not the path of a file. Correct an empty field, and save the list as UTF-8"
            )
        if url:
            return self._checked_url(path, where)
        # The path is stored in its normal form, so that the path that was judged is the one that is opened.
        name = os.path.normpath(path)
        if name.startswith(self._prefix):
            return name[len(self._prefix) :]
        inside = self._absolute if os.path.isabs(name) else self._outside or name.split(os.sep, 1)[0] != os.pardir
        if not inside:
            raise self.error(
                where,
                f"the path {quoted(path)} leads out of the root {quoted(self._root)}. Give a root that holds all the "
                "videos, or pass `allow_outside_root=True` to `VideoList`",
            )
        return name_in_url(self._root, name) if self._remote and not os.path.isabs(name) else name

    def _checked_url(self, url: str, where: str | int) -> str:
        if self._remote and (name := name_below(self._root, url)) is not None:
            return name
        if fault := url_fault(url):
            raise self.error(where, f"{quoted(url)} {fault}")
        if not self._outside or self._frame_rate is not None or self._names_in is not None:
            raise self.error(
                where,
                f"the URL {quoted(url)} leads out of the root {quoted(self._root)}. Give `VideoList` a URL as `root` "
                "that all the videos are below, or if you trust the list, `allow_outside_root=True`, both without "
                "`frame_rate` and `existing_only`",
            )
        return url

    def _check_labels(self, labels: Sequence[int], where: str | int) -> None:
        for label in labels:
            if not 0 <= label < self._beyond:
                raise self.error(where, f"label {label} is not from 0 to {self._beyond - 1}. Number classes from 0")
        if self._multi_label:
            return
        if len(labels) > 1:
            numbers = ", ".join(map(str, labels))
            raise self.error(
                where,
                f"{len(labels)} labels ({numbers}), one is required. Pass `multi_label=True` to `VideoList`, in a "
                "config as docs/dataset.md shows, or quote the path",
            )
        rows = len(self._path_offsets) - 1
        if rows and bool(labels) != bool(self._labels):
            raise self.error(where, "some rows have a label, and some have none. Give all videos a label, or none")


def _check_root(url: str, *, of_frames: bool, existing_only: bool) -> None:
    if fault := url_fault(url):
        raise ManifestError(f"`root` {quoted(url)} {fault}.")
    if set("?#").intersection(url):
        raise ManifestError(f"`root` {quoted(url)} has a `?` or a `#`, after which no path can stand. Leave it out.")
    if of_frames or existing_only:
        name = "frame_rate" if of_frames else "existing_only"
        raise ManifestError(f"`{name}` is for files on a disk, and `root` is {quoted(url)}. Leave it out.")


def _seen(data: "array[Any] | bytearray") -> np.ndarray[Any, Any]:
    """The memory of an array, not copied: nothing can be added to it any more."""
    kind = data.typecode if isinstance(data, array) else "B"
    return np.frombuffer(data, kind) if data else np.zeros(0, kind)


def _names_in(folder: str) -> frozenset[str]:
    """The names in a folder, in the form of Unicode that lists have; none if it can't be listed."""
    with suppress(OSError):
        return frozenset(normalize("NFC", name) for name in os.listdir(on_disk(folder)))
    return frozenset()
