"""Repeated augmentation: each time a video is visited, it gives several clips. Skip this file unless you use `repeats`.

The clips of a visit come one after the other in the order of a pass and lie in one span of the video, so a dataset
can decode the video once for all of them (`read_clips`). Their requests share the seed `ClipRequest.visit`.
"""

from dataclasses import dataclass
from functools import partial

from lightning_multigrid.loading import OrderSampler, shuffled_order


@dataclass(frozen=True)
class RepeatedOrder:
    """The order of a pass in which each visit of one of `length` videos gives `repeats` clips, one after the other.

    A pass visits every video once, so it has `repeats` times as many clips as the dataset has videos.

    >>> RepeatedOrder(seed=1, length=3, repeats=2)(number=0)
    [1, 1, 2, 2, 0, 0]
    """

    seed: int
    length: int
    repeats: int
    may_repeat = visits = True

    def __call__(self, number: int) -> list[int]:
        return [index for index in shuffled_order(self.seed, number, self.length) for _ in range(self.repeats)]


def repeat_sampler(length: int, repeats: int, **ranks: int) -> OrderSampler:
    """Returns the sampler of `RepeatedOrder`; `ranks` are arguments of `OrderSampler`."""
    return OrderSampler(partial(RepeatedOrder, length=length, repeats=repeats), length * repeats, **ranks)
