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


def step_ms(folder):
    return mean(1000 * run["train_seconds"] / run["steps"] for run in runs(folder, "baseline"))


def speedup(name):
    (setting,) = report(name)["settings"].values()
    return setting


def norm_ratios(kind, key="ours"):
    """Ratios over both machines, of contiguous clips without a remainder (`plain`) or of the others."""
    rows = [row for name in ("norm_cpu", "norm_epyc") for row in report(name)["rows"] if key in row["ratio"]]
    plain = [row for row in rows if "channels_last" not in row["variant"] and row["shape"][0] % 8 == 0]
    chosen = plain if kind == "plain" else [row for row in rows if row not in plain]
    return sorted(row["ratio"][key] for row in (rows if kind == "all" else chosen))


def decode_gain(file):
    """PySlowFast's time on the original over ours on the prepared file."""
    files = report("decode_real")["files"]
    theirs = files[f"{file} ordinary"]["table"]["pyslowfast"]["mean"]
    return theirs / files[f"{file} prepared"]["table"]["ours"]["mean"]


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


def foretold():
    """What `plan --measure` said three times, against what one run each, or `compare`, then found."""
    of_both = report("foretold")
    found = Comparison(RESULTS / "own_videos_2000")
    came = {
        "quickstart": of_both["quickstart_came"],
        "own_videos_2000": [found.seconds(variant) for variant in (MULTIGRID, BASELINE)],
    }
    rows = [(came[name], row) for name in came for row in of_both[name]]
    longer = [took[variant] / row[variant] for took, row in rows for variant in (0, 1)]
    ratios = {name: [ratio for *_, ratio in of_both[name]] for name in came}
    said = [f"{min(of):.1f} to {max(of):.1f}" for of in ratios.values()]
    faster = [f"{baseline / ours:.1f}" for ours, baseline in came.values()]
    return [
        f"two small trainings on two cores took {min(longer):.2f} to {max(longer):.2f} times as long, and multigrid "
        f"was {faster[0]} and {faster[1]} times faster where {said[0]} and {said[1]} had been foretold."
    ]


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
    held, epoch = report("long_run")["fit"], report("long_run")["epoch"]
    middle, end = held[4], held[-1]
    same, kills = re.search(
        r"^(\d+)/(\d+) identical", (RESULTS / "verify_resume.txt").read_text(), re.MULTILINE
    ).groups()
    return [
        f"{same} of {kills} trainings that were killed with `kill -9`",
        *toy(),
        *own(),
        *few(),
        f"From mini-batch {middle['mini-batches']:,} to {end['mini-batches']:,} of mixed grids, the process that "
        f"trains grew from {middle['memory']:.0f} to {end['memory']:.0f} MiB, and its two workers together from "
        f"{middle['memory of workers']:.0f} to {end['memory of workers']:.0f}; open files stayed "
        f"{end['open files']:.0f} and {end['open files of workers']:.0f}.",
        f"The epoch of {epoch['clips']:,} clips is planned in {1000 * epoch['planned, s']:.0f} ms, and its requests "
        f"for a rank are drawn in {epoch['drawn, s']:.1f} s with {epoch['memory, MiB']:.0f} MiB.",
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


def speed():
    original, prepared = report("loader")["rows"]
    loops = report("overhead_cpu")["loops"]
    return [
        f"ours on the prepared ones is {decode_gain('arm_wrestling_340x256'):.1f}x and "
        f"{decode_gain('bikes_640x272'):.1f}x as fast as PySlowFast's way on the originals.",
        f"| as they were | {original['ours: clips/s']:.0f} | {original['torchcodec: clips/s']:.0f} | "
        f"{original['pyslowfast: clips/s']:.0f} |",
        f"| prepared | {prepared['ours: clips/s']:.0f} | {prepared['torchcodec: clips/s']:.0f} | "
        f"{prepared['pyslowfast: clips/s']:.0f} |",
        f"On prepared videos it gives {prepared['ours / torchcodec on prepared']:.1f}x torchcodec's and "
        f"{prepared['ours / pyslowfast on prepared']:.1f}x PySlowFast's clips per second; against their speed on the "
        f"originals, {prepared['ours / torchcodec on original']:.1f}x and "
        f"{prepared['ours / pyslowfast on original']:.1f}x.",
        f"Lightning with the callback took {loops['callback_ms_per_step']:.1f} ms more than a bare loop, "
        f"{100 * loops['callback_ratio'] - 100:.1f} % of steps of {loops['step_ms']:.0f} ms",
    ]


def results():
    failed = 100 * min(run["top1"] for run in runs("compare", "short_1.5x"))
    (own,) = (100 * run["top1"] for run in runs("compare", "short_1.5x") if run["seed"] == 0)
    wall = [f"{ratio:.1f}" for ratio in sorted(faster("compare_width48", "multigrid_1.5x", "wall_seconds"))]
    saved = runs("compare", "baseline")[0]["steps"] / runs("compare", "multigrid_1.5x")[0]["steps"]
    widths = ["compare", "compare_width32", "compare_width48"]
    gains = [mean(faster(width, "multigrid_1.5x", "train_seconds")) for width in widths]
    times = [step_ms(width) for width in widths]
    t, long, tuned = "compare_transformer", "compare_transformer_60", "fine_tuning"
    of_baseline = mean(100 / ratio for ratio in faster(long, "multigrid_1.5x", "train_seconds"))
    narrow, wide = report("speedup_transformer_epyc")["settings"].values()
    gap = 100 * (accuracy(tuned, "baseline") - accuracy(tuned, "multigrid_1.5x"))
    points = {
        name: f"{100 * accuracy(t, name):.0f}" for name in (file.stem[:-6] for file in (RESULTS / t).glob("*0.json"))
    }
    share = {name: f"{mean(100 / ratio for ratio in faster(t, name, 'train_seconds')):.0f}" for name in points}
    return [
        f"{points['multigrid_1.5x']} against {points['baseline']} %, in {share['multigrid_1.5x']} % of its CPU time.",
        f"{points['multigrid_1.5x']} % against {points['short_1.5x']} % with {steps(t, 'short_1.5x')} steps, and "
        f"{points['multigrid_2.5x']} % against {points['short_2.5x']} % with {steps(t, 'short_2.5x')}.",
        f"multigrid 2.5x ({top1(t, 'multigrid_2.5x')} % in {share['multigrid_2.5x']} % of the CPU time), the long "
        f"cycle alone ({top1(t, 'long_cycle_only')} % in {share['long_cycle_only']} %) and the short cycle alone "
        f"({top1(t, 'short_cycle_only')} % in {share['short_cycle_only']} %).",
        f"leads to {points['linear']} %, with the square root to {points['multigrid_1.5x']} % and not scaled to "
        f"{points['unscaled']} %",
        f"{mean(faster(t, 'multigrid_1.5x', 'train_seconds')):.1f}x was measured",
        f"{narrow['speedup']:.2f}x of {narrow['flops_bound']:.2f}x, and {wide['speedup']:.2f}x of "
        f"{wide['flops_bound']:.2f}x",
        f"The means differ by {gap:.1f} points",
        f"{100 * accuracy(long, 'multigrid_1.5x'):.1f} against {100 * accuracy(long, 'baseline'):.1f} %, in "
        f"{of_baseline:.0f} % of its CPU time, where the shortened baseline ends at "
        f"{100 * accuracy(long, 'short_1.5x'):.1f} %.",
        f"by the wall clock, multigrid was {wall[0]}, {wall[1]} and {wall[2]}x faster.",
        f"There are {saved:.1f}x fewer steps",
        f"(one of three seeds ended at {failed:.1f} %)",
        f"seed 0 ended at {own:.1f} %.",
        f"{gains[0]:.1f}x with steps of {times[0]:.0f} ms, {gains[1]:.1f}x with steps of {times[1]:.0f} ms, "
        f"{gains[2]:.1f}x with steps of {times[2]:.0f} ms.",
    ]


def clusters():
    found = report("ray_train")
    assert all(run["identical"] for run in found["runs"].values())
    version = ".".join(found["machine"]["ray"].split(".")[:2])
    return [
        f"compares a training by Ray ({version}) with the same one",
        f"the killed run repeated {found['runs']['killed']['repeated']} steps",
    ]


PAGES = {
    "README.md": front,
    "docs/index.md": front,
    "docs/clusters.md": clusters,
    "docs/config.md": foretold,
    "docs/pays.md": measured,
    "docs/evidence.md": evidence,
    "docs/measurements.md": speed,
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
    # Predictions, whose tables test_predict.py makes again.
    rest = words(re.sub(r"<!-- made by predict\.py.*?<!-- end -->", "", text, flags=re.DOTALL))
    for known in [*PAGES.get(page, list)(), *NOT_OURS]:
        rest = rest.replace(words(known), " ")
    # Multigrid 1.5x and the like are names, of so many epochs.
    rest = re.sub(r"(?i)multigrid \d\.\dx", "", rest)
    assert re.findall(r".{30}(?:\b\d+\.\d+x\b|\d ± ).{30}", rest) == []
