"""The benchmark of codecs runs, and the page shows its result."""

import json
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


def test_it_measures_each_kind_and_tables_show_it(monkeypatch, tmp_path, capfd):
    pytest.importorskip("torchcodec")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    main = runpy.run_path(str(BENCHMARKS / "benchmark_codecs.py"))["main"]
    main(["--seconds", "2", "--minutes", "0.05", "--clips", "1", "--json", str(tmp_path / "codecs.json")])
    rows = json.loads((tmp_path / "codecs.json").read_text())["rows"]
    assert len(rows) == 7
    for row in rows.values():
        assert row["ms"].keys() == {"ours", "PyAV, seeking", "torchcodec"}
        assert min(row["ms"].values()) > 0
        assert 0 < row["bytes"] <= row["bytes_per_minute"]
        assert 1 <= row["requests"] <= 3
    assert "CPU ms" in capfd.readouterr().out
    table = runpy.run_path(str(BENCHMARKS / "results" / "tables.py"))
    assert "| `codecs.json` | H.264, only keyframes | " in "".join(table["made_of"](tmp_path, table["KINDS"]))
