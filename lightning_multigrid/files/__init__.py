"""Files: writes that are all or nothing, reads of ordinary files and of URLs, paths from users.

Begin with `durable.py` for writing, `input_file.py` for reading, and `remote_file.py` for URLs.
"""

from lightning_multigrid.files.arguments import (
    FRAME_SUFFIXES,
    PLANES_SUFFIX,
    VIDEO_SUFFIXES,
    StrPath,
    at_home,
    cache_folder,
    is_frame,
    of_videos,
    path_argument,
    printable,
    quoted,
    require,
)
from lightning_multigrid.files.durable import OutputError, begin_in, new_file, output_errors, remove_partial, write_csv
from lightning_multigrid.files.input_file import Cursor, InputFile, on_disk
from lightning_multigrid.files.remote_file import PROGRAM_ERRORS, RemoteFile, open_input, read_remote, state_of
from lightning_multigrid.files.urls import is_url, joined, name_below, name_in_url, url_fault

__all__ = ["FRAME_SUFFIXES", "PLANES_SUFFIX", "PROGRAM_ERRORS", "VIDEO_SUFFIXES", "Cursor", "InputFile", "OutputError"]
__all__ += ["RemoteFile", "StrPath", "at_home", "begin_in", "cache_folder", "is_frame", "is_url", "joined"]
__all__ += ["name_below", "name_in_url", "new_file", "of_videos", "on_disk", "open_input", "output_errors"]
__all__ += ["path_argument", "printable", "quoted", "read_remote", "remove_partial", "require", "state_of", "url_fault"]
__all__ += ["write_csv"]
