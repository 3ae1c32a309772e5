import multiprocessing
import os
import time
from pathlib import Path

import pytest

from lightning_multigrid.prepare.processes import TaskFailure, run_tasks
from tests.helpers.processes import wait_for
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


@pytest.mark.slow
def test_workers_that_start_late_end_in_silence(capfd):
    """One worker may do all tasks before the others have started."""
    for _ in range(10):
        assert dict(run_tasks(double, range(3), 4, timeout=60)) == {0: 0, 1: 2, 2: 4}
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("ending", "status"), sampled([("SIGKILL", -9), ("SIGSEGV", -11), ("exit", 3)], ("exit", 3)))
def test_a_worker_that_ends_costs_its_task_and_none_hears_ctrl_c(ending, status):
    """And Ctrl-C is for the command, not for its workers."""
    results = dict(run_tasks(misbehave, [1, ending, "ctrl-c"], 1, timeout=60))
    assert f"ended with exit status {status} (-9: memory ran out" in results.pop(ending).reason
    assert results == {1: 1, "ctrl-c": False}
    assert misbehave("ctrl-c")


@pytest.mark.parametrize("workers", sampled([0, 1], 0))
def test_a_task_that_raises_costs_no_other(workers):
    results = dict(run_tasks(misbehave, [1, "raise", "memory", 2], workers, timeout=60))
    out_of_memory = TaskFailure("memory ran out: use fewer `workers`")
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


def test_workers_end_with_a_command_that_is_killed(tmp_path):
    killed = multiprocessing.get_context("fork").Process(target=work, args=(f"forever {tmp_path}",))
    killed.start()
    wait_for((tmp_path / "process").exists, 120)
    killed.kill()
    killed.join()
    worker = int((tmp_path / "process").read_text())
    wait_for(lambda: not is_running(worker), 60)


def work(task):
    list(run_tasks(misbehave, [task], 1, timeout=60))


def is_running(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z" if Path("/proc").exists() else True


@pytest.mark.parametrize("arguments", [{"workers": -1}, {"workers": 0, "timeout": 0}])
def test_arguments_outside_their_range(arguments):
    with pytest.raises(ValueError, match="`workers` must be at least 0, and `timeout` positive"):
        list(run_tasks(double, [], **arguments))
