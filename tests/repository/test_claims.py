"""Measured numbers in sentences are those of the JSON files: each sentence is made again from them, and must be there.

Tables between marks are compared in `test_benchmarks.py` and `test_tasks.py`.
"""

import json
import re
import runpy
from functools import cache
from itertools import product
from pathlib import Path
from statistics import mean, median, stdev

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
RUN = ROOT / "benchmarks" / "tasks" / "run.py"

# What the pages say of others' numbers, or print of a run or a plan that the reader repeats.
NOT_OURS = (
    "the paper reports 3.3 to 6.5x",
    "in 239 epochs, 3.42x fewer iterations, 3.43x fewer FLOPs",  # a doctest
    "multigrid 1.0x, 1.5x, 2.0x",  # names of recipes
    "`slowfast_multigrid_1.0x` `_2.0x`",
)


@cache
def report(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


@cache
def trainings(task):
    """All trainings of a task, by their row."""
    return {one.row: one for one in runpy.run_path(str(RUN))["trainings"](task)}


class Row:
    """A training beside its task's baselines: the whole one, and that of the shorter ones that takes as much time."""

    def __init__(self, task, row):
        self.one = trainings(task)[row]
        baselines = [one for name, one in trainings(task).items() if name.endswith("_epochs")]
        whole = max(baselines, key=lambda one: one.cpu)
        shorter = [one for one in baselines if one is not whole]
        cut = min(shorter, key=lambda one: abs(one.cpu - self.one.cpu), default=whole)
        self.end = 100 * mean(self.one.ends)
        self.time, self.time_of_cut = (100 * one.cpu / whole.cpu for one in (self.one, cut))
        self.below, self.cut_below = (100 * (mean(whole.ends) - mean(one.ends)) for one in (self.one, cut))
        self.above = self.cut_below - self.below


def beside(row):
    """The default's end, and those of the baseline and of the baseline of as much time."""
    ends = row.end, row.end + row.below, row.end + row.below - row.cut_below
    end, whole, cut = (f"{end:.1f} %" for end in ends)
    return f"it ends at {end} of top-1 instead of {whole}; a baseline of as much time ends at {cut}."


def trained():
    """What the default did on two tasks."""
    words, shapes = Row("grid_planes", "default"), Row("hard_shapes", "default")
    return [
        f"the training takes {words.time:.0f} % of the baseline's time, and {beside(words)}",
        f"From H.264 files it takes {Row('grid_words', 'default').time:.0f} %.",
        f"it takes {shapes.time:.0f} % of the time, and {beside(shapes)}",
    ]


def five_seeds():
    """What the default gains on words, seed by seed; a seed ends the same from planes and from H.264."""
    ends = {"default": {}, "16_epochs": {}}
    for task, (row, of_row) in product(("grid_words", "grid_planes"), ends.items()):
        one = trainings(task)[row]
        for run, end in zip(one.runs, one.ends, strict=True):
            assert of_row.setdefault(run.seed, end) == end
    gains = [100 * (end - ends["16_epochs"][seed]) for seed, end in ends["default"].items()]
    assert len(gains) == 5
    return [
        f"Over the five seeds of both tables, the default ends {mean(gains):.1f} points above the baseline of the same "
        f"seed, with a standard error of {stdev(gains) / 5**0.5:.1f}."
    ]


def error_by_clips(row, clips):
    """The standard error, in points, of an end that is a share of so many validation clips."""
    return (row.end * (100 - row.end) / clips) ** 0.5


def speedups(name):
    return report(f"gpu_{name}")["settings"]


def front():
    """The sentences of both front pages."""
    contiguous, slowfast = (speedups(name)["slowfast"] for name in ("steps", "steps_channels_last"))
    step = slowfast["grids"][0]["ms"]
    assert step < contiguous["grids"][0]["ms"]
    _, seconds, ends = gpu_training()
    steps, once = (Row("grid_48_steps", row) for row in ("default", "once"))
    return [
        *trained(),
        f"and {steps.below:.1f} points in",
        f"whose LR falls in steps, but with `one_pass=True` only {once.below:.1f}.",
        f"SlowFast's multigrid training takes {step / slowfast['speedup']:.0f} ms for each of the baseline's steps of "
        f"{step:.0f} ms: {slowfast['speedup']:.1f}x faster, with {slowfast['flops_bound']:.1f}x fewer FLOPs. In "
        f"contiguous memory it is {contiguous['speedup']:.1f}x faster",
        f"took {seconds[1]:.0f} s instead of {seconds[0]:.0f} s, and ended at {ends[1]:.1f} % instead of "
        f"{ends[0]:.1f} %",
    ]


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
    slowfast = kinds[0]["slowfast"]
    grids = slowfast["grids"]
    busy = [grid["profile"]["kernels_ms"] / grid["ms"] for grid in (*grids, *kinds[0]["i3d"]["grids"])]
    last = [kinds[1][name]["multigrid_hours"] / kinds[0][name]["multigrid_hours"] for name in ("slowfast", "i3d")]

    return [
        *rows,
        f"the GPU works for {100 * min(busy):.0f} to {100 * max(busy):.0f} % of a step of SlowFast and I3D",
        f"SlowFast's multigrid training takes {last[0]:.2f} of its time in contiguous memory, I3D's {last[1]:.2f}.",
        f"it has to deliver {slowfast['clips_per_second_mean']:.0f} clips per second on average, and "
        f"{slowfast['clips_per_second_most']:,.0f} on the coarsest grid",
    ]


def bytes_of_steps():
    ratios = {row["memory_format"]: row["ratio"]["bytes"] for row in report("operations")["rows"][:2]}
    return [
        f"by count, a step of SlowFast then moves {ratios['channels_last_3d']:.2f} times the bytes of one with plain "
        "BatchNorm"
    ]


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


def of_pairs(task):
    """The default's time of its baseline's, in %, of each seed that both have."""
    baselines, runs = (
        {run.seed: run.cpu for run in one.runs}
        for one in (max(trainings(task).values(), key=lambda one: one.cpu), trainings(task)["default"])
    )
    return [f"{100 * runs[seed] / cpu:.0f}" for seed, cpu in baselines.items()]


def pays():
    """What was trained, and what each part of the method brings and costs."""
    many, few, long = (Row(task, "default") for task in ("grid_many", "grid_few", "grid_48"))
    rows = "progressive frames_last one_shape fine_33 fine_67 short_cycle_off short_cycle_off_13 paper long_cycle_off "
    rows += "lr_sqrt lr_none"
    of = {row: Row("grid_planes", row) for row in rows.split()}
    ends = {name: f"{row.end:.1f} % in {row.time:.0f} %" for name, row in of.items()}
    [run] = of["fine_33"].one.runs
    middle = 100 * run.validations[1][2]["val/top1"]
    steps, small, letters = (Row(task, "default") for task in ("grid_48_steps", "grid_64", "avletters"))
    once = Row("grid_48_steps", "once")
    longest = Row("grid_96", "default")
    off = {task: Row(task, "short_cycle_off") for task in ("grid_64", "avletters", "transformer_10")}
    default = Row("grid_planes", "default")
    return [
        *trained(),
        *five_seeds(),
        f"It ends {steps.below:.1f} points below its baseline, in {steps.time:.0f} % of its time. By the clips alone, "
        f"each end has an error of {error_by_clips(steps, 1158):.1f} points, so that is beyond two standard errors of "
        f"both. The plan of an LR without stages (`one_pass=True`) ends at {once.end:.1f} % in {once.time:.0f} % of "
        f"the time, {once.below:.1f} points below the baseline, which is within two standard errors.",
        f"The default ends {-longest.below:.1f} points above its baseline. By the clips alone, its end has an error of "
        f"{error_by_clips(longest, 1158):.1f} points, so",
        f"beside their baselines took {' % and '.join(of_pairs('grid_96'))} % of their time.",
        f"By these clips alone, each end has an error of {error_by_clips(letters, 260):.0f} points.",
        f"The default ends {letters.below:.1f} points below its baseline, in {letters.time:.0f} % of its time; without "
        f"the short cycle, a training ends {-off['avletters'].below:.1f} points above it, in "
        f"{off['avletters'].time:.0f} %.",
        f"Without the short cycle, the CNN ends at {of['short_cycle_off'].end:.1f} % on words instead of "
        f"{default.end:.1f} % ({of['short_cycle_off'].time:.0f} % of the baseline's time instead of "
        f"{default.time:.0f} %), at {off['grid_64'].end:.1f} % on words of 64 pixels instead of {small.end:.1f} % "
        f"({off['grid_64'].time:.0f} % instead of {small.time:.0f} %), and at {off['avletters'].end:.1f} % on letters "
        f"instead of {letters.end:.1f} % ({off['avletters'].time:.0f} % instead of {letters.time:.0f} %). The "
        f"transformer ends at {off['transformer_10'].end:.1f} % instead of "
        f"{Row('transformer_10', 'default').end:.1f} %.",
        f"It ends at {long.end + long.below:.1f} %, the default at {long.end:.1f} %.",
        f"In {many.time:.0f} and {few.time:.0f} % of the baseline's time, the default ends {many.below:.0f} points "
        f"below it with all videos, and {few.below:.0f} with few. A baseline of as much time ends "
        f"{many.cut_below:.1f} and {few.cut_below:.1f} points below.",
        f"ends at {ends['progressive']} of the baseline's time, with its first coarse shape alone at "
        f"{ends['one_shape']}, and at {ends['frames_last']} if the size grows before the frames do",
        f"with a third of the steps, a training ends at {ends['fine_33']}; with two thirds, at {ends['fine_67']}",
        f"without it, a training ends at {ends['short_cycle_off']}, and of 1.3x at {ends['short_cycle_off_13']}; with "
        f"the paper's, which goes down to 24 pixels, at {ends['paper']}",
        f"without it, at {ends['long_cycle_off']}",
        f"by the square root of the clips, at {ends['lr_sqrt']}, and by the script's own, at {ends['lr_none']}",
        f"the training with a third of the steps fine has {middle:.0f} % halfway, and {of['fine_33'].end:.0f} % at its "
        "end.",
    ]


def evidence():
    [small] = report("speedup_small")["settings"].values()
    kills = (RESULTS / "verify_resume.txt").read_text()
    same, number = re.search(r"^(\d+)/(\d+) identical", kills, re.MULTILINE).groups()
    return [
        f"{same} of {number} trainings that were killed with `kill -9`",
        f"for a small CNN with clips in memory, all steps together are {small['speedup']:.1f}x faster "
        f"({small['flops_bound']:.1f}x fewer FLOPs)",
    ]


DECODERS = {"torchcodec": "torchcodec exact", "PySlowFast's way": "pyslowfast", "decord": "decord"}


def decoding():
    """Decoders, and the costs of tables."""
    real = report("decode_real")["files"]
    rows = [f"| file | ours, ms | {' | '.join(DECODERS)} |"]
    for name, file in real.items():
        of = file["table"]
        ratios = " | ".join(f"{of[method]['x ours']:.2f}" for method in DECODERS.values())
        rows.append(f"| {name} | {of['ours']['mean']:.1f} | {ratios} |")
    gains = [
        real[f"{name} ordinary"]["table"]["pyslowfast"]["mean"] / real[f"{name} prepared"]["table"]["ours"]["mean"]
        for name in ("arm_wrestling_340x256", "bikes_640x272")
    ]
    return [
        *rows,
        f"decoding prepared videos is {min(gains):.0f} to {max(gains):.0f} times as fast as PySlowFast's way on the "
        "originals",
    ]


def planes():
    """What files of planes save a worker."""
    rows = report("planes")["rows"]
    times = [row["copy"]["cpu_ms"] / row["planes"]["cpu_ms"] for row in rows]
    first, last = ([f"{row[name]['cpu_ms']:.1f}" for name in ("planes", "copy")] for row in (rows[0], rows[-1]))
    whole, default = (
        trainings("grid_planes")[row].cpu / trainings("grid_words")[row].cpu for row in ("16_epochs", "default")
    )
    return [
        f"A whole training on words of GRID takes {whole:.2f} of the CPU time of before, and with the callback "
        f"{default:.2f}",
        f"A clip takes {min(times):.1f} to {max(times):.1f} times less CPU time than from copies: 4 frames at 128 "
        f"pixels {first[0]} ms instead of {first[1]}, 32 frames at 256 pixels {last[0]} instead of {last[1]}",
    ]


def indexing():
    """What tables cost, and save."""
    files = report("decode_real")["files"] | report("decode_made")["files"]
    originals = {name: file for name, file in files.items() if name.endswith("ordinary")}
    minute = {name: file["costs of its table"]["CPU s for a minute of video"] for name, file in files.items()}
    small, large = minute["bikes_640x272 ordinary"], minute["1920x1080 ordinary"]
    slower = [file["table"]["ours, without a table"]["x ours"] for file in originals.values()]
    prepared, pays = [], []
    for name, file in originals.items():
        of, ms = file["table"], 1000 * file["costs of its table"]["CPU s to make it"]
        prepared.append(of["ours"]["mean"] / files[name.replace("ordinary", "prepared")]["table"]["ours"]["mean"])
        pays.append(ms / (of["ours, without a table"]["mean"] - of["ours"]["mean"]))
    return [
        f"a minute of video takes {small:.1f} CPU seconds at 640 x 272, and {large:.0f} at 1920 x 1080. At the smaller "
        f"size, 240,000 videos of ten seconds take about {240_000 / 6 * small / 3600:.0f} core-hours. A table pays for "
        f"itself after {min(pays):.0f} to {max(pays):.0f} clips.",
        f"a clip takes {min(slower):.1f} to {max(slower):.1f} times as long",
        f"from its copies, a clip takes {min(prepared):.1f} to {max(prepared):.0f} times less time",
    ]


def preparing():
    """What other settings of `prepare` save, and cost."""
    of = report("prepare")
    against = [file["against"]["veryfast"] for file in of["files"].values()]
    less = 100 - 100 * median(file["encode"] for file in against)
    loses = [-file["psnr_at_equal_bytes"] for file in against]
    more = 100 * median(file["bytes_at_equal_psnr"] for file in against) - 100
    fine, coarse = (of["by_crf"][crf] for crf in ("18", "24"))
    refs, parts = (
        median(file["against"][f"medium, {one}"]["psnr_at_equal_bytes"] for file in of["files"].values())
        for one in ("refs=1", "partitions=none")
    )
    return [
        f"`--preset veryfast` takes {less:.0f} % less CPU time. But with as many bytes its PSNR is {min(loses):.1f} to "
        f"{max(loses):.1f} dB lower, and for the same PSNR it takes {more:.0f} % more bytes.",
        f"`--crf 18` instead of 21 takes {fine['bytes']:.2f} times the bytes for {fine['psnr']:.1f} dB more, "
        f"{fine['encode_s']:.2f} times the CPU time, and {fine['clip_ms']:.2f} times that of a clip. `--crf 24` takes "
        f"{coarse['bytes']:.2f}, {coarse['encode_s']:.2f} and {coarse['clip_ms']:.2f} times, for {-coarse['psnr']:.1f} "
        "dB less.",
        f"medians of {len(against)} copies of {len({name.rpartition(' at ')[0] for name in of['files']})} videos",
        f"A single reference frame changed {abs(refs):.1f} dB and saved little time; blocks without partitions lost "
        f"{-parts:.1f} dB.",
    ]


def scripts():
    """The variants of each ordinary script, by its name."""
    found = {}
    for row in report("ordinary_scripts")["rows"]:
        found.setdefault(row["script"], []).append(row)
    return found


def ordinary():
    """Ordinary scripts: alone, with the line, from planes."""
    found, rows = scripts(), []
    del found["faster.md"]
    for alone, *others in found.values():
        cells = [f"{row['cpu']:.0f} ({100 * row['accuracy']:.0f})" for row in (alone, *others)]
        ratios = [f"**{row['cpu'] / alone['cpu']:.2f}x**: {cell}" for row, cell in zip(others, cells[1:], strict=True)]
        said = others[0]["said_at"] or "-"
        rows.append(f"| {cells[0]} | {' | '.join(ratios)} | {alone['reads']:,}, {others[0]['reads']:,} | {said} |")
    once = [of[-1]["prepare"]["cpu"] for of in found.values()]
    return [*rows, f"took {min(once):.0f} to {max(once):.0f} CPU seconds more"]


def faster():
    """The page's own script, after each of its diffs."""
    rows = scripts()["faster.md"]
    cells = [
        f"| {row['cpu']:.0f} | {row['cpu'] / rows[0]['cpu']:.2f} | {row['steps']} | {100 * row['accuracy']:.0f} % |"
        for row in rows
    ]
    return [*cells, f"took {rows[-1]['prepare']['cpu']:.0f} CPU seconds more"]


def speed():
    loops = report("overhead_cpu")["loops"]
    prepared = report("loader")["rows"][-1]
    return [
        *gpu(),
        *ordinary(),
        *bytes_of_steps(),
        *whole_training(),
        *decoding(),
        *planes(),
        *indexing(),
        *preparing(),
        f"and loading them {prepared['ours / pyslowfast on original (CPU)']:.0f} times.",
        f"Lightning with the callback took {loops['callback_ms_per_step']:.1f} ms more than a bare loop, "
        f"{100 * loops['callback_ratio'] - 100:.1f} % of steps of {loops['step_ms']:.0f} ms",
    ]


PAGES = {
    "README.md": front,
    "docs/index.md": front,
    "docs/evidence.md": evidence,
    "docs/pays.md": pays,
    "docs/faster.md": faster,
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
    if page == "docs/paper.md":  # made by a script, and compared in test_paper_rows.py
        return
    rest = words(ELSEWHERE.sub("", text))
    for known in [*PAGES.get(page, list)(), *NOT_OURS]:
        rest = rest.replace(words(known), " ")
    # Multigrid 1.5x and the like are names, of so many passes for each epoch.
    rest = re.sub(r"(?i)multigrid \d\.\dx", "", rest)
    assert re.findall(r".{30}(?:\b\d+\.\d+x\b|\d ± ).{30}", rest) == []
