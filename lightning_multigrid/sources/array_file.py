"""Arrays and frame tables in one safetensors file, which is written whole or not at all.

The arrays are read at once. The tables, which may be gigabytes, stand one after the other at its end, as an array
`tables`; each is read when it is asked for. No file is mapped into memory: a drive that is gone would hang the process,
and a file that is cut short would end it.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from lightning_multigrid.files import StrPath, WatchedFile, new_file


def save_arrays(path: StrPath, about: Any, arrays: Mapping[str, np.ndarray], tables: Collection[bytes]) -> None:
    """Writes arrays, the tables, and what is said `about` them, as JSON has it. An `OutputError` if it can't."""
    content = save(dict(arrays), {"about": json.dumps(about)})  # several keys would stand in any order
    start = 8 + int.from_bytes(content[:8], "little")
    header, end, size = json.loads(content[8:start]), len(content) - start, sum(map(len, tables))
    header["tables"] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}
    with new_file(path) as file:
        file.write(_head(header))
        file.write(memoryview(content)[start:])
        for table in tables:
            file.write(table)


def read_arrays(file: WatchedFile, kinds: Mapping[str, tuple[str, int]]) -> tuple[Any, dict[str, np.ndarray], int]:
    """Returns what is said about the arrays, the arrays, and where in the file the tables begin, which end with it.

    `kinds` has the type of each array, such as `float64`, and its dimensions; others are a ValueError, as are files of
    other kinds and damaged ones. An OSError if the file can't be read.
    """
    if not file.is_ordinary:
        raise ValueError("it is not a file")
    [length] = file.read([(0, 8)])
    start = 8 + int.from_bytes(length, "little")
    if start > file.size:
        raise ValueError("it is cut short, or no safetensors file")
    [text] = file.read([(8, start - 8)])
    header = json.loads(text)
    match header:
        case {
            "__metadata__": {"about": str(about)},
            "tables": {"dtype": "U8", "data_offsets": [int(end), int(total)]},
        } if 0 <= end <= total == file.size - start:
            del header["tables"]
        case _:
            raise ValueError("it has no tables of videos at its end, or is cut short")
    [content] = file.read([(start, end)])
    try:
        arrays = load(_head(header) + content)
    except (SafetensorError, KeyError) as error:  # the latter, for types that NumPy lacks
        raise ValueError(str(error)) from error
    if {name: (array.dtype.name, array.ndim) for name, array in arrays.items()} != dict(kinds):
        raise ValueError(
            f"its arrays are {', '.join(sorted(arrays))}, or of other types; {', '.join(kinds)} are required"
        )
    return json.loads(about), arrays, start + end


def check_offsets(offsets: np.ndarray, total: int, what: str) -> None:
    """Raises a ValueError unless `offsets` divide `total` elements: they begin with 0, end with it, and never fall."""
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != total or (offsets[1:] < offsets[:-1]).any():
        raise ValueError(f"the bounds of its {what} are not in order")


def _head(header: Mapping[str, Any]) -> bytes:
    """What a safetensors file begins with; the arrays after it begin at a multiple of 8."""
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
