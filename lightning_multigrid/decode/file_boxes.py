"""The boxes of mp4 and Matroska files: how long a file claims to be, and where its tables lie."""

from typing import NamedTuple

from lightning_multigrid.files import ReadableFile

_MOST = 100_000  # boxes that are looked at: a day of fragments; a hostile file could have millions
_OF_SAMPLES = (b"moov", b"trak", b"mdia", b"minf", b"stbl")
_LARGEST_TABLE = 1 << 26  # larger ones belong to videos of days; they are not looked at
_KINDS = (b"ftyp", b"moov", b"mdat", b"moof", b"free", b"skip", b"wide", b"sidx", b"styp", b"uuid")


class FileBox(NamedTuple):
    """A box of an mp4 file: its type, and where it lies, its head included."""

    kind: bytes
    position: int
    size: int


def outermost_boxes(file: ReadableFile) -> list[FileBox]:
    """The boxes of an mp4 file up to the first of unknown type, as long as they claim to be; ISO/IEC 14496-12, 4.2."""
    boxes: list[FileBox] = []
    end = 0
    while len(boxes) < _MOST:
        head = _bytes(file, end, 16)
        size = int.from_bytes(head[:4], "big")
        if head[4:8] not in _KINDS:
            break
        if size == 1:
            size = int.from_bytes(head[8:16], "big")
        if size < 8:  # to the end of the file
            return [*boxes, FileBox(head[4:8], end, max(file.size - end, 0))]
        boxes.append(FileBox(head[4:8], end, size))
        end += size
    return boxes


def promised_size(file: ReadableFile) -> int:
    """Bytes that an mp4 or Matroska file claims to have; 0 if it does not say, and for other files."""
    head = _bytes(file, 0, 64)
    if head[:4] == b"\x1a\x45\xdf\xa3":  # an EBML header, then the segment; RFC 8794
        size, at = _ebml_size(head, 4)
        head = _bytes(file, at + size, 16)
        if head[:4] != b"\x18\x53\x80\x67":
            return 0
        segment, after = _ebml_size(head, 4)
        return at + size + after + segment
    boxes = outermost_boxes(file)
    return boxes[-1].position + boxes[-1].size if boxes else 0


def claimed_by_samples(file: ReadableFile) -> int:
    """Bytes that samples of one size, which need no table, claim in an mp4 track: FFmpeg allocates memory for each."""
    claimed = 0
    for box in outermost_boxes(file):
        if box.kind != b"moov" or box.size > _LARGEST_TABLE:
            continue
        table = _bytes(file, box.position, box.size)
        spans = [(0, len(table))]
        while spans:
            at, end = spans.pop()
            while at + 8 <= end:
                size, kind = int.from_bytes(table[at : at + 4], "big"), table[at + 4 : at + 8]
                after = min(at + size, end) if size >= 8 else end
                if kind in _OF_SAMPLES:
                    spans.append((at + 8, after))
                elif kind == b"stsz":  # ISO/IEC 14496-12, 8.7.3
                    of_each, number = table[at + 12 : at + 16], table[at + 16 : at + 20]
                    claimed = max(claimed, int.from_bytes(of_each, "big") * int.from_bytes(number, "big"))
                at = after
    return claimed


def _bytes(file: ReadableFile, position: int, size: int) -> bytes:
    return file.read([(position, size)])[0] if position < file.size else b""


def _ebml_size(data: bytes, at: int) -> tuple[int, int]:
    """An EBML number, whose leading zero bits tell its length, and where it ends. All ones mean unknown: 0 here."""
    first = data[at : at + 1]
    length = 9 - (first or b"\0")[0].bit_length()
    size = int.from_bytes(data[at : at + length], "big") - (1 << 7 * length)
    return (size if 0 <= size < (1 << 7 * length) - 1 else 0), at + length
