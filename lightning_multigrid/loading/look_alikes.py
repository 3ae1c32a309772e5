"""What parts of a sample look like, by their names and numbers, of which a coarse clip would change the meaning."""

import re
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_multigrid.loading.reduction import CAMERAS

LOOKS_LIKE = {"r": "a rate of frames", "d": "the time between two frames", "k": "a camera"}
"""What the small letters of `spec_of` stand for."""
_NAMES = {"r": r"(video_)?fps|frame_?rate", "d": r"dt|delta_?t"}
_CAMERA_NAMES = r"k|intrinsics?|camera_matrix"
_SOUND_NAMES = r"audio|mel|sound|spectrogram|speech|wav|waveform"
_WAVE = 4000  # samples: half a second by telephone, and more numbers than most features have


def spec_of(name: str, values: Any, axes: str) -> str | None:
    """Returns how `follow` would name a part whose axes have these letters, if it looks like one of `LOOKS_LIKE`.

    >>> spec_of("fps", 30.0, ""), spec_of("inner", torch.tensor([[300.0, 0, 160], [0, 300, 120], [0, 0, 1]]), "AB")
    ('r', 'k')
    """
    numbers = _numbers(values)
    if numbers is None:
        return None
    for letter, names in _NAMES.items():
        if re.fullmatch(names, name.lower()):
            return axes + letter
    own = next((own for own in (2, 1) if tuple(numbers.shape[-own:]) in CAMERAS), 0)
    camera = re.fullmatch(_CAMERA_NAMES, name.lower()) or (
        numbers.shape[-2:] == (3, 3) and bool((numbers[..., 2, :] == torch.tensor([0, 0, 1])).all())
    )
    # Rotations, and cameras in shares of the frame, have small numbers.
    return axes[:-own] + "k" if own and camera and bool((numbers.abs() > 2).any()) else None


def is_sound(name: str, values: Any) -> bool:
    """Whether a part is named as sound is, or looks like a wave: one or two axes of many numbers around 0."""
    numbers = _numbers(values)
    if numbers is None or not numbers.numel() or not numbers.ndim:
        return False
    wave = numbers.ndim <= 2 and numbers.shape[-1] >= _WAVE and bool((numbers < 0).any())
    return wave or bool(re.fullmatch(_SOUND_NAMES, name.lower()))


def _numbers(values: Any) -> Tensor | None:
    """A copy of real numbers; None for anything else."""
    if isinstance(values, Tensor):
        real = values.layout == torch.strided and values.dtype != torch.bool and not values.is_complex()
        return values.detach().cpu().double() if real else None
    if not isinstance(values, (int, float, np.generic, np.ndarray)) or np.asarray(values).dtype.kind not in "iuf":
        return None
    return torch.from_numpy(np.array(values, dtype=np.float64))
