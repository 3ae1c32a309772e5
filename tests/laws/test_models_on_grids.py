"""Models of other libraries in a script that knows nothing of multigrid, on every planned grid."""

import copy
import warnings

import lightning as L
import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader

from lightning_multigrid import MultigridCallback
from lightning_multigrid.models.wrapped import hugging_face
from tests.helpers.attention import mvit, swin
from tests.helpers.sampling import sampled
from tests.helpers.tiny import Module, clips, fit

FRAMES, SIZE = 8, 32


class PerFrame(nn.Module):
    """A model of timm, called for each frame; the scores are averaged."""

    def __init__(self, name, **settings):
        super().__init__()
        timm = pytest.importorskip("timm")
        self.images = timm.create_model(name, num_classes=4, img_size=SIZE, **settings)

    def forward(self, x):
        return self.images(x.transpose(1, 2).flatten(0, 1)).unflatten(0, (len(x), -1)).mean(1)


def vit(name="vit_tiny_patch16_224", **settings):
    return PerFrame(name, patch_size=8, embed_dim=16, depth=1, num_heads=2, **settings)


def of_transformers(kind, **settings):
    pytest.importorskip("transformers")
    settings |= {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 8}
    return hugging_face(kind, 4, settings)


def images(kind, **settings):
    return of_transformers(kind, num_frames=FRAMES, image_size=SIZE, intermediate_size=16, **settings)


def vjepa2():
    predictor = {"pred_hidden_size": 24, "pred_num_hidden_layers": 1, "pred_num_attention_heads": 2}
    clip = {"frames_per_clip": FRAMES, "crop_size": SIZE, "tubelet_size": 2, "mlp_ratio": 1, "num_pooler_layers": 1}
    return of_transformers("vjepa2", **clip, **predictor)


def pytorchvideo(module, builder, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it scripts functions when it is imported
        module = pytest.importorskip(f"pytorchvideo.models.{module}")
    return getattr(module, builder)(**settings)


def head_of_resnets():
    settings = {"in_features": 4, "out_features": 4, "output_with_global_average": True}
    settings["pool_kernel_size"] = FRAMES, 8, 8
    return nn.Sequential(
        nn.Conv3d(3, 4, (1, 4, 4), (1, 4, 4)), pytorchvideo("head", "create_res_basic_head", **settings)
    )


class SlowFast(nn.Module):
    """Every second frame goes to the slow pathway."""

    def __init__(self):
        super().__init__()
        kernels = ((FRAMES // 2, 1, 1), (FRAMES, 1, 1))
        settings = {"slowfast_channel_reduction_ratio": (2,), "slowfast_conv_channel_fusion_ratio": 2}
        settings |= {"slowfast_fusion_conv_stride": (2, 1, 1), "head_pool_kernel_sizes": kernels, "model_num_class": 4}
        widths = {"stem_dim_outs": (8, 4)}
        self.net = pytorchvideo("slowfast", "create_slowfast", **settings, **widths)

    def forward(self, x):
        return self.net([x[:, :, ::2], x])


MODELS = {
    "torchvision MViT v1": lambda: mvit(relative=False),
    "torchvision MViT v2": lambda: mvit(relative=True),
    "torchvision Swin3D": swin,
    "timm ViT": vit,
    "timm ViT dynamic": lambda: vit(dynamic_img_size=True),
    "timm EVA dynamic": lambda: vit("eva02_tiny_patch14_224", dynamic_img_size=True),
    "timm DINOv3 dynamic": lambda: vit("vit_small_patch16_dinov3", dynamic_img_size=True),
    "timm ViT of means": lambda: vit(class_token=False, global_pool="avg"),
    "transformers VideoMAE": lambda: images("videomae", tubelet_size=2),
    "transformers TimeSformer": lambda: images("timesformer"),
    "transformers ViViT": lambda: images("vivit", tubelet_size=[2, 8, 8]),
    "transformers V-JEPA 2": vjepa2,
    "pytorchvideo head of Slow": head_of_resnets,
    "pytorchvideo SlowFast": SlowFast,
}
# One of each way to know positions, by library, and a pool of a fixed size.
SAMPLE = "timm ViT", "torchvision MViT v1", "transformers V-JEPA 2", "pytorchvideo head of Slow"


class Script(Module):
    """A plain script, which notes what a test wants to know."""

    def __init__(self, net):
        super().__init__(optimizer=lambda parameters: SGD(parameters, lr=0))
        self.net = net
        self.plain = [copy.deepcopy(net).eval()]  # in a list, so that it is no part of the module
        self.keys, self.grids, self.losses = list(self.state_dict()), set(), []

    def training_step(self, batch, batch_idx):
        x, y = batch
        scores = self.net.eval()(x)
        self.net.train()
        loss = nn.functional.cross_entropy(scores, y)
        if isinstance(self._trainer, L.Trainer):
            self.losses.append(loss.item())
            self.grids.add(x.shape[2:4])
            assert list(self.state_dict()) == self.keys
            if x.shape[2:] == (FRAMES, SIZE, SIZE):
                assert torch.equal(scores, self.plain[0](x))
        return loss


def attributes(net):
    kept = [(type(part), {name for name in vars(part) if name != "training"}) for part in net.modules()]
    return kept, [(name, table.shape) for name, table in net.state_dict().items()]


@pytest.mark.parametrize("name", sampled(MODELS, *SAMPLE))
def test_it_trains_on_every_planned_grid_and_is_as_it_was_on_the_baselines(name):
    torch.manual_seed(0)
    module = Script(MODELS[name]())
    before = attributes(module.net)
    callback = MultigridCallback(epoch_factor=1)
    fit(module, callback, train=DataLoader(clips(75, FRAMES, SIZE), 1), max_epochs=1)
    sampler = callback.run.plan
    assert module.grids == {(step.shape.frames, step.shape.size) for step in sampler.epoch(0)}
    assert (FRAMES, SIZE) in module.grids
    assert len(module.grids) > 4
    assert torch.tensor(module.losses).isfinite().all()
    assert attributes(module.net) == before
    x = torch.randn(1, 3, FRAMES, SIZE, SIZE)
    assert torch.equal(module.net.eval()(x), module.plain[0](x))
