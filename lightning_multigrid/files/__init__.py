"""Files on drives that may fail: writes that are all or nothing, reads with a time limit, URLs, paths from users.

Begin with `durable.py` for writing and `watched.py` for reading.
"""

from lightning_multigrid.files.arguments import require
from lightning_multigrid.files.cursor import Cursor, ReadableFile, open_bytes
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
from lightning_multigrid.files.watched import READ_TIMEOUT, HangError, WatchedFile, within

__all__ = ["FRAME_SUFFIXES", "READ_TIMEOUT", "VIDEO_SUFFIXES", "Cursor", "HangError", "OutputError", "PathError"]
__all__ += ["ReadableFile", "RemoteFile", "RemoteRoot", "RemoteRootError", "StrPath", "WatchedFile", "is_url"]
__all__ += ["names_at", "new_file", "open_bytes", "output_errors", "path_argument", "quoted", "remove_partial"]
__all__ += ["require", "size_and_change", "sync_folder", "sync_to_disk", "temporary_name", "within", "write_csv"]
