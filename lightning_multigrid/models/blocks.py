"""The parts of the paper's models: stem, bottleneck, non-local block, stage, head.

Modules have PySlowFast's names (`s2.pathway0_res0.branch2.a`), so that published weights fit. Nothing depends on the
shape of a clip, as the head pools globally.

Legend: B clips, C channels, T frames, H W pixels; N = T H W positions of a non-local block, M <= N of its keys.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

Triple = tuple[int, int, int]

# Channels of the stem and of res2 to res5. SlowFast's fast pathway has `beta` times these.
WIDTHS = (64, 256, 512, 1024, 2048)


def stem(width: int, temporal_kernel: int) -> nn.Module:
    """Stem: t x 7 x 7 convolution, BN, ReLU and max-pool; H and W shrink to a quarter, T stays.

    >>> stem(width=8, temporal_kernel=5)(torch.zeros(2, 3, 4, 32, 32)).shape
    torch.Size([2, 8, 4, 8, 8])
    """
    kernel, padding = (temporal_kernel, 7, 7), (temporal_kernel // 2, 3, 3)
    layers: dict[str, nn.Module] = {
        "conv": nn.Conv3d(3, width, kernel, (1, 2, 2), padding, bias=False),
        "bn": nn.BatchNorm3d(width),
        "relu": nn.ReLU(inplace=True),
        "pool": MaxPool((1, 3, 3), (1, 2, 2), (0, 1, 1)),
    }
    return nn.Sequential(OrderedDict(layers))


class MaxPool(nn.Module):
    """`nn.MaxPool3d` over space or time alone, computed as 2D pooling, to the bit, without a copy.

    On CUDA the backward of 3D pooling adds in no fixed order, and `deterministic=True` refuses it.
    """

    def __init__(self, kernel: Triple, stride: Triple | None = None, padding: Triple = (0, 0, 0)) -> None:
        super().__init__()
        self._in_time = kernel[0] != 1
        stride = stride or kernel
        if self._in_time:
            self.pool = nn.MaxPool2d((kernel[0], 1), (stride[0], 1), (padding[0], 0))
        else:
            self.pool = nn.MaxPool2d(kernel[1:], stride[1:], padding[1:])

    def forward(self, x: Tensor) -> Tensor:
        clips, channels, frames, height, width = x.shape
        pooled: Tensor
        if self._in_time:
            pooled = self.pool(x.flatten(3))
            return pooled.reshape(clips, channels, -1, height, width)
        if x.is_contiguous():
            pooled = self.pool(x.flatten(1, 2))
            return pooled.reshape(clips, channels, frames, *pooled.shape[2:])
        # In channels-last memory the frames of a clip are next to each other, and the channels are not.
        pooled = self.pool(x.transpose(1, 2).flatten(0, 1))
        return pooled.reshape(clips, frames, *pooled.shape[1:]).transpose(1, 2)


class Bottleneck(nn.Module):
    """Residual block: t x 1 x 1, then 1 x 3 x 3 with the spatial stride, then 1 x 1 x 1 convolution.

    It takes B x C x T x H x W, and returns B x `out_channels` x T x H / stride x W / stride, rounded up.
    """

    def __init__(self, in_channels: int, out_channels: int, temporal_kernel: int, stride: int) -> None:
        super().__init__()
        inner = out_channels // 4
        self.branch1: nn.Module = nn.Identity()
        self.branch1_bn: nn.Module = nn.Identity()
        if in_channels != out_channels or stride != 1:
            self.branch1 = nn.Conv3d(in_channels, out_channels, 1, (1, stride, stride), bias=False)
            self.branch1_bn = nn.BatchNorm3d(out_channels)
        kernel, padding = (temporal_kernel, 1, 1), (temporal_kernel // 2, 0, 0)
        branch2: dict[str, nn.Module] = {
            "a": nn.Conv3d(in_channels, inner, kernel, padding=padding, bias=False),
            "a_bn": nn.BatchNorm3d(inner),
            "a_relu": nn.ReLU(inplace=True),
            "b": nn.Conv3d(inner, inner, (1, 3, 3), (1, stride, stride), padding=(0, 1, 1), bias=False),
            "b_bn": nn.BatchNorm3d(inner),
            "b_relu": nn.ReLU(inplace=True),
            "c": nn.Conv3d(inner, out_channels, 1, bias=False),
            "c_bn": nn.BatchNorm3d(out_channels),
        }
        self.branch2 = nn.Sequential(OrderedDict(branch2))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.branch1_bn(self.branch1(x)) + self.branch2(x))  # type: ignore[no-any-return]


class NonLocal(nn.Module):
    """Non-local block: every position gathers from all positions of the clip (Wang et al. 2018).

    `instantiation` says how to weigh a pair of positions: "dot_product" divides by the number of keys, so it does not
    depend on the grid; "softmax" (embedded Gaussian) scales by inner width ** -0.5.
    """

    def __init__(self, channels: int, instantiation: Literal["dot_product", "softmax"]) -> None:
        super().__init__()
        if instantiation not in ("dot_product", "softmax"):
            raise ValueError(f"`instantiation` must be 'dot_product' or 'softmax', got {instantiation!r}.")
        inner = channels // 2
        self.instantiation = instantiation
        self.conv_theta = nn.Conv3d(channels, inner, 1)
        self.conv_phi = nn.Conv3d(channels, inner, 1)
        self.conv_g = nn.Conv3d(channels, inner, 1)
        self.conv_out = nn.Conv3d(inner, channels, 1)
        self.bn = nn.BatchNorm3d(channels)
        self.pool = MaxPool((1, 2, 2))  # of the positions to gather from

    def forward(self, x: Tensor) -> Tensor:
        keys = self.pool(x)
        theta = self.conv_theta(x).flatten(2).transpose(1, 2)  # B x N x C
        phi = self.conv_phi(keys).flatten(2).transpose(1, 2)  # B x M x C, and so is g
        g = self.conv_g(keys).flatten(2).transpose(1, 2)
        if self.instantiation == "softmax":
            gathered = scaled_dot_product_attention(theta, phi, g)
        else:
            # One kernel multiplies and divides by M: before the division, a sum may overflow float16.
            unused = theta.new_zeros(1, 1, 1)
            pairs = torch.baddbmm(unused, theta, phi.transpose(1, 2), beta=0, alpha=1 / phi.shape[1])  # B x N x M
            gathered = pairs @ g
        gathered = gathered.transpose(1, 2).reshape(x.shape[0], -1, *x.shape[2:])
        if x.is_contiguous():  # else `gathered`, a channels-last view, would make the next layers channels-last
            gathered = gathered.contiguous()
        return x + self.bn(self.conv_out(gathered))  # type: ignore[no-any-return]


class Pathways(nn.ModuleDict):
    """Parallel pathways, each a chain of modules, under the names `pathway{index}_{name}`."""

    def __init__(self, *chains: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.steps: list[tuple[int, str]] = []
        for pathway, chain in enumerate(chains):
            for name, module in chain.items():
                self[f"pathway{pathway}_{name}"] = module
                self.steps.append((pathway, f"pathway{pathway}_{name}"))

    def forward(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        outputs = list(inputs)
        for pathway, name in self.steps:
            outputs[pathway] = self[name](outputs[pathway])
        return outputs


def bottlenecks(
    in_channels: int,
    out_channels: int,
    temporal_kernels: Sequence[int],
    stride: int,
    nonlocal_after: Mapping[int, NonLocal] | None = None,
) -> dict[str, nn.Module]:
    """One stage of one pathway: a bottleneck for each temporal kernel, the first with the spatial stride.

    `nonlocal_after` maps the index of a bottleneck, from 0, to the non-local block that follows.
    """
    chain: dict[str, nn.Module] = {}
    for index, kernel in enumerate(temporal_kernels):
        chain[f"res{index}"] = Bottleneck(in_channels, out_channels, kernel, stride)
        in_channels, stride = out_channels, 1
        if nonlocal_after is not None and index in nonlocal_after:
            chain[f"nonlocal{index}"] = nonlocal_after[index]
    return chain


class Head(nn.Module):
    """Global average of each pathway, concatenated to `channels` in all; dropout; linear classifier."""

    def __init__(self, channels: int, num_classes: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.projection = nn.Linear(channels, num_classes)

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        """Takes one tensor B x C x T x H x W per pathway, returns logits B x `num_classes`."""
        pooled = torch.cat([x.mean((2, 3, 4)) for x in inputs], 1)
        return self.projection(self.dropout(pooled))  # type: ignore[no-any-return]


def initialize(model: nn.Module) -> None:
    """Initialises convolutions as He et al. 2015 (fan out), and the classifier with N(0, 0.01).

    The last BN of a residual or non-local block starts at 0, so the block starts as the identity (Goyal et al. 2017).
    """
    for module in model.modules():
        if isinstance(module, nn.Conv3d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
            nn.init.zeros_(module.bias)
        elif isinstance(module, Bottleneck):
            nn.init.zeros_(module.branch2.get_submodule("c_bn").get_parameter("weight"))
        elif isinstance(module, NonLocal):
            nn.init.zeros_(module.bn.weight)
