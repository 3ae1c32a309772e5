"""Every recipe of `examples/recipes` parses, is planned, and runs on a stand-in dataset in the official layout."""

import json
import re
import shutil
from itertools import product

import pytest
import torch
import yaml
from PIL import Image
from torchvision.models import resnet50
from torchvision.models.video import mvit_v2_s, r3d_18

from lightning_multigrid.cli.main import main
from lightning_multigrid.models import export_weights, slowfast_r50
from tests.helpers import recipe_sources
from tests.helpers.annotations import write_files
from tests.helpers.planned import planned
from tests.helpers.recipe_sources import FOLDER
from tests.helpers.videos import numbered_frames, write_video

RECIPES = sorted(path.stem for path in FOLDER.glob("[!_]*.yaml"))
# Recipes with the files that change them: Figure 3's points are in the option, HMDB51 and small GPUs in the overlays.
KINDS = product(("slowfast", "r3d18"), ("baseline", "multigrid"))
CASES = [*((name,) for name in RECIPES), *((f"ucf101_{model}_{kind}", "_hmdb51", "_24gb") for model, kind in KINDS)]
# A transformer on all grids; the others run with `-m slow`.
SAMPLE = [("videomae_kinetics_multigrid",)]
# What makes the transformers small; the others are small enough on small clips.
_HUGGING_FACE = "hidden_size: 24, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 48, patch_size: 8"
SMALLER = {
    "videomae": [f"settings={{image_size: 32, {_HUGGING_FACE}}}"],
    "vit": ["model.dict_kwargs={img_size: 32, depth: 2, embed_dim: 48, num_heads: 2, dynamic_img_size: true}"],
}
# What training adds to published weights: the head (with a norm, in VideoMAE), and non-local blocks, which images lack.
NEW = re.compile(r"(head|fc|fc_norm|classifier)\.|.*_nonlocal\d")
LIBRARIES = {"videomae": "transformers", "vit": "timm"}
VIDEOS = 24  # the first two mini-batches of the coarsest phase have 16 and 8 clips


def tiny(name):
    """Options that make a recipe small enough for a CPU; its model, data, schedule and protocol stay."""
    # The non-local blocks pool pixels to half, so the coarsest grid must leave them 2.
    size = 64 if "_nl_" in name else 32
    frames = 8 if "_r3d18_" in name else 16  # its first layers keep all frames
    model = [f"--model.init_args.model.init_args.{option}" for option in SMALLER.get(name.split("_")[0], [])]
    trainer = ["accelerator=cpu", "devices=1", "num_nodes=1", "precision=32-true", "logger=false"]
    trainer += ["enable_progress_bar=false", "enable_model_summary=false"]
    trainer += ["callbacks.precise_bn_batches=2"] if "precise_bn" in str(callbacks(name)[-1:]) else []
    data = ["num_workers=0", "batch_size=1", f"frames={frames}", f"size={size}", f"short_side=[{size}, {size + 8}]"]
    data += ["test_views.clips=2", f"test_views.size={size}", f"test_views.short_side={size}"]
    return [*model, *(f"--trainer.{option}" for option in trainer), *(f"--data.init_args.{option}" for option in data)]


def recipe(name):
    return str(FOLDER / f"{name}.yaml")


def configs(case):
    """The options that give a recipe and the files that change it."""
    return [part for name in case for part in ("--config", recipe(name))]


def settings(name):
    """The lines of a recipe itself, by their dotted names."""
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text())


def chain(name):
    """A recipe, the one that it continues, and so on."""
    base = settings(name).get("config")
    return [name, *(chain(base.removesuffix(".yaml")) if base else [])]


def require_library(name):
    pytest.importorskip(LIBRARIES.get(name.split("_")[0], "torch"))


def is_multigrid(name):
    """Whether it has a cycle; the baselines have the callback too, with both cycles off."""
    return "baseline" not in name


def callbacks(name):
    """The callbacks of a recipe, with those in files of their own."""
    entries = recipe_sources.settings(name).get("trainer.callbacks", [])
    return [yaml.safe_load((FOLDER / entry).read_text()) if isinstance(entry, str) else entry for entry in entries]


def weights(name):
    """The weights that a recipe's training starts from."""
    return [entry for entry in callbacks(name) if entry["class_path"].endswith("PretrainedWeights")]


# --- The stand-in datasets ---


def kinetics400(folder):
    labels = ["abseiling", '"air drumming"', "zumba"]
    video = write_video(folder / "video.mp4", numbered_frames(20, 36, 48))
    for split in ("train", "val"):
        (folder / split).mkdir()
        rows = []
        for number in range(VIDEOS):
            shutil.copy(video, folder / split / f"video{number:06d}_000010_000020.mp4")
            rows.append(f"{labels[number % 3]},video{number:06d},10,20,{split},0\n")
        header = "label,youtube_id,time_start,time_end,split,is_cc\n"
        write_files(folder, {f"annotations/{split}.csv": header + "".join(rows)})


