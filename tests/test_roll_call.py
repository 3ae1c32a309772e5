"""Which rank ended a training: with real processes that are killed, stopped, or fail."""

import multiprocessing
import os
import re
import signal
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from lightning.pytorch import Trainer
from torch.distributed import DistNetworkError

from lightning_multigrid import roll_call
from lightning_multigrid.roll_call import RollCall, call_roll
from tests.test_launchers import by_lightning, by_torchrun, free_port
from tests.tiny import trainer

by_spawn = partial(by_lightning, start_method="spawn")


def talk_to_the_ranks(*_):
    raise RuntimeError("Connection closed by peer")


def answer(port, rank, world, way, ready, answers):
    """A rank that fails in a way, or hears of another's failure a little later."""
    roll = RollCall("127.0.0.1", port, rank, world)
    ready.wait()
    if way == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    if way == "busy":  # it has not noticed yet
        time.sleep(5)
        return
    if way == "fails":
        answers.put((rank, roll.verdict(ValueError("the third clip is odd"))))
        time.sleep(2)
        return
    time.sleep(0.5)
    if way == "signalled":  # while it waits for the others, by a launcher
        signal.signal(signal.SIGALRM, talk_to_the_ranks)
        signal.setitimer(signal.ITIMER_REAL, 1)
    answers.put((rank, roll.verdict(RuntimeError("Connection closed by peer"))))
    if rank == 0:
        time.sleep(2)  # the others ask it
    roll.close()


@pytest.mark.parametrize(
    ("ways", "message"),
    [
        ({2: "killed"}, "No sign of life from rank 2: killed, hanging, or its machine is gone."),
        ({1: "stopped", 2: "killed"}, "No sign of life from rank 1, 2: killed"),
        ({0: "signalled", 1: "killed", 2: "killed", 3: "killed"}, "No sign of life from rank 1, 2, 3: killed"),
        ({0: "killed"}, "Rank 0 has ended, by an error that its own output shows or because it was killed."),
        ({1: "fails"}, "Rank 1 was the first to fail, with ValueError: the third clip is odd"),
        ({0: "fails", 1: "busy"}, "Rank 0 was the first to fail, with ValueError: the third clip is odd"),
        ({1: "busy"}, "was the first to fail, with RuntimeError: Connection closed by peer"),
    ],
)
def test_every_rank_that_is_left_names_the_one_that_ended_the_run(ways, message):
    context, world, port = multiprocessing.get_context("fork"), 4, int(free_port())
    ready, answers = context.Barrier(world), context.Queue()
    processes = [
        context.Process(target=answer, args=(port, rank, world, ways.get(rank), ready, answers))
        for rank in range(world)
    ]
    for process in processes:
        process.start()
    silent = [rank for rank, way in ways.items() if way in ("killed", "stopped", "busy")]
    try:
        found = dict(answers.get(timeout=60) for _ in range(world - len(silent)))
    finally:
        for process in processes:
            process.kill()
            process.join()
    assert set(found) == set(range(world)) - set(silent)
    assert all(message in text for text in found.values()), found


@pytest.fixture
def two(monkeypatch):
    """Roll calls of ranks 0 and 1 of 3, in one process; rank 2 never reached the store."""
    monkeypatch.setattr(roll_call, "_GONE", 1.2)
    first = RollCall("127.0.0.1", 0, 0, 3)
    second = RollCall("127.0.0.1", first.port, 1, 3)
    yield first, second
    second.close()
    first.close()


def test_a_rank_that_never_reached_the_store_is_not_accused(two):
    first, second = two
    assert second.verdict(RuntimeError("Connection closed")).startswith("Rank 1 was the first to fail")
    assert first.verdict(RuntimeError("Connection closed")).startswith("Rank 1 was the first to fail")


def test_an_error_without_text_is_named(two):
    assert two[0].verdict(KeyboardInterrupt()) == "Rank 0 was the first to fail, with KeyboardInterrupt"


def test_a_rank_that_was_ended_while_it_looked_is_not_taken_for_rank_0(two):
    two[1]._store.add("failures", 1)  # and then a launcher ended it
    two[0]._store.set_timeout(timedelta(seconds=1))
    assert two[0].verdict(RuntimeError("Connection closed")).startswith("Another rank failed first, and was ended")


