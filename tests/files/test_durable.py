"""Errors while a folder is written: those of the disk, and those of other origin."""

import csv
import errno
import os
import stat
from contextlib import nullcontext
from unittest import mock

import pytest

from lightning_multigrid.files.durable import OutputError, new_file, output_errors, write_csv


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, r"No space left on device while writing to .*out\. Free some space"),
        (errno.EDQUOT, "uota exceeded while writing to .* Free some space"),
        (errno.EIO, "Input/output error while writing to .* Check the disk and its permissions"),
    ],
)
def test_an_error_of_the_system_says_the_way_out(tmp_path, number, message):
    for named in ((), (str(tmp_path / "out" / "a"),), (os.fsencode(tmp_path / "out" / "a"),), (str(tmp_path),)):
        with pytest.raises(OutputError, match=message), output_errors(str(tmp_path / "out")):
            raise OSError(number, os.strerror(number), *named)


def test_an_error_of_another_origin_stays_what_it_is(tmp_path):
    with pytest.raises(FileNotFoundError, match="source.mp4"), new_file(tmp_path / "out"):
        (tmp_path.parent / "source.mp4").stat()
    assert os.listdir(tmp_path) == []


def test_a_device_is_written_to_and_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_csv(tmp_path / "pipe", [("path", "reason")])
    assert os.read(reader, 100) == b"path,reason\n"
    os.close(reader)
    assert os.listdir(tmp_path) == ["pipe"]
    assert not (tmp_path / "pipe").is_file()


@pytest.mark.parametrize("name", ["a\rb", "a\nb", 'a "b", c', "a,b"])
def test_a_list_is_read_as_it_was_written(tmp_path, name):
    rows = [["path", "label"], [name, "1"], ["c", ""]]
    write_csv(tmp_path / "list.csv", rows)
    with open(tmp_path / "list.csv", newline="") as file:
        assert list(csv.reader(file)) == rows


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EIO])
def test_where_names_of_a_folder_cannot_be_brought_to_the_disk_a_file_is_still_written(number, tmp_path):
    """Some network drives can't do that; an error of the disk is one."""
    own = os.fsync

    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        own(descriptor)

    failing = pytest.raises(OutputError, match="while writing to") if number == errno.EIO else nullcontext()
    with mock.patch("os.fsync", fsync), failing, new_file(tmp_path / "a") as file:
        file.write(b"whole")
    assert (tmp_path / "a").read_bytes() == b"whole"
