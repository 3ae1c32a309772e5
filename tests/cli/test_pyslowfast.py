"""Configs of PySlowFast become configs that plan and train the same."""

import math
from fractions import Fraction

import pytest
import yaml

from lightning_multigrid.cli.main import main
from lightning_multigrid.cli.pyslowfast import translate_pyslowfast
from lightning_multigrid.clips import ClipSampling, Views
from lightning_multigrid.schedule import BatchShape
from tests.helpers.planned import planned

# The numbers of the published stepwise multigrid config of SlowFast 8x8 on Kinetics-400.
KINETICS = {
    "MULTIGRID": {"SHORT_CYCLE": True, "LONG_CYCLE": True},
    "TRAIN": {"DATASET": "kinetics", "BATCH_SIZE": 64, "EVAL_PERIOD": 10, "ENABLE": True},
    "DATA": {
        "PATH_TO_DATA_DIR": "lists", "NUM_FRAMES": 32, "SAMPLING_RATE": 2, "TRAIN_JITTER_SCALES": [256, 320],
        "TRAIN_CROP_SIZE": 224, "TEST_CROP_SIZE": 256, "INPUT_CHANNEL_NUM": [3, 3],
    },
    "SLOWFAST": {"ALPHA": 4, "BETA_INV": 8, "FUSION_KERNEL_SZ": 7},
    "RESNET": {
        "DEPTH": 50, "ZERO_INIT_FINAL_BN": True, "WIDTH_PER_GROUP": 64, "STRIDE_1X1": False,
        "NUM_BLOCK_TEMP_KERNEL": [[3, 3], [4, 4], [6, 6], [3, 3]],
        "SPATIAL_STRIDES": [[1, 1], [2, 2], [2, 2], [2, 2]],
    },
    "SOLVER": {
        "BASE_LR": 0.1, "LR_POLICY": "steps_with_relative_lrs", "LRS": [1, 0.1, 0.01, 0.001, 0.0001, 0.00001],
        "STEPS": [0, 94, 154, 196], "MAX_EPOCH": 239, "WARMUP_EPOCHS": 34.0, "WARMUP_START_LR": 0.01,
        "WEIGHT_DECAY": "1e-4",  # YAML reads `1e-4` as text
    },
    "MODEL": {"NUM_CLASSES": 400, "ARCH": "slowfast", "LOSS_FUNC": "cross_entropy", "DROPOUT_RATE": 0.5},
    "BN": {"USE_PRECISE_STATS": True, "NUM_BATCHES_PRECISE": 100},
    "NUM_GPUS": 8, "RNG_SEED": 0, "SOME_NEW_KEY": 3,
}  # fmt: skip
SMALL = {"TRAIN": {"BATCH_SIZE": 8}, "SOLVER": {"MAX_EPOCH": 4}, "MODEL": {"ARCH": "i3d", "NUM_CLASSES": 10}}
SMALL["NUM_GPUS"] = 2
SLOW = pytest.mark.slow


def changed(config, **sections):
    """A config with some values of some sections replaced; a value for no section replaces it."""

    def replaced(name, values):
        return {**config.get(name, {}), **values} if isinstance(values, dict) else values

    return config | {name: replaced(name, values) for name, values in sections.items()}


def translated(tmp_path, config):
    (path := tmp_path / "theirs.yaml").write_text(yaml.safe_dump(config))
    return translate_pyslowfast(path)


def model_of(tree):
    return tree["model"]["init_args"]["model"]


def data_of(tree):
    return tree["data"]["init_args"]


def plan(tmp_path, text):
    (tmp_path / "ours.yaml").write_text(text)
    return planned("--config", str(tmp_path / "ours.yaml"), "--clips", "3200")[0].plan.schedule


def test_a_translated_multigrid_config_has_the_phases_that_pyslowfast_publishes(tmp_path):
    schedule = plan(tmp_path, translated(tmp_path, KINETICS))
    ends = [phase.end_epoch for phase in schedule.phases]
    assert ends == [23.5, 47, 70.5, 94, 109, 124, 139, 154, 164.5, 175, 185.5, 196, 239]
    passes = [math.floor(schedule.passes(end) + Fraction(1, 2)) for end in ends[:-1]]
    assert passes == [73, 110, 142, 158, 205, 228, 248, 259, 291, 308, 322, 329]
    assert schedule.passes(239) == 358.5  # PySlowFast ends after 358
    assert (schedule.baseline.shape, schedule.baseline.epochs) == (BatchShape(8, 32, 224), 239)


