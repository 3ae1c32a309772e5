"""From decoded crops to the clips of a mini-batch, on the device: resampling (Sec. 3.1), colours, augmentation.

It imports NumPy, torch and torchvision, and no other sub-package. Begin with `resample.py` and `augment.py`. Both take
as many operations for many clips as for a few.
"""

from lightning_multigrid.pixels.augment import Augmentation
from lightning_multigrid.pixels.packed import PackedCrops
from lightning_multigrid.pixels.resample import MEAN, STD, check_normalisation, resample_clips
from lightning_multigrid.pixels.yuv import YuvClip, YuvFormat, to_device

__all__ = ["MEAN", "STD", "Augmentation", "PackedCrops", "YuvClip", "YuvFormat"]
__all__ += ["check_normalisation", "resample_clips", "to_device"]
