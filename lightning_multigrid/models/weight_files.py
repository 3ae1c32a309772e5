"""Reads files of weights without running code from them.

`torch.load(weights_only=True)` reads PyTorch's files, and safetensors its own. Caffe2's are plain pickles of NumPy
arrays; an unpickler that knows only containers and arrays reads them, and rebuilds the arrays itself from their bytes.
"""

import os
import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

# First bytes of a file of `torch.save`: a zip archive's, or, before PyTorch 1.6, a pickled magic number.
_TORCH = (b"PK\x03\x04", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")

# Those of a file of safetensors: the length of its header in eight bytes, then the header, of JSON.
_SAFETENSORS = re.compile(rb".{4}\0{4}\{", re.DOTALL)

# Keys of the state dict in a checkpoint: of PySlowFast and pytorchvideo, Lightning, Caffe2, common training scripts.
_STATE_KEYS = ("model_state", "state_dict", "blobs", "model")


def read_file(path: str | os.PathLike[str]) -> Any:
    """Returns the content of a file of weights: tensors or arrays in plain containers. Refuses other objects."""
    with Path(path).open("rb") as file:
        try:
            first = file.read(16)
            if _SAFETENSORS.match(first):
                return safetensors.torch.load_file(path)
            if first.startswith(_TORCH):
                if zipfile.is_zipfile(file):
                    _check_archive(file)
                return torch.load(path, map_location="cpu", weights_only=True)
            file.seek(0)
            # Python 2 wrote most of these files. Its byte strings arrive as text with one character per byte.
            return _ArrayUnpickler(file, encoding="latin1").load()
        except Exception as error:  # a damaged pickle can raise anything
            if forbidden := re.search(r"GLOBAL ([\w.]+)", str(error)):
                raise ValueError(
                    f"{os.fspath(path)} asks for `{forbidden[1]}`. Only tensors, arrays and plain containers are read,"
                    " as other objects can run code. Save the state dict alone, on a machine that trusts the file."
                ) from error
            reason = str(error).split("\n")[0].split(". ")[0].rstrip(".")
            said = f"is damaged or not a file of weights: {reason}. Download it again, or name another file."
            raise ValueError(f"{os.fspath(path)} {said}") from error


def _check_archive(file: BinaryIO) -> None:
    """Compares every part of a file of `torch.save` with its checksum, which torch does not look at."""
    with zipfile.ZipFile(file) as archive:
        # torch compresses nothing, so no part is larger in memory than in the file; those of a bomb are.
        if sum(part.file_size for part in archive.infolist()) > file.seek(0, os.SEEK_END):
            raise ValueError("its parts are larger than the file")
        # `torch.serialization.set_crc32_options(False)` leaves all checksums 0.
        damaged = archive.testzip() if any(part.CRC for part in archive.infolist()) else None
    if damaged is not None:
        raise ValueError(f"{damaged} has changed")


def find_tensors(content: Any, where: str) -> dict[str, Tensor]:
    """The tensors of a state dict, or of a checkpoint that holds one, by name; `where` names it in a TypeError.

    >>> list(find_tensors({"epoch": 3, "model_state": {"fc.bias": torch.zeros(2)}}, "a.pyth"))
    ['fc.bias']
    """
    if not isinstance(content, Mapping):
        raise TypeError(
            f"{where} holds {type(content).__name__}, a mapping of names to tensors is required. Save the state dict."
        )
    content = next((content[key] for key in _STATE_KEYS if isinstance(content.get(key), Mapping)), content)
    tensors = {name: value.tensor if isinstance(value, _Array) else value for name, value in content.items()}
    return {name: value for name, value in tensors.items() if isinstance(name, str) and isinstance(value, Tensor)}


class _DType:
    """Stands for `numpy.dtype`: only plain numbers."""

    def __init__(self, code: str, *_: object) -> None:
        if code not in ("f2", "f4", "f8", "i4", "i8"):
            raise pickle.UnpicklingError(f"array of dtype {code!r}")
        self.numpy = np.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        # (version, byte order, ...). The numbers of a big-endian file would be read wrongly.
        if state[1] not in ("<", "=", "|"):
            raise pickle.UnpicklingError("big-endian array")


class _Array:
    """Stands for `numpy.ndarray` and for the function that makes an empty one."""

    def __init__(self, *_: object) -> None:
        self.tensor = torch.empty(0)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, content = state
        data = bytearray(content.encode("latin1") if isinstance(content, str) else content)
        flat = np.frombuffer(data, dtype.numpy) if data else np.empty(0, dtype.numpy)
        self.tensor = torch.from_numpy(flat.reshape(shape, order="F" if fortran else "C"))


def _bytes(text: str = "", encoding: str = "latin1") -> bytes:
    """Stands for `_codecs.encode` and `bytes()`, with which Python 3 writes bytes in the protocols of Python 2."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"text in {encoding!r}")
    return text.encode("latin1")


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickles containers, numbers, text and arrays."""

    _KNOWN: ClassVar[dict[str, Callable[..., Any]]] = {
        "numpy.core.multiarray._reconstruct": _Array,
        "numpy.ndarray": _Array,
        "numpy.dtype": _DType,
        "_codecs.encode": _bytes,
        "__builtin__.bytes": _bytes,
        "collections.OrderedDict": OrderedDict,
    }

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        # NumPy 2 renamed its core.
        known = f"{module.replace('numpy._core', 'numpy.core')}.{name}"
        if known not in self._KNOWN:
            # The words of `torch.load`, so that `read_file` finds the name in either error.
            raise pickle.UnpicklingError(f"GLOBAL {module}.{name}")
        return self._KNOWN[known]
