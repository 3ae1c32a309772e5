"""The verdict on the loader, on simulated queues; `test_account.py` has that of a training."""

import random
import re
from dataclasses import replace

import pytest

from lightning_multigrid.reports.loader_watch import LoaderWatch, Loading
from lightning_multigrid.reports.step_times import StepTime
from lightning_multigrid.schedule import Baseline, BatchShape, LongCycle, MultigridSchedule, Plan, ShortCycle


def plan_of(epochs=6, batches=100, **arguments):
    """One phase on the baseline's frames, with a short cycle of 32, 16 and 8 clips; `batches` in each epoch."""
    cycles = LongCycle(((1, 1),)), ShortCycle((0.5, 0.5**0.5, 1))
    schedule = MultigridSchedule(Baseline(BatchShape(8, 4, 32), epochs), *cycles, epoch_factor=1, fine_tuning=False)
    plan = Plan(schedule, round(batches * schedule.clips_per_step), **arguments)
    assert plan.batches_per_epoch == batches
    return plan


def steps_of(plan):
    return [step for epoch in range(plan.epochs) for step in plan.epoch(epoch)]


# --- The arithmetic ---


def test_a_run_takes_what_its_loader_takes_or_its_steps_phase_by_phase():
    """8 clips of the baseline; two phases of equal length, with 32 clips in a step, and then 8."""
    cycles = LongCycle(((1, 0.5), (1, 1))), ShortCycle((1,))
    plan = Plan(MultigridSchedule(Baseline(BatchShape(8, 8, 32), 10, (5,)), *cycles, epoch_factor=1.25), 1600)
    coarse, *others = plan.phase_steps
    fine, loading = sum(others), Loading(plan, 2, ["x"])
    verdict = loading.judge(step=1.0, read=0.0625)
    assert verdict.total == coarse * 2 + fine * 1  # a step of 32 clips waits for a second, one of 8 for nothing
    assert verdict.alone == 2000 * 1  # steps of 8 clips, which take half a second to read
    assert Loading(plan, 0, ["x"]).judge(1.0, 0.0625).total == coarse * 3 + fine * 1.5
    assert loading.judge(1.0, 0.0625, baseline_read=0.25).alone == 2000 * 2


def test_the_sentence_says_what_why_and_what_helps():
    plan = replace(plan_of(), world=4)
    limited = str(Loading(plan, 2, ["a", "b"]).judge(step=0.1, read=0.015))
    said = (
        r"The loader is the limit\. Without validations, the training takes about .* with MultigridCallback, and about "
        r".* without it\. With 2 workers, a sample takes 30 ms, so 66\.7 are read in a second on each device, and the "
        r"steps could take up to 187\. What helps, best first: a; b\."
    )
    assert re.fullmatch(said, limited)
    enough = str(Loading(plan, 2, ["a"]).judge(step=0.5, read=0.015))
    assert re.fullmatch(r"The loader is fast enough\. Without validations, the training takes .* without it\.", enough)
    off = MultigridSchedule(plan.schedule.baseline, LongCycle(((1, 1),)), ShortCycle((1,)), epoch_factor=1)
    assert off.is_baseline
    alone = str(Loading(replace(plan, schedule=off), 2, ["a"]).judge(step=0.5, read=0.015))
    assert re.fullmatch(r"The loader is fast enough\. Without validations, the training takes about [^,]*\.", alone)


# --- On simulated queues ---


def simulate(plan, loads, workers, step=1.0, noise=0.0, seed=0):
    """A loop over a loader with workers: the one that is free makes the next mini-batch, two ahead, as torch's does.

    Yields the time of each step, with all steps equally long. `loads` is the time of loading over that of stepping,
    with all workers at work, on average over the mini-batches of a short cycle, of which loading follows the clips; it
    may be a function of the number of the mini-batch in the plan.
    """
    draw, mean, number = random.Random(seed), plan.schedule.clips_per_step, 0
    for epoch in range(plan.epochs):
        free, ready, now, asked_for, steps = [0.0] * workers, [], 0.0, 0, plan.epoch(epoch)
        for batch, current in enumerate(steps):
            while asked_for < min(len(steps), batch + 2 * workers):
                worker, ratio = free.index(min(free)), loads(number) if callable(loads) else loads
                load = ratio * workers * step * float(steps[asked_for].shape.clips / mean)
                load *= draw.uniform(1 - noise, 1 + noise)
                free[worker] = max(free[worker], now) + load
                ready.append((free[worker], load))
                asked_for += 1
            read_at, reading = ready[batch]
            waiting = max(0.0, read_at - now)
            stepping = step * draw.uniform(1 - noise, 1 + noise)
            now += waiting + stepping
            number += 1
            yield StepTime(current, waiting, stepping, reading)