class Silent(RollCall):
    """A rank whose process is stopped at once."""

    def _live(self, store):
        self._end.wait()


KINDS = RollCall, Silent, RollCall


@pytest.fixture
def impatient(monkeypatch, caplog):
    """Ranks that say so soon; and what they have said, as soon as there is something."""
    for name, value in {"_PERIOD": 0.05, "_LOOK_EVERY": 2, "_LOOKS": 8}.items():
        monkeypatch.setattr(roll_call, name, value)

    def said():
        limit = time.monotonic() + 60
        while not caplog.records and time.monotonic() < limit:
            time.sleep(0.1)
        time.sleep(0.5)
        return [record.message for record in caplog.records]

    return said


def test_rank_0_names_a_rank_that_is_stopped_once_and_none_that_has_ended(impatient):
    first = RollCall("127.0.0.1", 0, 0, 5)  # rank 4 never reaches the store
    ended, stopped, lives = (kind("127.0.0.1", first.port, rank, 5) for rank, kind in enumerate(KINDS, 1))
    ended.close()
    assert impatient() == ["[rank 0] No sign of life from rank 2: stopped, or its machine is gone. Others may wait."]
    for roll in (stopped, lives, first):
        roll.close()


def test_a_rank_that_waits_says_that_rank_0_has_ended(impatient):
    context, ready, port = multiprocessing.get_context("fork"), multiprocessing.Event(), int(free_port())
    process = context.Process(target=answer, args=(port, 0, 3, "killed", ready, None))
    process.start()
    ended, waits = (RollCall("127.0.0.1", port, rank, 3) for rank in (1, 2))
    ended.close()
    ready.set()
    assert impatient() == ["[rank 2] Rank 0 has ended, and with it what this rank waits for."]
    process.join()
    waits.close()


def unreachable(host, port, is_master=False):
    raise DistNetworkError("The client socket has timed out")


def test_one_rank_or_no_way_to_rank_0_is_no_roll_call(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert call_roll(trainer()) is None
    monkeypatch.setattr(Trainer, "world_size", 2)
    monkeypatch.setattr(roll_call, "_store", unreachable)
    assert call_roll(trainer()) is None
    monkeypatch.delenv("MASTER_ADDR")
    assert call_roll(trainer()) is None


KILLED_1 = "rank 1: killed, hanging, or its machine is gone"
RAISED_1 = "Rank 1 was the first to fail, with ValueError: the third clip is odd"


@pytest.mark.parametrize(
    ("launch", "rank", "how", "said"),
    [
        (by_lightning, 0, "kill", "[rank 1] Rank 0 has ended"),
        # The same for the other launchers and ways, a minute each. Where a launcher ends the others at once, it is the
        # launcher that names the rank.
        pytest.param(by_lightning, 1, "kill", f"{KILLED_1}|rank: 1.* Child process", marks=pytest.mark.slow),
        pytest.param(by_lightning, 1, "raise", RAISED_1, marks=pytest.mark.slow),
        pytest.param(by_torchrun, 1, "kill", f"{KILLED_1}|failed .exitcode: -9. local_rank: 1", marks=pytest.mark.slow),
        pytest.param(by_spawn, 1, "kill", f"{KILLED_1}|process 1 terminated with signal", marks=pytest.mark.slow),
        pytest.param(by_spawn, 1, "raise", f"{RAISED_1}|Process 1 terminated .*error", marks=pytest.mark.slow),
    ],
)
def test_a_training_of_which_a_rank_dies_ends_and_says_which(tmp_path, launch, rank, how, said):
    with pytest.raises(AssertionError) as failure:
        launch(tmp_path, 2, die={"rank": rank, "how": how})
    assert re.search(said.replace("[", r"\["), str(failure.value)), failure.value
    pids = [int(file.read_text()) for file in tmp_path.glob("*.pid")]
    assert len(pids) == 2
    limit = time.monotonic() + 20  # they may close their output a little before they end
    while any(map(is_running, pids)) and time.monotonic() < limit:
        time.sleep(0.1)
    assert not any(map(is_running, pids))


def is_running(pid):
    """Zombies of killed parents are nobody's orphans: they wait for the system to note their end."""
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "State:\tZ" not in status.read_text()
