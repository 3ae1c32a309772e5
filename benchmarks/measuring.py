"""Shared by the benchmarks: clocks, the description of the machine, and the JSON file of a run."""

import json
import os
import platform
import subprocess
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from functools import cache
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import torch

import lightning_multigrid


def make_clock(device: torch.device) -> Callable[[], float]:
    """A clock in seconds: CPU time on a CPU, which other jobs disturb least; wall-clock time of an idle GPU."""
    if device.type == "cpu":
        return time.process_time

    def wall() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return wall


def machine(device: torch.device, packages: Sequence[str] = ()) -> dict[str, Any]:
    """The machine and the versions of a measurement; `packages` are further ones, by their import names."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu(),
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "cudnn": torch.backends.cudnn.version() if device.type == "cuda" else None,
        "lightning": version("lightning"),
        "lightning_multigrid": lightning_multigrid.__version__,
        "commit": _commit(),
        **_versions(packages),
        "date": datetime.now(timezone.utc).date().isoformat(),
    }


def _commit() -> str | None:
    """The commit of this repository; None outside of one."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


_distributions = cache(packages_distributions)  # it reads a second of files, and a script saves at each step


def _versions(packages: Sequence[str]) -> dict[str, str | None]:
    """Finds versions without importing the packages; None for one that is not installed."""
    distributions = _distributions() if packages else {}
    return {name: version(distributions[name][0]) if name in distributions else None for name in packages}


def machine_line(of: dict[str, Any]) -> str:
    """The machine as a line of text."""
    return f"{of['device']}, {of['threads']} thread(s), torch {of['torch']}"


def _cpu() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def prepared_copy(path: Path | str, target: Path | str) -> None:
    """Makes a copy of a video as `lightning-multigrid prepare` does."""
    from lightning_multigrid.prepare import Encoding
    from lightning_multigrid.prepare.transcode import TranscodeJob, transcode

    transcode(TranscodeJob(str(path), str(target), Encoding()))


def choose_device(options: Namespace, refuse: Callable[[str], Any]) -> torch.device:
    """The device for a `--device` option, which is written there; calls `refuse` with a message if there is none."""
    if options.device == "auto":
        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.device == "cuda" and not torch.cuda.is_available():
        refuse("--device cuda: torch sees no CUDA device here; use --device cpu")
    return torch.device(options.device)


def write_json(options: Namespace, benchmark: str, results: dict[str, Any], packages: Sequence[str] = ()) -> None:
    """Writes a run to the file of the option `--json`, if it is given: the benchmark, machine, options, results.

    The file is replaced at once, so a reader finds either the results before or all of these.
    """
    path = options.json
    if path is None:
        return
    given = {name: value for name, value in vars(options).items() if name != "json"}
    of = machine(torch.device(given.get("device", "cpu")), packages)
    report = {"benchmark": benchmark, "machine": of, "options": given, **results}
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(report, indent=1, default=lambda path: path.name) + "\n")
    beside.replace(path)
