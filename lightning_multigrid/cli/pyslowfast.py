"""Translates configs of PySlowFast into configs of this package; comments name what could not be carried over."""

import math
import os
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from lightning_multigrid.files import StrPath


def _flat(tree: dict[Any, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= {f"{name}.{key}": one for key, one in value.items()} if isinstance(value, dict) else {str(name): value}
    return flat


# The names and defaults of PySlowFast.
_KNOWN = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
_DEFAULTS = _flat(_KNOWN["defaults"]) | {name: accepted[0] for name, accepted in _KNOWN["only"].items()}

_RECIPES = {"ssv2": "ssv2_*.yaml", "charades": "charades_*.yaml"}  # by the names of PySlowFast's datasets
_BY_HAND = (
    "Change that in a copy of the config if the training may differ, or write a config of `fit`: VideoClassifier takes "
    "any model by its class path."
)


class _Config:
    """The values of a config by dotted names; remembers which were asked for."""

    def __init__(self, path: StrPath) -> None:
        self.path = os.fspath(path)
        try:
            with open(path, encoding="utf-8") as file:
                tree = yaml.safe_load(file)
        except yaml.YAMLError as error:
            raise ValueError(f"{self.path} is not YAML: {error}") from error
        if not isinstance(tree, dict) or not {"TRAIN", "SOLVER", "MODEL"} & set(tree):
            raise ValueError(
                f"{self.path} has none of the sections TRAIN, SOLVER and MODEL, so it is not a config of PySlowFast."
            )
        self.given = _flat(tree)
        self.asked: set[str] = set()
        self.notes: list[str] = []

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        default = _DEFAULTS[name]
        value = self.given.get(name, default)
        if isinstance(default, float) and isinstance(value, str):  # `1e-4`, which YAML reads as text
            with suppress(ValueError):
                value = float(value)
        return value

    def same(self, part: str) -> dict[str, Any]:
        """The arguments of a part of a config of `fit` that only have other names in PySlowFast."""
        return {name: self[theirs] for name, theirs in _KNOWN["same"][part].items()}

    def refuse(self, name: str, why: str) -> ValueError:
        return ValueError(f"{self.path}: `{name}: {self.given.get(name, _DEFAULTS.get(name))}` {why}")


def translate_pyslowfast(path: StrPath) -> str:
    """Returns the YAML of `lightning-multigrid fit` that trains what a config of PySlowFast trains.

    The mini-batch of a config is for one node of `NUM_GPUS` devices, as in PySlowFast.
    """
    config = _Config(path)
    gpus, nodes = config["NUM_GPUS"], config["NUM_SHARDS"]
    checkpoints = os.path.join(config["OUTPUT_DIR"], "checkpoints")
    callbacks = [*_callbacks(config), _part("NewestCheckpoint", dirpath=checkpoints)]
    trainer = {"accelerator": "gpu" if gpus else "cpu", **config.same("trainer"), "callbacks": callbacks}
    if trainer["max_epochs"] % trainer["check_val_every_n_epoch"]:
        last = os.path.join(checkpoints, "last.ckpt")
        config.notes.append(f"PySlowFast also validates after the last epoch: `validate --ckpt_path {last}` does that.")
    trainer["devices"] = max(1, gpus)  # of none, PySlowFast trains on the CPU, at 32 bits
    if config["TRAIN.MIXED_PRECISION"] and gpus:
        trainer["precision"] = "16-mixed"
    tree = {
        "seed_everything": config["RNG_SEED"],
        "trainer": trainer,
        "model": {"class_path": "lightning_multigrid.VideoClassifier", "init_args": _classifier(config, nodes)},
        "data": {"class_path": "lightning_multigrid.VideoDataModule", "init_args": _data(config, gpus)},
    }
    head = [f"From {os.path.basename(config.path)} of PySlowFast.", *config.notes]
    head += [f"Not carried over: {name}: {config.given[name]}" for name in sorted(config.given.keys() - config.asked)]
    comments = "".join(f"# {note}\n" for note in head)
    body: str = yaml.safe_dump(tree, sort_keys=False, default_flow_style=None, width=100)
    return f"{comments}\n{body}"


def _callbacks(config: _Config) -> list[dict[str, Any]]:
    callbacks = []
    if weights := config["TRAIN.CHECKPOINT_FILE_PATH"]:
        callbacks.append(_part("PretrainedWeights", path=weights))
    long, short = config["MULTIGRID.LONG_CYCLE"], config["MULTIGRID.SHORT_CYCLE"]
    precise = {"precise_bn_batches": config["BN.NUM_BATCHES_PRECISE"]} if config["BN.USE_PRECISE_STATS"] else {}
    if not long and not short:
        config.notes.append("The baseline as it is. For multigrid use lightning_multigrid.MultigridCallback.paper.")
        synced = config["BN.NORM_TYPE"] == "sync_batchnorm"
        if precise or synced:
            of_device = config["TRAIN.BATCH_SIZE"] // max(1, config["NUM_GPUS"])
            share = {"sub_batch": max(1, of_device * (config["BN.NUM_SYNC_DEVICES"] if synced else 1))}
            callbacks.append(_part("MultigridCallback.baseline", **share, **precise))
        return callbacks
    arguments: dict[str, Any] = {
        # PySlowFast lengthens the training for the long cycle only.
        "epoch_factor": config["MULTIGRID.EPOCH_FACTOR"] if long else 1.0,
        "sub_batch": config["MULTIGRID.BN_BASE_SIZE"],
        "long_cycle": {"factors": config["MULTIGRID.LONG_CYCLE_FACTORS"] if long else [[1, 1]]},
        "short_cycle": {"factors": [*(config["MULTIGRID.SHORT_CYCLE_FACTORS"] if short else []), 1]},
        **precise,
    }
    callbacks.append(_part("MultigridCallback.paper", **arguments))
    config.notes.append(
        "Phases are shares of the epochs, as many as SOLVER.MAX_EPOCH; PySlowFast rounds them to whole passes "
        "over the data."
    )
    if config["SOLVER.WARMUP_EPOCHS"]:
        config.notes.append(
            "The LR is scaled with the clips from the start of the warm-up; in PySlowFast the start is not scaled."
        )
    return callbacks


def _classifier(config: _Config, nodes: int) -> dict[str, Any]:
    for name, accepted in _KNOWN["only"].items():
        if config[name] not in accepted:
            recipe = _RECIPES.get(config[name], "") if name == "TRAIN.DATASET" else ""
            ways_out = f"`examples/recipes` has `{recipe}` for it. " if recipe else ""
            raise config.refuse(name, f"is not supported; {' or '.join(map(str, accepted))} is. {ways_out}{_BY_HAND}")
    arguments: dict[str, Any] = {
        "model": _model(config),
        "lr": config["SOLVER.BASE_LR"] * (nodes if config["SOLVER.BASE_LR_SCALE_NUM_SHARDS"] else 1),
        **config.same("model"),
        **_lr_policy(config),
    }
    warmup, start = config["SOLVER.WARMUP_EPOCHS"], config["SOLVER.WARMUP_START_LR"]
    if warmup:
        factor = start / config["SOLVER.BASE_LR"]
        if not factor:  # which torch's warm-up refuses
            factor = 1e-6
            config.notes.append(f"The warm-up starts at {factor:g} of the LR, as it can't start at 0.")
        arguments.update(warmup_epochs=warmup, warmup_start_factor=factor)
    return arguments


def _lr_policy(config: _Config) -> dict[str, Any]:
    policy, steps, lrs = config["SOLVER.LR_POLICY"], config["SOLVER.STEPS"], config["SOLVER.LRS"]
    if policy == "cosine":
        if config["SOLVER.WARMUP_EPOCHS"]:
            config.notes.append("The cosine starts where the warm-up ends, as with SOLVER.COSINE_AFTER_WARMUP.")
        return {"schedule": "cosine"}
    if policy != "steps_with_relative_lrs":
        raise config.refuse("SOLVER.LR_POLICY", "is not supported; cosine and steps_with_relative_lrs are.")
    used = lrs[: len(steps)]
    ratios = [later / earlier for earlier, later in pairwise(used)]
    by_one_factor = bool(ratios) and all(math.isclose(ratio, ratios[0]) for ratio in ratios)
    if steps[:1] != [0] or len(used) < len(steps) or used[0] != 1 or not by_one_factor:
        why = f"must fall by one factor at each of `SOLVER.STEPS: {steps}`, from 1 at epoch 0. Write a module."
        raise config.refuse("SOLVER.LRS", why)
    return {"schedule": "steps", "milestones": steps[1:], "gamma": ratios[0]}


def _model(config: _Config) -> dict[str, Any]:
    arch, depth, places = config["MODEL.ARCH"], config["RESNET.DEPTH"], config["NONLOCAL.LOCATION"]
    arguments = config.same("any model")
    non_local = any(blocks for stage in places for blocks in stage)
    kernels, weighing = config["RESNET.NUM_BLOCK_TEMP_KERNEL"], config["NONLOCAL.INSTANTIATION"]
    res4 = kernels[2][0] if depth == 101 else 6
    known = [[blocks] * len(kernels[0]) for blocks in (3, 4, res4, 3)]  # of each pathway
    if kernels != known:
        raise config.refuse("RESNET.NUM_BLOCK_TEMP_KERNEL", f"is not supported; {known} is. {_BY_HAND}")
    if not config["RESNET.ZERO_INIT_FINAL_BN"]:
        config.notes.append("The last BatchNorm of each block starts at 0, as with RESNET.ZERO_INIT_FINAL_BN.")
    if arch == "slowfast" and depth in (50, 101) and not non_local:
        arguments.update(config.same("slowfast"), beta=1 / config["SLOWFAST.BETA_INV"])
        if depth == 101:
            arguments["res4_temporal_blocks"] = res4
        return _part(f"models.slowfast_r{depth}", **arguments)
    if arch in ("i3d", "slow") and depth == 50 and not non_local:
        return _part(f"models.{arch}_r50", **arguments)
    if arch == "i3d" and depth == 50 and places == [[[]], [[1, 3]], [[1, 3, 5]], [[]]]:
        return _part("models.i3d_nl_r50", **arguments, instantiation=weighing)
    raise config.refuse(
        "MODEL.ARCH",
        f"with depth {depth}{' and these non-local blocks' if non_local else ''} is not among the models here: "
        f"SlowFast R50 and R101, I3D R50, I3D-NL R50, Slow R50. {_BY_HAND}",
    )


def _data(config: _Config, gpus: int) -> dict[str, Any]:
    batch = config["TRAIN.BATCH_SIZE"]
    if gpus > 1 and batch % gpus:
        raise config.refuse("TRAIN.BATCH_SIZE", f"must be a multiple of `NUM_GPUS: {gpus}`.")
    test = config.same("test_views")
    if test["crops"] == 1:
        test["short_side"] = config["DATA.TRAIN_JITTER_SCALES"][0]
    if config["DATA.USE_OFFSET_SAMPLING"]:
        test["positions"] = "offset"
    elif test["clips"] == 1:
        config.notes.append("The one clip of a test is the video's middle, in PySlowFast its beginning.")
    sampling = {"short_side_sampling": "inverse_uniform"} if config["DATA.INV_UNIFORM_SAMPLE"] else {}
    folder, prefix = config["DATA.PATH_TO_DATA_DIR"] or ".", config["DATA.PATH_PREFIX"]
    if folder == ".":
        config.notes.append("DATA.PATH_TO_DATA_DIR is not in the config: lists are read from the working folder.")
    lists: dict[str, Any] = {split: os.path.join(folder, f"{split}.csv") for split in ("train", "val", "test")}
    if prefix:
        lists = {split: _part("sources.VideoList", source=path, root=prefix) for split, path in lists.items()}
    else:
        config.notes.append("Relative paths in a list start from its folder, in PySlowFast from the working folder.")
    return {**lists, **config.same("data"), **sampling, "batch_size": batch // max(1, gpus), "test_views": test}


def _part(name: str, **arguments: Any) -> dict[str, Any]:
    return {"class_path": f"lightning_multigrid.{name}", "init_args": arguments}
