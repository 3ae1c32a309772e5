"""A file at a URL, read by ranges. Each process asks for itself, from its first read on.

So nothing of it, neither a connection nor fsspec's thread, is there when a loader forks its workers.
"""

import asyncio
import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from http.client import responses
from ipaddress import ip_address
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urljoin, urlsplit

import fsspec

from lightning_multigrid.files.arguments import StrPath
from lightning_multigrid.files.input_file import InputFile, on_disk
from lightning_multigrid.files.urls import is_url, url_fault

_CONNECT, _SILENCE, _LONGEST = 10.0, 30.0, 120.0  # seconds for a connection, between two parts of an answer, in all
_WAITS = 0.5, 1.0, 2.0  # seconds before a request is made again
_PASSING = {408, 425, 429}  # statuses that may be others a moment later, beside those from 500 on
_PIECE = 1 << 22  # bytes of a request while a whole file is copied
# Bytes between two pieces that are read along, as a request costs more: always, and to make the pieces fewer.
_GAP, _WIDEST_GAP = 1 << 20, 1 << 24
_PIECES = 3  # requests for a clip, unless its pieces lie further apart
_MOST_HELD = 1 << 28  # bytes of a clip
_LARGEST_TEXT = 1 << 30  # bytes of a list
_MOST_KNOWN = 4096  # files that a process knows
_MARKS = "ETag", "blob_id", "Last-Modified", "LastModified"  # what tells a file from what it was before

PROGRAM_ERRORS = (MemoryError, AttributeError, TypeError, NameError, AssertionError)
"""Errors that are no fault of a file: of the program, or of the machine."""

Result = TypeVar("Result")


class FileState(NamedTuple):
    """What tells without reading it that a file has changed: its bytes, and a number of its time or version."""

    size: int
    changed: int


class RemoteFile:
    """A file at a URL, open for reading; an OSError if there is none, or the server doesn't answer."""

    def __init__(self, url: str) -> None:
        self._url, self._state = url, state_of(url)
        self._held: list[tuple[int, bytes]] = []
        self.size = self._state.size  # bytes

    def close(self) -> None:
        self._held.clear()

    def will_read(self, spans: Iterable[tuple[int, int]]) -> None:
        """Reads what is read next, some spans [start, end) of the file, in as few requests as make sense."""
        pieces = pieces_of(spans)
        size = sum(end - start for start, end in pieces)
        if size > _MOST_HELD:
            raise OSError(errno.EFBIG, f"a clip of it has {size} bytes, more than {_MOST_HELD}. Prepare the video")
        self._held = [(start, self._read(start, end - start)) for start, end in pieces]

    def read(self, position: int, size: int) -> bytes:
        """Returns the bytes at a place, fewer where the file ends; an OSError if they can't be read."""
        size = max(0, min(size, self.size - position))
        for start, data in self._held:
            if start <= position and position + size <= start + len(data):
                return data[position - start : position - start + size]
        return self._read(position, size)

    def _read(self, position: int, size: int) -> bytes:
        return _tried(self._url, partial(self._read_once, position, size)) if size else b""

    def _read_once(self, position: int, size: int) -> bytes:
        known = _process().known(self._url)
        if known.state != self._state:
            raise ValueError("it has changed while it was read")
        with known.lock:
            known.file.seek(position)
            try:
                data: bytes = known.file.read(size)
            except ValueError as error:  # so fsspec says it
                raise ValueError("the server gives no ranges of files. Copy the videos to a disk") from error
        if len(data) != size:
            raise EOFError(f"the answer has {len(data)} bytes of {size}")
        return data


