"""What is known of a video file after it was decoded once: its frames, each with a checksum, and its packets."""

from __future__ import annotations

import json
import math
import platform
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import safetensors.numpy
import xxhash
from av import library_versions
from av.codec import Codec
from av.video.format import VideoFormat
from av.video.frame import VideoFrame
from safetensors import SafetensorError

MAX_PIXELS = 2**26
"""8192 x 8192, twice an 8K frame. A few bytes of a header can declare far more, and FFmpeg would allocate that."""
WIDEST = 8  # of pixels; what says to be wider is a mistake

MADE_BY = f"libavcodec {'.'.join(map(str, library_versions['libavcodec']))} {platform.machine()}"
"""What decoded the frames of the tables that are made now."""

# Their standards say what each pixel is. Others, such as MPEG-4, leave some freedom to each version and processor.
_BIT_EXACT = {"av1", "ffv1", "gif", "h264", "hevc", "png", "rawvideo", "vp8", "vp9"}
_CHECK = 8  # bytes of the checksum of a table
_LARGEST_FILE = 2**62  # bytes

Integers = npt.NDArray[Any]


class Orientation(NamedTuple):
    """How to show a stored frame: transpose it first, then turn it over."""

    transposed: bool = False
    upside_down: bool = False
    mirrored: bool = False

    @property
    def quarter_turns(self) -> int:
        """Of 90 degrees, counter-clockwise, as the angle of a display matrix counts them."""
        return (3, 1)[self.upside_down] if self.transposed else 2 * self.mirrored


class Damage(NamedTuple):
    """What is damaged in a video; false if nothing is."""

    concealed: int = 0  # frames that FFmpeg marks as corrupt, or whose lost parts it makes up
    refused: int = 0  # packets that it can't decode, or can't read

    def __bool__(self) -> bool:
        return bool(self.concealed or self.refused)

    def __str__(self) -> str:
        return f"damaged (frames that FFmpeg conceals: {self.concealed}, packets that it can't decode: {self.refused})"


class Coding(NamedTuple):
    """What a decoder must be told before the first packet."""

    decoder: str  # FFmpeg's name of it
    width: int
    height: int
    tag: str
    bits: int  # per coded sample
    colours: tuple[int, int, int, int]  # matrix, range, primaries and transfer as the container states them
    extradata: bytes = b""  # parameter sets


