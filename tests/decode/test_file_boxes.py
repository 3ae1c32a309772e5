"""Boxes of mp4 and Matroska files as their standards write them, by hand."""

import struct

import pytest

from lightning_multigrid.decode.file_boxes import UNKNOWN_SIZE, FileBox, outermost_boxes, promised_size


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


def told(data):
    """Bytes that a file claims to have, if that is more than there are; else 0."""
    promised = promised_size(InMemory(data))
    return promised if promised > len(data) else 0


def chunk(content, kind=b"AVI "):
    return b"RIFF" + struct.pack("<I", 4 + len(content)) + kind + content


def test_an_avi_file_is_a_row_of_chunks():
    data = chunk(bytes(99)) + b"\0" + chunk(bytes(50), b"AVIX")
    assert promised_size(InMemory(data)) == len(data) == 112 + 62
    assert [told(data[:cut]) for cut in (173, 150, 110, 50)] == [174, 174, 111, 111]
    assert told(data[:40] + data[60:111]) == 111
    assert told(b"RIFF" + bytes(4) + b"AVI " + bytes(90)) == 0  # written to a pipe


def test_an_asf_file_states_its_size_unless_it_is_a_broadcast():
    def asf(flags):
        properties = bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365") + bytes(24) + struct.pack("<Q", 500)
        return (
            bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c") + bytes(14) + properties + bytes(40) + flags + bytes(300)
        )

    assert told(asf(b"\2\0\0\0")) == 500
    assert told(asf(b"\1\0\0\0")) == 0
    assert told(asf(b"")[:80]) == 0


def test_the_size_that_an_flv_file_states_counts_only_if_its_tags_break_off():
    def tag(content):
        head = b"\x09" + len(content).to_bytes(3, "big") + bytes(7)
        return head + content + (11 + len(content)).to_bytes(4, "big")

    note = b"onMetaData\x08\0\0\0\1\0\x08filesize\0" + struct.pack(">d", 1000.0)
    data = b"FLV\1\1\0\0\0\x09\0\0\0\0" + tag(note) + tag(bytes(70)) * 3
    assert told(data) == 0  # a server sent the beginning
    assert told(data[:-1]) == told(data[:-40]) == 1000
    assert told(data[:150] + data[170:]) == 1000
    assert told(data[:150].replace(b"filesize", b"filesiZe")) == 0


def test_a_gif_is_cut_if_its_last_block_is():
    image = b",\0\0\0\0\1\0\1\0\x80" + bytes(6) + b"\2" + b"\3abc" + b"\1x\0"
    data = b"GIF89a\1\0\1\0\x81\0\0" + bytes(12) + b"!\xf9\4abcd\0" + image + image + b";"
    assert told(data) == told(data + bytes(9)) == told(data[:-1]) == told(data[: -1 - len(image)]) == 0
    assert all(told(data[:cut]) for cut in range(len(data) - len(image), len(data) - 1))
    assert told(data[:-5] + b"\0\0;") == 0
    assert told(data[:40] + data[43:]) == UNKNOWN_SIZE


def test_a_flash_file_states_its_size():
    assert told(b"FWS\x09" + struct.pack("<I", 90) + bytes(30)) == 90


@pytest.mark.parametrize("magic", [b"RIFF", b"FLV", b"GIF89a", b"FWS", bytes.fromhex("3026b2758e66cf11")])
def test_no_bytes_behind_a_magic_number_are_too_few(magic):
    for data in (magic, magic + b"\xff" * 20, magic + b"\0" * 20, magic + b"," * 3000):
        assert promised_size(InMemory(data)) >= 0
