"""What the recipes for one GPU and for one node cost, estimated from their plans: the table in `recipes/README.md`.

    python benchmarks/recipe_costs.py                            # all rows; some minutes, without a GPU or data
    python benchmarks/recipe_costs.py --rows ucf101_r3d18_baseline

Nothing here was measured. The hours are those of the FLOPs of all steps (three times those of the forward) at
`UTILISATION` of the GPU's peak at 16 bits; validation, start-up and waiting for videos come on top. Clips per second
are what the loaders must give for no GPU to wait, in the phase that needs most. Memory is that of the activations of
the largest step at 16 bits; weights, optimizer and the kernels' workspace come on top.
"""

import argparse
import io
import json
import logging
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_multigrid.cli.main import main as command_line

RECIPES = Path(__file__).parents[1] / "examples" / "recipes"
# An assumption: convolutions over time with few channels wait for memory most of the time.
UTILISATION = 0.10


@dataclass(frozen=True)
class Gpu:
    """A GPU by its data sheet."""

    name: str
    teraflops: float  # dense, bfloat16


SMALL, LARGE = Gpu("RTX 3090, 24 GB", 71.0), Gpu("A100, 80 GB", 312.0)


@dataclass(frozen=True)
class Row:
    """A recipe on a dataset of so many training videos."""

    recipe: str
    clips: int
    overlays: tuple[str, ...] = ()
    gpu: Gpu = LARGE
    devices: int = 1


def rows() -> dict[str, Row]:
    """The rows of the table, by their names."""
    rows = {}
    for model in ("slowfast", "r3d18", "slowfast_scratch", "r3d18_scratch"):
        for kind in ("baseline", "multigrid"):
            name = f"{model}_{kind}"
            rows[f"ucf101_{name}"] = Row(f"ucf101_{name}", 9537)
            rows[f"ucf101_{name} _24gb"] = Row(f"ucf101_{name}", 9537, ("_24gb",), SMALL)
            rows[f"ucf101_{name} _hmdb51"] = Row(f"ucf101_{name}", 3570, ("_hmdb51",))
            rows[f"ucf101_{name} _hmdb51 _24gb"] = Row(f"ucf101_{name}", 3570, ("_hmdb51", "_24gb"), SMALL)
    for name in ("slowfast_8gpu_baseline", "slowfast_8gpu_multigrid"):
        rows[name] = Row(name, 240_000, devices=8)
    for name in ("ssv2_baseline", "ssv2_multigrid"):
        rows[name] = Row(name, 169_000, devices=8)
    return rows


def plan(row: Row) -> dict[str, Any]:
    """What `lightning-multigrid plan` says of a row."""
    configs = [part for name in (row.recipe, *row.overlays) for part in ("--config", str(RECIPES / f"{name}.yaml"))]
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(io.StringIO()):
        command_line(["plan", *configs, "--json=true", f"--clips={row.clips}", f"--devices={row.devices}"])
    planned: dict[str, Any] = json.loads(printed.getvalue())
    return planned


def cells(name: str, row: Row, planned: dict[str, Any]) -> list[str]:
    """A line of the table."""
    rate = UTILISATION * row.gpu.teraflops * 1e12
    seconds, clips_per_second, memory = 0.0, 0.0, 0.0
    for phase in planned["phases"]:
        cycle = phase["short_cycle"]
        # 2 FLOPs of a multiply-add; forward and backward are three forwards.
        step = 6e9 * sum(shape["clips"] * shape["gflops_per_clip"] for shape in cycle) / len(cycle) / rate
        seconds += phase["steps"] * step
        clips = sum(shape["clips"] for shape in cycle) / len(cycle)
        clips_per_second = max(clips_per_second, row.devices * clips / step)
        memory = max(memory, phase["memory"] * planned["baseline_saved_bytes"] / 2)
    return [
        " ".join(f"`{part}`" for part in name.split()),
        f"{row.devices} x {row.gpu.name}" if row.devices > 1 else row.gpu.name,
        f"{planned['epochs']}",
        f"{planned['steps']:,}",
        f"{seconds / 3600:.1f}",
        f"{clips_per_second:.0f}",
        f"{memory / 2**30:.1f}",
    ]


def main() -> None:
    known = rows()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=list(known), default=list(known), metavar="NAME")
    args = parser.parse_args()
    del sys.argv[1:]  # LightningCLI warns if it gets arguments from the program while the command line has some
    logging.disable(logging.INFO)
    print("| config | GPU | epochs | mini-batches | hours | clips/s | activations, GiB |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in args.rows:
        print(f"| {' | '.join(cells(name, known[name], plan(known[name])))} |", flush=True)


if __name__ == "__main__":
    main()
