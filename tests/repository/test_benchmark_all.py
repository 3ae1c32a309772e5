"""The script of all benchmarks: parts with limits, one file that is always up to date, and what a machine lacks."""

import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return lambda name: runpy.run_path(str(BENCHMARKS / f"{name}.py"))


@pytest.fixture
def sample(load, tmp_path, monkeypatch):
    """Runs dry parts in this process: a new one takes ten seconds to import torch."""
    threads = torch.get_num_threads()
    module, parts = load("benchmark_all"), {}
    for part in map(module["dry"], module["GPU"]):
        if part.name in ("machine", "fit", "loader"):
            file = tmp_path / f"{part.name}.json"
            device = [] if part.name == "loader" else ["--device", "cpu"]
            load(part.script)["main"]([*part.options.split(), "--json", str(file), *device])
            parts[part.name] = {"status": "done", "seconds": 1.0, "result": json.loads(file.read_text())}
    torch.set_num_threads(threads)
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "all.json").write_text(json.dumps({"benchmark": "all", "parts": parts}))
    return tmp_path / "all" / "all.json"


@pytest.mark.slow
def test_a_sample_of_the_parts_and_their_tables(sample, load, capsys):
    parts = json.loads(sample.read_text())["parts"]
    waiting = [grid["ms waiting"] for grid in parts["fit"]["result"]["grids"]]
    assert len(waiting) >= 4
    assert min(waiting) >= 0
    assert parts["fit"]["result"]["steps"] > 4
    assert parts["machine"]["result"]["copy_terabytes_per_second"] > 0
    made = runpy.run_path(str(BENCHMARKS / "results" / "tables.py"))
    tables = made["with_tables"](f"{made['START']}\n{made['END']}", sample.parent)
    assert all(f"| `all.json: {part}` |" in tables for part in parts)
    # A second call has nothing left to do.
    capsys.readouterr()
    assert load("benchmark_all")["main"](["--dry", "--results", str(sample), "--parts", *parts]) == 0
    printed = capsys.readouterr().out
    assert "==" not in printed
    assert re.search(r"^loader +45 +1  done$", printed, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_every_part_runs(tmp_path, load):
    environment = os.environ | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    call = [BENCHMARKS / "benchmark_all.sh", "--dry", "--results", str(tmp_path / "all.json")]
    outcome = subprocess.run(call, env=environment, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stdout
    names = [part.name for part in load("benchmark_all")["GPU"]]
    parts = json.loads((tmp_path / "all.json").read_text())["parts"]
    assert {name: part["status"] for name, part in parts.items()} == dict.fromkeys(names, "done"), parts
    assert list(parts) == names
    for part in parts.values():
        assert part["result"]["machine"]["device"]
        assert part["seconds"] < part["limit_seconds"]
    tests = parts["cuda_tests"]["result"]
    assert set(tests["counts"]) <= {"passed", "skipped"}
    assert len(tests["tests"]) > 8
    assert parts["slowfast_8_compiled_graphs"]["result"]["options"]["compile"] == "reduce-overhead"


def test_every_option_of_every_part_is_one(load, capsys):
    """`--help` last: it ends a script that has read all the other options."""
    module = load("benchmark_all")
    mains = {}
    for part in [*module["GPU"], *module["CPU"], *map(module["dry"], module["GPU"])]:
        main = mains.setdefault(part.script, load(part.script)["main"] if part.script not in mains else None)
        with pytest.raises(SystemExit) as left:
            main([*part.options.split(), "--help"])
        assert left.value.code == 0, (part, capsys.readouterr().err)


def test_names_and_times_of_the_parts(load):
    module = load("benchmark_all")
    parts = module["GPU"]
    assert len({part.name for part in parts}) == len(parts)
    assert all(part.seconds < part.limit for part in parts)
    # The first call ends before ten minutes, with all that the first machine is to show.
    names = [part.name for part in parts]
    first = parts[: names.index("slowfast_8_fp32") + 1]
    assert sum(part.seconds for part in first) < 9 * 60 - 20  # and the imports


class Scripts:
    """A folder of scripts that stand for benchmarks, and the module that runs them."""

    def __init__(self, module, folder, monkeypatch):
        self.module, self.folder = module, folder
        monkeypatch.setitem(module["Process"].__init__.__globals__, "BENCHMARKS", folder)

    def runner(self, limit=60.0, path=None):
        from types import SimpleNamespace

        path = path or self.folder / "all.json"
        results = self.module["Results"](path, {})
        options = SimpleNamespace(limit=limit, fresh=True, dry=False, device="cpu")
        return self.module["Runner"](results, options, self.folder)

    def part(self, name, body, seconds=1.0, limit=100.0, needs=()):
        (self.folder / f"{name}.py").write_text(f"import json, sys, time\n{body}\n")
        return self.module["Part"](name, name, "", seconds, limit, needs)


@pytest.fixture
def scripts(load, tmp_path, monkeypatch):
    return Scripts(load("benchmark_all"), tmp_path, monkeypatch)


WRITE = "open(sys.argv[sys.argv.index('--json') + 1], 'w').write(json.dumps({'round': 1}))"


def test_a_failed_part_does_not_end_the_others(scripts):
    runner = scripts.runner()
    failing = scripts.part("failing", f"{WRITE}\nraise ValueError('no such kernel')")
    working = scripts.part("working", WRITE)
    assert [runner.run(failing), runner.run(working)] == ["failed", "done"]
    parts = json.loads((scripts.folder / "all.json").read_text())["parts"]
    assert "no such kernel" in parts["failing"]["log"]
    assert parts["failing"]["result"] == parts["working"]["result"] == {"round": 1}


def test_a_part_is_cut_off_at_its_limit_and_what_it_wrote_stays(scripts):
    runner = scripts.runner()
    endless = scripts.part("endless", f"{WRITE}\ntime.sleep(600)", limit=1.5)
    began = time.monotonic()
    assert runner.run(endless) == "cut off"
    assert time.monotonic() - began < 200  # the part would take 600
    assert runner.results.parts["endless"]["result"] == {"round": 1}
    # A later try that fails before it writes anything leaves what was measured.
    assert scripts.runner().run(scripts.part("endless", "raise SystemExit(3)")) == "failed"
    assert json.loads((scripts.folder / "all.json").read_text())["parts"]["endless"]["result"] == {"round": 1}


def test_what_a_part_has_written_is_in_the_file_while_it_runs(scripts):
    """So nothing is lost if this script is killed."""
    runner, file = scripts.runner(), scripts.folder / "all.json"
    watching = scripts.part(
        "watching",
        f"""{WRITE}
until = time.monotonic() + 60
while time.monotonic() < until:
    parts = json.load(open({str(file)!r}))["parts"]
    if parts["watching"].get("result") == {{"round": 1}} and parts["watching"]["status"] == "running":
        sys.exit(0)
    time.sleep(0.1)
sys.exit(1)""",
    )
    file.write_text('{"parts": {"watching": {"status": "put off"}}}')
    assert runner.run(watching) == "done"


def test_parts_without_time_or_packages_are_put_off(scripts):
    runner = scripts.runner(limit=30)
    long = scripts.part("long", "", seconds=40)
    lacking = scripts.part("lacking", "", needs=("no-such-package",))
    assert [runner.run(long), runner.run(lacking)] == ["put off", "put off"]
    assert re.fullmatch(r"estimated at 40 s, and (2\d|30) s were left", runner.results.parts["long"]["why"])
    assert runner.results.parts["lacking"]["why"] == "needs no-such-package"
    assert runner.run(scripts.part("short", "")) == "done"


def test_a_refused_copy_is_started_afresh(scripts, monkeypatch):
    runner = scripts.runner()
    runner.copied, outcomes = True, iter(["failed", "done"])
    monkeypatch.setattr(runner, "_run", lambda part, limit: next(outcomes))
    assert runner.run(scripts.part("machine", "")) == "done"
    assert not runner.copied


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_an_end_by_a_signal_keeps_the_table(tmp_path):
    call = [sys.executable, str(BENCHMARKS / "benchmark_all.py"), "--dry", "--fresh", "--parts", "machine", "norm"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*call, "--results", str(tmp_path / "all.json")], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout.readline().startswith("== machine")
        process.send_signal(signal.SIGTERM)
        printed = process.stdout.read()
    assert re.search(r"^machine .* cut off$", printed, re.MULTILINE)
    assert re.search(r"^norm .* not run$", printed, re.MULTILINE)


def test_a_part_that_is_none_is_named(load, capsys):
    with pytest.raises(SystemExit, match="2"):
        load("benchmark_all")["main"](["--device", "cpu", "--parts", "speedup_small", "gap"])
    assert "no part gap on cpu; there are speedup_small, norm, overhead" in capsys.readouterr().err


def test_what_is_needed_is_what_the_package_says(load):
    needed = load("preflight")["needed_packages"]()
    assert {"av", "torch", "lightning", "jsonargparse", "typing-extensions"} <= set(needed)
    assert load("preflight")["missing_packages"](needed) == []


def test_preflight_says_how_to_carry_what_is_missing(load, monkeypatch, capsys):
    module = load("preflight")
    have = module["installed"]
    monkeypatch.setitem(module["missing_packages"].__globals__, "installed", lambda name: name != "av" and have(name))
    assert module["preflight"]() == 1
    printed = capsys.readouterr().out
    assert "Missing: av." in printed
    assert re.search(r"pip download --no-deps .* -d wheels av$", printed, re.MULTILINE)
    assert "pip install --no-index --no-deps" in printed


def test_all_that_another_machine_lacks(load, tmp_path, capsys):
    """jsonargparse's own needs are found, those of what is there are not."""
    module = load("preflight")
    there = tmp_path / "there.txt"
    have = set(module["closure"](module["needed_packages"](), set())) - {"jsonargparse", "docstring-parser", "av"}
    there.write_text("\n".join(f"{name.replace('-', '_')}==1.0" for name in sorted(have)))
    assert module["main"](["--there", str(there), "--python", "3.12"]) == 0
    printed = capsys.readouterr().out
    assert set(re.findall(r"([\w-]+)==", printed)) >= {"av", "jsonargparse", "docstring-parser"}
    assert "torch==" not in printed
    assert "--python-version 3.12" in printed