def said_of(plan, times, workers):
    """What is said of steps, each sentence with the number of the step from 1."""
    watch = LoaderWatch(Loading(plan, workers, ["x"]))
    return [(step, said) for step, time in enumerate(times, 1) if (said := watch.add(time)) is not None]


def seconds(text):
    """The two times of a sentence."""
    units = {"s": 1, "min": 60, "h": 3600}
    found = re.search(r"about (.*) with Multi\w+, and about (.*) without", text).groups()
    return [sum(float(n) * units[unit] for n, unit in re.findall(r"([\d.]+) (\w+)", part)) for part in found]


@pytest.mark.parametrize("workers", [1, 2, 3, 8, 16])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_it_is_said_by_step_40_outside_a_band_of_15_percent_and_what_it_takes_is_right(workers, noise):
    plan = plan_of()
    for seed, ratio in enumerate((0.0, 0.1, 0.5, 0.7, 0.85)):
        assert said_of(plan, simulate(plan, ratio, workers, noise=noise, seed=seed), workers) == [], ratio
    for seed, ratio in enumerate((1.4, 2, 3, 5, 10)):
        times = list(simulate(plan, ratio, workers, noise=noise, seed=seed))
        [(step, said)] = said_of(plan, times, workers)
        assert step <= 40, ratio
        own, alone = seconds(said)
        assert own == pytest.approx(sum(time.waiting + time.stepping for time in times), rel=0.25)
        reading = ratio / float(plan.schedule.clips_per_step)  # of a sample
        assert alone == pytest.approx(plan.baseline_steps * max(1, 8 * reading), rel=0.25)


def test_epochs_of_ten_steps_say_it_by_step_40_too():
    plan = plan_of(epochs=12, batches=10)
    [(step, _)] = said_of(plan, simulate(plan, 3, 2), 2)
    assert step <= 40


def test_short_epochs_wait_for_their_first_batches_but_not_for_a_slow_loader():
    """An epoch of 20 mini-batches starts with 8 workers that have nothing ready."""
    plan = plan_of(epochs=20, batches=20)
    times = list(simulate(plan, 0.8, 8))
    assert sum(time.waiting for time in times) > 0.3 * sum(time.stepping for time in times)
    assert said_of(plan, times, 8) == []


def test_steps_that_compile_say_nothing_of_the_loader():
    """The first step on each grid takes a minute, while the workers read ahead; later steps wait for nothing."""
    plan = plan_of()
    times = [*simulate(plan, 0.8, 2)]
    slow = [replace(time, stepping=60.0) if number < 3 else time for number, time in enumerate(times)]
    assert said_of(plan, slow, 2) == []


def test_a_loader_that_becomes_slower_is_said_when_it_does():
    plan = plan_of()
    [(step, _)] = said_of(plan, simulate(plan, lambda number: 4 if number > 100 else 0.1, 2), 2)
    assert 100 < step < 140


def test_a_training_of_less_than_half_a_minute_hears_nothing():
    plan = plan_of(epochs=2)
    slow = [*simulate(plan, 4, 2, step=0.1)]
    assert sum(time.waiting + time.stepping for time in slow) > 60
    assert said_of(plan, slow, 2)
    assert said_of(plan, simulate(plan, 4, 2, step=0.01), 2) == []


def test_without_workers_all_loading_is_waiting():
    plan = plan_of(epochs=2)

    def times(waiting):
        waits = ((step, waiting * step.shape.clips / 16) for step in steps_of(plan))
        return [StepTime(step, wait, 1.0, reading=wait) for step, wait in waits]

    [(_, said)] = said_of(plan, times(3.0), 0)
    assert "With 0 workers, a sample takes 188 ms, so 5.33 are read in a second" in said
    assert seconds(said)[0] == pytest.approx(sum(time.waiting + time.stepping for time in times(3.0)), rel=0.1)
    assert said_of(plan, times(0.1), 0) == []
