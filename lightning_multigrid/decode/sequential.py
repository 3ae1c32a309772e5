"""A file decoded from its beginning as FFmpeg does by default: past damage, which is noted."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator
from dataclasses import dataclass, field

import av
from av.video.frame import VideoFrame

from lightning_multigrid.decode.video_file import VideoFile, demuxed


@dataclass
class Damage:
    """The frames at which a video is damaged, as far as it was decoded from its beginning. False if there are none.

    Args:
        concealed: Those that FFmpeg marks as corrupt, among them those whose lost parts it makes up.
        refused: Those whose packets it can't decode, or after which it can't read on.
        missing: Those that the file lists and that don't come out; known at its end only.
    """

    concealed: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.concealed or self.refused or self.missing)

    def __str__(self) -> str:
        places = self.concealed + self.refused + self.missing
        if not places:
            return "no damage met"
        return (
            f"damaged from frame {min(places)} to frame {max(places)} (frames that FFmpeg conceals: "
            f"{len(self.concealed)}, packets that it can't decode: {len(self.refused)}, frames that don't come out: "
            f"{len(self.missing)})"
        )


class SequentialDecode:
    """One decode of a file from its beginning, by a new decoder.

    Frames get their numbers by `times`, when they are shown, ascending; if it is empty, they are counted.

    Attributes:
        damage: What FFmpeg has reported so far.
        packets_fed: Packets given to the decoder so far.
    """

    def __init__(self, file: VideoFile, times: list[int]) -> None:
        self._file, self._times = file, times
        self.damage = Damage()
        self.packets_fed = 0

    def frames(self) -> Generator[tuple[int, VideoFrame], None, None]:
        """Decodes all frames, each with its number, or with -1 if its time is none of those listed."""
        missing = set(range(len(self._times)))
        count, time = 0, None
        container, stream = self._file.open()
        with container:
            packets = demuxed(container, stream)
            while True:
                try:
                    packet = next(packets, None)
                    if packet is None:
                        break
                    time = packet.pts
                    self.packets_fed += packet.size > 0
                    frames = packet.decode()
                except av.FFmpegError:
                    self.damage.refused.append(max(self._number(time, count), 0))
                    continue
                for frame in frames:
                    number = self._number(frame.pts, count)
                    if frame.is_corrupt:
                        self.damage.concealed.append(max(number, 0))
                    yield number, frame
                    missing.discard(number)
                    count += 1
        if count < len(self._times):
            self.damage.missing += sorted(missing)

    def _number(self, time: int | None, count: int) -> int:
        if not self._times:
            return count
        place = len(self._times) if time is None else bisect_left(self._times, time)
        return place if self._times[place : place + 1] == [time] else -1
