"""Measured numbers in sentences are those of the JSON files: each sentence is made again from them, and must be there.

The tables of `benchmarks/results/README.md` are compared in `test_benchmarks.py` and `test_compare.py`.
"""

import json
import re
from functools import cache
from pathlib import Path
from statistics import mean, stdev

import pytest
from pays import OF_LENGTHS, _seconds, firsts, levers, pairs, soonest, table

from lightning_multigrid.reports import BASELINE, MULTIGRID, SHORTENED, Comparison
from lightning_multigrid.reports.account import STEPS, VALIDATION, WAITING
from lightning_multigrid.reports.changed_meaning import SHORT

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"

# What the pages say of others' numbers, or print of a run or a plan that the reader repeats.
NOT_OURS = (
    "the paper reports 3.3 to 6.5x",
    "358 epochs instead of 239, 3.43x fewer iterations, 3.44x fewer FLOPs",  # a doctest
    "multigrid 1.0x, 1.5x, 2.0x",  # names of recipes
    "`slowfast_multigrid_1.0x` `_2.0x`",
    "multigrid trains 1.5x the epochs",
)


@cache
def report(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


@cache
def runs(folder, variant):
    return [json.loads(file.read_text()) for file in sorted((RESULTS / folder).glob(f"{variant}-seed*.json"))]


def spread(folder, variant, key, digits=0, unit=1.0):
    values = [unit * run[key] for run in runs(folder, variant)]
    return f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f}"


def top1(folder, variant):
    return spread(folder, variant, "top1", 1, 100)


def accuracy(folder, variant):
    return mean(run["top1"] for run in runs(folder, variant))


def steps(folder, variant):
    return f"{runs(folder, variant)[0]['steps']:,}"


def faster(folder, variant, key):
    pairs = zip(runs(folder, "baseline"), runs(folder, variant), strict=True)
    return [baseline[key] / run[key] for baseline, run in pairs]


def speedup(name):
    (setting,) = report(name)["settings"].values()
    return setting


def norm_ratios(kind, key="ours"):
    """Ratios over both machines, of contiguous clips without a remainder (`plain`) or of the others."""
    rows = [row for name in ("norm_cpu", "norm_epyc") for row in report(name)["rows"] if key in row["ratio"]]
    plain = [row for row in rows if "channels_last" not in row["variant"] and row["shape"][0] % 8 == 0]
    chosen = plain if kind == "plain" else [row for row in rows if row not in plain]
    return sorted(row["ratio"][key] for row in (rows if kind == "all" else chosen))


def compared(folder, before=0.0):
    """A table of what `compare` found; what came `before` a training counts for all variants, in seconds."""
    comparison, rows = Comparison(RESULTS / folder), []
    for name, variant in (
        ("Baseline", BASELINE),
        ("**Multigrid 1.5x**, the default", MULTIGRID),
        ("Baseline, shortened to multigrid's time", SHORTENED),
    ):
        of_variant, ends = comparison.runs[variant], [100 * end for end in comparison.ends(variant)]
        [(epochs, steps)] = {(run.epochs, run.steps) for run in of_variant}
        clocks = [before + run.seconds for run in of_variant]
        faster = f"{(before + comparison.seconds(BASELINE)) / mean(clocks):.1f}x"
        shown = {BASELINE: "", MULTIGRID: f"**{faster}** "}.get(variant, f"{faster} ")
        end = f"{mean(ends):.1f} ± {stdev(ends):.1f}"
        rows.append(f"| {name} | {epochs} | {steps:,} | {end} | {mean(clocks):.0f} ± {stdev(clocks):.0f} | {shown}|")
    return rows


def front():
    """The table of the README and of the front page."""
    comparison = Comparison(RESULTS / "quickstart")
    spent = [mean(run.account[kind] for run in comparison.runs[MULTIGRID]) for kind in (STEPS, WAITING, VALIDATION)]
    whole = comparison.seconds(MULTIGRID)
    return [
        *compared("quickstart"),
        "of the {:.0f} s, {:.0f} are steps, {:.0f} wait for data, and {:.0f} validate.".format(whole, *spent),
    ]


