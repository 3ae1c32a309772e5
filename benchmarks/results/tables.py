"""Makes the tables of this folder's README from the JSON files beside it, or prints those of another folder.

python benchmarks/results/tables.py [FOLDER]
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

START, END = "<!-- made by tables.py: -->", "<!-- end -->"
Report = dict[str, Any]
Rows = Iterator[dict[str, str]]
"""The cells of each row, by their columns."""


def markdown(rows: list[dict[str, str]]) -> str:
    """A table of all columns that a row has, `-` where another has none."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = [columns, ["---"] * len(columns), *([row.get(column, "-") for column in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def speedup(report: Report) -> Rows:
    options = report["options"]
    for setting, result in report["settings"].items():
        if "speedup" in result:  # a run that was cut off has no totals
            flags = (name for name in ("channels_last", "fused", "compile", "cuda_graphs") if options.get(name))
            yield {
                "setting": setting,
                "baseline": result["baseline"],
                "with": ", ".join([options["precision"], *flags]),
                "faster": f"**{result['speedup']:.2f}x**",
                "FLOPs": f"{result['flops_bound']:.2f}x",
            }


def norm(report: Report) -> Rows:
    """For each variant the least and the greatest ratio of all layers."""
    for variant in dict.fromkeys(row["variant"] for row in report["rows"]):
        cells = {"variant": variant}
        for column, kind in (
            ("ours / plain", "ours"),
            ("ours without kernels / plain", "copies"),
            ("split and affine / plain", "split"),
        ):
            of = [row["ratio"] for row in report["rows"] if row["variant"] == variant]
            if known := [ratio[kind] for ratio in of if kind in ratio]:
                cells[column] = f"{min(known):.2f} to {max(known):.2f}"
        yield cells


def overhead(report: Report) -> Rows:
    loops = report["loops"]
    yield {
        "step, ms": f"{loops['step_ms']:.1f}",
        "Lightning + callback / bare": f"**{loops['callback_ratio']:.3f}** ({loops['callback_ms_per_step']:+.2f} ms)",
        "Lightning alone / bare": f"{loops['trainer_ratio']:.3f} ({loops['trainer_ms_per_step']:+.2f} ms)",
    }


def operations(report: Report) -> Rows:
    for row in report["rows"]:
        yield {
            "model": row["model"],
            "memory format": row["memory_format"],
            "bytes, plain, GB": f"{row['plain']['gb']:.1f}",
            "bytes, ours / plain": f"**{row['ratio']['bytes']:.3f}**",
            "operations, plain": f"{row['plain']['operations']}",
            "operations, ours / plain": f"**{row['ratio']['operations']:.2f}**",
        }


def decode(report: Report) -> Rows:
    for file, found in report["files"].items():
        of = dict(found["table"])
        ours = of.pop("ours")["mean"]
        yield {"file": file, "MB": f"{found['bytes'] / 1e6:.2f}", "ours, ms": f"{ours:.1f}"} | {
            f"{method} / ours": f"{row['x ours']:.2f}" for method, row in of.items()
        }


def prepare(report: Report) -> Rows:
    """Medians over all copies against the default, and the least and the greatest of any."""
    copies = report["files"].values()
    columns = "dB at equal bytes", "bytes at equal PSNR", "CPU s to encode", "CPU ms of a clip"
    names = "psnr_at_equal_bytes", "bytes_at_equal_psnr", "encode", "clip"
    for setting in [*next(iter(copies))["against"]][1:]:
        cells = {"copies": str(len(copies)), "setting": setting}
        for column, name in zip(columns, names, strict=True):
            of = [file["against"][setting][name] for file in copies]
            cells[column] = f"{median(of):.2f} ({min(of):.2f} to {max(of):.2f})"
        yield cells
    for crf, row in report["by_crf"].items():
        yield {
            "copies": str(len(copies)),
            "setting": f"medium, crf {crf}",
            "dB": f"{row['psnr']:+.2f}",
            "bytes": f"{row['bytes']:.2f}",
            "CPU s to encode": f"{row['encode_s']:.2f}",
            "CPU ms of a clip": f"{row['clip_ms']:.2f}",
        }


