"""Video models: one float tensor of clips B x 3 x T x H x W in, logits B x num_classes out, on every grid.

It imports torch, torchvision and NumPy, and `positions`; transformers for its own models only. Parameters have
PySlowFast's names, so that published weights fit. Begin with `resnet.py` and `slowfast.py`; `weights.py` matches
published weights to a model, `weight_files.py` reads the files, and `wrapped.py` takes models of other libraries.
"""

from lightning_multigrid.models.resnet import VideoResNet, i3d_nl_r50, i3d_r50, slow_r50
from lightning_multigrid.models.slowfast import SlowFast, slowfast_r50, slowfast_r101
from lightning_multigrid.models.small import SmallCNN, small_cnn
from lightning_multigrid.models.weights import WeightsReport, export_weights, load_weights
from lightning_multigrid.models.wrapped import FramesFirst, PerFrame, ResizedPositions, hugging_face

__all__ = ["FramesFirst", "PerFrame", "ResizedPositions", "SlowFast", "SmallCNN", "VideoResNet", "WeightsReport"]
__all__ += ["export_weights", "hugging_face", "i3d_nl_r50", "i3d_r50", "load_weights", "slow_r50", "slowfast_r50"]
__all__ += ["slowfast_r101", "small_cnn"]
