"""What `VideoDataModule` accepts as the videos of a split.

Each dataset is a frozen dataclass, which says in Python or YAML what to read and where; nothing is read before `read`.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from lightning_multigrid.sources.manifest import Manifest


@runtime_checkable
class VideoSource(Protocol):
    """Anything that the videos of a split can be read from: any class with this method, your own ones, too."""

    def read(self, classes: Sequence[str] = ()) -> Manifest:
        """Reads paths and labels; no video is opened.

        Args:
            classes: Names of the training split's classes in the order of their labels, for sources whose own files
                lack them.

        Raises:
            ManifestError: If something can't be read.
        """


if TYPE_CHECKING:
    Source = str | os.PathLike[str] | VideoSource
else:

    class AnyPath(os.PathLike):
        """Stands for any path, for jsonargparse only.

        Without a kind of path in the union, jsonargparse would read a user's list as a config; with `os.PathLike`
        itself, it would take a source with a mistake in its arguments for a path.
        """

    Source = str | AnyPath | VideoSource
