"""What `VideoDataModule` accepts as the videos of a split: frozen dataclasses, which read nothing before `read`."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from lightning_multigrid.sources.manifest import Manifest


@runtime_checkable
class VideoSource(Protocol):
    """Anything that the videos of a split can be read from: any class with this method, your own ones, too."""

    def read(self, classes: Sequence[str] = ()) -> Manifest:
        """Reads paths and labels; no video is opened. What can't be read is a `ManifestError`.

        Args:
            classes: Names of the training split's classes in the order of their labels, for sources whose own files
                lack them.
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
