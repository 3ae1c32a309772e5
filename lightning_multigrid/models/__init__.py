"""Video models: one float tensor of clips B x 3 x T x H x W in, logits B x num_classes out, on every grid.

They know no schedule and no Lightning. Parameters have PySlowFast's names, so that published weights fit.
"""

from lightning_multigrid.models.resnet import VideoResNet as VideoResNet
from lightning_multigrid.models.resnet import i3d_nl_r50 as i3d_nl_r50
from lightning_multigrid.models.resnet import i3d_r50 as i3d_r50
from lightning_multigrid.models.resnet import slow_r50 as slow_r50
from lightning_multigrid.models.slowfast import SlowFast as SlowFast
from lightning_multigrid.models.slowfast import slowfast_r50 as slowfast_r50
from lightning_multigrid.models.slowfast import slowfast_r101 as slowfast_r101
from lightning_multigrid.models.small import SmallCNN as SmallCNN
from lightning_multigrid.models.small import small_cnn as small_cnn
from lightning_multigrid.models.weights import WeightsReport as WeightsReport
from lightning_multigrid.models.weights import export_weights as export_weights
from lightning_multigrid.models.weights import load_weights as load_weights
