"""Files on drives that may fail: writes that are all or nothing, reads with a time limit, URLs, paths from users.

Begin with `durable.py` for writing and `watched.py` for reading.
"""

from lightning_multigrid.files.arguments import require
from lightning_multigrid.files.durable import (
    OutputError,
    new_file,
    output_errors,
    remove_partial,
    sync_folder,
    sync_to_disk,
    temporary_name,
    write_csv,
)
from lightning_multigrid.files.paths import FRAME_SUFFIXES, VIDEO_SUFFIXES, PathError, StrPath, path_argument, quoted
from lightning_multigrid.files.urls import RemoteFile, RemoteRoot, RemoteRootError, is_url, names_at, size_and_change
from lightning_multigrid.files.watched import Cursor, HangError, WatchedFile

ReadableFile = RemoteFile | WatchedFile

__all__ = ["FRAME_SUFFIXES", "VIDEO_SUFFIXES", "Cursor", "HangError", "OutputError", "PathError", "ReadableFile"]
__all__ += ["RemoteFile", "RemoteRoot", "RemoteRootError", "StrPath", "WatchedFile", "is_url", "names_at"]
__all__ += ["new_file", "output_errors", "path_argument", "quoted", "remove_partial", "require", "size_and_change"]
__all__ += ["sync_folder", "sync_to_disk", "temporary_name", "write_csv"]
