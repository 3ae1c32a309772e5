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
        packets_fed: How many packets the decoder got.
    """

    concealed: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    packets_fed: int = 0

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


def sequential(file: VideoFile, times: list[int], met: Damage) -> Generator[tuple[int, VideoFrame], None, None]:
    """Decodes a file from its beginning by a new decoder, and notes in `met` what happens.

    Yields all frames, each with its number by `times`, when frames are shown, ascending: -1 if its time is none of
    those. If `times` is empty, frames are counted.
    """
    missing = set(range(len(times)))
    count, time = 0, None

    def number(time: int | None) -> int:
        if not times:
            return count
        place = len(times) if time is None else bisect_left(times, time)
        return place if times[place : place + 1] == [time] else -1

    container, stream = file.open()
    with container:
        packets = demuxed(container, stream)
        while True:
            try:
                packet = next(packets, None)
                if packet is None:
                    break
                time = packet.pts
                met.packets_fed += packet.size > 0
                frames = packet.decode()
            except av.FFmpegError:
                met.refused.append(max(number(time), 0))
                continue
            for frame in frames:
                place = number(frame.pts)
                if frame.is_corrupt:
                    met.concealed.append(max(place, 0))
                yield place, frame
                missing.discard(place)
                count += 1
    if count < len(times):
        met.missing += sorted(missing)
