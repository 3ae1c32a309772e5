"""Small tensors on their way to a device."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["to_device"]


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on a device, without waiting for what the device has still to compute.

    `torch.tensor(values, device="cuda")` and `.to("cuda")` wait for it, at every step.

    >>> to_device(torch.zeros(2), torch.device("meta")).device
    device(type='meta')
    """
    if device.type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)
