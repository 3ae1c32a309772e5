"""A plan against what really happens: steps of real fits, LRs of real fits, and the presets against the recipes."""

import re
import shutil
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import lightning as L
import pytest
import torch
import yaml
from torch import nn

from lightning_multigrid import MovingShapesDataModule, MultigridCallback, VideoClassifier, VideoDataModule
from lightning_multigrid.cli.plan import count_clips, measure_steps, preview, seconds_by_points
from lightning_multigrid.models import small_cnn
from lightning_multigrid.schedule import BatchShape, LongCycle
from lightning_multigrid.sources.official import UCF101
from lightning_multigrid.training.trainer.lightning_internals import training_source
from tests.helpers.recipe_sources import settings
from tests.helpers.tiny import trainer
from tests.helpers.videos import numbered_frames, write_video

pytestmark = pytest.mark.usefixtures("_unrehearsed")

ROOT = Path(__file__).parents[2]
VIDEOS = 45


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    first = write_video(folder / "0.mp4", numbered_frames(6, 24, 32))
    for index in range(1, VIDEOS):
        shutil.copy(first, folder / f"{index}.mp4")
    (folder / "train.csv").write_text("\n".join(f"{index}.mp4 {index % 4}" for index in range(VIDEOS)))
    return folder / "train.csv"


def classifier(**arguments):
    return VideoClassifier(small_cnn(4, width=2), num_classes=4, **arguments)


def data_of(videos, **arguments):
    return VideoDataModule(videos, **{"batch_size": 2, "frames": 4, "size": 16, "stride": 1, **arguments})


class Record(L.Callback):
    def __init__(self):
        self.lrs = []

    def on_train_start(self, trainer, pl_module):
        [optimizer] = trainer.optimizers
        optimizer.register_step_pre_hook(lambda one, *_: self.lrs.append(float(one.param_groups[0]["lr"])))


def planned(module, host, data, clips=VIDEOS):
    return preview(MultigridCallback(), host, module, data, clips=clips, world=1, configured_world=1)


def test_planned_steps_are_those_of_the_fit(videos):
    """With clips that are taken from a video several times; `test_plan_and_fit.py` has random configs of other data."""
    plan = planned(classifier(), trainer(max_epochs=3), data_of(videos, repeats=2))
    callback, record = MultigridCallback(), Record()
    trainer(callback, record, max_epochs=3).fit(classifier(), datamodule=data_of(videos, repeats=2))
    assert sum(plan.steps) == len(record.lrs)
    assert callback.run.plan.schedule == plan.plan.schedule


def test_without_videos_there_are_no_steps_but_all_else(videos):
    module = classifier(schedule="steps", milestones=[1.25, 2])
    plan = planned(module, trainer(max_epochs=3), data_of(None), None)
    assert plan.steps is None
    assert [float(milestone) for milestone in plan.plan.schedule.baseline.milestones] == [1.5]  # half of the training


def attributes(host, module):
    owners = host, host.state, host.strategy, host.fit_loop, training_source(host), module
    return [dict(vars(owner)) for owner in owners]


@pytest.mark.parametrize("clips", [VIDEOS, 2, None])
def test_trainer_and_module_are_afterwards_as_before(clips, videos):
    """Whether the plan is made or refused."""
    host, module = trainer(max_epochs=3), classifier(schedule="steps", milestones=[1.4, 2.2])
    before = attributes(host, module)
    with pytest.raises(ValueError, match=r"An epoch would have 0\.37 optimizer steps") if clips == 2 else nullcontext():
        planned(module, host, data_of(videos), clips)
    after = attributes(host, module)
    for was, now in zip(before, after, strict=True):
        assert was.keys() == now.keys()
        assert all(now[name] is value or now[name] == value for name, value in was.items())
    with pytest.raises(RuntimeError, match="not attached"):
        module.trainer  # noqa: B018


def test_a_source_whose_files_are_elsewhere_is_not_counted(tmp_path, capsys):
    for source in (None, tmp_path / "train.csv", UCF101(tmp_path / "nowhere", tmp_path)):
        assert count_clips(data_of(source)) is None
        assert re.search("warning: Steps are not counted: .* `--clips` says how many", capsys.readouterr().err)


