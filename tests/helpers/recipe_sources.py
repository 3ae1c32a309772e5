"""Settings of our baseline recipes, and of the published configs and scripts that they follow.

Ours are read from `examples/recipes`; those of the sources are copied by hand from the files that are named.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "recipes"
# Training videos: Sec. 4, Sec. 6, and the lines of the official list.
CLIPS = {"Kinetics": 240_000, "SomethingSomething": 169_000, "Charades": 7_985}

COLUMNS = ("clips", "iterations", "optimizer, LR", "warm-up", "decay", "weight decay", "drop path", "short sides")
COLUMNS += ("augmentation", "test")
_FLIPS, _NONE = "flips", "none"
_STRONG = "mixup 0.8, cutmix 1, RandAugment 4 x 21, erasing 0.25"  # magnitude 7 there, of 10; ours is of 30
_AREA = "crops of 8 to 100 % of the area"
_SLOWFAST = "facebookresearch/SlowFast, `configs/{}.yaml`"
_TIMESFORMER = "facebookresearch/TimeSformer, `configs/{}.yaml`"
_VIDEOMAE = "MCG-NJU/VideoMAE, `scripts/{}/finetune.sh`"
_MASKED = "videomae_vit_base_patch16_224_tubemasking_ratio_0.9_epoch_"
_COSINE = "cosine to {} at epoch {}"

# What the source says, in the order of the columns. An epoch there drops its last, incomplete mini-batch.
SOURCES: dict[str, tuple[str, tuple[str, ...]]] = {
    "slowfast_8gpu_baseline": (
        _SLOWFAST.format("Kinetics/SLOWFAST_8x8_R50_stepwise"),
        ("64, 1 of a video",
         "896,250", "SGD, 0.1", "34 epochs from 0.01", "x 0.1 at 94, 154, 196 of 239", "0.0001, BatchNorm 0",
         _NONE, "256 to 320", _FLIPS, "10 x 3 of 256 in 256"),
    ),
    "ssv2_baseline": (
        _SLOWFAST.format("SSv2/SLOWFAST_16x8_R50_multigrid"),
        ("16, 1 of a video",
         "232,364", "SGD, 0.03", "0.19 epochs from 0.0001", "x 0.1 at 14, 18 of 22", "1e-06, BatchNorm 0",
         _NONE, "256 to 320", _NONE, "1 x 1 of 224 in 224, left"),
    ),
    "charades_baseline": (
        _SLOWFAST.format("Charades/SLOWFAST_16x8_R50_multigrid"),
        ("16, 1 of a video",
         "28,443", "SGD, 0.0375", "4 epochs from 0.0001", "x 0.1 at 41, 49 of 57", "0.0001, BatchNorm 0",
         _NONE, "256 to 340", _FLIPS, "10 x 3 of 256 in 256"),
    ),
    "mvit_kinetics_baseline": (
        _SLOWFAST.format("Kinetics/MVITv2_S_16x4"),
        ("32, 2 of a video",
         "3,000,000", "AdamW, 0.0001", "30 epochs from 1e-06", _COSINE.format("1e-06", 200),
         "0.05, norm and biases 0", "0.2", _AREA, f"{_FLIPS}, {_STRONG}", "5 x 1 of 224 in 256"),
    ),
    "mvit_ssv2_baseline": (
        _SLOWFAST.format("SSv2/MVITv2_S_16x4"),
        ("16, 1 of a video",
         "1,056,200", "SGD, 0.0025", "3 epochs from 0.0001", _COSINE.format("1e-06", 100),
         "0.0001, norm and biases 0", "0.4", "256 to 320", _STRONG, "1 x 3 of 224 in 224"),
    ),
    "videomae_kinetics_baseline": (
        _VIDEOMAE.format(f"kinetics/{_MASKED}1600"),
        ("768, 2 of a video",
         "46,875", "AdamW, 0.00075, 0.75 per layer", "5 epochs from 1.5e-06",
         _COSINE.format("1.5e-06", 75), "0.05, norm and biases 0", "0.1", _AREA,
         f"{_FLIPS}, {_STRONG}", "5 x 3 of 224 in 224"),
    ),
    "videomae_ssv2_baseline": (
        _VIDEOMAE.format(f"ssv2/{_MASKED}2400"),
        ("768, 2 of a video",
         "13,200", "AdamW, 0.00075, 0.75 per layer", "5 epochs from 1.5e-06", _COSINE.format("1.5e-06", 30),
         "0.05, norm and biases 0", "0.1", _AREA, _STRONG, "2 x 3 of 224 in 224"),
    ),
    "vit_kinetics_baseline": (
        _TIMESFORMER.format("Kinetics/TimeSformer_spaceOnly_8x32_224"),
        ("8, 1 of a video",
         "450,000", "SGD, 0.005", _NONE, "x 0.1 at 11, 14 of 15", "0.0001, norm and biases 0.0001", "0.1",
         "256 to 320", _FLIPS, "1 x 3 of 224 in 224, the first frames"),
    ),
    "vit_ssv2_baseline": (
        _TIMESFORMER.format("SSv2/TimeSformer_divST_8_224"),
        ("8, 1 of a video",
         "316,875", "SGD, 0.005", _NONE, "x 0.1 at 11, 14 of 15", "0.0001, norm and biases 0.0001", "0.1",
         "256 to 320", _NONE, "1 x 3 of 224 in 224"),
    ),
}  # fmt: skip


def settings(recipe: str) -> dict[str, Any]:
    """The values of a recipe and of those that it continues, by their dotted names."""
    own = yaml.safe_load((FOLDER / f"{recipe}.yaml").read_text())
    base = settings(own.pop("config").removesuffix(".yaml")) if "config" in own else {}
    return base | flat(own)


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested mappings by their dotted names."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def ours(recipe: str) -> tuple[str, ...]:
    """The settings of a baseline recipe, in the order of the columns."""
    values = settings(recipe)
    model = {key.removeprefix("model.init_args."): value for key, value in values.items()}
    data = {key.removeprefix("data.init_args."): value for key, value in values.items()}
    repeats, epochs = data.get("repeats", 1), values["trainer.max_epochs"]
    world = values["trainer.devices"] * values.get("trainer.num_nodes", 1)
    videos = CLIPS[data["train.class_path"].rsplit(".", 1)[1]]
    iterations = epochs * math.ceil(math.ceil(videos * repeats / world) / data["batch_size"])
    lr = model.get("optimizer.init_args.lr", model.get("lr"))
    optimizer = model.get("optimizer.class_path", "SGD").rsplit(".", 1)[-1]
    layers = f", {model['layer_decay']:g} per layer" if "layer_decay" in model else ""
    warmup = model.get("warmup_epochs", 0)
    decay = _COSINE.format(0, epochs)
    if model["schedule"] == "steps":
        milestones = ", ".join(f"{milestone:g}" for milestone in model["milestones"])
        decay = f"x {model['gamma']:g} at {milestones} of {epochs}"
    drop = [value for key, value in model.items() if key.endswith(("drop_path_rate", "stochastic_depth_prob"))]
    kinds = {
        "mixup": "mixup {:g}",
        "cutmix": "cutmix {:g}",
        "rand_augment": "RandAugment {:g}",
        "erasing": "erasing {:g}",
    }
    augment = [text.format(data[f"augment.{kind}"]) for kind, text in kinds.items() if f"augment.{kind}" in data]
    augment = [f"{a} x {data['augment.magnitude']:g}" if a.startswith("Rand") else a for a in augment]
    flips = [_FLIPS] if data.get("flip", True) else []
    crops, size = data.get("test_views.crops", 1), data.get("test_views.size", data["size"])
    side = data.get("test_views.short_side", size if crops == 3 else data["short_side"][0])
    return (
        f"{world * data['batch_size']}, {repeats} of a video",
        f"{iterations:,}",
        f"{optimizer}, {lr:g}{layers}",
        f"{warmup:g} epochs from {lr * model['warmup_start_factor']:.2g}" if warmup else _NONE,
        decay,
        f"{model['weight_decay']:g}, norm and biases {model['norm_weight_decay']:g}",
        f"{drop[0]:g}" if drop else _NONE,
        "{} to {}".format(*data["short_side"]),
        ", ".join(flips + augment) or _NONE,
        f"{data['test_views.clips']} x {crops} of {size} in {side}",
    )
