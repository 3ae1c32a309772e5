"""Small packet indices, made by hand."""

from __future__ import annotations

import numpy as np

from lightning_multigrid.decode.packet_index import DROPPABLE, ENTRY, SHOWN, Orientation, PacketIndex, Seal


def make_index(flags: list[int], times: list[int], **changes) -> PacketIndex:
    """An index of one packet for each flag and time, direct and shown transposed, with some changes."""
    count = len(flags)
    sizes = np.arange(100, 100 + count)
    values = {
        "frames": sum(flag & SHOWN > 0 for flag in flags),
        "rate": 29.97,
        "stored_height": 48,
        "stored_width": 64,
        "orientation": Orientation(True, False, True),
        "direct": True,
        "extradata": b"\1sets",
        "colours": (2, 0, 2, -1),
        "file_size": 10**6,
        "seals": (Seal(8, 90), Seal(400, 1)),
        "digest": b"0123456789abcdef",
        "positions": np.cumsum(sizes) - sizes + 48,
        "sizes": sizes,
        "times": np.array(times, np.int64),
        "decoding_times": np.arange(count) - 2,
        "flags": np.array(flags, np.int64),
        "checksums": np.arange(count) * (2**32 - 1) // max(1, count - 1),
    }
    return PacketIndex(**(values | changes))


# Two GOPs as they are stored: I P b b P b b, then I P b b. Nobody refers to b.
KEY, REFERENCE, B = ENTRY | SHOWN, SHOWN, SHOWN | DROPPABLE
FLAGS = [KEY, REFERENCE, B, B, REFERENCE, B, B, KEY, REFERENCE, B, B]
TIMES = [0, 3, 1, 2, 6, 4, 5, 7, 10, 8, 9]
INDEX = make_index(FLAGS, TIMES)