def test_every_number_of_a_recipe_is_carried_over(tmp_path):
    text = translated(tmp_path, changed(KINETICS, MULTIGRID={"EVAL_FREQ": 5}))
    tree = yaml.safe_load(text)
    assert tree["seed_everything"] == 0
    assert (tree["trainer"]["devices"], tree["trainer"]["num_nodes"], tree["trainer"]["max_epochs"]) == (8, 1, 239)
    recipe = tree["model"]["init_args"]
    assert (recipe["lr"], recipe["momentum"], recipe["nesterov"], recipe["weight_decay"]) == (0.1, 0.9, True, 1e-4)
    assert (recipe["schedule"], recipe["milestones"], recipe["gamma"]) == ("steps", [94, 154, 196], 0.1)
    assert recipe["warmup_epochs"] == 34
    assert recipe["warmup_start_factor"] == pytest.approx(0.1)
    assert model_of(tree) == {
        "class_path": "lightning_multigrid.models.slowfast_r50",
        "init_args": {"num_classes": 400, "dropout": 0.5, "alpha": 4, "beta": 0.125, "fusion_kernel": 7},
    }
    data = data_of(tree)
    assert (data["batch_size"], data["frames"], data["size"], data["stride"]) == (8, 32, 224, 2)
    assert (data["train"], data["val"], data["test"]) == ("lists/train.csv", "lists/val.csv", "lists/test.csv")
    assert (data["short_side"], data["frame_rate"]) == ([256, 320], 30)
    assert data["test_views"] == {"clips": 10, "crops": 3, "size": 256}
    callback, newest = tree["trainer"]["callbacks"]
    assert newest == {"class_path": "lightning_multigrid.NewestCheckpoint", "init_args": {"dirpath": "./checkpoints"}}
    assert "# PySlowFast also validates after the last epoch: `validate --ckpt_path ./checkpoints/last.ckpt`" in text
    assert (callback["init_args"]["precise_bn_batches"], callback["init_args"]["sub_batch"]) == (100, 8)
    assert tree["trainer"]["check_val_every_n_epoch"] == 10
    left = [line for line in text.splitlines() if "Not carried over" in line]
    keys = "MULTIGRID.EVAL_FREQ: 5", "SOME_NEW_KEY: 3", "TRAIN.ENABLE: True"
    assert left == [f"# Not carried over: {key}" for key in keys]


def test_places_of_test_clips_and_draws_of_the_short_side_are_those_of_the_config(tmp_path):
    """PySlowFast's single clip is the beginning of a video unless it samples by offsets, and the middle here."""
    middle = "# The one clip of a test is the video's middle, in PySlowFast its beginning."
    one = changed(SMALL, TEST={"NUM_ENSEMBLE_VIEWS": 1})
    offsets = changed(one, DATA={"USE_OFFSET_SAMPLING": True, "INV_UNIFORM_SAMPLE": True})
    for config, positions, sampling, told in ((one, None, None, True), (offsets, "offset", "inverse_uniform", False)):
        text = translated(tmp_path, config)
        data = data_of(yaml.safe_load(text))
        assert (data["test_views"].get("positions"), data.get("short_side_sampling")) == (positions, sampling)
        assert (middle in text.splitlines()) == told
        assert "Not carried over" not in text


def test_without_multigrid_the_baseline_is_translated(tmp_path):
    text = translated(tmp_path, changed(KINETICS, MULTIGRID={"SHORT_CYCLE": False, "LONG_CYCLE": False}))
    assert "The baseline as it is" in text
    callback, _ = yaml.safe_load(text)["trainer"]["callbacks"]
    assert callback["class_path"] == "lightning_multigrid.MultigridCallback.baseline"
    assert callback["init_args"] == {"sub_batch": 8, "precise_bn_batches": 100}  # 64 clips on 8 GPUs
    assert plan(tmp_path, text).epochs == 239


@pytest.mark.parametrize(
    ("norm", "expected"),
    [
        ({}, None),
        ({"NORM_TYPE": "sync_batchnorm", "NUM_SYNC_DEVICES": 2}, {"sub_batch": 8}),
        ({"NUM_SYNC_DEVICES": 2}, None),  # without effect on plain BatchNorm
        ({"USE_PRECISE_STATS": True}, {"sub_batch": 4, "precise_bn_batches": 200}),
    ],
)
def test_the_batch_statistics_of_a_baseline_are_those_of_the_config(norm, expected, tmp_path):
    """8 clips on 2 GPUs: each normalises over its 4, unless both share them."""
    *callbacks, _ = yaml.safe_load(translated(tmp_path, changed(SMALL, BN=norm)))["trainer"]["callbacks"]
    assert [callback["init_args"] for callback in callbacks] == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("cycles", "passes", "grids"),
    [
        pytest.param({"LONG_CYCLE": False}, 239, {(32, 112), (32, 158), (32, 224)}, marks=SLOW),
        pytest.param({"SHORT_CYCLE": False}, 358.5, {(8, 158), (16, 158), (16, 224), (32, 224)}, marks=SLOW),
        ({"SHORT_CYCLE": False, "LONG_CYCLE_FACTORS": [[0.5, 0.5], [1, 1]]}, 358.5, {(16, 112), (32, 224)}),
        pytest.param({"LONG_CYCLE": False, "SHORT_CYCLE_FACTORS": [0.5]}, 239, {(32, 112), (32, 224)}, marks=SLOW),
    ],
)
def test_cycles_are_as_the_config_has_them(cycles, passes, grids, tmp_path):
    schedule = plan(tmp_path, translated(tmp_path, changed(KINETICS, MULTIGRID=cycles)))
    assert (schedule.epochs, schedule.passes(239)) == (239, passes)
    assert {(grid.frames, grid.size) for grid in schedule.grids} == grids


