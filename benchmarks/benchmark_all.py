"""Runs the benchmarks in parts, the most valuable first, into one JSON file that is up to date at any moment.

    python benchmarks/benchmark_all.py --preflight                  # which packages are missing, and how to carry them
    python benchmarks/benchmark_all.py --results gpu.json           # all parts that nine minutes hold
    python benchmarks/benchmark_all.py --results gpu.json           # once more: the parts that are not whole yet
    python benchmarks/benchmark_all.py --parts fit loader --again   # only these, also if they are whole
    python benchmarks/benchmark_all.py --dry                        # each part on tiny clips, on the CPU

Every part is a process of its own with its own limit of time. It writes what it has after each round, and this script
takes that over, so being stopped at any moment loses at most a round. A part that fails does not end the others. A part
that would not end in the time that is left is put off, and shorter ones after it may run.

The processes are copies of one that has imported torch and Lightning, which saves ten seconds each. Where copies cannot
use the device they are started afresh.
"""

import argparse
import json
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from json_files import replace_json
from preflight import missing_packages, preflight

BENCHMARKS = Path(__file__).parent
GRACE = 5.0  # seconds between asking a part to end and ending it


@dataclass(frozen=True)
class Part:
    """A benchmark with its options.

    `seconds` is how long it should take on an H200, estimated (see `results/README.md`), and `limit` when it is ended.
    `needs` are packages without which it is put off.
    """

    name: str
    script: str
    options: str
    seconds: float
    limit: float
    needs: tuple[str, ...] = ()


def _speedup(name: str, seconds: float, options: str, limit: float = 0, needs: tuple[str, ...] = ()) -> Part:
    """A part of `benchmark_speedup.py`; unless others are given, 16 bits, and cuDNN tries no kernels (minutes)."""
    usual = {"--precision": "bf16", "--kernels": "0", "--rounds": "3", "--warm-up": "2"}
    more = [f" {option} {value}" for option, value in usual.items() if option not in options.split()]
    return Part(name, "benchmark_speedup", options + "".join(more), seconds, limit or 2 * seconds, needs)


FIT = (
    "--model slowfast --clips 8 --frames 32 --size 224 --precision bf16-mixed --channels-last --fused "
    "--epochs 2 --clips-of-epoch 1500 --videos 4 --workers 16"
)
LOADER = "--made 4 --methods ours --clips 8 --workers 16 --turn 1024 --rounds 2"
GPU = [
    Part("machine", "benchmark_machine", "", 6, 30),
    _speedup("slowfast_8", 30, "--setting slowfast --clips 8"),
    Part("cuda_tests", "cuda_tests", "", 30, 90),
    _speedup("i3d_8", 25, "--setting i3d --clips 8"),
    _speedup("i3d_nl_8", 25, "--setting i3d_nl --clips 8"),
    _speedup("slowfast_4_resample", 30, "--setting slowfast --resample", needs=("av",)),
    _speedup("slowfast_8_channels_last", 30, "--setting slowfast --clips 8 --channels-last --fused"),
    Part("norm", "benchmark_norm", "--seconds 20", 25, 60),
    Part("fit", "benchmark_train", FIT, 60, 120, ("av",)),
    Part("loader", "benchmark_loader", LOADER, 45, 90, ("av",)),
    # Clips so small that the device waits for the host: a step takes the host's time.
    _speedup("host", 20, "--setting slowfast i3d --clips 8 --frames 16 --size 64"),
    _speedup("slowfast_8_cuda_graphs", 35, "--setting slowfast --clips 8 --cuda-graphs"),
    _speedup("slowfast_2", 25, "--setting slowfast --clips 2"),
    _speedup("slowfast_32", 45, "--setting slowfast --clips 32 --rounds 2"),
    _speedup("slowfast_8_tf32", 30, "--setting slowfast --clips 8 --precision tf32"),
    _speedup("slowfast_8_fp32", 40, "--setting slowfast --clips 8 --precision fp32 --rounds 2"),
    # From here on for a second call.
    _speedup("slowfast_8_kernels", 120, "--setting slowfast --clips 8 --kernels 3 --grids baseline coarse fine", 200),
    _speedup("slowfast_8_compiled", 120, "--setting slowfast --clips 8 --compile --grids baseline coarse", 240),
    _speedup(
        "slowfast_8_compiled_graphs",
        120,
        "--setting slowfast --clips 8 --compile reduce-overhead --grids baseline coarse",
        240,
    ),
    _speedup("slowfast_2_cuda_graphs", 30, "--setting slowfast --clips 2 --cuda-graphs"),
    Part("fit_baseline", "benchmark_train", f"{FIT} --baseline", 60, 120, ("av",)),
    _speedup("i3d_8_channels_last", 25, "--setting i3d --clips 8 --channels-last --fused"),
    _speedup("i3d_1gpu", 25, "--setting i3d_1gpu"),
    _speedup("slowfast_4", 25, "--setting slowfast"),
    _speedup("i3d_2", 20, "--setting i3d"),
    _speedup("i3d_nl_2", 20, "--setting i3d_nl"),
    _speedup("slowfast_t64", 40, "--setting slowfast_t64"),
    _speedup("slowfast_320", 40, "--setting slowfast_320"),
    _speedup("slowfast_8_divisor", 30, "--setting slowfast --clips 8 --channels-last --size-divisor 32"),
    Part("overhead", "benchmark_overhead", "--rounds 3 --import-rounds 0", 40, 90),
]
CPU = [
    Part("speedup_small", "benchmark_speedup", "", 60, 600),
    Part("norm", "benchmark_norm", "", 45, 300),
    Part("overhead", "benchmark_overhead", "", 120, 600),
    Part("speedup_i3d_reduced", "benchmark_speedup", "--setting i3d_1gpu --clips 2 --size 64", 300, 1200),
    Part(
        "speedup_slowfast_reduced",
        "benchmark_speedup",
        "--setting slowfast --clips 2 --frames 16 --size 64",
        300,
        1200,
    ),
]
DRY = {
    # In bf16 no smaller than 32: oneDNN writes outside of its memory where a convolution of stride 2 meets a map of one
    # pixel (torch 2.14.1, CPUs with AVX-512).
    "benchmark_speedup": "--setting small --clips 2 --frames 4 --size 32 --rounds 1 --steps 1 --warm-up 1",
    "benchmark_norm": "--seconds 0 --shapes 16x2x2x3x3",
    "benchmark_train": "--model small --clips 2 --frames 4 --size 32 --epochs 1 --clips-of-epoch 32 --videos 1 "
    "--seconds 1 --workers 1 --precision bf16-mixed",
    "benchmark_loader": "--made 1 --seconds 3 --clips 1 --workers 1 --turn 8 --rounds 1 --grids coarse",
    "benchmark_machine": "--gigabytes 0.001 --side 32 --calls 10 --rounds 1",
    "benchmark_overhead": "--clips 2 --frames 4 --size 16 --width 2 --videos 32 --epochs 2 --rounds 1 --workers 1",
    "cuda_tests": "",
}


