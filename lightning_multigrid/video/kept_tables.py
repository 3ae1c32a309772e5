"""The frame tables of videos that are not prepared: made before a training, and given to its manifests."""

import os
import warnings
from collections.abc import Sequence

from lightning_utilities.core.rank_zero import rank_zero_info

from lightning_multigrid.files import OutputError, reads_within
from lightning_multigrid.prepare import index_in_subprocess, tables_folder
from lightning_multigrid.sources import Manifest, TableStore


class UnkeptTablesWarning(UserWarning):
    """Says that frame tables can't be kept, so that videos are read from their beginning."""


class KeptTables:
    """A folder of frame tables.

    Args:
        index: Where it is; True means among the user's caches, and False that there is none.
        read_timeout: Seconds that a read of a video may take.
    """

    def __init__(self, index: bool | str, read_timeout: float) -> None:
        self._read_timeout = read_timeout
        self.folder = index if isinstance(index, str) else tables_folder() if index else None

    def make(self, paths: Sequence[str]) -> None:
        """Makes the tables that some videos lack; if they can't be kept, a warning says so."""
        if self.folder is None:
            return
        try:
            if said := index_in_subprocess(paths, self.folder, read_timeout=self._read_timeout):
                rank_zero_info(said)
        except OutputError as error:
            warnings.warn(
                f"{error.strerror} So videos that are not prepared are read from their beginning, three to five "
                "times as slowly. `index=False` accepts that.",
                UnkeptTablesWarning,
                stacklevel=3,
            )

    def given_to(self, manifest: Manifest) -> Manifest:
        """Returns a manifest with the tables that there are of its videos; prepared ones have their own."""
        needs_none = manifest.frame_rate is not None or manifest.tables is not None
        if self.folder is None or needs_none or not os.path.isdir(self.folder):
            return manifest
        paths = [manifest.path(row) for row in range(len(manifest))]
        with reads_within(self._read_timeout):
            return manifest.with_tables(TableStore(self.folder).tables(paths))