def r101(temporal):
    return {"RESNET": {"DEPTH": 101, "NUM_BLOCK_TEMP_KERNEL": [[3, 3], [4, 4], [temporal, temporal], [3, 3]]}}


@pytest.mark.parametrize(
    ("changes", "name", "temporal"),
    [
        ({"MODEL": {"ARCH": "i3d"}}, "i3d_r50", None),
        ({"MODEL": {"ARCH": "slow"}}, "slow_r50", None),
        ({"MODEL": {"ARCH": "i3d"}, "NONLOCAL": {"LOCATION": [[[]], [[1, 3]], [[1, 3, 5]], [[]]]}}, "i3d_nl_r50", None),
        (r101(6), "slowfast_r101", 6),
        (r101(23), "slowfast_r101", 23),
    ],
)
def test_models_are_found(changes, name, temporal, tmp_path):
    model = model_of(yaml.safe_load(translated(tmp_path, changed(KINETICS, **changes))))
    assert model["class_path"] == f"lightning_multigrid.models.{name}"
    assert model["init_args"].get("res4_temporal_blocks") == temporal


def test_a_silent_config_has_the_defaults_of_pyslowfast(tmp_path):
    tree = yaml.safe_load(text := translated(tmp_path, SMALL))
    data, recipe = data_of(tree), tree["model"]["init_args"]
    assert (data["batch_size"], data["frames"], data["stride"], data["size"]) == (4, 8, 8, 224)
    assert (recipe["lr"], recipe["nesterov"], recipe["schedule"]) == (0.1, True, "cosine")
    assert tree["seed_everything"] == 1
    assert plan(tmp_path, text).epochs == 4


@pytest.mark.parametrize(("crops", "size", "short_side"), [(1, 256, 256), (1, 224, 256), (3, 256, 256)])
def test_the_views_of_the_test_are_those_of_pyslowfast(crops, size, short_side, tmp_path):
    """kinetics.py resizes to the smallest short side of training for one crop, else to the size of the crop."""
    test = {"NUM_ENSEMBLE_VIEWS": 1, "NUM_SPATIAL_CROPS": crops}
    config = changed(KINETICS, DATA={"TEST_CROP_SIZE": size}, TEST=test)
    data = data_of(yaml.safe_load(translated(tmp_path, config)))
    sampling = ClipSampling(data["frames"], data["size"], 2, short_side=tuple(data["short_side"]))
    assert Views(**data["test_views"]).pixels(sampling) == (size, short_side)


def test_the_folder_that_paths_start_from_is_that_of_each_list(tmp_path):
    assert data_of(yaml.safe_load(translated(tmp_path, KINETICS)))["val"] == "lists/val.csv"
    text = translated(tmp_path, changed(KINETICS, DATA={"PATH_PREFIX": "/videos"}))
    data = data_of(yaml.safe_load(text))
    for split in ("train", "val", "test"):
        assert data[split]["class_path"] == "lightning_multigrid.sources.VideoList"
        assert data[split]["init_args"] == {"source": f"lists/{split}.csv", "root": "/videos"}
    plan(tmp_path, text)


def test_the_lr_is_multiplied_by_the_nodes_where_the_config_says_so(tmp_path):
    config = changed(SMALL, SOLVER={"BASE_LR_SCALE_NUM_SHARDS": True, "BASE_LR": 0.1}, NUM_SHARDS=16)
    tree = yaml.safe_load(translated(tmp_path, config))
    assert tree["model"]["init_args"]["lr"] == pytest.approx(1.6)
    assert tree["trainer"]["num_nodes"] == 16


def test_a_training_on_the_cpu_is_at_32_bits(tmp_path):
    for gpus, expected in ((2, ("gpu", 2, "16-mixed")), (0, ("cpu", 1, None))):
        text = translated(tmp_path, changed(SMALL, TRAIN={"MIXED_PRECISION": True}, NUM_GPUS=gpus))
        trainer = yaml.safe_load(text)["trainer"]
        assert (trainer["accelerator"], trainer["devices"], trainer.get("precision")) == expected