def dry(part: Part) -> Part:
    """The part on tiny clips on the CPU: the last of two equal options counts. CUDA graphs are left out."""
    return replace(part, options=f"{part.options.replace('--cuda-graphs', '')} {DRY[part.script]}")


def run_script(script: str, options: Sequence[str], log: str, tiny: bool) -> None:
    """What the process of a part does."""
    os.setsid()  # so that its workers can be ended with it
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    sys.argv = [f"{script}.py", *options]
    if tiny:
        import torch

        torch.compiler.set_stance("force_eager")  # the compiler takes a minute for each graph
    runpy.run_path(str(BENCHMARKS / f"{script}.py"))["main"](list(options))


class Process:
    """The process of a part: a copy of this one, or a fresh one."""

    def __init__(self, part: Part, options: list[str], log: Path, copied: bool, tiny: bool) -> None:
        self.ended: Callable[[], int | None]
        if copied:
            process = multiprocessing.get_context("fork").Process(
                target=run_script, args=(part.script, options, str(log), tiny)
            )
            process.start()
            self.ended = lambda: process.exitcode
            self.pid = process.pid or 0
        else:
            with log.open("ab") as file:
                command = [sys.executable, str(BENCHMARKS / f"{part.script}.py"), *options]
                fresh = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
            self.ended, self.pid = fresh.poll, fresh.pid

    def stop(self) -> None:
        """Ends it and all processes of its session."""
        for number, patience in ((signal.SIGTERM, GRACE), (signal.SIGKILL, GRACE)):
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                return
            until = time.monotonic() + patience
            while self.ended() is None and time.monotonic() < until:
                time.sleep(0.05)


