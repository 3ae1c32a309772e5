"""Files: writes that are all or nothing, reads of ordinary files only, paths from users.

Begin with `durable.py` for writing and `input_file.py` for reading.
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
    temporary_name,
    write_csv,
)
from lightning_multigrid.files.input_file import Cursor, InputFile

__all__ = ["FRAME_SUFFIXES", "VIDEO_SUFFIXES", "Cursor", "InputFile", "OutputError", "StrPath", "cache_folder"]
__all__ += ["new_file", "output_errors", "path_argument", "printable", "quoted", "remove_partial", "require"]
__all__ += ["temporary_name", "write_csv"]
