import signal
import subprocess
import sys
import time

import pytest

from lightning_multigrid.prepare.workers import TaskFailure, run_tasks
from tests.helpers.processes import is_running, wait_for
from tests.helpers.sampling import sampled

DOUBLE, MISBEHAVE = "tests.helpers.task_functions:double", "tests.helpers.task_functions:misbehave"


@pytest.mark.parametrize("workers", sampled([0, 2], 0))  # with workers, the test of those that end has results, too
def test_each_task_has_its_result(workers):
    results = list(run_tasks(DOUBLE, range(20), workers, timeout=60))
    assert sorted(results) == [(task, 2 * task) for task in range(20)]


@pytest.mark.parametrize("workers", [0, 2])
def test_no_tasks(workers):
    assert list(run_tasks(DOUBLE, [], workers, timeout=60)) == []


@pytest.mark.parametrize("end", sampled(["die", "exit"], "die"))
def test_a_worker_that_ends_costs_its_task(end):
    tasks = [1, end, 2, "raise", 3]
    results = list(run_tasks(MISBEHAVE, tasks, 1, timeout=60))
    assert sorted((task for task, _ in results), key=str) == sorted(tasks, key=str)
    for task, result in results:
        expected = {
            "die": TaskFailure("the process that worked on it ended by signal SIGKILL"),
            "exit": TaskFailure("the process that worked on it ended with exit status 3"),
            "raise": TaskFailure("KeyError: 'what'"),
        }
        assert result == expected.get(task, task)


def test_without_workers_a_task_that_raises_costs_no_other():
    results = dict(run_tasks(MISBEHAVE, [1, "raise", 2], 0, timeout=60))
    assert results == {1: 1, "raise": TaskFailure("KeyError: 'what'"), 2: 2}


@pytest.mark.slow
def test_a_worker_that_dies_when_it_is_through_costs_no_task():
    """As one does that the system ends for want of memory while it waits for a task."""

    def tasks():
        yield "last breath"
        time.sleep(2)
        yield 1

    assert list(run_tasks(MISBEHAVE, tasks(), 1, timeout=60)) == [("last breath", "last breath"), (1, 1)]


@pytest.mark.slow
def test_a_worker_that_hangs_is_given_up_and_one_that_works_is_not():
    results = dict(run_tasks(MISBEHAVE, ["hang", "work", 1], 2, timeout=2))
    assert results == {"hang": TaskFailure("no sign of life for 2 s"), "work": "work", 1: 1}


def test_leaving_early_ends_the_workers():
    results = run_tasks(MISBEHAVE, [1, "hang"], 1, timeout=60)
    assert next(results) == (1, 1)
    start = time.monotonic()
    results.close()
    assert time.monotonic() - start < 40  # the task would take 60


def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    told = tmp_path / "pid"
    run = f"list(run_tasks({MISBEHAVE!r}, [{str(told)!r}], 1, 60))"
    code = f"from lightning_multigrid.prepare.workers import run_tasks; {run}"
    parent = subprocess.Popen([sys.executable, "-c", code])
    wait_for(lambda: told.exists() and told.read_text())
    worker = int(told.read_text())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_for(lambda: not is_running(worker))
