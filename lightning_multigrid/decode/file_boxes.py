"""How long a video file claims to be, and where the tables of an mp4 file lie."""

import struct
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from lightning_multigrid.files import ReadableFile

UNKNOWN_SIZE = 1 << 62
_MOST = 1 << 20  # boxes that are looked at: a day of fragments of two seconds, or five hours of single frames
_PIECE = 1 << 16  # bytes that are read at once where a file is walked through
_HEAD = 4096  # bytes of a file in which its size is stated, if at all
_OF_SAMPLES = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf")
_LARGEST_TABLE = 1 << 26  # larger ones belong to videos of days; they are not looked at
_KINDS = (b"ftyp", b"moov", b"mdat", b"moof", b"free", b"skip", b"wide", b"sidx", b"styp", b"uuid")


class FileBox(NamedTuple):
    """A box of an mp4 file: its type, and where it lies, its head included."""

    kind: bytes
    position: int
    size: int


def outermost_boxes(file: ReadableFile, *, known: bool = True) -> list[FileBox]:
    """The boxes of an mp4 file as long as they claim to be; ISO/IEC 14496-12, 4.2. `known`: up to the first other."""
    boxes: list[FileBox] = []
    end = 0
    while len(boxes) < _MOST:
        head = _bytes(file, end, 16)
        size = int.from_bytes(head[:4], "big")
        if head[4:8] not in _KINDS and (known or not boxes or not head):
            break
        if size == 1:
            size = int.from_bytes(head[8:16], "big")
        if size < 8:  # to the end of the file
            return [*boxes, FileBox(head[4:8], end, max(file.size - end, 0))]
        boxes.append(FileBox(head[4:8], end, size))
        end += size
    return boxes


def promised_size(file: ReadableFile) -> int:
    """Bytes that a file claims to have; 0 if its container does not say, or is not known here.

    `UNKNOWN_SIZE`, which is more than any file has, if bytes are missing somewhere in it.
    """
    head = _bytes(file, 0, _HEAD)
    for magic, promise in _PROMISES.items():
        if head.startswith(magic):
            with suppress(struct.error):
                return promise(file, head)
            return 0
    boxes = outermost_boxes(file)
    return boxes[-1].position + boxes[-1].size if boxes else 0


def _matroska(file: ReadableFile, head: bytes) -> int:
    """An EBML header, then the segment; RFC 8794."""
    size, at = _ebml_size(head, 4)
    head = _bytes(file, at + size, 16)
    if head[:4] != b"\x18\x53\x80\x67":
        return 0
    segment, after = _ebml_size(head, 4)
    return at + size + after + segment


def _riff(file: ReadableFile, head: bytes) -> int:
    """AVI is a row of RIFF chunks, each of at most 4 GB."""
    at = end = 0
    while head[:4] == b"RIFF" and at < file.size:
        end = at + 8 + int.from_bytes(head[4:8], "little")
        at = end + end % 2
        head = _bytes(file, at, 8)
    return end


def _asf(file: ReadableFile, head: bytes) -> int:
    """The File Properties Object states the size of the file, unless it is a broadcast; ASF specification, 3.2."""
    at = head.find(_FILE_PROPERTIES)
    (size,), (flags,) = struct.unpack_from("<Q", head, at + 40), struct.unpack_from("<I", head, at + 88)
    return size if at >= 0 and not flags & 1 else 0


def _flv(file: ReadableFile, head: bytes) -> int:
    """The metadata may state the size of the whole of which a server sent a part: it counts if the tags break off."""
    at = head.find(b"\0\x08filesize\0")
    (size,) = struct.unpack_from(">d", head, at + 11)
    if at < 0 or not file.size < size < 2**62:
        return 0
    tags, end = _Window(file), 13  # behind the header, and the size of no tag
    for _ in range(_MOST):
        if not (tag := tags.read(end, 4)):
            return 0
        after = 11 + int.from_bytes(tag[1:], "big")  # each tag is followed by its size
        if tags.read(end + after, 4) != after.to_bytes(4, "big"):
            return int(size)
        end += after + 4
    return 0