def own():
    """Folders of 400 and 2,000 videos, trained as `init` writes it."""
    told = []
    for folder in ("own_videos_400", "own_videos_2000"):
        before = report(f"{folder}/init")["seconds"]
        told += [f"`init` took {before:.0f} s", *compared(folder, before)]
    return told


def few():
    """A folder of 60 videos, for which `init` writes the plain baseline."""
    found = Comparison(RESULTS / "own_videos_60")
    [steps] = {run.steps for run in found.runs[MULTIGRID]}
    assert {*found.ends(BASELINE), *found.ends(MULTIGRID), *found.ends(SHORTENED)} == {1.0}
    seconds = [f"{found.seconds(variant):.0f} s" for variant in (BASELINE, MULTIGRID, SHORTENED)]
    return [
        f"multigrid would have {steps} steps. All ends are 100 % there: of the baseline after {seconds[0]}, with the "
        f"callback after {seconds[1]}, of a shortened baseline after {seconds[2]}."
    ]


def toy():
    """The table of the evidence page."""
    rows, baselines = [], runs("cnn_40", "baseline")
    for name, variant in (
        ("Baseline, 40 epochs", "baseline"),
        ("Multigrid 1.0x", "multigrid_1.0x"),
        ("**Multigrid 1.5x**, the default", "multigrid_1.5x"),
        ("Multigrid 2.0x", "multigrid_2.0x"),
        ("Baseline, as many steps as multigrid 1.5x", "short_1.5x"),
    ):
        clocks = _seconds(baselines, runs("cnn_40", variant))  # None: trained on another day
        took = f"{clocks[1]:.0f}" if clocks else ""
        faster = f"{clocks[0] / clocks[1]:.1f}x" if clocks and variant != "baseline" else ""
        cells = name, steps("cnn_40", variant), top1("cnn_40", variant), took, faster
        rows.append(" ".join(["|", " | ".join(cells), "|"]))
    return rows


def lips():
    """AVLetters: three seeds, people held out, and single runs beside them."""
    epochs = {run["variant"]: round(run["epochs"], 1) for run in runs("lips", "*")}
    rows = [
        f"| {name} | {epochs[variant]:g} | {steps('lips', variant)} | {top1('lips', variant)} |"
        for name, variant in (
            ("Baseline", "baseline"),
            ("Multigrid 1.0x", "multigrid_1.0x"),
            ("**Multigrid 1.5x**, the default", "multigrid_1.5x"),
            ("Multigrid 2.0x", "multigrid_2.0x"),
            ("Baseline, as many steps as multigrid 1.5x", "short_1.5x"),
            ("Baseline, about as much time, its LR", "short_1.5x_time_lr1"),
            ("The same, LR x 2", "short_1.5x_time_lr2"),
            ("The same, LR x 4", "short_1.5x_time_lr4"),
        )
    ]
    whole = runs("lips", "baseline")
    times = [_seconds(whole, runs("lips", f"multigrid_{factor}x")) for factor in ("1.0", "1.5", "2.0")]
    of_time = [f"{100 * ours / theirs:.0f}" for theirs, ours in times]
    (half,) = runs("lips", "short_1.5x_time_lr0.5")
    folds = runs("lips_people", "baseline"), runs("lips_people", "multigrid_1.5x")
    assert [run["seed"] for run in folds[0]] == [run["seed"] for run in folds[1]] == list(range(5))
    strangers = [f"{100 * mean(run['top1'] for run in of_variant):.1f}" for of_variant in folds]
    apart = [100 * (own["top1"] - run["top1"]) for run, own in zip(*folds, strict=True)]
    error = 2 * stdev(apart) / len(apart) ** 0.5
    seconds = _seconds(*folds)
    single = {run["name"]: run for run in report("lips_single/single_runs")}
    short, longer, root, long = (
        single[name] for name in ("baseline of 19 epochs", "baseline of 38 epochs", "square root", "epoch_factor 3")
    )
    tuned = [f"{100 * single[name]['top1']:.1f}" for name in ("tuning, LR 0.005", "tuning, LR 0.015")]
    return [
        *rows,
        f"Of the baseline's CPU time, with decoding, multigrid took {of_time[0]}, {of_time[1]} and {of_time[2]} %",
        f"half of its LR ended at {100 * half['top1']:.1f} %",
        f"the baseline ended at {strangers[0]} %, and multigrid 1.5x at {strangers[1]} %, in "
        f"{100 * seconds[1] / seconds[0]:.0f} % of its CPU time. The error of the difference is {error:.0f} points",
        f"With the square root of the LR's scale it ended at {100 * root['top1']:.1f} %, and with `epoch_factor: 3`, "
        f"{long['steps']:,} steps, at {100 * long['top1']:.1f} %.",
        f"A baseline of 38 epochs, {longer['steps']:,} steps, ended at {100 * longer['top1']:.1f} %.",
        f"So multigrid (with the square root) took {root['cpu_seconds']} s of CPU time, decoding and validation "
        f"included, where a baseline of 19 epochs took {short['cpu_seconds']} s; with `epoch_factor: 3` "
        f"{long['cpu_seconds']} s, where the one of 38 epochs took {longer['cpu_seconds']} s.",
        f"an LR of 0.005 ended at {tuned[0]} %, one of 0.015, in steps and with a wider range of crops, at "
        f"{tuned[1]} %",
    ]