def something_something(folder):
    templates = ["Pushing [something] from left to right", "Holding [something]"]
    labels = {template.replace("[", "").replace("]", ""): str(number) for number, template in enumerate(templates)}
    entry = {"label": "a cup", "placeholders": []}
    entries = [{"id": str(n), "template": templates[n % 2], **entry} for n in range(VIDEOS)]
    names = {"labels": labels, "train": entries, "validation": entries[:4]}
    write_files(folder, {f"labels/{name}.json": json.dumps(content) for name, content in names.items()})
    (videos := folder / "20bn-something-something-v2").mkdir()
    video = write_video(folder / "video.webm", numbered_frames(20, 36, 48), codec="libvpx-vp9")
    for number in range(VIDEOS):
        shutil.copy(video, videos / f"{number}.webm")


def charades(folder):
    header = "id,subject,scene,quality,relevance,verified,script,objects,descriptions,actions,length\n"
    row = 'V{:04d},AAAA,Hall,6,7,Yes,"A person, twice.",door,"One; two.",c008 0.00 0.40;c147 0.20 0.80,0.83\n'
    rows = [row.format(number) for number in range(VIDEOS)]
    files = {"train": header + "".join(rows), "test": header + "".join(rows[:3])}
    write_files(folder / "Charades", {f"Charades_v1_{split}.csv": text for split, text in files.items()})
    names = "".join(f"c{label:03d} Doing {label}\n" for label in range(157))
    write_files(folder / "Charades", {"Charades_v1_classes.txt": names})
    images = [Image.fromarray(frame) for frame in numbered_frames(20, 36, 48)]
    for number in range(VIDEOS):
        (frames := folder / "Charades_v1_rgb" / f"V{number:04d}").mkdir(parents=True)
        for index, image in enumerate(images, start=1):
            image.save(frames / f"V{number:04d}-{index:06d}.jpg")


def ucf101(folder):
    classes = [f"Class{number}" for number in range(1, 102)]
    videos = [f"{classes[number % 3]}/v_{number}.avi" for number in range(VIDEOS)]
    video = write_video(folder / "video.mp4", numbered_frames(20, 36, 48))
    for path in videos:
        (folder / "UCF-101" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(video, folder / "UCF-101" / path)
    files = {
        "classInd": [f"{number} {name}" for number, name in enumerate(classes, 1)],
        "trainlist01": [f"{path} {number % 3 + 1}" for number, path in enumerate(videos)],
        "testlist01": videos[:4],
    }
    write_files(folder, {f"ucfTrainTestlist/{name}.txt": "\n".join(lines) + "\n" for name, lines in files.items()})


def hmdb51(folder):
    video, lists = write_video(folder / "video.mp4", numbered_frames(20, 36, 48)), {}
    for number in range(51):
        lines = [f"v{number}_{place}.avi {subset}" for place, subset in enumerate((1, 2))]
        lists[f"testTrainMulti_7030_splits/class{number}_test_split1.txt"] = "\n".join(lines) + "\n"
        (folder / "videos" / f"class{number}").mkdir(parents=True)
        for place in range(2):
            shutil.copy(video, folder / "videos" / f"class{number}" / f"v{number}_{place}.avi")
    write_files(folder, lists)


DATASETS = {
    "kinetics400": kinetics400,
    "something-something-v2": something_something,
    "charades": charades,
    "ucf101": ucf101,
    "hmdb51": hmdb51,
}


def _small_vit():
    import timm

    [option] = SMALLER["vit"]
    return timm.create_model("vit_base_patch16_224", num_classes=21, **yaml.safe_load(option.partition("=")[2]))


def _small_videomae():
    """The encoder and the decoder, without a head, by the names of the Hub."""
    import transformers

    [option] = SMALLER["videomae"]
    config = transformers.VideoMAEConfig(**yaml.safe_load(option.partition("=")[2]))
    state = transformers.VideoMAEForPreTraining(config).state_dict()
    return {name.replace(".query.bias", ".q_bias").replace(".value.bias", ".v_bias"): t for name, t in state.items()}


WEIGHTS = {
    "resnet50-0676ba61.pth": lambda path: torch.save(resnet50().state_dict(), path),
    "r3d_18-b3b3357e.pth": lambda path: torch.save(r3d_18().state_dict(), path),
    "SLOWFAST_8x8_R50.pkl": lambda path: export_weights(slowfast_r50(num_classes=400), path),
    "mvit_v2_s-ae3be167.pth": lambda path: torch.save(mvit_v2_s().state_dict(), path),
    "vit_base_patch16_224.bin": lambda path: torch.save(_small_vit().state_dict(), path),
    "videomae-base.bin": lambda path: torch.save(_small_videomae(), path),
}


def text_of(file):
    """A file of a recipe without its comments, and those that it names."""
    text = "\n".join(line.split("#")[0] for line in (FOLDER / file).read_text().splitlines())
    return text + "".join(text_of(name) for name in set(re.findall(r"\w+\.yaml", text)))


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    """Makes what a case names of `data` and `weights`, where the recipes look for it, and returns the folder."""
    folder = tmp_path_factory.mktemp("recipes")
    (folder / "weights").mkdir()

    def make(case):
        text = "".join(text_of(f"{name}.yaml") for name in case)
        for name, write_dataset in DATASETS.items():
            if f"data/{name}" in text and not (path := folder / "data" / name).exists():
                path.mkdir(parents=True)
                write_dataset(path)
        for name, write_weights in WEIGHTS.items():
            if name in text and not (path := folder / "weights" / name).exists():
                write_weights(path)
        return folder

    return make


@pytest.mark.filterwarnings("ignore:.*sync_dist=True")
@pytest.mark.parametrize(
    "case",
    # A few seconds for each of over 50.
    [pytest.param(case, marks=[] if case in SAMPLE else pytest.mark.slow, id="+".join(case)) for case in CASES],
)
def test_two_steps_of_fit_and_one_of_test(case, stand_in, monkeypatch, capsys, caplog):
    name = case[0]
    require_library(name)
    monkeypatch.chdir(stand_in(case))
    main(["fit", *configs(case), *tiny(name), "--trainer.fast_dev_run=2"])
    reports = [record.args[1] for record in caplog.records if record.name == "lightning_multigrid.models.weights"]
    assert len(reports) == len(weights(name))
    for report in reports:
        assert all(NEW.match(kept) for kept in (*report.missing, *report.mismatched)), report
    main(["test", *configs(case), *tiny(name), "--trainer.limit_test_batches=1"])
    metric = "test/map" if name.startswith("charades") else "test/top1"
    assert metric in capsys.readouterr().out


# --- They say what the paper says ---


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in ("charades_multigrid", "i3d_baseline") else pytest.mark.slow) for n in RECIPES],
)
def test_plan_without_data(name, monkeypatch, tmp_path, capsys):
    require_library(name)
    monkeypatch.chdir(tmp_path)
    # A baseline in few iterations is less than an epoch of many more videos than Charades has, on one device.
    main(["plan", "--config", recipe(name), "--clips=40000", "--devices=8"])
    printed = capsys.readouterr()
    multigrid = is_multigrid(name)
    assert ("Multigrid schedule for a baseline of" if multigrid else "Schedule of the baseline, ") in printed.out
    assert all((words in printed.out) == multigrid for words in ("steps instead of", "fewer iterations"))
    assert ("this is the baseline as it is" in printed.err) == ("MultigridCallback" not in str(callbacks(name)))


