"""What `plan` says against what `fit` does, on random configs: every step's shape and LR, one by one."""

import logging
import warnings
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, MultiStepLR, OneCycleLR, SequentialLR, StepLR
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from lightning_multigrid import LongCycle, MultigridCallback, ShortCycle
from lightning_multigrid.cli import plan as plan_module
from lightning_multigrid.cli.plan import preview
from lightning_multigrid.schedule import Place
from tests.helpers import tiny
from tests.helpers.tiny import trainer

FRAMES, SIZE = 4, 8


def by_epochs(optimizer, module):
    return MultiStepLR(optimizer, [1, 2])


def by_steps(optimizer, module):
    return {"scheduler": MultiStepLR(optimizer, [3, 8], gamma=0.5), "interval": "step"}


def cosine(optimizer, module):
    return {"scheduler": CosineAnnealingLR(optimizer, module.trainer.estimated_stepping_batches), "interval": "step"}


def one_cycle(optimizer, module):
    steps = module.trainer.estimated_stepping_batches
    return {"scheduler": OneCycleLR(optimizer, 0.3, total_steps=steps + 1), "interval": "step"}


def warm_up(optimizer, module):
    parts = [LinearLR(optimizer, 0.1, total_iters=3), MultiStepLR(optimizer, [4])]
    return {"scheduler": SequentialLR(optimizer, parts, [3]), "interval": "step"}


def every_second(optimizer, module):
    return {"scheduler": StepLR(optimizer, 2, gamma=0.7), "interval": "step", "frequency": 2}


def timms(optimizer, module):
    from timm.scheduler import CosineLRScheduler

    made = CosineLRScheduler(optimizer, t_initial=10, warmup_t=2, warmup_lr_init=0.01)
    return {"scheduler": made, "interval": "epoch"}


SCHEDULERS = [None, by_epochs, by_steps, cosine, one_cycle, warm_up, every_second, timms]


class Module(tiny.Module):
    """Steps schedulers of timm as their documentation says."""

    def make_net(self):
        return nn.Sequential(nn.BatchNorm3d(1), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(1, 2))

    def lr_scheduler_step(self, scheduler, metric):
        if self.schedulers is timms:
            scheduler.step(epoch=self.current_epoch + 1)
        else:
            super().lr_scheduler_step(scheduler, metric)


class OneOf(SingleDeviceStrategy):
    """A rank of several, alone: nothing that is compared here needs the others."""

    def __init__(self, world, rank):
        super().__init__("cpu")
        self.world_size, self.global_rank = world, rank


@st.composite
def configs(draw):
    world = draw(st.integers(1, 3))
    batch = draw(st.integers(1, 4))
    of_rank = draw(st.integers(batch, 30))
    return SimpleNamespace(
        clips=of_rank * world - draw(st.integers(0, world - 1)),
        batch=batch,
        world=world,
        rank=draw(st.integers(0, world - 1)),
        drop_last=draw(st.booleans()),
        accumulate=draw(st.sampled_from([1, 1, 2, 3])),
        epochs=draw(st.integers(1, 4)),
        max_steps=draw(st.one_of(st.just(-1), st.integers(2, 60))),
        limit=draw(st.sampled_from([None, None, None, 0.5, 0.8, 3, 7])),
        schedulers=draw(st.sampled_from(SCHEDULERS)),
        callback=draw(st.sampled_from(["baseline", "default", "short", "long", "sqrt"])),
    )


CALLBACKS = {
    "baseline": MultigridCallback.baseline,
    "default": lambda: MultigridCallback(milestones=None),
    "short": lambda: MultigridCallback(long_cycle=LongCycle(((1, 1),)), epoch_factor=0.9),
    "long": lambda: MultigridCallback(short_cycle=ShortCycle((1,)), epoch_factor=2),
    "sqrt": lambda: MultigridCallback(fine_tuning=False, lr_scaling="sqrt"),
}


def fitted(config):
    """Shape and LR of each step of a real `fit`."""
    dataset = TensorDataset(torch.randn(config.clips, 1, FRAMES, SIZE, SIZE), torch.randint(2, (config.clips,)))
    sampler = None
    if config.world > 1:  # what Lightning puts in where there are ranks
        sampler = DistributedSampler(dataset, config.world, config.rank)
    loader = DataLoader(dataset, config.batch, sampler=sampler, shuffle=sampler is None, drop_last=config.drop_last)
    module, callback = Module(config.schedulers), CALLBACKS[config.callback]()
    strategy = OneOf(config.world, config.rank) if config.world > 1 else "auto"
    host = trainer(callback, strategy=strategy, **arguments(config))
    host.fit(module, loader)
    return list(zip(module.shapes, module.lrs, strict=True))


def arguments(config):
    epochs = {"max_epochs": config.epochs, "max_steps": config.max_steps}
    return epochs | {"accumulate_grad_batches": config.accumulate, "limit_train_batches": config.limit}


def planned(config, monkeypatch):
    """Shape and LR of each step of the plan, which is asked for the LR at every step."""
    shape = {"batch_size": config.batch, "frames": FRAMES, "size": SIZE, "stride": 1}
    data = SimpleNamespace(**shape, drop_last=config.drop_last, repeats=1)

    def plan():
        parts = CALLBACKS[config.callback](), trainer(**arguments(config)), Module(config.schedulers), data
        return preview(*parts, clips=config.clips, world=config.world, configured_world=config.world)

    first = plan()
    length = first.plan.batches_per_epoch
    places = [divmod(number, length) for number in range(sum(first.steps))]
    steps = [first.plan.step(Place(*place)) for place in places]
    starts = []
    for (epoch, batch), step in zip(places, steps, strict=True):
        clock = epoch + Fraction(batch - batch % config.accumulate, length)
        # Each update of `baseline()` has the LR of the script's own, whose epoch may end with fewer mini-batches.
        starts.append((step.baseline_epoch if config.callback == "baseline" else clock, step.lr_scale))
    assert [step.phase for step in steps] == [phase for phase, number in enumerate(first.steps) for _ in range(number)]
    with monkeypatch.context() as patch:
        patch.setattr(plan_module, "_places", lambda schedule: starts)
        lrs = [point.lr for point in plan().lrs]
    shapes = [(step.shape.clips, step.shape.frames, step.shape.size) for step in steps]
    return list(zip(shapes, lrs, strict=True))


def compare(config, monkeypatch):
    batches = -(-config.clips // config.world)
    batches = batches // config.batch if config.drop_last else -(-batches // config.batch)
    if isinstance(config.limit, float) and int(batches * config.limit) == 0:
        config.limit = None  # Lightning refuses it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            plan = planned(config, monkeypatch)
        except (ValueError, MisconfigurationException) as refused:
            if config.callback != "baseline":  # which trains whatever a plan is refused for
                with pytest.raises(type(refused)):
                    fitted(config)
            return
        run = fitted(config)
    assert len(run) == len(plan)
    assert [shape for shape, _ in run] == [shape for shape, _ in plan]
    assert [lr for _, lr in run] == pytest.approx([lr for _, lr in plan], rel=1e-9)


@pytest.fixture(autouse=True)
def quiet():
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)


FIXTURE = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(max_examples=12, deadline=None, suppress_health_check=FIXTURE)
@given(config=configs())
def test_the_plan_is_what_fit_does(config, monkeypatch):
    compare(config, monkeypatch)


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=FIXTURE)
@given(config=configs())
def test_the_plan_of_300_configs_is_what_fit_does(config, monkeypatch):
    compare(config, monkeypatch)
