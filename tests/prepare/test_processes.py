import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lightning_multigrid.prepare.processes import TaskFailure, run_tasks
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


def test_a_worker_that_ends_costs_its_task(tmp_path):
    """And what the system ends, as it does when memory runs out, is tried once more."""
    expected = {
        "SIGKILL": TaskFailure("killed twice by signal SIGKILL, as when memory runs out: use fewer `workers`", True),
        "SIGSEGV": TaskFailure("the process that worked on it ended twice by signal SIGSEGV"),
        "exit": TaskFailure("the process that worked on it ended with exit status 3"),
        "raise": TaskFailure("KeyError: 'what'"),
        "memory": TaskFailure("memory ran out: use fewer `workers`", True),
    }
    tasks = [1, *expected, 2, f"once {tmp_path}", 3]
    results = list(run_tasks(misbehave, tasks, 1, timeout=60))
    assert sorted((task for task, _ in results), key=str) == sorted(tasks, key=str)
    for task, result in results:
        assert result == expected.get(task, task)


def test_without_workers_a_task_that_raises_costs_no_other():
    results = dict(run_tasks(misbehave, [1, "raise", 2], 0, timeout=60))
    assert results == {1: 1, "raise": TaskFailure("KeyError: 'what'"), 2: 2}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_mistake_of_the_function_is_no_fault_of_its_task(workers):
    with pytest.raises(RuntimeError, match="AttributeError at mistake: no such thing"):
        list(run_tasks(misbehave, [1, "mistake", 2], workers, timeout=60))


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")
def test_workers_that_end_without_a_task_cost_none():
    """As those do that the system ends while they wait."""
    tasks = ["siblings", 1, "siblings", 2]
    assert sorted(run_tasks(misbehave, tasks, 3, timeout=60), key=str) == sorted([(t, t) for t in tasks], key=str)

    def slow_tasks():
        yield 1
        time.sleep(5)
        for process in workers_of_this_process():
            subprocess.run(["kill", "-9", str(process)], check=True)
        time.sleep(1)
        yield 2

    assert list(run_tasks(misbehave, slow_tasks(), 1, timeout=60)) == [(1, 1), (2, 2)]


def workers_of_this_process():
    import multiprocessing

    return [process.pid for process in multiprocessing.active_children()]


@pytest.mark.slow
def test_a_worker_that_hangs_is_given_up_and_one_that_works_is_not():
    results = dict(run_tasks(misbehave, ["hang", "work", 1], 2, timeout=2))
    assert results == {"hang": TaskFailure("no sign of life for 2 s"), "work": "work", 1: 1}


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
    assert "Worker processes end before they begin to work. In a script, call this below `if __name__" in run.stderr