def test_multigrid_recipes_are_baselines_with_a_callback():
    """They change nothing else of the baseline, but for the test of the published code on 8 GPUs."""
    for name in filter(is_multigrid, RECIPES):
        own = settings(name).keys() - {"config", "trainer.callbacks", "data.init_args.test_views"}
        assert not own, name
        assert chain(name)[1].endswith("baseline"), name
        assert weights(name) == weights(chain(name)[1]), name


@pytest.mark.parametrize("name", [name for name in RECIPES if not re.match("mvit|videomae|vit_", name)])
def test_every_recipe_with_batchnorm_has_the_statistics_of_the_published_configs(name):
    """Groups of 8 clips, the callback's default, and precise BatchNorm of 200 mini-batches, baselines too."""
    callback = callbacks(name)[-1]  # the last, so that `--trainer.callbacks.epoch_factor` changes it
    assert callback["class_path"].startswith("lightning_multigrid.MultigridCallback"), name
    assert callback["init_args"]["precise_bn_batches"] == 200
    assert "sub_batch" not in callback["init_args"]
    if not is_multigrid(name) and callback["class_path"].endswith("Callback"):
        cycles = callback["init_args"]["long_cycle"], callback["init_args"]["short_cycle"]
        assert cycles == ({"factors": [[1, 1]]}, {"factors": [1]})


@pytest.mark.parametrize(
    ("name", "world"),
    [*(pytest.param(*case, marks=pytest.mark.slow) for case in (("slowfast", 128), ("ssv2", 8))), ("i3d_1gpu", 1)],
)
def test_a_baseline_and_its_multigrid_training_share_statistics_over_the_same_clips(name, world):
    def last(kind):
        preview, _ = planned("--config", recipe(f"{name}_{kind}"), "--clips=240000", f"--devices={world}")
        return preview.plan.schedule.cycles[-1][-1]  # the baseline's own shape, and its clips that share statistics

    shape, sub_batch = last("baseline")
    assert (shape, sub_batch) == last("multigrid")
    assert sub_batch == 8


def test_every_recipe_says_what_was_published_and_has_a_row_in_the_table():
    table = (FOLDER / "README.md").read_text()
    for name in RECIPES:
        text = (FOLDER / f"{name}.yaml").read_text()
        assert re.search(r"^# Published( \(not ours.*?\))?: ", text, re.MULTILINE), name
        assert f"`{name}`" in table, name
    assert set(re.findall(r"^\|[^|]*\| `(\w[\w.]*)`", table, re.MULTILINE)) == set(RECIPES)