def test_videos_that_the_data_module_will_write_are_counted(tmp_path):
    data = MovingShapesDataModule(tmp_path / "none", train_per_class=3)
    assert count_clips(data) == 48
    assert not list(tmp_path.iterdir())


# --- What it says ---


def planned_of_8000(videos, callback, module=None, configured_world=4):
    module = module or classifier(schedule="constant", lr=0.3)
    arguments = callback, trainer(max_epochs=6), module, data_of(videos)
    return preview(*arguments, clips=8000, world=16, configured_world=configured_world)


def test_the_table_says_what_is_known(videos):
    plan = planned_of_8000(videos, MultigridCallback(long_cycle=LongCycle(((0.5, 1), (1, 1)))))
    text = plan.table(seconds_by_points(plan.shapes, BatchShape(2, 4, 16), 0.05))
    title, *lines = text.splitlines()
    first = lines[lines.index("") + 2]
    assert title.endswith("baseline of 2 x 4 x 16 (clips x frames x size) on each of 16 devices")
    assert "8 of 2 ranks" in first  # 4 clips on each device
    assert 48 <= float(first.split()[-5]) <= 52  # Eq. 1: a step costs as much as the baseline's
    # 16 clips of 8 pixels, 8 of 11 and 4 of 16 on each of 16 devices.
    assert float(first.split()[-4]) == pytest.approx(16 * (16 + 8 + 4) / 3 / 0.05, rel=0.05)
    steps, baseline_steps = sum(plan.steps), 6 * 250
    assert f"{steps} steps instead of {baseline_steps}" in text
    faster = float(re.search(r"([\d.]+)x faster if all loaders together give", text)[1])
    assert faster == pytest.approx(baseline_steps / steps, rel=0.03)
    assert not any(word in plan.table({}) for word in ("ms/step", "clips/s"))


@pytest.mark.parametrize(("scaling", "lr"), [("linear", "1.2"), ("sqrt", "0.6"), ("none", "0.3")])
def test_the_lr_is_that_for_the_devices_asked_for(videos, scaling, lr):
    planned = planned_of_8000(videos, MultigridCallback(lr_scaling=scaling))
    assert {f"{point.baseline_lr:.3g}" for point in planned.lrs} == {lr}
    text = planned.table({})
    assert f"The config is for 4 devices x 2 clips, at the LR 0.3. For 16, as in this table, write the LR {lr}." in text


def test_the_lr_of_a_baseline_is_by_the_rule_of_its_optimizer(videos):
    module = classifier(schedule="constant", optimizer=partial(torch.optim.AdamW, lr=0.3))
    planned = planned_of_8000(videos, MultigridCallback.baseline(), module)
    assert [point.lr for point in planned.lrs] == pytest.approx([0.3 * 2] * len(planned.lrs))


def test_a_plan_refuses_what_fit_would_for_these_data(videos):
    arguments = trainer(max_epochs=6), classifier(schedule="constant"), data_of(videos)
    with pytest.raises(ValueError, match="itself, in `read_clip`, so `whole_span` would have no effect. Leave it out."):
        preview(MultigridCallback(whole_span=True), *arguments, clips=8000, world=1, configured_world=1)


def test_of_too_few_steps_the_way_out_is_an_argument_of_the_data_module(videos):
    with pytest.raises(ValueError, match=r"by `repeats=\d+`, and divide `max_epochs` by"):
        MultigridCallback().plan(trainer(max_epochs=3), classifier(), data_of(videos, batch_size=24))


# --- Baselines ---


@pytest.mark.parametrize(("sub_batch", "said"), [(2, "2"), (32, "32 of 16 ranks"), (8, "8 of 4 ranks")])
def test_a_plan_says_over_how_many_clips_a_baseline_normalises(sub_batch, said, videos):
    plan = planned_of_8000(videos, MultigridCallback.baseline(sub_batch=sub_batch), configured_world=16)
    lines = plan.table({}).splitlines()
    assert re.search(f"^ *[x\\d]+ +{said} +[x\\d]+$", lines[lines.index("") + 2])


