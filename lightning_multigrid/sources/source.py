"""The videos of a split, said in a config: what to read and where it lies. Nothing is read before `read`.

Each class has the arguments of one reader of `manifest`, `annotations` or `charades`, under the name of its dataset. As
frozen dataclasses they print, compare, and stand in YAML under their `class_path`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from lightning_multigrid.sources.manifest import Manifest

__all__ = ["Source", "VideoSource"]


@runtime_checkable
class VideoSource(Protocol):
    """What a split's videos can be read from; a class of your own with this method is one, too."""

    def read(self, classes: Sequence[str] = ()) -> Manifest:
        """Reads paths and labels; no video is opened.

        Args:
            classes: Names of the training split's classes in the order of their ids, for sources whose own files don't
                tell them.

        Raises:
            ManifestError: If something can't be read.
        """
        ...


if TYPE_CHECKING:
    Source = str | os.PathLike[str] | VideoSource
else:

    class AnyPath(os.PathLike):
        """Any path will do. This class is for jsonargparse only.

        Without a kind of path in the union, it reads a list as if that were a config; with `os.PathLike` itself, it
        takes a source with a mistake in its arguments for a path.
        """

    Source = str | AnyPath | VideoSource
