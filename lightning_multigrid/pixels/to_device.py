"""Copies small tensors to a device without waiting. The copy of the pixels is `PixelBatch.to` in `clips/batch.py`."""

import torch
from torch import Tensor


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copies a tensor from the CPU to a device, without waiting for the device to finish its work.

    `torch.tensor(values, device="cuda")` and `.to("cuda")` would wait, at every step.

    >>> to_device(torch.zeros(2), torch.device("meta")).device
    device(type='meta')
    """
    if device.type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)
