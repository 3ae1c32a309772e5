"""Which packets are decoded for some frames: as few as give exactly these frames."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lightning_multigrid.decode.packet_index import DROPPABLE, SHOWN, PacketIndex


class PacketRange(NamedTuple):
    """Packets that are decoded in one go, from an entry to the last packet that a wanted frame needs."""

    packets: list[int]  # numbers of those to decode, ascending; those that nobody needs are left out
    shown: list[int]  # those of them whose frames must come out of the decoder, in this order
    wanted: dict[int, int]  # packet -> frame, for the frames asked for


def packet_ranges(index: PacketIndex, wanted: Sequence[int]) -> list[PacketRange]:
    """Packets to decode for `wanted` (ascending), in ranges that don't touch; a ValueError if the index is wrong."""
    packets = index.by_time[np.asarray(wanted, np.int64)]
    starts = index.entries[np.searchsorted(index.times[index.entries], index.times[packets], "right") - 1]
    spans: list[tuple[int, int, dict[int, int]]] = []  # first and last packet, and the wanted ones
    for frame, packet, start in zip(wanted, packets.tolist(), starts.tolist(), strict=True):
        if start > packet:
            raise ValueError("an entry is decoded after what is shown after it")
        if spans and start <= spans[-1][1] + 1:
            first, last, members = spans[-1]
            members[packet] = frame
            spans[-1] = first, max(last, packet), members
        else:
            spans.append((start, packet, {packet: frame}))
    return [_range(index, *span) for span in spans]


def _range(index: PacketIndex, first: int, last: int, wanted: dict[int, int]) -> PacketRange:
    needed = index.flags[first : last + 1] & DROPPABLE == 0
    needed[[packet - first for packet in wanted]] = True
    packets = first + np.flatnonzero(needed)
    # A frame shown before the entry leads an open GOP. It may need packets before the entry, so it may not come out.
    shown = packets[(index.flags[packets] & SHOWN != 0) & (index.times[packets] >= index.times[first])]
    shown = shown[np.argsort(index.times[shown], kind="stable")]
    return PacketRange(packets.tolist(), shown.tolist(), wanted)