@dataclass(frozen=True, eq=False)
class FrameTable:
    """The frames of a video file. Its length is their number.

    A *frame* is what a decoder that reads the file from its beginning gives out, in that order, and keeps its number.
    """

    file_size: int  # bytes
    made_by: str  # the version of FFmpeg's decoders, and the processor's architecture
    codec: str  # FFmpeg's name of it
    coding: Coding
    rate: float  # mean frames per second, 0.0 if unknown
    start: float  # seconds from the file's start, which may be that of its sound, to the first frame; 0.0 if unknown
    stored_height: int  # rows of a stored frame
    stored_width: int  # columns of a stored frame
    square_width: int  # columns of a stored frame once its pixels are square
    orientation: Orientation  # how to show a stored frame
    direct: bool  # whether the file holds packets as a decoder takes them, so that no container needs to be opened
    damage: Damage  # of the whole file
    made_from: str  # the video that it was prepared from, and how, as `prepare` says it; empty if it wasn't
    packets: Integers  # of each frame, the number of the packet that it was decoded from
    entries: Integers  # of each frame, the last packet from which a decoder that was just opened gives the same frame
    checksums: Integers  # of each frame, of its planes (`checksum`)
    times: Integers  # of each frame, ascending, in ticks of the stream's clock; empty if unknown
    positions: Integers  # of each packet, where it begins in the file; -1 if the file doesn't hold it in one piece
    sizes: Integers  # of each packet, its bytes
    droppable: Integers  # of each packet, whether other frames come out the same without it; empty if there are none
    clock: Integers  # of each packet, its time of decoding, by which a container finds it; empty if `direct`
    last: float = 0.0  # seconds that the last frame is shown by its packet, if longer than others; 0.0 if unknown
    lacks: str = ""  # what is not there, by what the container itself says; empty if nothing is, or it can't be told

    def __len__(self) -> int:
        return len(self.packets)

    @property
    def is_bit_exact(self) -> bool:
        """Whether any decoder gives the same pixels, by the standard of the codec."""
        return self.codec in _BIT_EXACT

    @property
    def is_current(self) -> bool:
        """Whether what decodes now gives the same pixels; else the table must be made again."""
        return self.made_by == MADE_BY or self.is_bit_exact

    @property
    def height(self) -> int:
        """Rows of a frame when it is shown."""
        return self.square_width if self.orientation.transposed else self.stored_height

    @property
    def width(self) -> int:
        """Columns of a frame when it is shown."""
        return self.stored_height if self.orientation.transposed else self.square_width

    def time_of(self, frame: int) -> float:
        """As `Video.time_of`. Frames without times are taken to last equally long."""
        return seconds_of(frame, len(self), self.times, self.rate, self.last)

    def to_bytes(self) -> bytes:
        """Packs the table, into about 20 bytes a frame: a safetensors file, and then its checksum."""
        about = {name: getattr(self, name) for name in _ABOUT}
        about["coding"] = {**self.coding._asdict(), "extradata": None}
        columns = {name: _narrow(getattr(self, name)) for name in _COLUMNS}
        texts = {"about": json.dumps(about).encode(), "extradata": self.coding.extradata}
        data = safetensors.numpy.save(columns | {name: np.frombuffer(text, np.uint8) for name, text in texts.items()})
        return data + xxhash.xxh3_64_digest(data)

    @classmethod
    def from_bytes(cls, data: bytes) -> FrameTable:
        """Unpacks a table; a ValueError if that is none, or a damaged one."""
        data, check = data[:-_CHECK], data[-_CHECK:]
        if xxhash.xxh3_64_digest(data) != check:
            raise ValueError("they are not a frame table, or a damaged one: their checksum is wrong")
        try:
            columns = safetensors.numpy.load(data)
            about = json.loads(columns.pop("about").tobytes())
            coding, extradata = about["coding"], columns.pop("extradata").tobytes()
            about["coding"] = Coding(**coding | {"colours": tuple(coding["colours"]), "extradata": extradata})
            about["orientation"], about["damage"] = Orientation(*about["orientation"]), Damage(*about["damage"])
            given: dict[str, Any] = {**about, **columns}
            table = cls(**given)
        # Of another version of this package, or of a program that can compute the checksum.
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError, SafetensorError) as error:
            raise ValueError(f"they are not a frame table ({type(error).__name__}: {error})") from error
        if not _is_possible(table):
            raise ValueError("they are a damaged frame table: no video has such values")
        return table


def _is_possible(table: FrameTable) -> bool:
    """Whether all values can be those of a video, so that what decoders are given is bounded; not whether they are."""
    coding, frames, packets = table.coding, len(table.packets), len(table.sizes)
    texts = table.made_by, table.codec, table.made_from, table.lacks, coding.decoder, coding.tag
    counts = table.stored_height, table.stored_width, coding.width, coding.height, coding.bits, *coding.colours
    columns = [getattr(table, name) for name in _COLUMNS]
    right = (
        all(isinstance(text, str) for text in texts)
        and all(isinstance(value, bool) for value in (table.direct, *table.orientation))
        and all(_is_seconds(value) for value in (table.rate, table.start, table.last))
        and all(map(_is_count, (*counts, *table.damage)))
        and _is_count(table.file_size, _LARGEST_FILE)
        and 0 < table.stored_height * table.stored_width <= MAX_PIXELS
        and _is_count(table.square_width, WIDEST * table.stored_width)
        and table.square_width > 0
        and coding.width * coding.height <= MAX_PIXELS
        and len(coding.colours) == 4
        and _is_decoder(coding.decoder)
        and all(column.ndim == 1 and column.dtype.kind in "iu" for column in columns)
        and 0 < frames == len(table.entries) == len(table.checksums)
        and len(table.times) in (0, frames)
        and len(table.positions) == packets
        and len(table.droppable) in (0, packets)
        and len(table.clock) == (0 if table.direct else packets)
        and bool(((table.packets >= 0) & (table.packets < packets)).all())
        and bool(((table.entries >= 0) & (table.entries <= table.packets)).all())
        and bool((table.times[1:] > table.times[:-1]).all())
    )
    if not right or not table.direct:
        return right
    sizes, positions = table.sizes.astype(np.int64), table.positions.astype(np.int64)  # packets are read there
    within = (sizes > 0) & (sizes <= table.file_size) & (positions >= 0)
    return bool((within & (positions <= table.file_size - sizes)).all())


