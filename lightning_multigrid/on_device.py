"""Small tensors on their way to a device."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["sent"]


def sent(values: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on a device, without waiting for what the device has still to compute.

    `torch.tensor(values, device="cuda")` and `.to("cuda")` wait for it, at every step.
    """
    if device.type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)
