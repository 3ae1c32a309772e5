"""Files on drives that may fail: writes that are all or nothing, reads with a time limit, URLs, paths from users.

Begin with `durable.py` for writing and `watched.py` for reading.
"""

from lightning_multigrid.files.arguments import (
    FRAME_SUFFIXES,
    VIDEO_SUFFIXES,
    StrPath,
    cache_folder,
    path_argument,
    printable,
    quoted,
    require,
)
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
from lightning_multigrid.files.urls import (
    RemoteFile,
    RemoteRoot,
    RemoteRootError,
    is_url,
    names_at,
    size_and_change,
    sizes_and_changes,
)
from lightning_multigrid.files.watched import READ_TIMEOUT, HangError, WatchedFile, reads_within, time_limit, within

__all__ = ["FRAME_SUFFIXES", "READ_TIMEOUT", "VIDEO_SUFFIXES", "Cursor", "HangError", "OutputError"]
__all__ += ["ReadableFile", "RemoteFile", "RemoteRoot", "RemoteRootError", "StrPath", "WatchedFile", "cache_folder"]
__all__ += ["is_url", "names_at", "new_file", "open_bytes", "output_errors", "path_argument", "printable", "quoted"]
__all__ += ["reads_within", "remove_partial", "require", "size_and_change", "sizes_and_changes", "sync_folder"]
__all__ += ["sync_to_disk", "temporary_name", "time_limit", "within", "write_csv"]
