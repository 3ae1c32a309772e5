"""Measured numbers in sentences are those of the JSON files: each sentence is made again from them, and must be there.

Tables between marks are compared in `test_benchmarks.py` and `test_tasks.py`.
"""

import json
import re
import runpy
from functools import cache
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
RUN = ROOT / "benchmarks" / "tasks" / "run.py"

# What a plan prints that the reader repeats: a doctest.
NOT_OURS = ("in 239 epochs, 3.42x fewer iterations, 3.43x fewer FLOPs",)


@cache
def report(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


@cache
def trainings(task):
    """All trainings of a task, by their row."""
    return {one.row: one for one in runpy.run_path(str(RUN))["trainings"](task)}


def saves():
    """What the default takes of its baselines' steps and CPU time, in the least and the most of the tasks."""
    steps, times = [], []
    for task in (task for task in runpy.run_path(str(RUN))["TASKS"] if "default" in trainings(task)):
        whole = max((one for name, one in trainings(task).items() if name.endswith("_epochs")), key=lambda one: one.cpu)
        default = trainings(task)["default"]
        steps.append(100 * default.runs[0].steps / whole.runs[0].steps)
        times.append(100 * default.cpu / whole.cpu)
    return [
        f"In our trainings on CPUs, the default took {min(steps):.0f} to {max(steps):.0f} % of the baseline's "
        f"iterations and {min(times):.0f} to {max(times):.0f} % of its time: the least for clips of 64 pixels or more. "
        "Smaller ones end higher, so fewer epochs do."
    ]


def pays():
    """When it pays: what the tables don't show."""
    wide = [f"{100 * end:.0f}" for end in trainings("grid_wide")["16_epochs"].ends]
    stages, other = (trainings(task)["stages"] for task in ("grid_48_steps", "grid_64_steps"))
    share = 100 * other.cpu / trainings("grid_64_steps")["16_epochs"].cpu
    return [
        *saves(),
        f"At 96 px, the baselines ended at {wide[0]}, {wide[1]} and {wide[2]} %",
        f"In 48 epochs of 48 pixels it ended lower ({100 * sum(stages.ends) / len(stages.ends):.1f} %), in 16 of 64 "
        f"pixels as its baseline, in {share:.0f} % of the time.",
    ]


def speedups(name):
    return report(f"gpu_{name}")["settings"]


MODELS = {"slowfast": "SlowFast R50", "i3d": "I3D R50", "i3d_nl": "I3D-NL R50", "mvit": "MViTv2-S"}


def gpu():
    """Steps on a GPU."""
    kinds = [speedups(name) for name in ("steps", "steps_channels_last", "steps_cuda_graphs")]
    kinds[0] = kinds[0] | speedups("steps_mvit")
    rows = []
    for name, title in MODELS.items():
        found = [kind.get(name) for kind in kinds]
        cells = [f"{of['speedup']:.2f}x ({of['grids'][0]['ms']:.0f} ms)" if of else "-" for of in found]
        rows.append(f"| {title} | {found[0]['baseline']} | {' | '.join(cells)} | {found[0]['flops_bound']:.2f}x |")
    return rows


def gpu_training():
    """The one training on a GPU: its baseline and its multigrid training, their seconds, and their top-1."""
    both = [report(f"gpu_shapes/default/{name}-0") for name in ("baseline", "multigrid")]
    seconds = [sum(one["account"].values()) for one in both]
    return both, seconds, [100 * one["validations"][-1][2]["val/top1"] for one in both]


def whole_training():
    """The one training on a GPU."""
    (long, short), seconds, ends = gpu_training()
    return [
        f"it lost {ends[0] - ends[1]:.0f} points",
        f"the wall clock of `fit` fell from {seconds[0]:.0f} to {seconds[1]:.0f} s, with {short['steps']:,} steps "
        f"instead of {long['steps']:,}, and top-1 from {ends[0]:.1f} to {ends[1]:.1f} %",
    ]


def evidence():
    kills = (RESULTS / "verify_resume.txt").read_text()
    same, number = re.search(r"^(\d+)/(\d+) identical", kills, re.MULTILINE).groups()
    theirs, ours = re.findall(
        r"^(\d+) tests .*, (\d+) of", (RESULTS / "torch_loader_tests.txt").read_text(), re.MULTILINE
    )[0]
    kept = f"{same} of {number} trainings that were killed with `kill -9`"
    passed = f"**The loader** passes {ours} of {theirs} tests that torch has of its own"
    parts = gpu, whole_training, leaks, ordinary, readers, planes, preparing
    return [kept, passed, *(claim for claims in parts for claim in claims())]


def readers():
    """Frames that are not those that were asked for; and what a clip costs with other readers."""
    of = report("readers")
    wrong = {name: sum(counts.get("wrong", 0) for counts in kinds.values()) for name, kinds in of["counts"].items()}
    assert wrong.pop("ours") == 0 < min(wrong.values())
    for file in report("decode_real")["files"].values():
        assert min(file["table"][name]["x ours"] for name in ("torchcodec exact", "pyslowfast", "decord")) > 1
    return [f"On {sum(of['kinds'].values())} files with unusual times"]


def leaks():
    """What a training keeps of each mini-batch: bytes, and neither open files nor threads."""
    rows = (report("leaks")["rows"] | report("leaks_own")["rows"]).values()
    assert len(rows) == 5
    assert all(row[name] < 0.1 for row in rows for name in ("files", "threads"))
    most = max(row["bytes"] for row in rows) / 1000
    return [f"memory grows by at most {most:.0f} bytes a mini-batch, open files and threads do not"]


def planes():
    """What files of planes save a worker."""
    rows = report("planes")["rows"]
    times = [row["copy"]["cpu_ms"] / row["planes"]["cpu_ms"] for row in rows]
    return [f"Planes take {min(times):.1f} to {max(times):.1f} times less CPU time than copies"]


def speed():
    """What frame tables cost, and when they pay."""
    files = report("decode_real")["files"] | report("decode_made")["files"]
    originals = {name: file for name, file in files.items() if name.endswith("ordinary")}
    minute = {name: file["costs of its table"]["CPU s for a minute of video"] for name, file in files.items()}
    small, large = minute["bikes_640x272 ordinary"], minute["1920x1080 ordinary"]
    pays = []
    for file in originals.values():
        of, ms = file["table"], 1000 * file["costs of its table"]["CPU s to make it"]
        pays.append(ms / (of["ours, without a table"]["mean"] - of["ours"]["mean"]))
    return [
        f"a minute of video takes {small:.1f} CPU seconds at 640 x 272, and {large:.0f} at 1920 x 1080. A table pays "
        f"for itself after {min(pays):.0f} to {max(pays):.0f} clips."
    ]


def preparing():
    """What other settings of `prepare` save, and cost."""
    of = report("prepare")
    against = [file["against"]["veryfast"] for file in of["files"].values()]
    less = 100 - 100 * median(file["encode"] for file in against)
    more = 100 * median(file["bytes_at_equal_psnr"] for file in against) - 100
    fine, coarse = (of["by_crf"][crf] for crf in ("18", "24"))
    return [
        f"`--crf 18` instead of 21 takes {fine['bytes']:.2f} times the bytes for {fine['psnr']:.1f} dB more; "
        f"`--crf 24` takes {coarse['bytes']:.2f} times the bytes for {-coarse['psnr']:.1f} dB less. "
        f"`--preset veryfast` takes {less:.0f} % less CPU time, and for the same quality {more:.0f} % more bytes"
    ]


def scripts():
    """The variants of each ordinary script, by its name."""
    found = {}
    for row in report("ordinary_scripts")["rows"]:
        found.setdefault(row["script"], []).append(row)
    return found


def ordinary():
    """Ordinary scripts: alone, with the line, from planes."""
    found = scripts()
    del found["faster.md"]
    line, planes = ([of[number]["cpu"] / of[0]["cpu"] for of in found.values()] for number in (1, 2))
    assert max(of[1]["said_at"] or 0 for of in found.values()) <= 10
    return [
        f"With the line alone they took {min(line):.2f} to {max(line):.2f} of their time",
        f"from planes, {min(planes):.2f} to {max(planes):.2f}.",
    ]


def faster():
    """The page's own script, after each of its diffs."""
    rows = scripts()["faster.md"]
    cells = [
        f"| {row['cpu']:.0f} | {row['cpu'] / rows[0]['cpu']:.2f} | {row['steps']} | {100 * row['accuracy']:.0f} % |"
        for row in rows
    ]
    return [*cells, f"took {rows[-1]['prepare']['cpu']:.0f} CPU seconds more"]


def questions():
    """What a clip costs by codec and container, and from a server."""
    rows, of = [], report("codecs")
    for kind, row in of["rows"].items():
        ms = " | ".join(f"{row['ms'][name]:.0f}" for name in ("PyAV, seeking", "torchcodec", "ours"))
        rows.append(f"| {kind} | {row['bytes_per_minute'] / 1e6:.1f} | {ms} | {row['bytes'] / 1e3:.0f} |")
    first, *_ = of["rows"].values()
    assert first["requests"] == 1
    size = first["bytes_per_minute"] * of["options"]["minutes"] / 1e6

    read = f"{first['bytes'] / 1e3:.0f} KB"
    return [*rows, f"one request of {read} for a clip of 16 frames, from a file of {size:.0f} MB"]


PAGES = {
    "docs/pays.md": pays,
    "docs/evidence.md": evidence,
    "docs/faster.md": faster,
    "docs/questions.md": questions,
    "docs/speed.md": speed,
}
ELSEWHERE = re.compile(r"<!-- made by .*?<!-- end -->", re.DOTALL)  # what is made, and compared, elsewhere


def words(text):
    return " ".join(text.split())


@pytest.mark.parametrize("page", PAGES)
def test_sentences_with_numbers_are_those_of_the_files(page):
    text = words((ROOT / page).read_text())
    assert [sentence for sentence in PAGES[page]() if words(sentence) not in text] == []


@pytest.mark.parametrize("page", ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_no_ratio_or_deviation_stands_without_a_file(page):
    """A factor (1.5x) or a deviation that no sentence above makes, nor a published one, fails here."""
    text = (ROOT / page).read_text()
    rest = words(ELSEWHERE.sub("", text))
    for known in [*PAGES.get(page, list)(), *NOT_OURS]:
        rest = rest.replace(words(known), " ")
    # Multigrid 1.5x and the like are names, of so many passes for each epoch.
    rest = re.sub(r"(?i)multigrid \d\.\dx", "", rest)
    assert re.findall(r".{30}(?:\b\d+\.\d+x\b|\d ± ).{30}", rest) == []