def scalings():
    """The transformer's LR, by this version."""
    folders = "transformer_10", "transformer_60", "fine_tuning"
    rows = ("not scaled", "unscaled"), ("**square root**, the default", "multigrid_1.5x"), ("linear", "linear")
    return [f"| {name} | {' | '.join(top1(folder, variant) for folder in folders)} |" for name, variant in rows]


def growing():
    """Regularisation in proportion to the grid."""
    rows = ("as it is", "multigrid"), ("growing with the grid", "growing"), ("as strong on all grids", "regularised")
    return [
        f"| {name} | {top1('transformer_10', f'{kind}_1.5x')} | "
        f"{top1('cnn_40', f'{kind}_1.0x' if kind == 'multigrid' else f'{kind}_1x')} |"
        for name, kind in rows
    ]


def measured():
    """What `pays.py` makes of all runs."""
    found = pairs()
    default = {(p.task, p.epochs): p for p in found if p.factor == 1.5 and p.steps[1] < SHORT}
    larger = {(p.task, p.epochs): p for p in found if p.factor >= 2.5}
    both = [(default[key], larger[key]) for key in default if key in larger]
    lost = [-low.gained for low, _ in both]
    gained = [high.gained for _, high in both]
    shares = [100 * high.seconds[1] / high.seconds[0] for _, high in both if high.seconds]
    of_lengths = [pair for pair in found if pair.task in OF_LENGTHS]
    enough, half = (
        [
            next(p for p in found if (p.task, p.epochs, p.factor) == (*of, 1.5))
            for of in zip(OF_LENGTHS[:2] + OF_LENGTHS[3:], lengths, strict=True)
        ]
        for lengths in ((20, 40, 60), (10, 20, 30))
    )
    took = [100 * p.seconds[1] / p.seconds[0] for p in enough]
    sooner = {
        task: [
            (round(before.epochs), 100 * share)
            for before, first, share in firsts(of_lengths)
            if first and before.task == task
        ]
        for task in OF_LENGTHS
    }
    shapes = [share for task in OF_LENGTHS[:2] for _, share in sooner[task]]
    long, shorter = (
        [share for epochs, share in sooner[OF_LENGTHS[3]] if (epochs >= 30) == is_long] for is_long in (True, False)
    )
    assert min(share for _, share in sooner[OF_LENGTHS[2]]) > 100
    worst = min(run["top1"] for run in runs("cnn_28", "baseline"))
    return [
        *table(found).splitlines(),
        *soonest(of_lengths).splitlines(),
        *levers().splitlines(),
        f"the callback ended within {max(abs(p.gained) for p in enough):.1f} points of its baseline, in "
        f"{min(took):.0f} to {max(took):.0f} % of its time. At half of that length it ended "
        f"{-max(p.gained for p in half):.0f} to {-min(p.gained for p in half):.0f} points below.",
        f"{enough[0].steps[1]:,} were enough for easy shapes, and {half[2].steps[1]:,} too few for the transformer.",
        f"the CNN on shapes took {min(shapes):.0f} to {max(shapes):.0f} % of the time of its baselines, the "
        f"transformer {min(long):.0f} to {max(long):.0f} % from thirty epochs on and {min(shorter):.0f} to "
        f"{max(shorter):.0f} % below",
        f"as one of the baseline of 28 epochs did at {100 * worst:.1f} %",
        f"In the {len(both)} short trainings that had both, the default factor ended {min(lost):.0f} to "
        f"{max(lost):.0f} points below its baseline, and one of 2.5 or 3 from {-min(gained):.0f} points below to "
        f"{max(gained):.0f} above, the CNN in {min(shares):.0f} to {max(shares):.0f} % of its time.",
    ]


