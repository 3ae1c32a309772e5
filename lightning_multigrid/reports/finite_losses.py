"""Whether the losses of a run were finite, found without waiting for the device in any step."""

import torch
from torch import Tensor

from lightning_multigrid.schedule import Place, Step

_NEVER = 2**62
_BATCHES = 2**31  # of an epoch, at most


class FiniteLosses:
    """Keeps which loss of a run was the first that is nan or infinite, and whether the last one is."""

    def __init__(self) -> None:
        self._first: Tensor | None = None  # the number of a step, on the device
        self._finite: Tensor | None = None  # the last loss

    def note(self, step: Step, loss: Tensor) -> None:
        """Notes the loss of a step, without reading it."""
        number = step.place.epoch * _BATCHES + step.place.batch
        self._finite = loss.isfinite().all()
        found = torch.where(self._finite, _NEVER, number)
        self._first = found if self._first is None else torch.minimum(self._first, found)

    def first_not_finite(self) -> Place | None:
        """Returns the first step whose loss was not finite; this waits for the device."""
        first = _NEVER if self._first is None else int(self._first)
        return None if first == _NEVER else Place(*divmod(first, _BATCHES))

    def last_is_not_finite(self) -> bool:
        """Returns whether the last loss is nan or infinite; this waits for the device."""
        return self._finite is not None and not bool(self._finite)