def fit(report: Report) -> Rows:
    for row in report["rows"]:
        yield {
            "setting": report["options"]["setting"],
            "grid": row["shape"],
            "a step, ms": f"{row['ms']:.1f}",
            "waits for data, ms": f"{row['ms_waiting']:.1f}",
            "clips/s": f"{row['clips_per_second']:.0f}",
            "peak, GiB": "-" if row["peak_gib"] is None else f"{row['peak_gib']:.1f}",
            "limit": "the loader" if row["loader_is_the_limit"] else "the step",
        }


def memory(report: Report) -> Rows:
    for setting, result in report["settings"].items():
        for grid in result["grids"]:
            if grid.get("peak_gib") is not None and "ms" in grid:
                yield {
                    "setting": setting,
                    "grid": grid["shape"],
                    "BatchNorm over": f"{grid['sub_batch'] or 'all'} clips",
                    "a step, ms": f"{grid['ms']:.1f}",
                    "peak, GiB": f"{grid['peak_gib']:.1f}",
                }


def loader(report: Report) -> Rows:
    for row in report["rows"]:
        cells = {"grid": row["grid"], "videos": row["videos"]}
        cells["ours, clips/s"] = f"{row['ours: clips/s']:.0f}"
        cells["clips per CPU s"] = f"{row['ours: clips/CPU s']:.0f}"
        for title, source in (("the same", row["videos"]), ("the originals", "original")):
            for peer in ("torchcodec", "pyslowfast"):
                ratio = f"ours / {peer} on {source}"
                if ratio in row:
                    cells[f"ours / {peer} on {title}"] = f"{row[ratio]:.2f} ({row[f'{ratio} (CPU)']:.2f})"
        yield cells


def planes(report: Report) -> Rows:
    for row in report["rows"]:
        cells = {name: f"{row[name]['cpu_ms']:.2f} ({row[name]['wall_ms']:.2f})" for name in ("original", "copy")}
        of_planes = row["planes"]
        cells["planes"] = f"{of_planes['cpu_ms']:.3f} ({of_planes['wall_ms']:.3f})"
        times = row["copy"]["cpu_ms"] / of_planes["cpu_ms"]
        yield {"short side": f"{row['side']}", "frames": f"{row['frames']}"} | cells | {"copy / planes": f"{times:.1f}"}


def ordinary_scripts(report: Report) -> Rows:
    """CPU seconds of each variant against its script alone; those of `prepare`, which is run once, stand apart."""
    alone: dict[str, float] = {}
    for row in report["rows"]:
        first = alone.setdefault(row["script"], row["cpu"])
        cells = {"script": row["script"], "variant": row["variant"], "wall clock, s": f"{row['wall']:.0f}"}
        cells |= {"CPU s": f"{row['cpu']:.0f}", "of alone": f"**{row['cpu'] / first:.2f}**"}
        cells |= {"reads": f"{row['reads']:,}" if "reads" in row else "-", "steps": f"{row['steps']}"}
        cells["top-1 %"] = f"{100 * row['accuracy']:.0f}"
        if row.get("compiling", 0) >= 1:
            cells["compiling, s"] = f"{row['compiling']:.0f}"
        if "prepare" in row:
            cells["`prepare`, CPU s"] = f"{row['prepare']['cpu']:.0f}"
        if row["said"]:
            cells["said at step"] = f"{row['said_at']}" if row["said_at"] else "yes"
        yield cells


def codecs(report: Report) -> Rows:
    for kind, row in report["rows"].items():
        yield {
            "file": kind,
            "MB for a minute": f"{row['bytes_per_minute'] / 1e6:.1f}",
            **{f"{name}, CPU ms": f"{ms:.0f}" for name, ms in sorted(row["ms"].items())},
            "KB from a server": f"{row['bytes'] / 1e3:.0f}",
            "requests, at most": f"{row['requests']}",
        }


def leaks(report: Report) -> Rows:
    for source, row in report["rows"].items():
        yield {
            "source": source,
            "mini-batches": f"{row['mini_batches']:,}",
            "resident, MB": f"{row['resident'] / 1e6:.0f}",
            "in 1,000: KB": f"**{row['bytes'] / 1000:+.0f}**",
            "KB of shared memory": f"{row['shm'] / 1000:+.0f}",
            "open files": f"{row['files']:+.2f}",
            "threads": f"{row['threads']:+.2f}",
        }


