"""How much faster a multigrid training is than its baseline: times of a step on every grid, weighted by the plan.

    python benchmarks/benchmark_speedup.py --device cpu                                      # a small model
    python benchmarks/benchmark_speedup.py --setting slowfast i3d --clips 8 --precision bf16 --json speedup.json

A step is forward, backward and optimizer, on synthetic clips that are already on the device. The time of the loader is
not included; the script prints how many clips per second it must deliver. Grids take turns, so that a drift of the
machine's speed affects them alike; the first steps of a grid are not counted. Baseline and multigrid differ in the
shapes and in BatchNorm (plain, or over sub-mini-batches). cuDNN tries no kernels, which would take minutes.

With `--profile` it also says for which share of a step the GPU works, and on what: a small share means that the host,
which starts the kernels, is the limit.

With the ratio of the times the script prints the ratio of the FLOPs, which times can exceed only if larger mini-batches
run more efficiently.

The JSON file is written after the warm-up of each grid and after each round, so that a run that is cut off has lost
nothing.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from measuring import choose_device, machine, machine_line, make_clock, write_json
from torch import nn
from torch.autograd import DeviceType
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models.video import mvit_v2_s

from lightning_multigrid import Baseline, BatchShape, MultigridSchedule, ShortCycle, sub_batches
from lightning_multigrid.models import ResizedPositions, i3d_nl_r50, i3d_r50, slowfast_r50, small_cnn
from lightning_multigrid.schedule import Plan, text_table

CLASSES = 400
CLIPS = 240_000 // 128  # of Kinetics, for each of the paper's GPUs


@dataclass(frozen=True)
class Setting:
    """A model, a baseline's schedule with its shape on one GPU, and the training clips of one GPU."""

    make: Callable[[], nn.Module]
    baseline: Baseline
    clips: int = CLIPS


def _i3d(model: Callable[..., nn.Module]) -> Setting:
    return Setting(lambda: model(CLASSES), Baseline(BatchShape(2, 16, 224), 106, (40, 80), 4))


SETTINGS = {
    "slowfast": Setting(
        lambda: slowfast_r50(CLASSES), Baseline(BatchShape(4, 32, 224), 239, (94, 154, 196), 2, warmup_epochs=34)
    ),
    "i3d": _i3d(i3d_r50),
    "i3d_nl": _i3d(i3d_nl_r50),
    "mvit": Setting(
        lambda: ResizedPositions(mvit_v2_s(num_classes=CLASSES)),
        Baseline(BatchShape(8, 16, 224), 200, (80, 130, 165), 4),
    ),
    "small": Setting(lambda: small_cnn(16), Baseline(BatchShape(8, 16, 40), 28, (14, 22)), clips=1536),
}
"""The paper's models; a transformer; for a CPU a small CNN."""


@dataclass(frozen=True)
class Grid:
    """The shape of a mini-batch, and how many clips share BatchNorm statistics; 0 is plain BatchNorm."""

    shape: BatchShape
    sub_batch: int


def plan_steps(schedule: MultigridSchedule, clips: int) -> dict[Grid, int]:
    """Steps of each grid in a whole training, from coarse to fine."""
    plan = Plan(schedule, clips)
    every = (step for epoch in range(plan.epochs) for step in plan.epoch(epoch))
    found = Counter(Grid(step.shape, step.sub_batch) for step in every)
    return dict(sorted(found.items(), key=lambda item: (item[0].shape.frames, item[0].shape.size, item[0].sub_batch)))


def flops_per_clip(setting: Setting, grids: Sequence[Grid]) -> dict[tuple[int, int], float]:
    """FLOPs of forward and backward of one clip, by its frames and size, counted on shapes alone."""
    with torch.device("meta"):
        model = setting.make()
    flops = {}
    for frames, size in {(grid.shape.frames, grid.shape.size) for grid in grids}:
        with FlopCounterMode(display=False) as counter:
            model(torch.empty(2, 3, frames, size, size, device="meta")).sum().backward()
        flops[frames, size] = counter.get_total_flops() / 2
    return flops


