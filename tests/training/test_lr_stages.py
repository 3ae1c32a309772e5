"""What schedulers say of the stages of the LR and of its warm-up."""

from fractions import Fraction

import pytest
import torch
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch.optim import SGD, lr_scheduler

from lightning_multigrid.schedule.plan import EpochLength
from lightning_multigrid.training.script.lr_stages import lr_stages


def stages(scheduler, interval="epoch", epochs=10, batches=20):
    config = LRSchedulerConfig(scheduler, interval=interval)
    return lr_stages([config], EpochLength(batches), Fraction(epochs))


@pytest.fixture
def optimizer():
    return SGD([torch.zeros(1, requires_grad=True)], lr=0.1)


def test_milestones_are_read_off_schedulers(optimizer):
    assert stages(lr_scheduler.MultiStepLR(optimizer, [4, 8, 20])) == ((4, 8), 0, True)
    of_steps = stages(lr_scheduler.MultiStepLR(optimizer, [90, 150]), "step")
    assert of_steps == ((Fraction(9, 2), Fraction(15, 2)), 0, True)
    assert stages(lr_scheduler.StepLR(optimizer, 4)) == ((4, 8), 0, True)


def test_warmup_and_milestones_are_read_inside_other_schedulers(optimizer):
    # The names of the parts are torch's own business: this fails when they change.
    warmup = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
    steps = lr_scheduler.MultiStepLR(optimizer, [3, 5])
    assert stages(lr_scheduler.SequentialLR(optimizer, [warmup, steps], milestones=[2])) == ((5, 7), 2, True)
    assert stages(lr_scheduler.ChainedScheduler([warmup, steps])) == ((3, 5), 2, True)


def test_a_part_of_a_sequence_has_the_milestones_before_its_end(optimizer):
    cosine = lr_scheduler.CosineAnnealingLR(optimizer, 6)
    drops = lr_scheduler.MultiStepLR(optimizer, [2, 4, 6])
    assert stages(lr_scheduler.SequentialLR(optimizer, [drops, cosine], milestones=[4])) == ((2,), 0, False)
    warmup, steps = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5), lr_scheduler.StepLR(optimizer, 3)
    assert stages(lr_scheduler.SequentialLR(optimizer, [warmup, steps], milestones=[2])) == ((5, 8), 2, True)


def test_a_scheduler_of_very_many_stages_costs_no_time(optimizer):
    """A hundred million of them would take hours."""
    assert stages(lr_scheduler.StepLR(optimizer, 1), "step", batches=10**7) == ((), 0, False)


def test_other_schedulers_have_one_stage(optimizer):
    assert stages(lr_scheduler.CosineAnnealingLR(optimizer, 10)) == ((), 0, False)
    assert lr_stages([], EpochLength(20), Fraction(10)) == ((), 0, True)  # it never changes
    # A step every epoch is a smooth decay in disguise.
    assert stages(lr_scheduler.StepLR(optimizer, 1), epochs=20).milestones == ()
    warmup = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
    rest = lr_scheduler.CosineAnnealingLR(optimizer, 5)
    assert stages(lr_scheduler.SequentialLR(optimizer, [warmup, rest], milestones=[5])) == ((), 5, False)


@pytest.mark.parametrize("order", [1, -1])
def test_schedulers_beside_each_other_are_read_together_in_any_order(optimizer, order):
    """Their LRs are multiplied, or are those of several optimizers: stages of all are stepwise, or of none."""
    steps, warmup = lr_scheduler.MultiStepLR(optimizer, [4, 8]), lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
    cosine, plateau = lr_scheduler.CosineAnnealingLR(optimizer, 10), lr_scheduler.ReduceLROnPlateau(optimizer)

    def together(*schedulers):
        configs = [LRSchedulerConfig(one, reduce_on_plateau=one is plateau) for one in schedulers[::order]]
        return lr_stages(configs, EpochLength(20), Fraction(10))

    assert together(steps, warmup) == ((4, 8), 2, True)
    assert together(steps, cosine) == ((4, 8), 0, False)
    assert together(steps, cosine, warmup) == ((4, 8), 2, False)
    assert together(steps, plateau) == ((4, 8), 0, True)
    each = [LRSchedulerConfig(steps), LRSchedulerConfig(lr_scheduler.StepLR(optimizer, 1))][::order]
    # A step in each epoch is a smooth decay.
    assert lr_stages(each, EpochLength(20), Fraction(20)) == ((4, 8), 0, False)


def test_a_falling_linear_lr_is_no_warmup(optimizer):
    assert stages(lr_scheduler.LinearLR(optimizer, 1.0, 0.0, 10)).warmup_epochs == 0
