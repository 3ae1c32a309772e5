"""What the paper's settings will take on GPUs, predicted from counted operations and data sheets: nothing is measured.

    python benchmarks/predict.py --json benchmarks/results/predicted.json --documents  # counts; ten minutes on one core
    python benchmarks/predict.py --counted benchmarks/results/predicted.json    # the tables, from the counts there
    python benchmarks/predict.py --setting slowfast --clips 8 --gpu h200 --grids    # each grid of a setting

The model is a roofline (`prediction.py`): a step takes as long as what needs longest of the GPU's arithmetic, its
memory, and the host, each at its best. So real steps take longer, and the speed-up may differ. The clips are taken to
be there; the last column says how many a GPU's loader must give per second.
"""

import argparse
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from benchmark_all import GPU, Part
from benchmark_speedup import SETTINGS, Setting, speedup_parser
from measuring import write_json
from prediction import GPUS, Grid, Prediction, count_grids, predict_step
from step_count import StepCount
from torch import nn

from lightning_multigrid import Baseline, BatchShape, MultigridSchedule

# The paper's clips per GPU, and more, for the settings of its Table 2.
CLIPS = {
    "slowfast": (2, 4, 8, 32),
    "i3d": (2, 8, 32),
    "i3d_nl": (2, 8, 32),
    "i3d_1gpu": (8,),
    "slowfast_t64": (4,),
    "slowfast_320": (4,),
}
BENCHMARKS = Path(__file__).parent
DOCUMENTS = BENCHMARKS.parent / "docs" / "measurements.md", BENCHMARKS / "results" / "README.md"
Counts = dict[Grid, StepCount]
# Assumptions: seconds of a process until its first step, of choosing a kernel for a convolution by cuDNN's own guess
# and of trying one; how much longer a step takes than the roofline. Then, steps in a turn.
START, KERNEL, TRY, SLOWER, STEPS = 6.0, 0.003, 0.02, 2.0, 5


class Module(L.LightningModule):
    """A model alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, clips: torch.Tensor) -> torch.Tensor:
        return self.model(clips)


def schedule_of(setting: Setting, clips: int) -> MultigridSchedule:
    given = setting.baseline
    shape = BatchShape(clips, given.shape.frames, given.shape.size)
    return MultigridSchedule(Baseline(shape, given.epochs, given.milestones, given.stride, given.warmup_epochs))


def count(setting: Setting, clips: int, *, half: bool) -> Counts:
    """Counts a step on each grid of a setting; the first is the baseline's, with plain BatchNorm (0)."""
    schedule = schedule_of(setting, clips)
    with torch.device("meta"):
        model = setting.make()
    return count_grids(Module(model), [(schedule.baseline.shape, 0), *schedule.grids_of_statistics], half=half)


def predict(setting: Setting, clips: int, counts: Counts, gpu: str, *, half: bool, workers: int = 16) -> Prediction:
    steps = {
        grid: predict_step(found, GPUS[gpu], grid[0], half=half, workers=workers) for grid, found in counts.items()
    }
    return Prediction(schedule_of(setting, clips), steps)


def gpu_hours(setting: Setting, prediction: Prediction) -> tuple[float, float]:
    """Hours of one GPU for all steps of the baseline and of multigrid, on the setting's training videos."""
    baseline = setting.baseline
    (shape, _), step = next(iter(prediction.steps.items()))
    hours = float(baseline.epochs) * setting.videos / shape.clips * step.stepping / 3600
    return hours, hours / prediction.speedup(loader=False)


def bounds(prediction: Prediction) -> str:
    """What bounds the baseline, and the grids of multigrid training, if clips are there."""
    found = []
    for step in prediction.steps.values():
        parts = {"compute": step.compute, "memory": step.memory, "host": step.host}
        found.append(max(parts, key=lambda name: parts[name]))
    grids = [f"{found[1:].count(name)} {name}" for name in dict.fromkeys(found[1:])]
    return f"{found[0]}; {', '.join(grids)}"


def rows(counted: dict[str, dict[str, Any]], gpus: Iterable[str]) -> list[list[str]]:
    table = []
    for key, found in counted.items():
        name, clips = key.split()
        setting = SETTINGS[name]
        for gpu in gpus:
            told = predict(setting, int(clips), found["counts"], gpu, half=found["half"])
            before, after = gpu_hours(setting, told)
            most = max(shape.clips / step.stepping for (shape, _), step in told.steps.items())
            hours = *(f"{of:,.0f}" if of >= 10 else f"{of:.1f}" for of in (before, after)), f"{before / after:.1f}x"
            paper = "-" if setting.published is None else f"{setting.published:.2g}x"
            rest = bounds(told), str(told.clips_beyond_host), f"{most:,.0f}"
            table.append([name, clips, GPUS[gpu].name, *hours, paper, *rest])
    return table


COLUMNS = ["setting", "clips", "GPU", "baseline, GPU h", "multigrid, GPU h", "faster", "paper, P100"]
COLUMNS += ["bound by: baseline; grids", "host hidden from clips", "clips/s of a loader"]


def markdown(columns: Sequence[str], table: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [columns, ["---"] * len(columns), *table])