class Bench:
    """Runs steps of a model and its optimizer on any grid."""

    def __init__(self, setting: Setting, options: argparse.Namespace, device: torch.device) -> None:
        torch.manual_seed(0)
        self.device, self.options = device, options
        self.autocast = torch.autocast(device.type, torch.bfloat16, enabled=options.precision == "bf16")
        # Torch's own defaults are TF32 for convolutions and 32 bits for matrix products.
        torch.backends.cudnn.allow_tf32 = options.precision != "fp32"
        torch.set_float32_matmul_precision("highest" if options.precision == "fp32" else "high")
        self.format = torch.channels_last_3d if options.channels_last else torch.contiguous_format
        self.model = setting.make().to(device, memory_format=self.format)
        self.forward = self.model
        if options.compile:
            torch._dynamo.config.cache_size_limit = 64  # a graph for each grid, as the callback lets it make
            self.forward = torch.compile(self.model, dynamic=False)
        # An LR so small that the values stay those of a new model.
        self.optimizer = SGD(
            self.model.parameters(), lr=1e-6, momentum=0.9, weight_decay=1e-4, fused=options.fused or None
        )
        self.graphs: dict[Grid, torch.cuda.CUDAGraph] = {}
        self.inputs: dict[Grid, Any] = {}  # a graph reads them at each replay
        self.pool: Any = None

    def batch(self, grid: Grid) -> tuple[torch.Tensor, torch.Tensor]:
        """Makes the clips of a step, and their labels."""
        shape = grid.shape
        clips = torch.randn(shape.clips, 3, shape.frames, shape.size, shape.size, device=self.device)
        labels = torch.zeros(shape.clips, dtype=torch.long, device=self.device)
        return clips.contiguous(memory_format=self.format), labels

    def set(self, grid: Grid) -> None:
        self.groups: Callable[[], Any] = (
            partial(sub_batches, grid.sub_batch, of=grid.shape.clips) if grid.sub_batch else nullcontext
        )

    def step(self, clips: torch.Tensor, labels: torch.Tensor) -> None:
        with self.groups():
            with self.autocast:
                loss = cross_entropy(self.forward(clips), labels)
            self.optimizer.zero_grad()
            loss.backward()
        self.optimizer.step()

    def warm_up(self, grid: Grid, steps: int) -> int | None:
        """Runs the first steps of a grid; returns the peak memory of a GPU in bytes."""
        self.set(grid)
        cuda = self.device.type == "cuda"
        if cuda:
            torch.cuda.empty_cache()
        batch = self.batch(grid)
        for number in range(steps):
            if cuda and number < 2:  # in the first step cuDNN tries kernels, some with far more memory
                torch.cuda.reset_peak_memory_stats(self.device)
            self.step(*batch)
        if self.options.cuda_graphs:
            self.capture(grid, batch)
        if cuda:
            torch.cuda.synchronize(self.device)
        return torch.cuda.max_memory_allocated(self.device) if cuda else None

    def capture(self, grid: Grid, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Records a step as a CUDA graph, with which the host launches all of its kernels at once.

        The graphs share memory, so a replay leaves gradients that the next replay of another grid overwrites.
        """
        self.optimizer.zero_grad()
        aside = torch.cuda.Stream()  # torch asks for a few steps on another stream before it records one
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self.step(*batch)
        torch.cuda.current_stream().wait_stream(aside)
        self.optimizer.zero_grad()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            self.step(*batch)
        self.pool = graph.pool()
        self.graphs[grid], self.inputs[grid] = graph, batch

    def seconds(self, grid: Grid, steps: int) -> float:
        """Mean seconds of a step: between events on a GPU, process time on the CPU."""
        self.set(grid)
        batch = None if grid in self.graphs else self.batch(grid)

        def step() -> None:
            if batch is None:
                self.graphs[grid].replay()
            else:
                self.step(*batch)

        if self.device.type == "cuda":
            step()  # after a change of shape the allocator has to find memory again
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(steps):
                step()
            end.record()
            end.synchronize()
            return start.elapsed_time(end) / 1000 / steps
        clock = make_clock(self.device)
        began = clock()
        for _ in range(steps):
            step()
        return (clock() - began) / steps

    def kernels(self, grid: Grid) -> dict[str, Any]:
        """For how many milliseconds a GPU works in a step, with how many kernels, and the longest of them."""
        self.set(grid)
        batch = self.batch(grid)
        self.step(*batch)
        torch.cuda.synchronize(self.device)
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            self.step(*batch)
            torch.cuda.synchronize(self.device)
        ran = [event for event in found.events() if event.device_type == DeviceType.CUDA]
        ran = [event for event in ran if not getattr(event, "is_user_annotation", False)]
        by_name: Counter[str] = Counter()
        for event in ran:
            by_name[event.name[:160]] += event.time_range.elapsed_us() / 1000
        return {"kernels_ms": sum(by_name.values()), "kernels": len(ran), "longest": dict(by_name.most_common(5))}


def measure(
    setting: Setting, options: argparse.Namespace, device: torch.device, save: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Measures the grids of a setting, and computes the times of both trainings; saves what it has at each turn."""
    shape = setting.baseline.shape
    shape = BatchShape(options.clips or shape.clips, options.frames or shape.frames, options.size or shape.size)
    baseline = replace(setting.baseline, shape=shape)
    schedule = MultigridSchedule(baseline)
    if options.base_shapes:
        schedule = replace(schedule, short_cycle=ShortCycle((1,)))
    plain = Grid(shape, 0)
    steps: dict[Grid, float] = {
        plain: float(baseline.epochs) * setting.clips / shape.clips,
        **plan_steps(schedule, setting.clips),
    }
    of_clip = flops_per_clip(setting, list(steps))
    flops = {grid: grid.shape.clips * of_clip[grid.shape.frames, grid.shape.size] for grid in steps}
    result: dict[str, Any] = {
        "baseline": str(shape),
        "flops_bound": steps[plain] * flops[plain] / sum(steps[grid] * flops[grid] for grid in steps if grid.sub_batch),
        "fewer_steps": steps[plain] / sum(steps[grid] for grid in steps if grid.sub_batch),
        "grids": [],
    }

    bench = Bench(setting, options, device)
    for grid in steps:
        peak = bench.warm_up(grid, options.warm_up)
        result["grids"].append(
            {
                "shape": str(grid.shape),
                "sub_batch": grid.sub_batch,
                "steps": steps[grid],
                "relative_flops": flops[grid] / flops[plain],
                "peak_gib": None if peak is None else peak / 2**30,
            }
        )
        save(result)
    times: dict[Grid, list[float]] = {grid: [] for grid in steps}
    for _ in range(options.rounds):
        for grid, spent in times.items():
            spent.append(bench.seconds(grid, options.steps))
        add_times(result, times)
        add_totals(result, steps, times)
        save(result)
    if options.profile:
        for row, grid in zip(result["grids"], steps, strict=True):
            row["profile"] = bench.kernels(grid)
        save(result)
    return result


def add_times(result: dict[str, Any], times: dict[Grid, list[float]]) -> None:
    """Adds the medians over the rounds so far to the grids, which are in the same order."""
    first = median(next(iter(times.values())))
    for grid, (shape, spent) in zip(result["grids"], times.items(), strict=True):
        seconds = median(spent)
        grid["ms"] = 1000 * seconds
        grid["ms_of_rounds"] = [1000 * of for of in spent]
        grid["relative_time"] = seconds / first
        grid["clips_per_second"] = shape.shape.clips / seconds


def add_totals(result: dict[str, Any], steps: dict[Grid, float], times: dict[Grid, list[float]]) -> None:
    """Adds the times of both trainings, on a device."""
    seconds = {grid: median(spent) for grid, spent in times.items()}
    plain, *multigrid = steps
    hours = sum(steps[grid] * seconds[grid] for grid in multigrid) / 3600
    # The ratio of each round shows the spread.
    ratios = [
        steps[plain] * times[plain][turn] / sum(steps[grid] * times[grid][turn] for grid in multigrid)
        for turn in range(len(times[plain]))
    ]
    result |= {
        "baseline_hours": steps[plain] * seconds[plain] / 3600,
        "multigrid_hours": hours,
        "speedup": steps[plain] * seconds[plain] / 3600 / hours,
        "speedup_of_rounds": ratios,
        "clips_per_second_mean": sum(steps[grid] * grid.shape.clips for grid in multigrid) / 3600 / hours,
        "clips_per_second_most": max(grid.shape.clips / seconds[grid] for grid in multigrid),
    }


def show(name: str, result: dict[str, Any]) -> None:
    print(f"\n{name}: baseline of {result['baseline']} (clips x frames x size)")
    columns = ["clips x frames x size", "sub-batch", "steps", "ms/step", "time", "FLOPs", "clips/s", "GiB"]
    rows = [
        [
            grid["shape"],
            str(grid["sub_batch"] or "plain"),
            f"{grid['steps']:.0f}",
            f"{grid['ms']:.1f}",
            f"{grid['relative_time']:.2f}",
            f"{grid['relative_flops']:.2f}",
            f"{grid['clips_per_second']:.1f}",
            "-" if grid["peak_gib"] is None else f"{grid['peak_gib']:.1f}",
        ]
        for grid in result["grids"]
    ]
    print(text_table(columns, rows))
    for grid in result["grids"]:
        if found := grid.get("profile"):
            share, (name, spent) = found["kernels_ms"] / grid["ms"], next(iter(found["longest"].items()))
            longest = f"the longest {spent:.1f} ms, {name[:60]}"
            print(f"{grid['shape']}: {found['kernels']} kernels work for {share:.0%} of a step; {longest}")
    spread = result["speedup_of_rounds"]
    print(
        f"Baseline {_duration(result['baseline_hours'])}, multigrid {_duration(result['multigrid_hours'])} of compute: "
        f"{result['speedup']:.2f}x faster ({min(spread):.2f} - {max(spread):.2f} over rounds). "
        f"FLOPs {result['flops_bound']:.2f}x fewer, steps {result['fewer_steps']:.2f}x fewer."
    )
    print(
        f"The loader must deliver {result['clips_per_second_mean']:.0f} clips/s on average, "
        f"{result['clips_per_second_most']:.0f} on the fastest grid, for each device."
    )


def _duration(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.1f} min"


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", nargs="+", choices=SETTINGS, default=["small"], help="default: small")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="bf16: by autocast")
    parser.add_argument("--channels-last", action="store_true", help="model and clips in channels_last_3d")
    parser.add_argument("--cuda-graphs", action="store_true", help="a CUDA graph of the whole step, for each grid")
    parser.add_argument("--profile", action="store_true", help="for how long a GPU works in a step, and on what")
    parser.add_argument("--compile", action="store_true", help="the model by `torch.compile`, a graph for each grid")
    parser.add_argument("--base-shapes", action="store_true", help="without the short cycle: fewer grids to begin")
    parser.add_argument("--fused", action="store_true", help="the optimizer's fused implementation")
    parser.add_argument("--clips", type=int, help="clips of the baseline on a device, instead of the paper's")
    parser.add_argument("--frames", type=int, help="frames of the baseline, instead of the setting's")
    parser.add_argument("--size", type=int, help="height and width of the baseline, instead of the setting's")
    parser.add_argument("--warm-up", type=int, default=3, help="steps of each grid that are not counted")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each grid")
    parser.add_argument("--steps", type=int, help="steps in a turn (default: 1 on a CPU, 5 on a GPU)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")
    options = parser.parse_args(args)
    device = choose_device(options, parser.error)
    options.steps = options.steps or (5 if device.type == "cuda" else 1)
    torch.set_num_threads(1)
    if (options.profile or options.cuda_graphs) and device.type != "cuda":
        parser.error("--profile and --cuda-graphs need a GPU")

    print(machine_line(machine(device)))
    results: dict[str, Any] = {}

    def save(name: str, result: dict[str, Any]) -> None:
        write_json(options, "speedup", {"settings": results | {name: result}})

    for name in options.setting:
        results[name] = measure(SETTINGS[name], options, device, lambda result, name=name: save(name, result))
        show(name, results[name])
        if device.type == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
