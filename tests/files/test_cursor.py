"""Files that are read from a current position on."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path

import pytest

from lightning_multigrid.files.cursor import Cursor, open_bytes
from lightning_multigrid.files.watched import HangError, WatchedFile
from tests.helpers.drives import nothing_is_in_memory

CONTENT = bytes(range(256)) * 9000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "content"
    path.write_bytes(CONTENT)
    return path


def test_a_cursor_reads_on(path):
    cursor = Cursor(WatchedFile(str(path), timeout=5), "video")
    assert cursor.read(4) == CONTENT[:4]
    assert cursor.tell() == 4
    assert cursor.seek(-5, os.SEEK_END) == len(CONTENT) - 5
    assert cursor.read(100) == CONTENT[-5:]
    assert cursor.read(100) == b""
    assert cursor.seek(100) == 100
    assert cursor.seek(-40, os.SEEK_CUR) == 60
    read = b""
    while piece := cursor.read(9999):
        read += piece
    assert read == CONTENT[60:]


def test_python_reads_an_opened_file_as_its_own(path):
    with open_bytes(str(path)) as file, open(path, "rb") as own:
        for other in (file, own):
            assert other.read(10) == CONTENT[:10]
            assert other.seek(-3, os.SEEK_END) == len(CONTENT) - 3
            assert other.read() == CONTENT[-3:]
            assert other.read(5) == b""
            other.seek(1_000_000)
            assert other.read(1_200_000) == CONTENT[1_000_000:2_200_000]
    with pytest.raises(ValueError, match="closed file"):
        file.read()


def test_what_is_no_ordinary_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path / "pipe", tmp_path, "/dev/null"):
        with pytest.raises(io.UnsupportedOperation, match="not a file"):
            open_bytes(str(other))
    with pytest.raises(FileNotFoundError, match="nothing"):
        open_bytes(str(tmp_path / "nothing"))


def test_a_read_that_hangs_ends(path, monkeypatch):
    nothing_is_in_memory(monkeypatch)
    read, released = os.pread, threading.Event()
    monkeypatch.setattr(os, "pread", lambda *args: (released.wait(), read(*args))[1])
    with open_bytes(str(path), timeout=0.2) as file, pytest.raises(HangError, match="a read did not end within"):
        file.read(3)
    released.set()
