"""The names that other libraries give to the parameters of our models, whose own names are PySlowFast's.

Each table is made from the names of the model at hand, by rules that follow the other library::

    s3.pathway0_res1.branch2.b_bn.weight     ours and PySlowFast's
    res3_1_branch2b_bn_s                                 Caffe2
    layer2.1.bn2.weight                                  torchvision, images
"""

import re
from collections.abc import Callable, Iterable

# torchvision's names of the parts of a bottleneck, by ours.
_BLOCK_PARTS = {
    "branch1": "downsample.0",
    "branch1_bn": "downsample.1",
    "branch2.a": "conv1",
    "branch2.a_bn": "bn1",
    "branch2.b": "conv2",
    "branch2.b_bn": "bn2",
    "branch2.c": "conv3",
    "branch2.c_bn": "bn3",
}
_STEM = re.compile(r"s1\.pathway(\d)_stem\.(conv|bn)\.(\w+)")
_FUSION = re.compile(r"s(\d)_fuse\.(conv_f2s|bn)\.(\w+)")
_BLOCK = re.compile(r"s(\d)\.pathway(\d)_res(\d+)\.(branch[\w.]+)\.(\w+)")
_NONLOCAL = re.compile(r"s(\d)\.pathway0_nonlocal(\d+)\.(?:conv_)?(\w+)\.(\w+)")
_HEAD = re.compile(r"head\.projection\.(\w+)")

# Caffe2's endings. A convolution or a classifier has w and b; a BN layer s, b, and running statistics.
_CAFFE2_LAYER = {"weight": "w", "bias": "b"}
_CAFFE2_BN = {"weight": "s", "bias": "b", "running_mean": "rm", "running_var": "riv"}


def _torchvision(name: str) -> str | None:
    """The name of a tensor of the first pathway in an image ResNet."""
    if match := _STEM.fullmatch(name):
        index, layer, kind = match.groups()
        return f"{layer}1.{kind}" if index == "0" else None
    if match := _BLOCK.fullmatch(name):
        stage, index, number, part, kind = match.groups()
        return f"layer{int(stage) - 1}.{number}.{_BLOCK_PARTS[part]}.{kind}" if index == "0" else None
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
    blocks = sorted((int(match[1]), int(match[3])) for name in names if (match := _BLOCK.fullmatch(name)))
    rules: dict[str, Callable[[str], str | None]] = {
        "own names": lambda name: name,
        "torchvision": _torchvision,
        "Caffe2": _caffe2(dict(blocks)),
    }
    return {
        naming: {foreign: name for name in names if (foreign := rule(name)) is not None}
        for naming, rule in rules.items()
    }
