"""`docs/faster.md`: its script runs after each of its diffs, and its datasets read the clips of `VideoClips`."""

import json
import re
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from ordinary_scripts.run import DIFFS, PAGE, PREPARE, SCRIPT, changed
from ordinary_scripts.run import main as measure
from torch.utils.data import default_collate

from lightning_multigrid import VideoClips
from lightning_multigrid.cli.main import main
from lightning_multigrid.loading import ClipRequest, clip_dataset
from tests.helpers.videos import numbered_frames, write_video

_, PYAV, TORCHCODEC = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
SCRIPTS = [*accumulate(DIFFS, changed, initial=SCRIPT)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Videos in a folder of each class, as the page has them, and what its command makes of them."""
    folder, drawn = tmp_path_factory.mktemp("page"), []
    for number in range(8 + 40):
        path = folder / "videos" / ("val" if number < 8 else "train") / ("jump", "run")[number % 2] / f"{number}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number < 8:
            drawn.append(write_video(path, numbered_frames(40, 128, 160, first=5 * number)))
        else:
            path.hardlink_to(drawn[number % 8])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        main([*PREPARE.split(), "--workers", "0"])
    return folder


def run(script, folder, monkeypatch):
    monkeypatch.chdir(folder)
    names = {"__name__": "__main__"}
    exec(compile(script, "faster.md", "exec"), names)
    return names


def test_the_script_runs_after_each_diff(folder, monkeypatch):
    short = [script.replace("max_epochs=12", "max_epochs=1") for script in SCRIPTS]
    for number in range(3):  # the last has workers, which take seconds to start
        short[number] = short[number].replace("num_workers=2, persistent_workers=True", "num_workers=0")
    done = [run(script, folder, monkeypatch) for script in short]
    steps = [names["trainer"].global_step for names in done]
    assert steps[0] == 40 / 8 > steps[1] == steps[2] == steps[3]
    assert [type(names["train"]).__name__ for names in done] == ["Videos", "Videos", "VideoClips", "VideoClips"]
    for names in done:
        clips, labels = default_collate([names["val"][0], names["train"][39]])
        assert clips.shape == (2, 3, 16, 112, 112)
        assert labels.tolist() == [0, 1]
    assert all(Path(done[3]["train"].manifest.path(row)).is_relative_to(folder / "prepared") for row in range(40))


@pytest.mark.slow  # seven programs of 15 s each
@pytest.mark.smallest
def test_scripts_are_measured_on_made_videos(tmp_path):
    file = tmp_path / "result.json"
    small = ["--train", "8", "--val", "1", "--epochs", "2", "--scripts", "faster.md", "pyav_clips"]
    measure([str(tmp_path / "made"), *small, "--json", str(file)])
    rows = json.loads(file.read_text())["rows"]
    page, script = rows[:4], rows[4:]
    assert [row["steps"] for row in (page[0], script[0])] == [2 * 8 * 8 / 8, 12 * 8 * 8 / 8]
    for alone, *others in (page, script):
        assert all(0 < row["steps"] < alone["steps"] for row in others)
    assert ["prepare" in row for row in rows] == [False, False, False, True, False, False, True]
    assert all(0 <= row["accuracy"] <= 1 and row["cpu"] > 0 for row in rows)
    assert [row["variant"] for row in script] == ["alone", "line", "recommended"]
    assert script[0]["reads"] == 12 * 64 + 5 * 8 < script[1]["reads"]


@pytest.mark.parametrize("reader", ["PyavVideos", "TorchcodecVideos"])
def test_its_datasets_read_the_clips_of_video_clips(folder, monkeypatch, reader):
    if reader == "TorchcodecVideos":
        pytest.importorskip("torchcodec.decoders", exc_type=Exception)
    datasets = SCRIPT.partition("\ntrain = ")[0] + PYAV + (TORCHCODEC if reader == "TorchcodecVideos" else "")
    names = run(datasets, folder, monkeypatch)
    theirs = names[reader]("videos/train", train=True)
    ours = VideoClips("videos/train", frames=16, size=112, stride=2, transform=names["NORMALIZE"])
    assert clip_dataset(theirs) is theirs
    assert (theirs.frames, theirs.size, theirs.stride) == (ours.frames, ours.size, ours.stride)
    for seed, (frames, size) in enumerate([(16, 112), (8, 80), (4, 56)]):
        request = ClipRequest(index=7 * seed, frames=frames, size=size, seed=seed)
        clip, label = theirs.read_clip(request)
        same, its_label = ours.read_clip(request)
        assert clip.shape == (3, frames, size, size)
        assert torch.allclose(clip, same, atol=1e-5)
        assert label == its_label