def evidence():
    base, ours = "baseline", "multigrid_1.5x"
    small, i3d = ("speedup_small", "speedup_small_epyc"), ("speedup_i3d_reduced", "speedup_i3d_reduced_epyc")
    xeon, epyc = report("overhead_cpu")["loops"], report("overhead_epyc")["loops"]
    imports = report("overhead_epyc")["imports"]["seconds"]
    plain, others, split = norm_ratios("plain"), norm_ratios("others"), norm_ratios("all", "split")
    same, kills = re.search(
        r"^(\d+)/(\d+) identical", (RESULTS / "verify_resume.txt").read_text(), re.MULTILINE
    ).groups()
    return [
        f"{same} of {kills} trainings that were killed with `kill -9`",
        *toy(),
        *own(),
        *few(),
        f"multigrid 1.5x ended at {top1('transformer_10', ours)} %, and the baseline at "
        f"{top1('transformer_10', base)} %; with one of sixty, at {top1('transformer_60', ours)} %, and the baseline "
        f"at {top1('transformer_60', base)} %.",
        f"easier shapes, multigrid 1.5x ended at {top1('fine_tuning', ours)} %, and the baseline at "
        f"{top1('fine_tuning', base)} %.",
        f"multigrid is faster than its baseline by {speedup(small[0])['speedup']:.1f}x (Xeon) and "
        f"{speedup(small[1])['speedup']:.1f}x (EPYC) for a small CNN ({speedup(small[0])['flops_bound']:.1f}x fewer "
        f"FLOPs), and by {speedup(i3d[0])['speedup']:.1f}x and {speedup(i3d[1])['speedup']:.1f}x for I3D R50 on small "
        f"clips ({speedup(i3d[0])['flops_bound']:.1f}x fewer FLOPs). A whole training of that CNN, with Lightning, "
        f"took {mean(faster('cnn_40', ours, 'train_seconds')):.1f}x less, decoding not counted.",
        f"Lightning with the callback was {100 * xeon['callback_ratio'] - 100:.1f} % slower on the Xeon "
        f"({xeon['step_ms']:.0f} ms steps) and {100 - 100 * epyc['callback_ratio']:.1f} % faster on the EPYC "
        f"({epyc['step_ms']:.0f} ms); Lightning alone was {100 * xeon['trainer_ratio'] - 100:.1f} % and "
        f"{100 * epyc['trainer_ratio'] - 100:.1f} % slower.",
        f"The package takes {imports['lightning_multigrid']:.1f} s to import, where Lightning takes "
        f"{imports['lightning']:.1f} s (medians of 7 on the EPYC).",
        f"BatchNorm over sub-mini-batches takes {plain[0]:.1f} to {plain[-2]:.1f}x the time of plain BatchNorm "
        f"({plain[-1]:.1f}x for one of 8 inputs on one of the machines), and {others[0]:.1f} to {others[-1]:.1f}x in "
        f"channels_last_3d or with a remainder.",
        f"takes {split[0]:.1f} to {split[-1]:.0f}x the time of plain BatchNorm",
        *lips(),
        *scalings(),
        *growing(),
    ]


