"""Reads that several mini-batches share: a sample that is read whole gives one clip to each of them.

A clip of T / 4 frames leaves frames of its sample for three others. Two clips of one sample in the same mini-batch cost
accuracy, so they go to different mini-batches of one epoch, as in data echoing (Choi et al. 2019, arXiv 1907.05550)::

    mini-batch   0  1  2  3  4  5  6  7  8  9  10  11      4 clips of a sample
    samples      A  B  A  C  B  A  C  B  A  C   B   C      A are read for mini-batch 0
    clip         0  0  1  0  1  2  1  2  3  2   3   3

In a longer row, every fourth mini-batch needs a read, and a few others wait for their turn.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple


class Share(NamedTuple):
    """What a mini-batch takes of the stream of samples.

    Args:
        offset: Samples of all ranks in the stream before those of this mini-batch.
        moment: Which clip of each sample it takes, from 0.
        moments: How many mini-batches share these samples.
        before: Samples of all ranks that the mini-batches before it have read.
    """

    offset: int
    moment: int
    moments: int
    before: int


@lru_cache(maxsize=64)
def turns(mini_batches: int, moments: int) -> tuple[tuple[int, int], ...]:
    """For each of this many mini-batches of one size: which read it shares, and which clip of each sample it takes.

    >>> turns(8, moments=2)
    ((0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (3, 0), (2, 1), (3, 1))
    """
    reads = -(-mini_batches // moments)
    pairs = [(read, moment) for read in range(reads) for moment in range(moments)]
    # A read begins after each `moments` turns, and its clips are one turn more apart, so that no two want the same one.
    return tuple(sorted(pairs, key=lambda pair: pair[0] * moments + pair[1] * (moments + 1))[:mini_batches])


def share_reads(clips: Sequence[int], moments: int) -> list[Share]:
    """How mini-batches of these numbers of clips, in their order, share reads: those with equal numbers do.

    >>> [share.offset for share in share_reads([4, 2, 4, 2, 4, 2, 4, 2], moments=2)]
    [0, 4, 6, 10, 0, 4, 6, 10]
    """
    left = {size: iter(turns(clips.count(size), moments)) for size in {*clips}}
    taken = [(size, *next(left[size])) for size in clips]
    uses, starts, total, shares = dict[tuple[int, int], int](), dict[tuple[int, int], int](), 0, []
    for size, read, moment in taken:
        uses[size, read] = moment + 1
    for size, read, moment in taken:
        offset = starts.setdefault((size, read), total)
        shares.append(Share(offset, moment, uses[size, read], total))
        total += size if moment == 0 else 0
    return shares