def part_seconds(part: Part, counted: dict[str, dict[str, Any]]) -> float | None:
    """Seconds that a part of `benchmark_speedup.py` should take on an H200; None for others, and without counts.

    They are those of its start, of choosing a kernel for each convolution in each direction on each grid, and of its
    steps, which are taken to be `SLOWER` times as long as predicted.
    """
    options = vars(speedup_parser().parse_args(part.options.split())) if part.script == "benchmark_speedup" else {}
    seconds = START
    for name in options.get("setting", []):
        clips = options["clips"] or SETTINGS[name].baseline.shape.clips
        found = counted.get(f"{name} {clips}")
        if found is None or options["size"] or options["compile"]:
            return None
        # 16 bits are half the bytes; an H200 has half the rate as TF32, and 67 TFLOP/s at 32 bits.
        times, more = {"bf16": (1, 1), "tf32": (2, 2), "fp32": (14.8, 2)}[options["precision"]]
        steps = list(predict(SETTINGS[name], clips, found["counts"], "h200", half=True).steps.values())
        steps = steps if options["grids"] == ["all"] else steps[:1] * len(options["grids"])
        with torch.device("meta"):
            layers = sum(isinstance(module, nn.Conv3d) for module in SETTINGS[name].make().modules())
        seconds += 3 * layers * len(steps) * (KERNEL + options["kernels"] * TRY)
        turns = options["warm_up"] + options["rounds"] * (1 + STEPS)
        seconds += SLOWER * turns * sum(max(times * step.compute, more * step.memory, step.host) for step in steps)
    return seconds if options else None


def parts_table(counted: dict[str, dict[str, Any]]) -> str:
    """The parts of `benchmark_all.py` on a GPU: how long they should take, and how long they may."""
    table = []
    for part in GPU:
        seconds = part_seconds(part, counted)
        estimate = "-" if seconds is None else f"{seconds:.0f}"
        table.append([f"`{part.name}`", estimate, f"{part.seconds:.0f}", f"{part.limit:.0f}", "-"])
    return markdown(["part", "from counts, s", "estimate, s", "limit, s", "measured, s"], table)


def as_plain(counts: Counts) -> list[list[Any]]:
    return [[[shape.clips, shape.frames, shape.size], sub, vars(found)] for (shape, sub), found in counts.items()]


def as_counts(plain: list[list[Any]]) -> Counts:
    return {(BatchShape(*shape), sub): StepCount(**found) for shape, sub, found in plain}


def predict_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", nargs="+", choices=SETTINGS, default=list(CLIPS))
    parser.add_argument("--clips", nargs="+", type=int, help="of the baseline on a GPU; default: the paper's, and more")
    parser.add_argument("--gpu", nargs="+", choices=GPUS, default=list(GPUS))
    parser.add_argument("--precision", choices=["bf16", "tf32"], default="bf16")
    parser.add_argument("--workers", type=int, default=16, help="of a GPU's loader, for --grids")
    parser.add_argument("--grids", action="store_true", help="a table of the grids of each setting instead")
    parser.add_argument("--parts", action="store_true", help="how long the parts of benchmark_all.py should take")
    parser.add_argument("--counted", type=Path, metavar="FILE", help="take the counts of this file")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts there, after each setting")
    parser.add_argument("--documents", action="store_true", help="also make the tables of the documentation again")
    return parser


def get_counts(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Takes counts from a file, or makes and saves them."""
    half = options.precision == "bf16"
    known = json.loads(options.counted.read_text())["counted"] if options.counted else {}
    counted: dict[str, dict[str, Any]] = {}
    for name in options.setting:
        for clips in options.clips or CLIPS.get(name, (SETTINGS[name].baseline.shape.clips,)):
            key = f"{name} {clips}"
            if key in known and known[key]["half"] == half:
                counts = as_counts(known[key]["counts"])
            else:
                counts = count(SETTINGS[name], clips, half=half)
            counted[key] = {"half": half, "counts": counts}
            saved = {key: found | {"counts": as_plain(found["counts"])} for key, found in counted.items()}
            write_json(options.json, "predicted", {"device": "cpu", "precision": options.precision}, {"counted": saved})
    return counted


def answer(options: argparse.Namespace) -> str:
    """What the script prints."""
    counted = get_counts(options)
    if options.parts:
        return parts_table(counted)
    if not options.grids:
        return markdown(COLUMNS, rows(counted, options.gpu))
    tables = []
    for key, found in counted.items():
        name, clips = key.split()
        for gpu in options.gpu:
            told = predict(
                SETTINGS[name], int(clips), found["counts"], gpu, half=found["half"], workers=options.workers
            )
            where = f"{GPUS[gpu].name}, {options.precision}, {options.workers} workers"
            tables.append(f"{name}, {clips} clips, {where}, predicted:\n{told.table()}")
    return "\n\n".join(tables)


def with_tables(text: str, counted: Path) -> str:
    """Makes the tables of a document again, with the options that stand before each."""

    def table(found: re.Match[str]) -> str:
        options = predict_parser().parse_args([*found[2].split(), "--counted", str(counted)])
        return f"{found[1]}\n\n{answer(options)}\n\n<!-- end -->"

    return re.sub(
        r"(<!-- made by predict\.py([^\n]*): -->)\n.*?\n<!-- end -->", table, text, flags=re.DOTALL | re.ASCII
    )


def main(args: Sequence[str] | None = None) -> None:
    options = predict_parser().parse_args(args)
    print(answer(options))
    for document in DOCUMENTS if options.documents else ():
        document.write_text(with_tables(document.read_text(), options.json or options.counted))


if __name__ == "__main__":
    main()
