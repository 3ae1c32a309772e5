import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lightning_multigrid.prepare.processes import TaskFailure, run_tasks, usable_cores
from tests.helpers.processes import is_running, wait_for
from tests.helpers.sampling import sampled
from tests.helpers.task_functions import double, misbehave

ROOT = str(Path(__file__).parents[2])


@pytest.mark.parametrize("workers", sampled([0, 2], 0))  # with workers, the test of those that end has results, too
def test_each_task_has_its_result(workers):
    results = list(run_tasks(double, range(20), workers, timeout=60))
    assert sorted(results) == [(task, 2 * task) for task in range(20)]


@pytest.mark.parametrize("workers", [0, 2])
def test_no_tasks(workers):
    assert list(run_tasks(double, [], workers, timeout=60)) == []


@pytest.mark.parametrize(
    ("ending", "failure"),
    sampled(
        [
            (
                "SIGKILL",
                TaskFailure("killed by signal SIGKILL, as when memory runs out: use fewer `workers`", killed=True),
            ),
            ("SIGSEGV", TaskFailure("the process that worked on it ended by signal SIGSEGV")),
            ("exit", TaskFailure("the process that worked on it ended with exit status 3")),
        ],
        ("exit", TaskFailure("the process that worked on it ended with exit status 3")),
    ),
)
def test_a_worker_that_ends_costs_its_task(ending, failure):
    results = list(run_tasks(misbehave, [1, ending, 2], 1, timeout=60))
    assert sorted(results, key=str) == sorted([(1, 1), (ending, failure), (2, 2)], key=str)


@pytest.mark.parametrize("workers", sampled([0, 1], 0))
def test_a_task_that_raises_costs_no_other(workers):
    results = dict(run_tasks(misbehave, [1, "raise", "memory", 2], workers, timeout=60))
    out_of_memory = TaskFailure("memory ran out: use fewer `workers`", killed=True)
    assert results == {1: 1, "raise": TaskFailure("KeyError: 'what'"), "memory": out_of_memory, 2: 2}


@pytest.mark.parametrize("workers", sampled([0, 1], 0))
def test_a_mistake_of_the_function_is_no_fault_of_its_task(workers):
    with pytest.raises(RuntimeError, match="AttributeError at mistake: no such thing"):
        list(run_tasks(misbehave, [1, "mistake", 2], workers, timeout=60))


@pytest.mark.slow
def test_a_worker_that_hangs_is_given_up():
    results = dict(run_tasks(misbehave, ["hang", 1], 2, timeout=2))
    assert results == {"hang": TaskFailure("took more than 2 s: give a longer `timeout`"), 1: 1}


@pytest.mark.slow
def test_leaving_early_ends_the_workers():
    results = run_tasks(misbehave, [1, "hang"], 1, timeout=60)
    assert next(results) == (1, 1)
    start = time.monotonic()
    results.close()
    assert time.monotonic() - start < 40  # the task would take 60


SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from lightning_multigrid.prepare.processes import run_tasks
from tests.helpers.task_functions import misbehave
{guard}
    print(list(run_tasks(misbehave, [{task!r}], 1, 60)))
"""


def script(folder, guard, task):
    path = folder / "script.py"
    path.write_text(SCRIPT.format(root=ROOT, guard=guard, task=task))
    return [sys.executable, str(path)]


def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    told = tmp_path / "process"
    command = script(tmp_path, "if __name__ == '__main__':", f"forever {tmp_path}")
    parent = subprocess.Popen(command)
    wait_for(lambda: told.exists() and told.read_text())
    worker = int(told.read_text())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_for(lambda: not is_running(worker))


@pytest.mark.slow
def test_a_script_without_a_guard_is_told_so(tmp_path):
    run = subprocess.run(script(tmp_path, "if True:", 1), capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 1
    assert (
        "Worker processes end before they begin to work, or while they wait. In a script, call this below `if __na"
        in run.stderr
    )


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
def test_processes_are_as_many_as_a_control_group_lets_work(files, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(16), raising=False)
    (tmp_path / "cgroup").write_text("0::/job/task\n")
    for name, text in files.items():
        (tmp_path / "mounts" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mounts" / name).write_text(text)
    assert usable_cores(str(tmp_path / "cgroup"), str(tmp_path / "mounts")) == expected
