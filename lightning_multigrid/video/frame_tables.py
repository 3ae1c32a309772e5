"""The frame tables of videos that are not prepared: `VideoDataModule` and `VideoClips` make and use them alike."""

import warnings
from collections.abc import Iterable
from dataclasses import replace

from lightning_multigrid.files import OutputError
from lightning_multigrid.host import tell
from lightning_multigrid.prepare import index_in_subprocess, tables_folder
from lightning_multigrid.sources import Manifest


def make_tables(manifests: Iterable[Manifest], index: bool | str) -> None:
    """Makes the tables that videos lack, with a bar, as `index` of `VideoDataModule` says; warns if it can't."""
    if not index:
        return
    try:
        if said := index_in_subprocess([*manifests], tables_folder(index)):
            tell(said)
    except OutputError as error:
        warnings.warn(
            f"{error.strerror} So videos that are not prepared are read from their beginning, three to five "
            "times as slowly. Give another folder for frame tables as `index`, or `index=False` to do without them.",
            stacklevel=3,
        )


def with_tables(manifest: Manifest, index: bool | str) -> Manifest:
    """The manifest whose videos are read by the tables of `index`, unless they have their own."""
    if index and manifest.images_per_second is None and not manifest.prepared:
        return replace(manifest, tables=tables_folder(index))
    return manifest
