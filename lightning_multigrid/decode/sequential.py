"""A file decoded from its beginning as FFmpeg does by default: past damage, which is noted."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator
from dataclasses import dataclass

import av
from av.video.frame import VideoFrame

from lightning_multigrid.decode.video_file import VideoFile, demuxed


@dataclass
class Damage:
    """What FFmpeg reports of a video while it decodes it from its beginning. False if that is nothing.

    Args:
        concealed: Frames that it marks as corrupt, among them those whose lost parts it makes up.
        refused: Packets that it can't decode; 1 if it can't read on.
        missing: Frames that the file lists and that don't come out.
        first: The first frame with damage.
        last: The last frame with damage.
    """

    concealed: int = 0
    refused: int = 0
    missing: int = 0
    first: int = 0
    last: int = 0

    def __bool__(self) -> bool:
        return bool(self.concealed or self.refused or self.missing)

    def __str__(self) -> str:
        return (
            f"damaged from frame {self.first} to frame {self.last} (frames that FFmpeg conceals: {self.concealed}, "
            f"packets that it can't decode: {self.refused}, frames that don't come out: {self.missing})"
        )

    def reach(self, frame: int) -> None:
        """Notes that there is damage at a frame, before it is counted."""
        self.first, self.last = (min(self.first, frame), max(self.last, frame)) if self else (frame, frame)


class SequentialDecode:
    """One decode of a file from its beginning, by a new decoder.

    Args:
        file: The file.
        times: When its frames are shown, ascending, by which they get their numbers; if empty, they are counted.

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
        seen: set[int] = set()
        count, time = 0, None
        with self._file.opened() as (container, stream):
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
                    self.damage.reach(max(self._number(time, count), 0))
                    self.damage.refused += 1
                    continue
                for frame in frames:
                    number = self._number(frame.pts, count)
                    if frame.is_corrupt:
                        self.damage.reach(count if number < 0 else number)
                        self.damage.concealed += 1
                    yield number, frame
                    seen.add(number)
                    count += 1
        if count < len(self._times):
            for number in sorted(set(range(len(self._times))) - seen)[: len(self._times) - count]:
                self.damage.reach(number)
                self.damage.missing += 1

    def _number(self, time: int | None, count: int) -> int:
        if not self._times:
            return count
        place = len(self._times) if time is None else bisect_left(self._times, time)
        return place if self._times[place : place + 1] == [time] else -1
