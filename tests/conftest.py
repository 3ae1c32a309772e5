"""What every test needs."""

import functools
import gc
import importlib
import logging
import os
import signal
import sys
from contextlib import suppress

import pytest

from tests import import_lightning

gc.disable()


@functools.cache
def libraries():
    """Imports what tests need. The process that hands them to its workers does without, and starts seconds earlier."""
    import_lightning()
    gc.disable()
    # torch waits this long for a worker that hangs because another was killed while both wrote to one queue.
    importlib.import_module("torch.utils.data._utils").MP_STATUS_CHECK_INTERVAL = 1.0
    with suppress(ModuleNotFoundError):  # tests for a GPU run without it
        settings = importlib.import_module("hypothesis").settings
        # How long an example takes depends on what else the machine does; a test that hangs ends by pytest's own limit.
        settings.register_profile("patient", deadline=None)
        settings.load_profile("patient")


def pytest_collectstart():
    libraries()


def pytest_collection_finish():
    # What was imported lives as long as the process: no collection has to look through it, which takes half a second.
    gc.freeze()
    gc.enable()


def pytest_configure():
    # A shell without a terminal lets jobs in the background ignore Ctrl-C, and so do all processes that they start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    if not importlib.import_module("torch").cuda.is_available():
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))


def pytest_runtest_call():
    """Runs each test, and what it forks, with ordinary priority, whatever the fixtures or the test before have done.

    SVT-AV1 gives the thread that encodes real-time priority if root runs it; a fork inherits it, and starves the rest.
    """
    if sys.platform == "linux" and os.sched_getscheduler(0) != os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


@pytest.fixture
def _unrehearsed(monkeypatch, request):
    """Trainings do not try their grids before, which is a third of a small one, and has laws in `test_check_grids`.

    The slow cases of the same tests do, and those that are marked `rehearsed`.
    """
    if not any(map(request.node.get_closest_marker, ("slow", "rehearsed"))):
        monkeypatch.setattr("lightning_multigrid.training.run.check_grids", lambda *_: None)


@pytest.fixture
def clock(monkeypatch):
    """That of this process, which nothing else moves."""
    clock = importlib.import_module("tests.helpers.fake_clock").FakeClock()
    monkeypatch.setattr("time.perf_counter", lambda: clock.time)
    return clock


@pytest.fixture(scope="session", autouse=True)
def _tables_without_another_program():
    """To start one takes seconds; `prepare/test_tables.py` does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lightning_multigrid.prepare.tables._FEW", 10_000)
        yield


@pytest.fixture(autouse=True)
def _smallest(monkeypatch, request):
    if request.node.get_closest_marker("smallest"):
        monkeypatch.setattr("lightning_multigrid.training.arguments.SMALLEST", 64)


@pytest.fixture(autouse=True)
def _one_thread():
    # Whatever the environment says, and the test before has set: Lightning does in ranks, scripts of benchmarks, too.
    importlib.import_module("torch").set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_seed_of_another_test(monkeypatch):
    # `seed_everything` leaves its seed in the environment.
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    monkeypatch.delenv("PL_SEED_WORKERS", raising=False)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path_factory):
    # Trainings keep the frame tables of their videos there.
    monkeypatch.setenv("LIGHTNING_MULTIGRID_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(autouse=True)
def _no_command_line(monkeypatch):
    # LightningCLI warns of arguments that are given twice: to `main` and to pytest.
    monkeypatch.setattr(sys, "argv", ["lightning-multigrid"])


@pytest.fixture(autouse=True)
def _signal_handlers():
    # Lightning leaves its own where a run does not end in order; a process forked later would ignore being ended.
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _log_level_of_lightning():
    # Scripts of `examples` and `benchmarks`, run in this process, make Lightning quiet, for as long as the process
    # lives. They also run in fixtures of a whole class, which begin before this one.
    logger = logging.getLogger("lightning.pytorch")
    logger.setLevel(logging.INFO)
    logger.propagate = True  # which it isn't if it was imported before pytest captures logs
    logging.disable(logging.NOTSET)
