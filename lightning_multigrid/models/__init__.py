"""Video models: one float tensor of clips B x 3 x T x H x W in, logits B x num_classes out, on every grid."""

from lightning_multigrid.models.small import SmallCNN as SmallCNN
from lightning_multigrid.models.small import small_cnn as small_cnn
