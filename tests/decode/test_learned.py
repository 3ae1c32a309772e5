"""What a decoder remembers of a packet: frames that are read alone are those of a decode from the beginning."""

from __future__ import annotations

import numpy as np
import pytest

from lightning_multigrid.decode.learned import Learned
from lightning_multigrid.decode.reader import VideoReader, build_index
from tests.helpers.rare_files import cases
from tests.helpers.videos import decode_all

TOLD_ONCE = ["mjpeg-comment_ITU601_once.avi", "mjpeg-comment_Intel_late.mov", "mjpeg-comment_Metasoft_once.mkv"]
TOLD_ONCE += ["png_pal8-palette_once.mp4"]


@pytest.mark.parametrize("name", TOLD_ONCE)
def test_what_one_packet_tells_of_all_others_is_not_missed(tmp_path, name):
    (case,) = (case for case in cases() if case.name == name)
    path = case.write(tmp_path)
    expected, index = decode_all(path), build_index(path)
    for wanted in ([len(expected) - 1], [6, 8], [0]):
        with VideoReader(path, index) as reader:
            assert np.array_equal(reader.read(wanted).numpy(), expected[wanted]), wanted


def segment(marker: int, content: bytes) -> bytes:
    return bytes([0xFF, marker]) + (len(content) + 2).to_bytes(2, "big") + content


FRAME = segment(0xC0, b"\x08\0\x30\0\x40\3abcdefghi")
QUANT = segment(0xDB, b"\0" + bytes(range(1, 65)))
SCAN = segment(0xDA, b"\3abcdefg") + b"\x12\xff\0\x34\xff\xd0\x56"


def picture(*segments: bytes) -> bytes:
    return b"\xff\xd8" + b"".join(segments) + b"\xff\xd9"


PLAIN = picture(QUANT, FRAME, SCAN)


@pytest.mark.parametrize(
    ("codec", "packets", "safe"),
    [
        ("mjpeg", [PLAIN] * 3, [True] * 3),
        ("mjpeg", [PLAIN, picture(FRAME, SCAN)], [True, False]),
        ("mjpeg", [picture(segment(0xFE, b"a note"), QUANT, FRAME, SCAN), PLAIN], [True, False]),
        ("mjpeg", [PLAIN, picture(QUANT, FRAME, segment(0xFE, b"a note"), SCAN)], [False, True]),
        # The second field has its tables behind the first, which a later packet may need in its own first field.
        ("mjpeg", [PLAIN + PLAIN] * 2, [True, True]),
        ("mjpeg", [picture(FRAME, SCAN) + PLAIN] * 2, [False, False]),
        # A frame of another size: none is as the first.
        ("mjpeg", [PLAIN, PLAIN.replace(b"\0\x30\0\x40", b"\0\x18\0\x40")], [False, False]),
        # Cameras note other numbers in each picture; the kind of the note is what counts.
        ("mjpeg", [picture(segment(0xE0, b"AVI1\1" + bytes([n])), QUANT, FRAME, SCAN) for n in range(2)], [True] * 2),
        # Baseline H.263; all modes stated; some left out.
        ("h263", [b"\0\0\x80\2\x08\0", b"\0\0\x80\2\x1c\x80", b"\0\0\x80\2\x1c\0"], [True, True, False]),
        ("a codec that is not listed", [b"1", b"2"], [True, False]),
    ],
)
def test_a_packet_is_safe_that_brings_all_that_any_brings(codec, packets, safe):
    looked = Learned(codec, b"")
    for packet in packets:
        looked.look(packet)
    assert looked.safe() == safe


def test_what_the_extradata_have_is_known_before_the_first_packet():
    looked = Learned("mjpeg", QUANT)
    looked.look(PLAIN)
    looked.look(picture(FRAME, SCAN))
    assert looked.safe() == [True, True]
    looked.look(PLAIN.replace(QUANT, QUANT.replace(b"\1\2", b"\2\1")))
    assert looked.safe() == [True, False, True]


@pytest.mark.parametrize("codec", ["mjpeg", "png", "h263", "mpeg4", "mpeg2video"])
def test_no_packet_is_too_strange(codec):
    looked = Learned(codec, b"\xff")
    for packet in (b"", b"\xff", b"\xff\xd8", PLAIN[:-7], PLAIN[:20], b"\xff\xdb\0\0", bytes(12), b"\xff\xff\xdb\0\1"):
        looked.look(packet)
    assert len(looked.safe()) == 8
