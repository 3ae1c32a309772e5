"""Processes are as many as the cores that the system, and the control groups of a container, let us use."""

import os

import pytest

from lightning_multigrid.prepare.cores import usable_cores


@pytest.fixture
def cores(tmp_path, monkeypatch):
    """The number for files of control groups, on a machine of 16 cores."""
    monkeypatch.setattr(os, "process_cpu_count", lambda: 16, raising=False)

    def count(groups, files):
        (tmp_path / "cgroup").write_text(groups)
        for name, text in files.items():
            (tmp_path / "mounts" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "mounts" / name).write_text(text)
        return usable_cores(str(tmp_path / "cgroup"), str(tmp_path / "mounts"))

    return count


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 16),
        ({"job/task/cpu.max": "max 100000\n"}, 16),
        ({"job/task/cpu.max": "400000 100000\n"}, 4),
        ({"job/task/cpu.max": "150000 100000\n"}, 2),
        ({"job/task/cpu.max": "1000 100000\n"}, 1),
        ({"job/task/cpu.max": "6400000 100000\n"}, 16),
        ({"job/task/cpu.max": "800000 100000\n", "job/cpu.max": "300000 100000\n"}, 3),  # of a group that it is in
        ({"other/cpu.max": "100000 100000\n"}, 16),
        ({"cpu.max": "200000 100000\n"}, 2),  # a container's own root
        ({"job/task/cpu.max": "nonsense\n"}, 16),
    ],
)
def test_groups_of_version_2(cores, files, expected):
    assert cores("0::/job/task\n", files) == expected


@pytest.mark.parametrize("controllers", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize(("quota", "expected"), [(-1, 16), (250000, 3), (100000, 1)])
@pytest.mark.parametrize("group", ["docker/abc/", ""])
def test_groups_of_version_1(cores, controllers, quota, expected, group):
    files = {f"{controllers}/{group}cpu.cfs_quota_us": f"{quota}\n"}
    files[f"{controllers}/{group}cpu.cfs_period_us"] = "100000\n"
    assert cores(f"5:memory:/x\n4:{controllers}:/docker/abc\n1:name=systemd:/y\n", files) == expected


def test_without_control_groups_it_is_the_cores_that_the_process_may_use(monkeypatch, tmp_path):
    if hasattr(os, "process_cpu_count"):
        monkeypatch.delattr(os, "process_cpu_count")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1, 3, 5}, raising=False)
    assert usable_cores(str(tmp_path / "none"), str(tmp_path)) == 3
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert usable_cores(str(tmp_path / "none"), str(tmp_path)) == 7
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores(str(tmp_path / "none"), str(tmp_path)) == 1