DECODERS = {
    "ours, YUV": "ours, YUV",
    "0.2.0": "older",
    "torchcodec": "torchcodec exact",
    "with mappings": "torchcodec, frame mappings",
    "PySlowFast's way": "pyslowfast",
    "PyAV from the start": "pyav",
    "decord": "decord",
    "OpenCV": "opencv",
    "ours, without a table": "ours, without a table",
}


def decoding():
    """Decoders, and the costs of tables."""
    files = report("decode_real")["files"] | report("decode_made")["files"]
    rows = [f"| file | MB | ours, ms | {' | '.join(DECODERS)} |"]
    costs = ["| file | CPU s for a minute of video | bytes for a frame |"]
    for name, file in files.items():
        of, table = file["table"], file["costs of its table"]
        ratios = " | ".join(f"{of[method]['x ours']:.2f}" for method in DECODERS.values())
        rows.append(f"| {name} | {file['bytes'] / 1e6:.2f} | {of['ours']['mean']:.1f} | {ratios} |")
        costs.append(f"| {name} | {table['CPU s for a minute of video']:.1f} | {table['bytes per frame']:.0f} |")
    lengths = {}
    for kind in ("ordinary", "prepared"):
        of = files[f"bikes_640x272 {kind}"]["table"]
        lengths[kind] = [f"{of['older'][grid] / of['ours'][grid]:.2f}" for grid in list(of["ours"])[:3]]
    gains = [
        files[f"{name} ordinary"]["table"]["pyslowfast"]["mean"] / files[f"{name} prepared"]["table"]["ours"]["mean"]
        for name in ("arm_wrestling_340x256", "bikes_640x272")
    ]
    pays = []
    for name, file in files.items():
        if name.endswith("ordinary"):
            of, ms = file["table"], 1000 * file["costs of its table"]["CPU s to make it"]
            pays.append([ms / (of[way]["mean"] - of["ours"]["mean"]) for way in ("older", "ours, without a table")])
    non_square, *square = sorted((older for older, _ in pays), reverse=True)
    assert non_square > 1000
    of_long = report("decode_long")["files"]
    short, long = of_long["bikes_640x272 ordinary"], of_long["bikes_640x272 ordinary, 60 minutes"]
    ms = {method: f"{row['mean']:,.0f}" for method, row in long["table"].items()}
    table = long["costs of its table"]
    return [
        *rows,
        *costs,
        "By the length of the clip (8, 16 and 32 frames), 0.2.0 takes {}, {} and {} times as long as ours on the "
        "original of bikes_640x272".format(*lengths["ordinary"])
        + ", and {}, {} and {} times on the prepared one.".format(*lengths["prepared"]),
        "In another run, that of the long file below, the means were {:.2f} and {:.2f}.".format(
            *(of_long[f"bikes_640x272 {kind}"]["table"]["older"]["x ours"] for kind in ("ordinary", "prepared"))
        ),
        f"A table has paid for itself after {min(of for _, of in pays):.0f} to {max(of for _, of in pays):.0f} clips "
        f"of the video against reading without one, and against 0.2.0 after {min(square):.0f} to {max(square):.0f}; "
        "where pixels are not square ours is no faster than that, and it never does.",
        f"ours on the prepared ones is {gains[0]:.1f}x and {gains[1]:.1f}x as fast as PySlowFast's way on the "
        "originals.",
        f"A clip of bikes_640x272 takes {short['table']['ours']['mean']:.0f} ms, and one of the same video repeated "
        f"for an hour {ms['ours']} ms. The table of that has {table['bytes'] / 1e6:.1f} MB, which are unpacked in "
        f"{table['ms to unpack it']:.1f} ms; to make it took {table['CPU s to make it']:.0f} s. 0.2.0 takes "
        f"{ms['older']} ms, as it indexes the file first, torchcodec {ms['torchcodec exact']}, or "
        f"{ms['torchcodec, frame mappings']} with its frame mappings.",
    ]