def test_what_differs_is_noted(tmp_path):
    text = translated(tmp_path, changed(SMALL, SOLVER={"WARMUP_EPOCHS": 2.0}, MIXUP={"ENABLE": True, "ALPHA": 0.8}))
    assert "The cosine starts where the warm-up ends" in text
    assert "The last BatchNorm of each block starts at 0" in text
    assert "# Not carried over: MIXUP.ALPHA: 0.8\n# Not carried over: MIXUP.ENABLE: True\n" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"MODEL": {"ARCH": "x3d"}}, r"`MODEL.ARCH: x3d` with depth 50 is not among the models here"),
        ({"NONLOCAL": {"LOCATION": [[[]], [[0]], [[]], [[]]]}}, "and these non-local blocks"),
        ({"MODEL": {"LOSS_FUNC": "contrastive_loss"}}, "`MODEL.LOSS_FUNC: contrastive_loss` is not supported"),
        ({"SOLVER": {"OPTIMIZING_METHOD": "adamw"}}, "`SOLVER.OPTIMIZING_METHOD: adamw` is not supported; sgd is"),
        ({"RESNET": {"WIDTH_PER_GROUP": 32}}, "`RESNET.WIDTH_PER_GROUP: 32` is not supported; 64 is. Change that in"),
        ({"SLOWFAST": {"FUSION_CONV_CHANNEL_RATIO": 1}}, "FUSION_CONV_CHANNEL_RATIO: 1` is not supported; 2 is"),
        ({"RESNET": {"SPATIAL_STRIDES": [[1], [1], [2], [2]]}}, r"is not supported; \[\[1\], \[2\], \[2\], \[2\]\] or"),
        ({"RESNET": {"NUM_BLOCK_TEMP_KERNEL": [[3], [4], [3], [3]]}}, r"supported; \[\[3\], \[4\], \[6\], \[3\]\] is"),
        ({"SOLVER": {"LR_POLICY": "exp"}}, "`SOLVER.LR_POLICY: exp` is not supported"),
        (
            {"SOLVER": {"LR_POLICY": "steps_with_relative_lrs", "STEPS": [0, 1, 2], "LRS": [1, 0.1, 0.05]}},
            r"must fall by one factor at each of `SOLVER.STEPS: \[0, 1, 2\]`",
        ),
        ({"SOLVER": {"LR_POLICY": "steps_with_relative_lrs", "STEPS": [0], "LRS": [1]}}, "must fall by one factor"),
        ({"TRAIN": {"DATASET": "ssv2"}}, r"`TRAIN.DATASET: ssv2` is not supported; kinetics is. .* has `ssv2_\*.yaml`"),
        ({"TRAIN": {"DATASET": "ava"}}, "`TRAIN.DATASET: ava` is not supported; kinetics is. Change that in a copy"),
        ({"TRAIN": {"BATCH_SIZE": 9}}, "`TRAIN.BATCH_SIZE: 9` must be a multiple of `NUM_GPUS: 2`"),
    ],
)
def test_what_has_no_counterpart_is_refused(change, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        translated(tmp_path, changed(SMALL, **change))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [", "is not YAML"),
        (b"!!python/object/apply:os.system ['true']", "is not YAML"),
        (b"trainer: {}", "none of the sections TRAIN, SOLVER and MODEL"),
    ],
)
def test_other_files_are_refused(content, message, tmp_path):
    (path := tmp_path / "other.yaml").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        translate_pyslowfast(path)


def test_the_command_prints_a_config_or_says_in_a_line_what_is_wrong(tmp_path, capsys):
    (path := tmp_path / "theirs.yaml").write_text(yaml.safe_dump(KINETICS))
    main(["migrate", str(path)])
    assert capsys.readouterr().out == translate_pyslowfast(path)
    path.write_text("a: 1")
    with pytest.raises(SystemExit, match="1"):
        main(["migrate", str(path)])
    assert "so it is not a config of PySlowFast" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"), [({"SOLVER": {"WARMUP_START_LR": 0}}, "starts at 1e-06 of the LR"), ({"NUM_GPUS": 0}, "")]
)
def test_what_is_zero_makes_a_config_that_plans(change, said, tmp_path):
    (tmp_path / "ours.yaml").write_text(translated(tmp_path, changed(KINETICS, **change)))
    assert said in (tmp_path / "ours.yaml").read_text()
    preview, _ = planned("--config", str(tmp_path / "ours.yaml"), "--clips", "3200")
    assert preview.lrs[-1].lr > 0
