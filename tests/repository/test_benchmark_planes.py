"""The benchmark of files of planes runs."""

import json
import runpy
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_it_measures_each_source_and_tables_show_it(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    main = runpy.run_path(str(BENCHMARKS / "benchmark_planes.py"))["main"]
    args = ["--made", "1", "--seconds", "1", "--sides", "32", "--frames", "4", "8", "--rounds", "1", "--clips", "2"]
    main([*args, "--json", str(tmp_path / "planes.json")])
    report = json.loads((tmp_path / "planes.json").read_text())
    assert [(row["side"], row["frames"]) for row in report["rows"]] == [(32, 4), (32, 8)]
    assert all(row[name]["cpu_ms"] > 0 for row in report["rows"] for name in ("original", "copy", "planes"))
    assert "32 pixels, 8 frames: CPU ms (wall) original " in capsys.readouterr().out
    table = runpy.run_path(str(BENCHMARKS / "results" / "tables.py"))
    assert "| `planes.json` | 32 | 4 | " in "".join(table["made_of"](tmp_path, table["KINDS"]))
