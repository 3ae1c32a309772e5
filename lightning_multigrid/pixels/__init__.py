"""From decoded crops to the clips of a mini-batch, on the device: resampling (Sec. 3.1), colours, augmentation.

It imports torch and torchvision, and no other sub-package. Begin with `resample.py`.
"""

from lightning_multigrid.pixels.augment import Augmentation
from lightning_multigrid.pixels.resample import MEAN, STD, check_normalisation, resample_clips
from lightning_multigrid.pixels.yuv import YuvClip, YuvFormat, to_device

__all__ = ["MEAN", "STD", "Augmentation", "YuvClip", "YuvFormat", "check_normalisation", "resample_clips"]
__all__ += ["to_device"]
