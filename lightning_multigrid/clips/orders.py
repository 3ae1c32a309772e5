"""Orders of a pass besides torch's: classes of equal frequency (`balance`), and several clips of a visit (`repeats`).

The clips of a visit come one after the other and lie in one span of the video, so a dataset can decode the video once
for all of them (`read_clips`). Their requests share the seed `ClipRequest.visit`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil

import torch
from torch import Tensor

from lightning_multigrid.loading import OrderSampler, derive_seed, shuffled_order


class BalancedOrder:
    """The order of a pass in which the classes of the videos come equally often, up to one clip.

    A pass has as many clips as there are videos, in rounds: each round has a video of each class in `labels`. The
    videos of a class that has fewer than the rounds come again and again, all of them equally often, up to one clip. Of
    a larger one, a pass has a part, and the next pass goes on with the others.

    >>> sorted(BalancedOrder(seed=0, labels=[0, 0, 0, 0, 0, 7])(number=0))[-3:]
    [5, 5, 5]
    """

    def __init__(self, seed: int, labels: Sequence[int] | Tensor) -> None:
        given = torch.as_tensor(labels)
        found, counts = given.unique(return_counts=True)  # type: ignore[no-untyped-call]
        of_classes = torch.split(given.argsort(stable=True), counts.tolist())
        self._videos: dict[int, Tensor] = dict(zip(found.tolist(), of_classes, strict=True))
        self.seed = seed
        self._length = len(given)

    def __call__(self, number: int) -> list[int]:
        rounds = ceil(self._length / len(self._videos))
        of_classes = [self._of_class(label, number, rounds) for label in self._videos]
        shuffled = torch.rand(rounds, len(of_classes), generator=self._generator(number)).argsort(dim=1)
        order: list[int] = torch.stack(of_classes, dim=1).gather(1, shuffled).flatten()[: self._length].tolist()
        return order

    def _of_class(self, label: int, number: int, rounds: int) -> Tensor:
        videos = self._videos[label]
        if len(videos) < rounds:
            times = ceil(rounds / len(videos))
            shuffled = torch.rand(times, len(videos), generator=self._generator(number, label)).argsort(dim=1)
            return videos.index_select(0, shuffled.flatten()[:rounds])
        # Through the class again and again, in another order each time, whatever pass it is.
        first, start = divmod(number * rounds, len(videos))
        seed = derive_seed(self.seed, label)
        drawn = shuffled_order(seed, first, len(videos)) + shuffled_order(seed, first + 1, len(videos))
        return videos.index_select(0, torch.tensor(drawn[start : start + rounds]))

    def _generator(self, *parts: int) -> torch.Generator:
        return torch.Generator().manual_seed(derive_seed(self.seed, *parts))


def balance_sampler(labels: Sequence[int] | Tensor, **ranks: int) -> OrderSampler:
    """Returns the sampler of `BalancedOrder`; `ranks` are arguments of `OrderSampler`."""
    return OrderSampler(partial(BalancedOrder, labels=labels), len(labels), **ranks)


@dataclass(frozen=True)
class RepeatedOrder:
    """The order of a pass in which each visit of one of `length` videos gives `repeats` clips, one after the other.

    >>> RepeatedOrder(seed=1, length=3, repeats=2)(number=0)
    [1, 1, 2, 2, 0, 0]
    """

    seed: int
    length: int
    repeats: int
    visits = True

    def __call__(self, number: int) -> list[int]:
        return [index for index in shuffled_order(self.seed, number, self.length) for _ in range(self.repeats)]


def repeat_sampler(length: int, repeats: int, **ranks: int) -> OrderSampler:
    """Returns the sampler of `RepeatedOrder`; `ranks` are arguments of `OrderSampler`."""
    return OrderSampler(partial(RepeatedOrder, length=length, repeats=repeats), length * repeats, **ranks)
