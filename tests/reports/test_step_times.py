"""Times of steps, and the verdict on the loader, on simulated queues; `test_account.py` has that of a training."""

import random
import re
import time

import pytest
import torch

from lightning_multigrid.reports.step_times import (
    Clock,
    LoaderWatch,
    StepTime,
    StepTimer,
)
from lightning_multigrid.schedule import Place, Step
from lightning_multigrid.schedule.grid import BatchShape
from tests.helpers.fake_clock import FakeClock


def step(clips=8, phase=0, size=32):
    return Step(Place(0, 0), BatchShape(clips, 4, size), phase, offset=0, sub_batch=8)


# --- Moments ---


def run(timer, clock, waits, steps):
    def load():
        for waiting in waits:
            clock.time += waiting
            yield

    for _, stepping in zip(timer.timed(load()), steps, strict=True):
        clock.time += stepping
        timer.ended(step())
        clock.time += 100  # a validation


def test_waiting_and_stepping_are_told_apart_and_what_is_neither_is_left_out():
    clock = FakeClock()
    timer = StepTimer(clock)
    run(timer, clock, [3, 0, 1], [5, 6, 7])
    assert [(t.batch, t.waiting, t.stepping) for t in timer.take()] == [(0, 3, 5), (1, 0, 6), (2, 1, 7)]
    assert list(timer.take()) == []


def test_steps_are_read_when_the_device_has_finished_them():
    clock = FakeClock(behind=150)
    timer = StepTimer(clock)
    run(timer, clock, [0, 0, 0], [1, 1, 1])
    # The steps end at 1, 102 and 203, and now it is 303.
    assert [t.batch for t in timer.take()] == [0, 1]
    assert [t.batch for t in timer.take(wait=True)] == [2]
    assert list(timer.take(wait=True)) == []


def test_a_clock_of_the_process():
    clock = Clock(torch.device("cpu"))
    start = clock.now()
    time.sleep(0.02)
    assert clock.passed(start)
    assert 0.02 <= clock.seconds(start, clock.now()) < 1


@pytest.mark.cuda
def test_a_cuda_clock_sees_what_the_device_does_and_not_when_it_was_asked_to():
    device = torch.device("cuda", torch.cuda.current_device())
    clock = Clock(device)
    x = torch.randn(4096, 4096, device=device)
    torch.cuda.synchronize()
    started = time.perf_counter()
    start = clock.now()
    for _ in range(50):
        x = x @ x / 4096
    end = clock.now()
    asked = time.perf_counter() - started
    clock.wait(end)
    assert clock.passed(end)
    assert clock.seconds(start, end) > 2 * asked


# --- The verdict ---


def simulate(need_over_gives, workers, batches, epochs=3, noise=0.0, seed=0):
    """A loop over a loader with workers: each makes whole mini-batches, two ahead, as torch's does.

    Yields the time of each step. `need_over_gives` is the time of loading over the time of stepping, with all workers
    at work, on average over the mini-batches of a short cycle.
    """
    draw = random.Random(seed)
    cycle = [4, 2, 2]  # clips, in units of the smallest: loading follows them, steps do not
    for _ in range(epochs):
        free = [0.0] * workers
        ready, now, asked_for = {}, 0.0, 0
        for batch in range(batches):
            while asked_for < min(batches, batch + 2 * workers):
                worker = asked_for % workers
                load = need_over_gives * workers * cycle[asked_for % 3] / (8 / 3)
                free[worker] = max(free[worker], now) + load * draw.uniform(1 - noise, 1 + noise)
                ready[asked_for] = free[worker]
                asked_for += 1
            waiting = max(0.0, ready[batch] - now)
            stepping = draw.uniform(1 - noise, 1 + noise)
            now += waiting + stepping
            yield StepTime(step(clips=8 * cycle[batch % 3], size=16 * cycle[batch % 3]), batch, waiting, stepping)


def verdict(times, workers):
    watch = LoaderWatch(workers, "x")
    said = [sentence for sentence in map(watch.add, times) if sentence is not None]
    assert len(said) <= 1
    return said[0] if said else None


@pytest.mark.parametrize("workers", [1, 2, 8])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_the_verdict_is_right_outside_a_band_of_15_percent(workers, noise):
    for seed, ratio in enumerate((0.0, 0.1, 0.5, 0.7, 0.85)):
        assert verdict(simulate(ratio, workers, 400, noise=noise, seed=seed), workers) is None, ratio
    for seed, ratio in enumerate((1.2, 1.4, 2, 3, 5, 10)):
        said = verdict(simulate(ratio, workers, 400, noise=noise, seed=seed), workers)
        assert said is not None, ratio
        waiting = int(re.search(r"wait for the loader (\d+)% of the time", said)[1]) / 100
        assert waiting == pytest.approx(1 - 1 / ratio, abs=0.1)


def test_short_epochs_wait_for_their_first_batches_but_not_for_a_slow_loader():
    """An epoch of 20 mini-batches starts with 8 workers that have nothing ready."""
    times = list(simulate(0.8, 8, batches=20, epochs=20))
    assert sum(t.waiting for t in times) > 0.3 * sum(t.stepping for t in times)
    assert verdict(times, 8) is None


def test_files_that_are_opened_for_the_first_time_say_nothing_of_a_short_training():
    """The first epoch takes less than half a minute, in which the loader is four times as slow as later."""
    times = [StepTime(step(), batch, waiting, 0.1) for waiting in (0.3, 0.0, 0.0) for batch in range(60)]
    assert verdict(times, 1) is None
    assert verdict(3 * times[:60], 1) == (
        "Steps wait for the loader 75% of the time. They would take 80 clips/s on each device, and "
        "get 20. More workers than 1, or x, would help."
    )
    # In a long epoch it is said as soon as it is known.
    assert verdict([StepTime(step(), batch, 0.3, 0.1) for batch in range(150)], 1)


def test_without_workers_all_loading_is_waiting():
    assert "More workers than 0" in verdict([StepTime(step(), batch, 3.0, 1.0) for batch in range(60)], 0)
    assert verdict([StepTime(step(), batch, 0.1, 1.0) for batch in range(400)], 0) is None
