"""The benchmark of decoders runs, and its methods give the same frames."""

import json
import runpy
import sys
from pathlib import Path

import av
import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "benchmark_decode.py"


@pytest.fixture
def main(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARK.parent))
    for name in ("torchcodec", "torchcodec.decoders", "decord", "cv2"):
        monkeypatch.setitem(sys.modules, name, None)  # as if not installed
    return runpy.run_path(str(BENCHMARK))["main"]


def test_it_measures_ordinary_prepared_and_long_files(main, tmp_path, capsys):
    args = ["--sizes", "64x48", "--seconds", "2.2", "--long", "0.1", "--rounds", "1", "--clips", "1"]
    main([*args, "--json", str(tmp_path / "decode.json")])
    report = json.loads((tmp_path / "decode.json").read_text())
    assert list(report["files"]) == ["64x48 ordinary", "64x48 prepared", "64x48 ordinary, 0.1 minutes"]
    names = ["ours", "ours, YUV", "ours, without a table", "pyslowfast", "pyav"]
    for name, file in report["files"].items():
        is_long = "minutes" in name
        assert file["same"] == dict.fromkeys([*names[:2], "pyslowfast"] if is_long else names, True)
        assert file["table"]["ours"]["x ours"] == 1
        assert [len(file["ms"][grid]["pyslowfast"]) for grid in file["ms"]] == [1, 1, 1]
        assert file["costs of its table"]["CPU s to make it"] > 0
    assert report["machine"]["av"] == av.__version__
    printed = capsys.readouterr().out
    assert "not installed: torchcodec exact" in printed
    assert "clips/s/core" in printed


def test_a_folder_without_videos_is_named(main, tmp_path, capsys):
    (tmp_path / "text.mp4").write_text("text")
    with pytest.raises(SystemExit):
        main(["--videos", str(tmp_path)])
    assert "no H.264 file of 64 frames or more in mp4 there" in capsys.readouterr().err
