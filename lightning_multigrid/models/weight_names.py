"""The names that other libraries give to the parameters of our models, whose own names are PySlowFast's.

Each table is made from the names of the model at hand, by rules that follow the other library::

    s3.pathway0_res1.branch2.b_bn.weight     ours and PySlowFast's
    blocks.3.res_blocks.1.branch2.norm_b.weight          pytorchvideo (I3D: its pool is a block too)
    res3_1_branch2b_bn_s                                 Caffe2
    layer2.1.bn2.weight                                  torchvision, images
"""

import re
from collections.abc import Callable, Iterable

# The parts of a bottleneck, by our name: (pytorchvideo, torchvision).
_BLOCK_PARTS = {
    "branch1": ("branch1_conv", "downsample.0"),
    "branch1_bn": ("branch1_norm", "downsample.1"),
    "branch2.a": ("branch2.conv_a", "conv1"),
    "branch2.a_bn": ("branch2.norm_a", "bn1"),
    "branch2.b": ("branch2.conv_b", "conv2"),
    "branch2.b_bn": ("branch2.norm_b", "bn2"),
    "branch2.c": ("branch2.conv_c", "conv3"),
    "branch2.c_bn": ("branch2.norm_c", "bn3"),
}
_STEM = re.compile(r"s1\.pathway(\d)_stem\.(conv|bn)\.(\w+)")
_FUSION = re.compile(r"s(\d)_fuse\.(conv_f2s|bn)\.(\w+)")
_BLOCK = re.compile(r"s(\d)\.pathway(\d)_res(\d+)\.(branch[\w.]+)\.(\w+)")
_NONLOCAL = re.compile(r"s(\d)\.pathway0_nonlocal(\d+)\.(?:conv_)?(\w+)\.(\w+)")
_HEAD = re.compile(r"head\.projection\.(\w+)")

# Caffe2's endings. A convolution or a classifier has w and b; a BN layer s, b, and running statistics.
_CAFFE2_LAYER = {"weight": "w", "bias": "b"}
_CAFFE2_BN = {"weight": "s", "bias": "b", "running_mean": "rm", "running_var": "riv"}


def _pytorchvideo(pathways: int, pooled: int) -> Callable[[str], str | None]:
    """The rule for a model with this many pathways, and with (1) or without (0) a pool after res2 as its own block."""

    def block(stage: int) -> str:
        return f"blocks.{stage - 1 if stage <= 2 else stage - 1 + pooled}"

    def pathway(index: str) -> str:
        return "" if pathways == 1 else f".multipathway_blocks.{index}"

    def rename(name: str) -> str | None:
        if match := _STEM.fullmatch(name):
            index, layer, kind = match.groups()
            return f"{block(1)}{pathway(index)}.{'conv' if layer == 'conv' else 'norm'}.{kind}"
        if match := _FUSION.fullmatch(name):
            stage, layer, kind = match.groups()
            part = "conv_fast_to_slow" if layer == "conv_f2s" else "norm"
            return f"{block(int(stage))}.multipathway_fusion.{part}.{kind}"
        if match := _BLOCK.fullmatch(name):
            stage, index, number, part, kind = match.groups()
            return f"{block(int(stage))}{pathway(index)}.res_blocks.{number}.{_BLOCK_PARTS[part][0]}.{kind}"
        if match := _HEAD.fullmatch(name):
            # With two pathways, their pools are one more block.
            return f"blocks.{5 + pooled if pathways == 1 else 6}.proj.{match[1]}"
        return None

    return rename


def _torchvision(name: str) -> str | None:
    """The name of a tensor of the first pathway in an image ResNet."""
    if match := _STEM.fullmatch(name):
        index, layer, kind = match.groups()
        return f"{layer}1.{kind}" if index == "0" else None
    if match := _BLOCK.fullmatch(name):
        stage, index, number, part, kind = match.groups()
        return f"layer{int(stage) - 1}.{number}.{_BLOCK_PARTS[part][1]}.{kind}" if index == "0" else None
    if match := _HEAD.fullmatch(name):
        return f"fc.{match[1]}"
    return None


def _caffe2(last_block: dict[int, int]) -> Callable[[str], str | None]:
    """The rule for a model with these last blocks (stage -> block): a fusion has the name of the block it follows."""

    def rename(name: str) -> str | None:
        if match := _STEM.fullmatch(name):
            index, layer, kind = match.groups()
            place = "t_" * int(index) + ("conv1" if layer == "conv" else "res_conv1_bn")
        elif match := _FUSION.fullmatch(name):
            stage, layer, kind = match.groups()
            followed = "t_pool1" if stage == "1" else f"t_res{stage}_{last_block[int(stage)]}_branch2c_bn"
            place = f"{followed}_subsample" if layer == "conv_f2s" else f"{followed}_subsample_bn"
        elif match := _BLOCK.fullmatch(name):
            stage, index, number, part, kind = match.groups()
            place = f"{'t_' * int(index)}res{stage}_{number}_{part.replace('.', '')}"
        elif match := _NONLOCAL.fullmatch(name):
            stage, number, part, kind = match.groups()
            place = f"nonlocal_conv{stage}_{number}_{part}"
        elif match := _HEAD.fullmatch(name):
            place, kind = "pred", match[1]
        else:
            return None
        kinds = _CAFFE2_BN if place.endswith("_bn") else _CAFFE2_LAYER
        return f"{place}_{kinds[kind]}" if kind in kinds else None

    return rename


def name_tables(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """For each naming, a table from its name of a tensor to ours. Names without a counterpart are left out.

    The first naming is the model's own, which is PySlowFast's if the model is one of ours.

    >>> name_tables(["head.projection.weight"])["Caffe2"]
    {'pred_w': 'head.projection.weight'}
    """
    names = list(names)
    blocks = sorted(tuple(map(int, match.groups()[:3])) for name in names if (match := _BLOCK.fullmatch(name)))
    last_block = {stage: number for stage, _, number in blocks}
    pathways = 1 + max((pathway for _, pathway, _ in blocks), default=0)
    rules: dict[str, Callable[[str], str | None]] = {
        "own names": lambda name: name,
        "pytorchvideo": _pytorchvideo(pathways, pooled=0),
        "pytorchvideo, with a pool after res2": _pytorchvideo(pathways, pooled=1),
        "torchvision": _torchvision,
        "Caffe2": _caffe2(last_block),
    }
    return {
        naming: {foreign: name for name in names if (foreign := rule(name)) is not None}
        for naming, rule in rules.items()
    }