def speed():
    loops = report("overhead_cpu")["loops"]
    rows = []
    for row in report("loader")["rows"]:
        methods = "ours", "ours, again", "older", "older, again", "torchcodec", "pyslowfast"
        cells = " | ".join(f"{row[f'{method}: clips/CPU s']:.0f}" for method in methods)
        rows.append(f"| {row['videos']} | {cells} |")
    original, prepared = report("loader")["rows"]
    older = [original["ours / older on original (CPU)"], prepared["ours / older on prepared (CPU)"]]
    opened, opened_mb, read, read_mb = report("store")["found"].values()
    return [
        *decoding(),
        f"opens in {opened:.2f} s and {opened_mb} MB of memory; to read each of them once, in random order, takes "
        f"{read:.1f} s and {read_mb} MB more.",
        *rows,
        f"For each CPU second ours gives {older[0]:.2f} times the clips of 0.2.0 on originals, and {older[1]:.2f} "
        f"times on prepared videos.",
        f"On prepared videos it gives {prepared['ours / torchcodec on prepared (CPU)']:.1f}x torchcodec's and "
        f"{prepared['ours / pyslowfast on prepared (CPU)']:.1f}x PySlowFast's; against theirs on the originals, "
        f"{prepared['ours / torchcodec on original (CPU)']:.1f}x and "
        f"{prepared['ours / pyslowfast on original (CPU)']:.1f}x.",
        f"Lightning with the callback took {loops['callback_ms_per_step']:.1f} ms more than a bare loop, "
        f"{100 * loops['callback_ratio'] - 100:.1f} % of steps of {loops['step_ms']:.0f} ms",
    ]


def indexing():
    """What tables cost, and save, as the page for users says it."""
    files = report("decode_real")["files"] | report("decode_made")["files"]
    originals = [file for name, file in files.items() if name.endswith("ordinary")]
    minute = {name: file["costs of its table"]["CPU s for a minute of video"] for name, file in files.items()}
    small, large = minute["bikes_640x272 ordinary"], minute["1920x1080 ordinary"]
    slower = [file["table"]["ours, without a table"]["x ours"] for file in originals]
    prepared = [
        files[name]["table"]["ours"]["mean"] / files[name.replace("ordinary", "prepared")]["table"]["ours"]["mean"]
        for name in files
        if name.endswith("ordinary")
    ]
    return [
        f"It takes {small:.1f} CPU seconds for a minute of video of 640 x 272, and {large:.0f} of 1920 x 1080: about "
        f"{240_000 / 6 * small / 3600:.0f} core-hours for 240,000 videos of ten seconds at the smaller size.",
        f"a clip takes {min(slower):.1f} to {max(slower):.1f} times as long",
        f"from which a clip takes {min(prepared):.1f} to {max(prepared):.0f} times less",
    ]


def results():
    gap = 100 * (accuracy("fine_tuning", "baseline") - accuracy("fine_tuning", "multigrid_1.5x"))
    return [f"The means differ by {gap:.1f} points"]


PAGES = {
    "README.md": front,
    "docs/index.md": front,
    "docs/pays.md": measured,
    "docs/evidence.md": evidence,
    "docs/measurements.md": speed,
    "docs/speed.md": indexing,
    "benchmarks/results/README.md": results,
}


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
    rest = words(text)
    for known in [*PAGES.get(page, list)(), *NOT_OURS]:
        rest = rest.replace(words(known), " ")
    # Multigrid 1.5x and the like are names, of so many epochs.
    rest = re.sub(r"(?i)multigrid \d\.\dx", "", rest)
    assert re.findall(r".{30}(?:\b\d+\.\d+x\b|\d ± ).{30}", rest) == []
