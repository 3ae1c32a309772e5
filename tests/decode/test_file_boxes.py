"""Boxes of mp4 and Matroska files as their standards write them, by hand."""

import struct

import pytest

from lightning_multigrid.decode.file_boxes import FileBox, outermost_boxes, promised_size


class InMemory:
    """Bytes as a file that is read in pieces; what lies beyond the end is cut off."""

    def __init__(self, data):
        self.data, self.size = data, len(data)

    def read(self, pieces):
        return [self.data[position : position + size] for position, size in pieces]


def box(kind, content=b"", size=None):
    return struct.pack(">I4s", 8 + len(content) if size is None else size, kind) + content


FTYP = box(b"ftyp", b"isom\0\0\0\0")


def test_a_size_of_64_bits_stands_behind_the_type():
    large = box(b"mdat", struct.pack(">Q", 5_000_000_000), size=1)
    assert outermost_boxes(InMemory(FTYP + large)) == [FileBox(b"ftyp", 0, 16), FileBox(b"mdat", 16, 5_000_000_000)]
    assert promised_size(InMemory(FTYP + large + bytes(100))) == 5_000_000_016
    small = box(b"free", struct.pack(">Q", 20) + b"1234", size=1)
    assert outermost_boxes(InMemory(small + FTYP)) == [FileBox(b"free", 0, 20), FileBox(b"ftyp", 20, 16)]


def test_a_size_of_0_reaches_to_the_end_of_the_file():
    file = InMemory(FTYP + box(b"mdat", bytes(30), size=0) + FTYP)
    assert outermost_boxes(file) == [FileBox(b"ftyp", 0, 16), FileBox(b"mdat", 16, file.size - 16)]
    assert promised_size(file) == file.size


def test_boxes_are_listed_as_long_as_they_claim_and_up_to_what_is_unknown():
    assert promised_size(InMemory(FTYP + box(b"mdat", b"cut", size=1000))) == 1016
    assert outermost_boxes(InMemory(FTYP + box(b"what") + FTYP)) == [FileBox(b"ftyp", 0, 16)]
    assert promised_size(InMemory(b"no mp4 at all, but long enough")) == 0


@pytest.mark.parametrize(
    ("segment", "size"),
    [
        (b"\x18\x53\x80\x67" + b"\x84" + b"1234", 6 + 4 + 1 + 4),
        (b"\x18\x53\x80\x67" + b"\x40\x04" + b"1234", 6 + 4 + 2 + 4),
        (b"\x18\x53\x80\x67" + b"\xff", 6 + 4 + 1),  # of unknown size
        (b"\x1f\x43\xb6\x75" + b"\x84" + b"1234", 0),  # something else
    ],
)
def test_a_matroska_file_is_its_header_and_its_segment(segment, size):
    header = b"\x1a\x45\xdf\xa3" + b"\x81" + b"x"
    assert promised_size(InMemory(header + segment + bytes(64))) == size