class Results:
    """The JSON file of all parts."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path = path
        known = json.loads(path.read_text()) if path.exists() else {}
        self.parts: dict[str, dict[str, Any]] = known.get("parts", {})
        self.about = about

    def save(self) -> None:
        replace_json(self.path, {"benchmark": "all", **self.about, "parts": self.parts})

    def whole(self, name: str) -> bool:
        return self.parts.get(name, {}).get("status") == "done"

    def note(self, part: Part, status: str, **found: Any) -> None:
        """Notes how a part stands; what it measured before stays until there is something new."""
        before = self.parts.get(part.name, {})
        kept = {key: before[key] for key in ("result", "log") if key in before}
        self.parts[part.name] = kept | {"status": status, "estimated_seconds": part.seconds, **found}
        self.save()


def read_json(path: Path) -> dict[str, Any]:
    """What a part has written so far: `result`, if there is any."""
    try:
        return {"result": json.loads(path.read_text())}
    except (OSError, ValueError):
        return {}


def tail(log: Path, characters: int = 3000) -> str:
    return log.read_text(errors="replace")[-characters:] if log.exists() else ""


class Runner:
    """Runs parts one after the other."""

    def __init__(self, results: Results, options: argparse.Namespace, folder: Path) -> None:
        self.results, self.options, self.folder = results, options, folder
        self.until = time.monotonic() + options.limit
        self.copied = not options.fresh
        self.current: Process | None = None
        self.stopped = False

    def run(self, part: Part) -> str:
        """Runs a part; returns its status."""
        lacking = missing_packages(part.needs)
        left = self.until - time.monotonic()
        if lacking:
            self.results.note(part, "put off", why=f"needs {', '.join(lacking)}")
            return "put off"
        if left < part.seconds:
            why = f"estimated at {part.seconds:.0f} s, and {max(0.0, left):.0f} s were left"
            self.results.note(part, "put off", why=why)
            return "put off"
        status = self._run(part, min(part.limit, left))
        if status == "failed" and part.name == "machine" and self.copied:
            self.copied = False  # the device may refuse a copied process
            status = self._run(part, min(part.limit, left))
        return status

    def _run(self, part: Part, limit: float) -> str:
        file, log = self.folder / f"{part.name}.json", self.folder / f"{part.name}.log"
        log.unlink(missing_ok=True)
        options = [*part.options.split(), "--json", str(file)]
        if part.script != "benchmark_loader":
            options += ["--device", self.options.device]
        began = time.monotonic()
        process = self.current = Process(part, options, log, self.copied, self.options.dry)
        while process.ended() is None and time.monotonic() - began < limit and not self.stopped:
            time.sleep(0.05)
            if int(2 * (time.monotonic() - began)) != int(2 * (time.monotonic() - began - 0.05)):  # twice a second
                self._note(part, "running", began, file)
        code = process.ended()
        process.stop()
        self.current = None
        status = "cut off" if code is None else "failed" if code else "done"
        self._note(part, status, began, file, log=tail(log), exit_code=code, limit_seconds=limit)
        return status

    def _note(self, part: Part, status: str, began: float, file: Path, **found: Any) -> None:
        self.results.note(part, status, seconds=time.monotonic() - began, **read_json(file), **found)

    def stop(self, *_: Any) -> None:
        self.stopped = True


def find_device() -> str:
    """Asks another process, as this one must not touch the device before it is copied."""
    program = "import torch; print('cuda' if torch.cuda.is_available() else 'cpu')"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def table(parts: Sequence[Part], results: Results) -> str:
    """A line per part: how long it was estimated to take and took, and how it ended."""
    lines = [f"{'part':<30}{'estimate, s':>12}{'measured, s':>12}  outcome"]
    for part in parts:
        found = results.parts.get(part.name, {"status": "not run"})
        took = f"{found['seconds']:.0f}" if "seconds" in found else "-"
        why = f" ({found['why']})" if "why" in found else ""
        lines.append(f"{part.name:<30}{part.seconds:>12.0f}{took:>12}  {found['status']}{why}")
    lines.append(f"{'all':<30}{sum(part.seconds for part in parts):>12.0f}")
    return "\n".join(lines)


def main(args: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", metavar="PART", help="only these; default: all, the most valuable first")
    parser.add_argument("--results", type=Path, metavar="FILE", help="default: benchmarks/results/all_DEVICE.json")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: a GPU if there is one")
    parser.add_argument("--limit", type=float, default=540, metavar="SECONDS", help="for all parts (default: 540)")
    parser.add_argument("--again", action="store_true", help="also parts that are whole in the file")
    parser.add_argument("--fresh", action="store_true", help="start every process afresh")
    parser.add_argument("--list", action="store_true", help="only list the parts and how long they should take")
    parser.add_argument("--dry", action="store_true", help="the parts of a GPU on tiny clips, on the CPU")
    parser.add_argument("--preflight", action="store_true", help="only say what is missing here")
    options = parser.parse_args(args)
    if options.preflight:
        return preflight()
    options.device = "cpu" if options.dry else options.device or find_device()
    known = [dry(part) for part in GPU] if options.dry else GPU if options.device == "cuda" else CPU
    names = [part.name for part in known]
    unknown = set(options.parts or []) - set(names)
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))} on {options.device}; there are {', '.join(names)}")
    parts = [part for part in known if not options.parts or part.name in options.parts]
    default = "all_dry" if options.dry else f"all_{options.device}"
    results = Results(options.results or BENCHMARKS / "results" / f"{default}.json", {"device": options.device})
    if options.list:
        print(table(parts, results))
        return 0

    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # asks for devices without taking one
    left = [part for part in parts if options.again or not results.whole(part.name)]
    if left and not options.fresh:
        import lightning  # noqa: F401

        import lightning_multigrid.training  # noqa: F401
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(results, options, Path(folder))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, runner.stop)
        for part in left:
            if runner.stopped:
                break
            print(f"== {part.name}: {part.script} {part.options}", flush=True)
            status = runner.run(part)
            found = results.parts[part.name]
            print(found.get("log", "") if status in ("done", "failed") else "", end="")
            print(f"== {part.name}: {status}{', ' + found['why'] if 'why' in found else ''}", flush=True)
    print(table(parts, results))
    print(f"Written to {results.path}.")
    return int(any(results.parts.get(part.name, {}).get("status") in ("failed", "cut off") for part in parts))


if __name__ == "__main__":
    sys.exit(main())
