"""How many processes can work at once on this machine."""

import os
from collections.abc import Iterator
from contextlib import suppress
from math import ceil
from pathlib import Path


def usable_cores(processor_groups: str = "/proc/self/cgroup", mounts: str = "/sys/fs/cgroup") -> int:
    """Returns the number of processes that can work at once, at least 1.

    That is the number of cores that this process may use, but not more than the CPU quota of its control groups, which
    containers and batch systems set: a quota of 1.5 cores keeps 2 processes busy.

    Args:
        processor_groups: Linux's file that names the control groups of this process.
        mounts: Where control groups are mounted.
    """
    if hasattr(os, "process_cpu_count"):
        cores = os.process_cpu_count()
    else:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min([cores or 1, *map(ceil, _quotas(Path(processor_groups), Path(mounts)))]))


def _quotas(processor_groups: Path, mounts: Path) -> Iterator[float]:
    """The cores that each group which this process is in may use, where that is limited."""
    lines = []
    with suppress(OSError):  # not Linux
        lines = processor_groups.read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # Version 2 has one tree. In a container the path may be that of the host, and the mount the group itself.
        mount = mounts / controllers
        group = mount / path.lstrip("/")
        for folder in {group, *group.parents, mount}:
            if folder.is_relative_to(mount):
                with suppress(OSError, ValueError):  # no limit
                    yield _quota(folder, is_of_version_1=bool(controllers))


def _quota(folder: Path, is_of_version_1: bool) -> float:
    if is_of_version_1:
        quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
    else:
        quota, period = (folder / "cpu.max").read_text().split()
    if int(quota) <= 0:
        raise ValueError  # -1: no limit
    return int(quota) / int(period)
