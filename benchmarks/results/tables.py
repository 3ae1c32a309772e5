"""Makes the tables of this folder's README from the JSON files beside it.

python benchmarks/results/tables.py
"""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

START, END = "<!-- made by tables.py: -->", "<!-- end -->"
Report = dict[str, Any]


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _hours(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.1f} min"


def _flags(options: dict[str, Any]) -> str:
    names = ("channels_last", "fused", "cuda_graphs", "resample")
    flags = [options["precision"], *(name for name in names if options.get(name))]
    return ", ".join(flags)


def _smaller(options: dict[str, Any]) -> bool:
    """Whether the clips are smaller than in the setting, to which the hours and the paper's figure belong."""
    return any(options[key] for key in ("clips", "frames", "size"))


def speedup(reports: dict[str, Report]) -> str:
    columns = ["run", "setting", "baseline", "with", "baseline takes", "multigrid takes", "faster", "FLOPs", "paper"]
    rows = [
        [
            f"`{name}`",
            setting,
            result["baseline"],
            _flags(report["options"]),
            "-" if _smaller(report["options"]) else _hours(result["baseline_hours"]),
            "-" if _smaller(report["options"]) else _hours(result["multigrid_hours"]),
            f"**{result['speedup']:.2f}x**",
            f"{result['flops_bound']:.2f}x",
            "-" if result["published"] is None or _smaller(report["options"]) else f"{result['published']:.2g}x",
        ]
        for name, report in reports.items()
        for setting, result in report["settings"].items()
        if "speedup" in result  # a run that was cut off has no totals
    ]
    return markdown(columns, rows)


def train(reports: dict[str, Report]) -> str:
    columns = ["run", "baseline", "grid", "steps", "ms/step", "ms waiting", "clips/s"]
    rows = [
        [f"`{name}`", "{clips} x {frames} x {size}".format(**report["options"]), grid["shape"], f"{grid['steps']:.0f}"]
        + [f"{grid[key]:.1f}" for key in ("ms/step", "ms waiting", "clips/s")]
        for name, report in reports.items()
        for grid in report["grids"]
    ]
    return markdown(columns, rows)


def norm(reports: dict[str, Report]) -> str:
    """For each variant the least and the greatest ratio of all layers."""
    kinds = {"ours": "ours / plain", "split": "split and affine / plain"}
    rows = [
        [f"`{name}`", variant, *(_span(row["ratio"].get(kind) for row in of) for kind in kinds)]
        for name, report in reports.items()
        for variant, of in _by_variant(report["rows"]).items()
    ]
    return markdown(["run", "variant", *kinds.values()], rows)


def _by_variant(rows: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["variant"], []).append(row)
    return found


def _span(ratios: Iterable[float | None]) -> str:
    known = [ratio for ratio in ratios if ratio is not None]
    return f"{min(known):.2f} to {max(known):.2f}"


def overhead(reports: dict[str, Report]) -> str:
    columns = [
        "run",
        "step, ms",
        "Lightning + callback / bare",
        "Lightning alone / bare",
        "change of shape, steps",
        "workers started",
    ]
    rows = [
        [
            f"`{name}`",
            f"{report['loops']['step_ms']:.1f}",
            f"**{report['loops']['callback_ratio']:.3f}** ({report['loops']['callback_ms_per_step']:+.2f} ms)",
            f"{report['loops']['trainer_ratio']:.3f} ({report['loops']['trainer_ms_per_step']:+.2f} ms)",
            f"{report['changes']['extra_steps_median']:.2f}",
            f"{report['changes']['worker_processes']} of {report['changes']['workers']}",
        ]
        for name, report in reports.items()
    ]
    return markdown(columns, rows)


def operations(reports: dict[str, Report]) -> str:
    columns = ["run", "model", "memory format", "bytes, plain, GB", "ours", "operations, plain", "ours"]
    rows = [
        [
            f"`{name}`",
            row["model"],
            row["memory_format"],
            f"{row['plain']['gb']:.1f}",
            f"**{row['ratio']['bytes']:.3f}**",
            f"{row['plain']['operations']}",
            f"**{row['ratio']['operations']:.2f}**",
        ]
        for name, report in reports.items()
        for row in report["rows"]
    ]
    host = [
        [f"`{name}`", row["work"], str(row["operations"]), f"{row['ms']:.2f}"]
        for name, report in reports.items()
        for row in report["host"]
    ]
    made = f"The host's work for a mini-batch of {next(iter(reports.values()))['options']['clips']} clips:"
    hosts = markdown(["run", "work", "operations", "ms"], host)
    return f"{markdown(columns, rows)}\n\n{made}\n\n{hosts}"


