"""Laws of the roofline, by which `predict.py` predicts steps on GPUs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from prediction import GPUS, Gpu, Prediction, StepPrediction, count_grids, predict_step
from step_count import StepCount
from torch import nn

from lightning_multigrid import Baseline, BatchShape, MultigridSchedule, VideoClassifier
from lightning_multigrid.models import small_cnn

# Shapes of a small model.
SHAPE = BatchShape(8, 16, 32)
SCHEDULE = MultigridSchedule(Baseline(SHAPE, 10, (5,)))
counts = st.builds(StepCount, *[st.integers(1, 10**15) for _ in range(4)])
gpus = st.builds(Gpu, st.just("any"), *[st.floats(1, 5000) for _ in range(3)])


def step(count, gpu=GPUS["h200"], shape=SHAPE, half=True, workers=16):
    return predict_step(count, gpu, shape, half=half, workers=workers)


def test_peaks_are_those_of_the_data_sheets():
    """A step of as many FLOPs and bytes as a data sheet gives a second takes a second, but for the shares of them."""
    a100 = step(StepCount(312 * 10**12, 2039 * 10**9, 9, 125_000), GPUS["a100"])
    assert (a100.compute, a100.memory, a100.host) == pytest.approx((1 / 0.8, 1 / 0.9, 1))
    assert step(StepCount(156 * 10**12, 1, 1, 1), GPUS["a100"], half=False).compute == pytest.approx(1 / 0.8)
    # Half of the rates with sparsity, which the sheets of Hopper give.
    assert (GPUS["h200"].bf16, GPUS["h100"].tf32) == pytest.approx((1979 / 2, 989.4 / 2))


def test_workers_share_the_clips():
    """8 frames take 4.3 ms, as 234 clips per CPU second, and 32 frames 9.5."""
    clip = step(StepCount(1, 1, 1, 1), shape=BatchShape(1, 8, 112), workers=1)
    assert 1 / clip.loader == pytest.approx(234, rel=0.01)
    for workers in (0, 1, 4):
        of_128 = step(StepCount(1, 1, 1, 1), shape=BatchShape(128, 8, 112), workers=workers)
        assert of_128.loader == pytest.approx(128 * clip.loader / max(1, workers))


@given(counts, gpus, st.sampled_from(["flops", "bytes", "launches"]), st.integers(1, 10**15), st.booleans())
def test_more_to_do_is_never_faster(count, gpu, name, more, half):
    larger = StepCount(**{**vars(count), name: getattr(count, name) + more})
    assert step(larger, gpu, half=half).stepping >= step(count, gpu, half=half).stepping


@given(counts, gpus, st.floats(1.01, 100))
def test_only_what_bounds_a_step_makes_it_faster(count, gpu, times):
    faster = {
        "compute": Gpu("", gpu.bf16 * times, gpu.tf32 * times, gpu.terabytes),
        "memory": Gpu("", gpu.bf16, gpu.tf32, gpu.terabytes * times),
    }
    before = step(count, gpu)
    for part, other in faster.items():
        after = step(count, other).stepping
        limit = max(before.compute, before.memory, before.host)
        assert (after < before.stepping) == (getattr(before, part) == limit == before.stepping), part
    assert before.bound in ("compute", "memory", "host", "loader")
    assert getattr(before, before.bound) == max(before.stepping, before.loader)


def made(seconds, plain, host=0.0, loader=0.0):
    """A prediction in which a step takes `seconds` of its shape on the device."""
    grids = [(SHAPE, 0), *SCHEDULE.grids_of_statistics]
    steps = {grid: StepPrediction(seconds(grid[0]), 0.0, host, loader * grid[0].clips) for grid in grids}
    return Prediction(SCHEDULE, steps | {(SHAPE, 0): StepPrediction(plain, 0.0, host, loader * SHAPE.clips)})


def test_speedups():
    """By points as the FLOPs; bound by the host as the iterations; by the loader as the epochs, 1.5 times more."""
    points = made(lambda shape: shape.points * 1e-9, SHAPE.points * 1e-9)
    assert points.speedup(loader=True) == pytest.approx(SCHEDULE.flop_reduction)
    assert made(lambda shape: 0.0, 0.0, host=1.0).speedup(loader=False) == pytest.approx(SCHEDULE.iteration_reduction)
    loading = made(lambda shape: 1e-9, 1e-9, loader=1.0)
    assert loading.speedup(loader=True) == pytest.approx(1 / 1.5)
    assert loading.speedup(loader=False) == pytest.approx(SCHEDULE.iteration_reduction)
    # The baseline has plain BatchNorm, and multigrid pays for its own.
    slower_norm = made(lambda shape: shape.points * 2e-9, SHAPE.points * 1e-9)
    assert slower_norm.speedup(loader=True) == pytest.approx(SCHEDULE.flop_reduction / 2)


@pytest.mark.parametrize(("host", "clips"), [(0.5, 4), (1.0, 8), (3.0, 24), (1.1, 9)])
def test_clips_from_which_the_host_does_not_matter(host, clips):
    """With so many clips the device takes as long as the host."""
    assert made(lambda shape: 1.0, 1.0, host=host).clips_beyond_host == clips


def test_counts_of_grids():
    module = VideoClassifier(small_cnn(4), num_classes=4)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    grids = [(SHAPE, 0), (SHAPE, 8), (BatchShape(16, 16, 32), 8)]
    plain, one_group, two_groups = count_grids(module, grids, half=False).values()
    assert one_group.flops == plain.flops == two_groups.flops / 2
    assert plain.bytes <= two_groups.bytes / 2 * 1.1
    half = count_grids(module, grids[:1], half=True)[grids[0]]
    assert half.flops == plain.flops
    assert plain.bytes / 2 < half.bytes < plain.bytes / 2 * 1.3
    assert half.launches > plain.launches  # weights are cast
    # The module is as it was.
    assert type(module.model.stem_norm) is nn.BatchNorm3d
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
