"""Files on drives that may fail: writes that are all or nothing, reads with a time limit, paths from users.

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
from lightning_multigrid.files.watched import READ_TIMEOUT, Cursor, HangError, WatchedFile, within

__all__ = ["FRAME_SUFFIXES", "READ_TIMEOUT", "VIDEO_SUFFIXES", "Cursor", "HangError", "OutputError", "StrPath"]
__all__ += ["WatchedFile", "cache_folder", "new_file", "output_errors", "path_argument", "printable"]
__all__ += ["quoted", "remove_partial", "require", "sync_folder", "sync_to_disk", "temporary_name"]
__all__ += ["within", "write_csv"]
