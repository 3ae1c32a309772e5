"""The names that other libraries give to the parameters of our models, whose own names are PySlowFast's.

Each table is made from the names of the model at hand, by rules that follow the other library::

    s3.pathway0_res1.branch2.b_bn.weight     ours and PySlowFast's
    blocks.3.res_blocks.1.branch2.norm_b.weight          pytorchvideo (I3D: its pool is a block too)
    res3_1_branch2b_bn_s                                 Caffe2
    layer2.1.bn2.weight                                  torchvision, images
"""

import re
from collections.abc import Iterable, Mapping

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
_BLOCK = re.compile(rf"s(\d)\.pathway(\d)_res(\d+)\.({'|'.join(map(re.escape, _BLOCK_PARTS))})\.(\w+)")
_NONLOCAL = re.compile(r"s(\d)\.pathway0_nonlocal(\d+)\.(?:conv_)?(\w+)\.(\w+)")
_HEAD = re.compile(r"head\.projection\.(\w+)")

# Caffe2's endings. A convolution or a classifier has w and b; a BN layer s, b, and running statistics.
_CAFFE2_LAYER = {"weight": "w", "bias": "b"}
_CAFFE2_BN = {"weight": "s", "bias": "b", "running_mean": "rm", "running_var": "riv"}


def _names(name: str, pathways: int, last_block: Mapping[int, int]) -> dict[str, str]:
    """The names of a tensor, by naming, in a model with so many pathways and these last blocks (stage -> block)."""
    names, index, block, video, image = {"own names": name}, "0", 0, "", ""  # empty: this naming has none
    of_pathway = "" if pathways == 1 else "multipathway_blocks.{}."
    if match := _STEM.fullmatch(name):
        index, layer, kind = match.groups()
        video, image = of_pathway.format(index) + ("conv" if layer == "conv" else "norm"), f"{layer}1"
        caffe2 = "t_" * int(index) + ("conv1" if layer == "conv" else "res_conv1_bn")
    elif (match := _FUSION.fullmatch(name)) and int(match[1]) in {1, *last_block}:
        stage, layer, kind = match.groups()
        block, video = int(stage) - 1, f"multipathway_fusion.{'norm' if layer == 'bn' else 'conv_fast_to_slow'}"
        # In Caffe2 it has the name of the block that it follows.
        followed = "t_pool1" if stage == "1" else f"t_res{stage}_{last_block[int(stage)]}_branch2c_bn"
        caffe2 = f"{followed}_subsample{'_bn' if layer == 'bn' else ''}"
    elif match := _BLOCK.fullmatch(name):
        stage, index, number, part, kind = match.groups()
        block, (of_video, of_image) = int(stage) - 1, _BLOCK_PARTS[part]
        video = f"{of_pathway.format(index)}res_blocks.{number}.{of_video}"
        image = f"layer{block}.{number}.{of_image}"
        caffe2 = f"{'t_' * int(index)}res{stage}_{number}_{part.replace('.', '')}"
    elif match := _NONLOCAL.fullmatch(name):
        stage, number, part, kind = match.groups()
        caffe2 = f"nonlocal_conv{stage}_{number}_{part}"
    elif match := _HEAD.fullmatch(name):
        # With two pathways, their pools are one more block.
        kind, block, video, image, caffe2 = match[1], 5 if pathways == 1 else 6, "proj", "fc", "pred"
    else:
        return names
    if video:
        # A pool as block 2 moves all that follows it, but not the head of two pathways, whose number counts it already.
        names["pytorchvideo"] = f"blocks.{block}.{video}.{kind}"
        names["pytorchvideo, with a pool after res2"] = f"blocks.{block + (1 < block < 6)}.{video}.{kind}"
    if image and index == "0":
        names["torchvision"] = f"{image}.{kind}"
    kinds = _CAFFE2_BN if caffe2.endswith("_bn") else _CAFFE2_LAYER
    if kind in kinds:
        names["Caffe2"] = f"{caffe2}_{kinds[kind]}"
    return names


def name_tables(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """For each naming, a table from its name of a tensor to ours. Names without a counterpart are left out.

    >>> name_tables(["head.projection.weight"])["Caffe2"]
    {'pred_w': 'head.projection.weight'}
    """
    names = list(names)
    blocks = sorted(tuple(map(int, match.groups()[:3])) for name in names if (match := _BLOCK.fullmatch(name)))
    last_block = {stage: number for stage, _, number in blocks}
    pathways = 1 + max((pathway for _, pathway, _ in blocks), default=0)
    # A tie is for the first one.
    namings = "own names", "pytorchvideo", "pytorchvideo, with a pool after res2", "torchvision", "Caffe2"
    tables: dict[str, dict[str, str]] = {naming: {} for naming in namings}
    for name in names:
        for naming, foreign in _names(name, pathways, last_block).items():
            tables[naming][foreign] = name
    return tables