@pytest.mark.parametrize(("steps", "clips", "world"), [(44_231, 169_000, 8), (32_653, 240_000, 128), (5_397, 7_985, 8)])
def test_a_shortened_baseline_has_exactly_its_steps(steps, clips, world, videos):
    """Those of the paper's tables; they were printed 6 % too low to 2 % too high."""
    host = trainer(max_epochs=-1, max_steps=steps)
    arguments = host, classifier(schedule="constant"), data_of(videos)
    plan = preview(MultigridCallback.baseline(), *arguments, clips=clips, world=world, configured_world=world)
    assert sum(plan.steps) == plan.plan.baseline_steps == steps


# --- Presets ---

RECIPES = {
    "kinetics-slowfast": "slowfast",
    "kinetics-slowfast-8gpu": "slowfast_8gpu",
    "kinetics-i3d": "i3d",
    "kinetics-i3d-nl": "i3d_nl",
    "kinetics-i3d-1gpu": "i3d_1gpu",
    "ssv2-slowfast": "ssv2",
    "charades-slowfast": "charades",
}
PRESETS = {path.stem: path for path in (ROOT / "lightning_multigrid" / "cli" / "presets").glob("*.yaml")}


def test_every_preset_has_its_recipe():
    assert PRESETS.keys() == RECIPES.keys()


@pytest.mark.parametrize("name", PRESETS)
def test_presets_say_what_the_recipes_say(name):
    preset = yaml.safe_load(PRESETS[name].read_text())
    recipe = settings(f"{RECIPES[name]}_multigrid")
    for part in ("model", "data"):
        for key, value in preset[part]["init_args"].items():
            if key == "model":
                assert value["class_path"] == recipe["model.init_args.model.class_path"]
                for argument, given in value["init_args"].items():
                    assert given == recipe[f"model.init_args.model.init_args.{argument}"], argument
            else:
                assert value == recipe[f"{part}.init_args.{key}"], key
    for key in ("devices", "max_epochs"):
        assert preset["trainer"][key] == recipe[f"trainer.{key}"]
    assert preset["trainer"]["num_nodes"] == recipe.get("trainer.num_nodes", 1)


# --- Seconds of a step, by hand and by measurement ---


class Net(L.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, clips):
        return self.net(clips)


def test_seconds_of_other_shapes_follow_from_points():
    baseline, coarse, odd = BatchShape(2, 8, 32), BatchShape(16, 4, 16), BatchShape(3, 8, 32)
    shapes = [(baseline, 8), (coarse, 8), (odd, 8)]
    assert seconds_by_points(shapes, baseline, 0.2) == {baseline: 0.2, coarse: 0.2, odd: pytest.approx(0.3)}  # Eq. 1


def test_each_shape_is_timed():
    module = Net(small_cnn(4))
    # Ten milliseconds a clip: what else the machine does can only add to them.
    module.net.projection.register_forward_hook(lambda layer, inputs, output: time.sleep(0.01 * len(output)))
    shapes = [(BatchShape(2, 2, 16), 8), (BatchShape(16, 8, 32), 8)]
    costs = measure_steps(module, shapes, torch.device("cpu"), rounds=2)
    assert [shape for shape, _ in shapes] == list(costs)
    assert all(cost >= 0.01 * shape.clips for shape, cost in costs.items())


def test_measuring_in_mixed_precision():
    dtypes = set()
    module = Net(small_cnn(4))
    module.net.projection.register_forward_hook(lambda layer, inputs, output: dtypes.add(output.dtype))
    measure_steps(module, [(BatchShape(2, 2, 16), 8)], torch.device("cpu"), precision="bf16-mixed", rounds=1)
    assert dtypes == {torch.bfloat16}


class Hungry(nn.Module):
    def forward(self, x):
        raise torch.OutOfMemoryError("no more")


def test_a_shape_that_does_not_fit():
    module = Net(nn.Sequential(nn.Conv3d(3, 4, 1), Hungry()))
    with pytest.raises(ValueError, match="A step on 2 x 2 x 16 .* does not fit into the memory of cpu. Use a smaller"):
        measure_steps(module, [(BatchShape(2, 2, 16), 8)], torch.device("cpu"))
