"""Small transformers of torchvision, for clips of 8 x 32 x 32."""

import torch
from torchvision.models.video import MViT
from torchvision.models.video.mvit import MSBlockConfig
from torchvision.models.video.swin_transformer import SwinTransformer3d


def mvit(relative):
    torch.manual_seed(0)
    blocks = [MSBlockConfig(1, 8, 16, [3, 3, 3], [3, 3, 3], [1, 1, 1], [1, 2, 2])]
    blocks.append(MSBlockConfig(2, 16, 16, [3, 3, 3], [3, 3, 3], [1, 2, 2], [1, 1, 1]))
    settings = {"residual_pool": relative, "rel_pos_embed": relative, "proj_after_attn": relative}
    return MViT((32, 32), 8, blocks, residual_with_cls_embed=not relative, num_classes=4, **settings)


def swin(window=4):
    torch.manual_seed(0)
    return SwinTransformer3d([2, 4, 4], 12, [1, 1], [1, 2], [window] * 3, num_classes=4)