def _is_count(value: object, most: int = 2**31 - 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


@cache
def _is_decoder(name: str) -> bool:
    try:
        return Codec(name, "r").type == "video"
    except ValueError:
        return False


_COLUMNS = ("packets", "entries", "checksums", "times", "positions", "sizes", "droppable", "clock")
_ABOUT = [field.name for field in fields(FrameTable) if field.name not in _COLUMNS]


def _narrow(column: Integers) -> Integers:
    """The same numbers in as few bytes as hold them."""
    if not len(column):
        return np.empty(0, np.uint8)
    low, high = int(column.min()), int(column.max())
    narrow = np.result_type(np.min_scalar_type(low), np.min_scalar_type(high))
    return column.astype(narrow if narrow.kind in "iu" else np.int64)  # of -1 and 2^32 together it would be a float


def seconds_of(frame: int, frames: int, times: Integers, rate: float, shown: float = 0.0) -> float:
    """Seconds from the first of some frames to another one, or to the end of the last; `times` are in any unit.

    The last frame is shown as long as others, or for the seconds `shown` if that is longer.

    >>> [seconds_of(frame, 3, np.array([5, 6, 9]), rate=1.0) for frame in range(4)]
    [0.0, 0.5, 2.0, 3.0]
    """
    if frame == frames > 0:
        return max(frame / rate, seconds_of(frame - 1, frames, times, rate) + shown)
    if len(times) < 2 or not 0 < frame < frames:
        return frame / rate
    first, time, last = (int(times[place]) for place in (0, frame, -1))
    return (time - first) * (frames - 1) / ((last - first) * rate)


def kind_of(frame: VideoFrame) -> tuple[str | int | bool, ...]:
    """All that says how to read the planes of a frame."""
    return frame.format.name, frame.width, frame.height, frame.colorspace, frame.color_range, frame.interlaced_frame


def checksum(frame: VideoFrame) -> int:
    """Of all that the pixels of a frame depend on: its planes as they were decoded, and how to read them."""
    bits, planes = _bits(frame.format.name), frame.planes  # PyAV makes new ones each time
    if not bits or planes[0].line_size < 0:  # rows may be stored upside down
        frame = frame.reformat(format="gbrp", threads=1)
        bits, planes = _bits("gbrp"), frame.planes
    digest = _begun(kind_of(frame)).copy()
    for plane in planes:
        stride = plane.line_size
        used = min((plane.width * bits + 7) // 8, stride)  # what lies after them in a row may be anything
        rows: Any = np.ndarray((plane.height, used), np.uint8, cast("Any", plane), strides=(stride, 1))
        digest.update(np.ascontiguousarray(rows))
    return int(digest.intdigest()) & 0xFFFFFFFF


@lru_cache
def _begun(kind: tuple[str | int | bool, ...]) -> Any:
    return xxhash.xxh3_64(" ".join(map(str, kind)).encode())


@cache
def _bits(name: str) -> int:
    """Bits of a pixel in each plane of a format; 0 if it has a palette."""
    format = VideoFormat(name)
    if format.has_palette:
        return 0
    planar = any(component.plane for component in format.components)
    return (format.components[0].bits + 7) // 8 * 8 if planar else format.padded_bits_per_pixel
