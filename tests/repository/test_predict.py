"""The predicted table is made of counts, and what it says follows from the counts."""

import json
import re
import runpy
from pathlib import Path

import pytest
from step_count import StepCount

from lightning_multigrid import BatchShape

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
COUNTED = BENCHMARKS / "results" / "predicted.json"
H200 = 989.5e12 * 0.8  # FLOP/s of a large matrix product


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return runpy.run_path(str(BENCHMARKS / "predict.py"))


def counts_by_points(script, name, clips, flops=0.0, launches=0):
    """Counts of a setting with so many FLOPs for a point of a clip."""
    schedule = script["schedule_of"](script["SETTINGS"][name], clips)
    grids = [(schedule.baseline.shape, 0), *schedule.grids_of_statistics]
    return {grid: StepCount(round(flops * grid[0].points), 1, 1, launches) for grid in grids}


def test_hours_of_kinetics(script):
    """Steps of 4 clips, each of 1 PFLOP, by hand."""
    setting = script["SETTINGS"]["slowfast"]
    shape = BatchShape(4, 32, 224)
    counts = counts_by_points(script, "slowfast", 4, flops=1e15 / shape.points)
    told = script["predict"](setting, 4, counts, "h200", half=True)
    before, after = script["gpu_hours"](setting, told)
    assert before == pytest.approx(239 * 240_000 / 4 * (1e15 / H200) / 3600)
    assert before / after == pytest.approx(told.schedule.flop_reduction)
    assert script["bounds"](told) == "compute; 10 compute"
    # If the host bounds all steps, four times the clips take a quarter of the hours.
    hours = []
    for clips in (4, 16):
        counts = counts_by_points(script, "slowfast", clips, launches=1000)
        told = script["predict"](setting, clips, counts, "h200", half=True)
        assert script["bounds"](told) == "host; 10 host"
        hours.append(script["gpu_hours"](setting, told))
    assert hours[0] == pytest.approx([4 * hour for hour in hours[1]], rel=0.02)


def test_counts_are_taken_from_a_file(script, tmp_path, capsys, monkeypatch):
    counts = counts_by_points(script, "i3d_1gpu", 8, flops=1000.0)
    asked = []

    def count(setting, clips, half):
        asked.append(half)
        return counts

    monkeypatch.setitem(script["main"].__globals__, "count", count)
    file = str(tmp_path / "counts.json")
    options = ["--setting", "i3d_1gpu", "--gpu", "h200", "a100"]
    script["main"]([*options, "--json", file])
    first = capsys.readouterr().out
    assert len(first.splitlines()) == 2 + 2
    script["main"]([*options, "--counted", file])
    assert capsys.readouterr().out == first
    assert asked == [True]
    script["main"]([*options, "--counted", file, "--precision", "tf32", "--grids"])  # has other bytes
    assert asked == [True, False]
    assert "i3d_1gpu, 8 clips, H200, tf32, 16 workers, predicted:\n" in capsys.readouterr().out


def test_tables_of_documents_are_those_of_the_counts(script):
    tables = 0
    for document in script["DOCUMENTS"]:
        text = document.read_text()
        assert script["with_tables"](text, COUNTED) == text, "run `predict.py --counted ... --documents`"
        tables += text.count("<!-- made by predict.py")
    assert tables == 3


def test_estimates_of_the_parts_hold_their_counts(script):
    """And half of them would be wrong by twice before a part is cut off."""
    counted = json.loads(COUNTED.read_text())["counted"]
    counted = {key: found | {"counts": script["as_counts"](found["counts"])} for key, found in counted.items()}
    seconds = {part: script["part_seconds"](part, counted) for part in script["GPU"]}
    known = {part.name: found for part, found in seconds.items() if found is not None}
    assert {"slowfast_8", "i3d_8", "i3d_nl_8", "slowfast_2", "slowfast_32", "slowfast_8_fp32"} <= set(known)
    for part, found in seconds.items():
        if found is not None:
            assert found <= part.seconds <= part.limit / 1.5, part


def test_the_table_says_what_it_is():
    text = (ROOT / "docs" / "measurements.md").read_text()
    section = re.search(r"^## [^\n]*predict.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL | re.IGNORECASE)[0]
    assert "not measured" in section
