"""Times of steps, by moments of a clock."""

import time

import pytest
import torch

from lightning_multigrid.reports.step_times import Clock, StepTimer
from lightning_multigrid.schedule import BatchShape, Place, Step
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
    timer = StepTimer(clock, lambda: 7.0)
    run(timer, clock, [3, 0, 1], [5, 6, 7])
    assert [(t.waiting, t.stepping, t.reading) for t in timer.take()] == [(3, 5, 7), (0, 6, 7), (1, 7, 7)]
    assert list(timer.take()) == []


def test_steps_are_read_when_the_device_has_finished_them():
    clock = FakeClock(behind=150)
    timer = StepTimer(clock, lambda: 7.0)
    run(timer, clock, [0, 0, 0], [1, 2, 3])
    # The steps end at 1, 103 and 206, and now it is 306.
    assert [t.stepping for t in timer.take()] == [1, 2]
    assert [t.stepping for t in timer.take(wait=True)] == [3]
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