KINDS: dict[str, tuple[str, Callable[[Report], Rows]]] = {
    "speedup": ("Baseline against multigrid, compute alone (`benchmark_speedup.py`)", speedup),
    "norm": ("BatchNorm over sub-mini-batches (`benchmark_norm.py`)", norm),
    "operations": ("What a step asks of a GPU, counted (`count_operations.py`)", operations),
    "decode": ("Decoding: CPU time of a clip, relative to ours (`benchmark_decode.py`)", decode),
    "codecs": ("A clip of 16 frames, by the codec and the container of its file (`benchmark_codecs.py`)", codecs),
    "loader": (
        "Mini-batches ready for the device: clips per second, and in brackets per CPU second (`benchmark_loader.py`)",
        loader,
    ),
    "prepare": ("Settings of `prepare` against its default (`benchmark_prepare.py`)", prepare),
    "planes": ("CPU ms of a clip, and in brackets wall-clock ms (`benchmark_planes.py`)", planes),
    "fit": ("A real `fit` on prepared videos (`benchmark_fit.py`)", fit),
    "ordinary_scripts": (
        "Ordinary scripts: CPU seconds of a whole command (`ordinary_scripts/run.py`)",
        ordinary_scripts,
    ),
    "leaks": ("What a long training keeps (`benchmark_leaks.py`)", leaks),
    "overhead": ("What the callback costs (`benchmark_overhead.py`)", overhead),
}


def trained(folder: Path) -> Iterator[str]:
    """A table of the trainings that were recorded in a folder of this one, by their wall clock."""
    for task in sorted({path.parent for path in folder.glob("*/*-*.json")}):
        rows = []
        for path in sorted(task.glob("*-*.json")):
            run = json.loads(path.read_text())
            if not run["validations"]:
                continue
            seconds, _, metrics = run["validations"][-1]
            of = {kind: round(spent) for kind, spent in run.get("account", {}).items() if spent >= 1}
            rows.append(
                {
                    "run": f"`{path.stem}`",
                    "wall clock, s": f"{seconds:.0f}",
                    "top-1 %": f"{100 * metrics['val/top1']:.1f}",
                    "steps": f"{run['steps']:,}",
                    "of which": ", ".join(f"{kind} {spent}" for kind, spent in of.items()),
                }
            )
        if rows:
            yield f"### Complete trainings (`{task.name}`)\n\n{markdown(rows)}"


def made_of(folder: Path, kinds: dict[str, tuple[str, Callable[[Report], Rows]]]) -> list[str]:
    """The tables of a folder's JSON files."""
    reports = {path.name: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    parts = []
    for kind, (title, make) in kinds.items():
        of_kind = {name: report for name, report in reports.items() if report.get("benchmark") == kind}
        if of_kind:
            rows = [{"run": f"`{name}`"} | row for name, report in of_kind.items() for row in make(report)]
            where = (
                f"- `{name}`: {of['device']}, {of['threads']} thread(s), torch {of['torch']}, {of['date']}"
                for name, of in ((name, report["machine"]) for name, report in of_kind.items())
            )
            parts.append(f"### {title}\n\n{markdown(rows)}\n\n" + "\n".join(where))
    return parts


def with_tables(text: str, folder: Path) -> str:
    """Replaces the tables between the marks in the text by those of a folder's JSON files."""
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n\n" + "\n\n".join(made_of(folder, KINDS)) + f"\n\n{END}{after}"


def main() -> None:
    if sys.argv[1:]:
        folder = Path(sys.argv[1])
        grids = {"speedup": ("Steps and memory of each grid (`benchmark_speedup.py`)", memory)}
        print("\n\n".join([*made_of(folder, KINDS), *made_of(folder, grids), *trained(folder)]))
        return
    folder = Path(__file__).parent
    readme = folder / "README.md"
    readme.write_text(with_tables(readme.read_text(), folder))


if __name__ == "__main__":
    main()