def _methods(report: Report) -> list[str]:
    return [method for file in report["files"].values() for method in file["table"]]


def decode(reports: dict[str, Report]) -> str:
    methods = list(dict.fromkeys(method for report in reports.values() for method in _methods(report)))
    columns = ["run", "file", "MB", "ours, ms", *(f"{method} / ours" for method in methods[1:])]
    rows = [
        [f"`{name}`", file, f"{found['bytes'] / 1e6:.2f}", f"{found['table']['ours']['mean']:.1f}"]
        + [f"{found['table'][method]['x ours']:.2f}" if method in found["table"] else "-" for method in methods[1:]]
        for name, report in reports.items()
        for file, found in report["files"].items()
    ]
    return markdown(columns, rows)


def loader(reports: dict[str, Report]) -> str:
    peers = ["torchcodec", "pyslowfast"]
    columns = ["run", "grid", "videos", "ours, clips/s", "clips per CPU s"]
    columns += [f"ours / {peer} on {source}" for source in ("the same", "the originals") for peer in peers]
    rows = [
        [f"`{name}`", row["grid"], row["videos"], f"{row['ours: clips/s']:.0f}", f"{row['ours: clips/CPU s']:.0f}"]
        + [_loaders(row, peer, source) for source in (row["videos"], "original") for peer in peers]
        for name, report in reports.items()
        for row in report["rows"]
    ]
    return markdown(columns, rows)


def _loaders(row: dict[str, Any], peer: str, source: str) -> str:
    """The ratio of clips per second, and in brackets that of clips per CPU second."""
    ratio = f"ours / {peer} on {source}"
    return f"{row[ratio]:.2f} ({row[f'{ratio} (CPU)']:.2f})" if ratio in row else "-"


KINDS: dict[str, tuple[str, Callable[[dict[str, Report]], str]]] = {
    "speedup": ("Baseline against multigrid, compute alone (`benchmark_speedup.py`)", speedup),
    "norm": ("BatchNorm over sub-mini-batches (`benchmark_norm.py`)", norm),
    "operations": (
        "What a step asks of a GPU, counted; ours as ratios to plain BatchNorm (`count_operations.py`)",
        operations,
    ),
    "decode": ("Decoding: CPU time of a clip, relative to ours (`benchmark_decode.py`)", decode),
    "loader": (
        "Mini-batches ready for the device: clips per second, and in brackets per CPU second (`benchmark_loader.py`)",
        loader,
    ),
    "overhead": ("What the callback costs (`benchmark_overhead.py`)", overhead),
    "train": ("A real `fit`: steps and waiting for clips (`benchmark_train.py`)", train),
}


def with_tables(text: str, folder: Path) -> str:
    """Replaces the tables between the marks in the text by those of a folder's JSON files."""
    kinds: dict[str, dict[str, Report]] = {kind: {} for kind in KINDS}
    for path in sorted(folder.glob("*.json")):
        report = json.loads(path.read_text())
        if report.get("benchmark") in kinds:
            kinds[report["benchmark"]][path.name] = report
    parts = []
    for kind, reports in kinds.items():
        if reports:
            title, make = KINDS[kind]
            where = {
                f"`{name}`: {of['machine']['device']}, {of['machine']['threads']} thread(s), torch "
                f"{of['machine']['torch']}, {of['machine']['date']}"
                for name, of in reports.items()
            }
            parts.append(f"### {title}\n\n{make(reports)}\n\n" + "\n".join(f"- {line}" for line in sorted(where)))
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n\n" + "\n\n".join(parts) + f"\n\n{END}{after}"


def main() -> None:
    folder = Path(__file__).parent
    readme = folder / "README.md"
    readme.write_text(with_tables(readme.read_text(), folder))


if __name__ == "__main__":
    main()