def pieces_of(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Joins spans [start, end) of a file to the pieces that are asked for: at most three, unless gaps are wide.

    >>> pieces_of([(0, 10), (20, 30), (5_000_000, 5_000_010)])
    [(0, 30), (5000000, 5000010)]
    """
    pieces: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if pieces and start - pieces[-1][1] <= _GAP:
            start, end = pieces[-1][0], max(pieces.pop()[1], end)
        pieces.append((start, end))
    while len(pieces) > _PIECES:
        gaps = [after[0] - before[1] for before, after in pairwise(pieces)]
        if (narrowest := min(gaps)) > _WIDEST_GAP:
            break
        at = gaps.index(narrowest)
        pieces[at : at + 2] = [(pieces[at][0], pieces[at + 1][1])]
    return pieces


def open_input(path: StrPath, *, whole: bool = False) -> InputFile | RemoteFile:
    """Opens a file on a disk, or at a URL, copied to a disk first if the `whole` is needed; an OSError if it can't."""
    if not is_url(path):
        return InputFile(path)
    return _local_copy(str(path)) if whole else RemoteFile(str(path))


def state_of(path: StrPath) -> FileState:
    """The state of a file, which at a URL this process asks for once; an OSError if there is none."""
    if is_url(path):
        return _tried(str(path), lambda: _process().known(str(path)).state)
    found = os.stat(on_disk(path))
    return FileState(found.st_size, found.st_mtime_ns)


def _local_copy(url: str) -> InputFile:
    """Copies a file to the folder for temporary files; the copy has no name, and is gone when nobody has it open."""
    process = _process()
    process.forget(url)
    state = state_of(url)
    if process.copy is None or process.copy[:2] != (url, state):
        folder = tempfile.gettempdir()
        if state.size > (free := shutil.disk_usage(folder).free):
            said = f"its {state.size} bytes don't fit into {folder}, which has {free} free. Set TMPDIR"
            raise OSError(errno.ENOSPC, said)
        with tempfile.TemporaryFile(dir=folder) as copy:
            source = RemoteFile(url)
            for position in range(0, state.size, _PIECE):
                copy.write(source.read(position, _PIECE))
            copy.flush()
            process.forget(url)
            if state_of(url) != state:
                raise OSError(errno.EIO, "it has changed while it was copied")
            if process.copy is not None:
                os.close(process.copy[2])
            # The last one stays open, as a video is often read several times in a row.
            process.copy = url, state, os.dup(copy.fileno())
    return InputFile(os.dup(process.copy[2]))


def read_remote(url: str) -> bytes:
    """Returns what is in a list at a URL, by another process, as this one may fork; an OSError if it can't be read."""
    modules = {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", __package__, url]
    run = subprocess.run(command, check=False, capture_output=True, env=os.environ | modules)
    if run.returncode:
        raise OSError(errno.EIO, run.stderr.decode(errors="replace").strip().rpartition("\n")[2])
    return run.stdout


def read_text_once(url: str) -> bytes:
    """Returns what is in a list at a URL, by this process."""
    file = RemoteFile(url)
    if file.size > _LARGEST_TEXT:
        raise OSError(errno.EFBIG, f"the list has {file.size} bytes, more than {_LARGEST_TEXT}")
    return b"".join(file.read(position, _PIECE) for position in range(0, file.size, _PIECE))


class _Known:
    """A file as a process knows it: its state, and fsspec's object, each of whose reads is one request."""

    def __init__(self, system: Any, url: str) -> None:
        info = system.info(url)
        if info.get("size") is None:
            raise ValueError("the server does not say how many bytes it has")
        mark = next((str(info[name]) for name in _MARKS if info.get(name)), "")
        changed = int.from_bytes(hashlib.sha256(mark.encode()).digest()[:8], "big") if mark else 0
        self.state = FileState(int(info["size"]), changed)
        self.lock = threading.Lock()
        self.file: Any = system.open(url, "rb", cache_type="none", size=self.state.size) if self.state.size else None


class _Process:
    """What a process has opened: never used by another, as neither connections nor fsspec's thread outlive a fork."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.copy: tuple[str, FileState, int] | None = None  # the last one, and its descriptor
        self._known: dict[str, _Known] = {}
        self._systems: dict[str, Any] = {}

    def known(self, url: str) -> _Known:
        found = self._known.get(url)
        if found is None:
            found = _Known(self._system(url), url)
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[url] = found
        return found

    def forget(self, url: str) -> None:
        self._known.pop(url, None)

    def _system(self, url: str) -> Any:
        if fault := url_fault(url):
            raise ValueError(f"its URL {fault}")
        protocol = url.partition("://")[0]
        if protocol not in self._systems:
            self._systems[protocol] = fsspec.filesystem(
                protocol, skip_instance_cache=True, use_listings_cache=False, **_options(protocol)
            )
        return self._systems[protocol]


_processes: list[_Process] = []  # those that this one was forked from, too: their objects must not be touched here


def _process() -> _Process:
    if not _processes or _processes[-1].pid != os.getpid():
        _processes.append(_Process())
    return _processes[-1]


def _options(protocol: str) -> dict[str, Any]:
    """How long requests may take; the user's own settings of fsspec (tokens, end points) stay."""
    if protocol == "s3":
        times = {"connect_timeout": _CONNECT, "read_timeout": _SILENCE}
        return {"config_kwargs": {**fsspec.config.conf.get("s3", {}).get("config_kwargs", {}), **times}}
    if protocol == "hf":  # it has time-outs of its own
        return {}
    from aiohttp import ClientTimeout, TraceConfig

    given = fsspec.config.conf.get(protocol, {})
    redirects = TraceConfig()
    redirects.on_request_redirect.append(_check_redirect)
    return {
        "headers": {**given.get("headers", {}), "Accept-Encoding": "identity"},
        "timeout": ClientTimeout(_LONGEST, sock_connect=_CONNECT, sock_read=_SILENCE),
        "client_kwargs": {**given.get("client_kwargs", {}), "trace_configs": [redirects]},
    }


async def _check_redirect(_: Any, __: Any, asked: Any) -> None:
    """Refuses that a server sends this machine to an address that is nearer to it than the server's own."""
    to = urljoin(str(asked.url), asked.response.headers.get("Location", ""))
    host, ours = urlsplit(to).hostname or "", urlsplit(str(asked.url)).hostname or ""
    if host != ours and await _reach(host) < await _reach(ours):
        raise ValueError(f"the server redirects to {host}, an address of this machine or its network")


async def _reach(host: str) -> int:
    """How far an address can be reached from: 0 this machine, 1 its network, 2 everywhere."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None)
    addresses = [ip_address(str(address[0]).partition("%")[0]) for *_, address in found]
    addresses = [getattr(address, "ipv4_mapped", None) or address for address in addresses]
    return min(0 if a.is_loopback or a.is_link_local or a.is_unspecified else 1 + a.is_global for a in addresses)


def _tried(url: str, call: Callable[[], Result]) -> Result:
    """Calls what asks a server, again if the fault may pass; an OSError that says what the server answered."""
    for tries, wait in enumerate((*_WAITS, 0.0), 1):
        try:
            return call()
        except PROGRAM_ERRORS:
            raise
        except Exception as error:
            _process().forget(url)
            # fsspec raises a FileNotFoundError for whatever a server answers.
            cause = error.__cause__ if isinstance(error, FileNotFoundError) and error.__cause__ else error
            passing, code, said = _answer(cause)
            if not passing or tries > len(_WAITS):
                raise OSError(code, f"{said}, at {tries} tries" if tries > 1 else said) from error
        time.sleep(wait)
    raise AssertionError


def _answer(error: BaseException) -> tuple[bool, int, str]:
    """Whether a fault may pass, its number among the system's errors, and what to say of it."""
    status = getattr(error, "status", None) or getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int):
        code = {404: errno.ENOENT, 401: errno.EACCES, 403: errno.EACCES}.get(status, errno.EIO)
        said = f"the server answers {status}" + (f" ({responses[status]})" if status in responses else "")
        return status >= 500 or status in _PASSING, code, said
    if isinstance(error, FileNotFoundError):
        return False, errno.ENOENT, "the server has no such file"
    if isinstance(error, PermissionError):
        return False, errno.EACCES, f"the server refuses it: {error}"
    if isinstance(error, ValueError | ImportError):
        return False, errno.EIO, str(error)
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):  # two classes in Python 3.10
        return True, errno.ETIMEDOUT, f"the server does not answer within {_SILENCE:g} s"
    return True, errno.EIO, f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