def _gif(file: ReadableFile, head: bytes) -> int:
    """Blocks up to the trailer, which may be missing behind a whole block; GIF 89a, appendix A."""
    blocks, at = _Window(file), 13 + _colours(head[10:11])
    parts = iter(range(_MOST))
    while (kind := blocks.read(at, 10)) and kind[:1] != b";":
        if kind[:1] not in b"!,\0":
            return UNKNOWN_SIZE
        at += {b"!": 2, b",": 11 + _colours(kind[9:]), b"\0": 0}[kind[:1]]
        for _ in parts:
            size = blocks.read(at, 1)
            at += 1 + int.from_bytes(size, "big")
            if size in (b"", b"\0"):
                break
        else:
            return 0
    return at


def _swf(file: ReadableFile, head: bytes) -> int:
    return int.from_bytes(head[4:8], "little")


def _colours(packed: bytes) -> int:
    """Bytes of a table of colours."""
    return sum(3 << (byte & 7) + 1 for byte in packed if byte & 0x80)


class _Window:
    """Reads few bytes after few others, of a file that may be far away."""

    def __init__(self, file: ReadableFile) -> None:
        self._file, self._start, self._data = file, 0, b""

    def read(self, position: int, size: int) -> bytes:
        at = position - self._start
        if not 0 <= at <= len(self._data) - size:
            self._start, self._data, at = position, _bytes(self._file, position, _PIECE), 0
        return self._data[at : at + size]


_FILE_PROPERTIES = bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365")
_PROMISES: dict[bytes, Callable[[ReadableFile, bytes], int]] = {
    b"\x1a\x45\xdf\xa3": _matroska,
    b"RIFF": _riff,
    bytes.fromhex("3026b2758e66cf11"): _asf,
    b"FLV": _flv,
    b"GIF8": _gif,
    b"FWS": _swf,
}


def claimed_by_samples(file: ReadableFile) -> int:
    """Bytes that the samples of an mp4 file claim, at least, where no table lists them one by one.

    FFmpeg allocates 36 bytes for each of them, and more for those in fragments, before it looks for any.
    """
    of_track, of_fragments = 0, 0
    for box in outermost_boxes(file, known=False):
        if box.kind not in (b"moov", b"moof") or box.size > _LARGEST_TABLE:
            continue
        table = _bytes(file, box.position, box.size)
        spans = [(0, len(table))]
        while spans:
            at, end = spans.pop()
            while at + 8 <= end:
                size, kind = int.from_bytes(table[at : at + 4], "big"), table[at + 4 : at + 8]
                after = min(at + size, end) if size >= 8 else end
                first, second = (int.from_bytes(table[at + 12 + n : at + 16 + n], "big") for n in (0, 4))
                if kind in _OF_SAMPLES:
                    spans.append((at + 8, after))
                elif kind == b"stsz":  # of one size each, if it is not 0; ISO/IEC 14496-12, 8.7.3
                    of_track = max(of_track, first * second)
                elif kind == b"trun":  # 8.8.8
                    of_fragments += first
                at = after
    return max(of_track, of_fragments)


def _bytes(file: ReadableFile, position: int, size: int) -> bytes:
    return file.read([(position, size)])[0] if position < file.size else b""


def _ebml_size(data: bytes, at: int) -> tuple[int, int]:
    """An EBML number, whose leading zero bits tell its length, and where it ends. All ones mean unknown: 0 here."""
    first = data[at : at + 1]
    length = 9 - (first or b"\0")[0].bit_length()
    size = int.from_bytes(data[at : at + length], "big") - (1 << 7 * length)
    return (size if 0 <= size < (1 << 7 * length) - 1 else 0), at + length
