"""The LR at the baseline's epochs: by hand, where other callbacks add to it, and in checkpoints."""

import csv
from functools import partial
from itertools import product

import pytest
import torch
from lightning.pytorch.callbacks import BackboneFinetuning, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.optim import SGD, lr_scheduler

from lightning_multigrid import LongCycle, MultigridCallback, ShortCycle
from lightning_multigrid.host import MisconfigurationException
from lightning_multigrid.training.lr.lr_in_step import LRInStep
from lightning_multigrid.training.trainer.changes import Changes
from tests.helpers.sampling import sampled
from tests.helpers.tiny import Module, fit, loader, trainer

pytestmark = pytest.mark.usefixtures("_unrehearsed")


def schedule_of(host):
    return next(c for c in host.callbacks if isinstance(c, MultigridCallback)).run.plan


def test_lr_by_hand():
    # 3 epochs with milestones at 1 and 2; base shapes of 2x and 1x the clips, no short cycle, a pass for each epoch. A
    # step has 10, 5, 10, 5, 5 and 5 clips in the six halves of the epochs, 20/3 on average, so an epoch has 15 steps
    # for 100 clips. A half of an odd number begins with the step that begins in it: the eighth. In the first half of
    # the fine-tuning the LR is that of the stage before.
    cycles = {"long_cycle": LongCycle(((0.5, 1), (1, 1))), "short_cycle": ShortCycle((1,))}
    callback = MultigridCallback(milestones="script", epoch_factor=1, **cycles)
    module = Module(lambda optimizer, _: lr_scheduler.MultiStepLR(optimizer, [1, 2]))
    fit(module, callback, max_epochs=3, train=loader(batch_size=5))
    per_epoch = [[0.2] * 8 + [0.1] * 7, [0.02] * 8 + [0.01] * 7, [0.01] * 8 + [0.001] * 7]
    assert module.lrs == pytest.approx([lr for epoch in per_epoch for lr in epoch])
    assert [clips for clips, *_ in module.shapes] == ([10] * 8 + [5] * 7) * 2 + [5] * 15


class Reading(Module):
    """Reads something of the Trainer before it steps its scheduler."""

    def __init__(self, read):
        super().__init__(lambda optimizer, _: lr_scheduler.ExponentialLR(optimizer, 0.9))
        self.read = read

    def lr_scheduler_step(self, scheduler, metric):
        self.read(self.trainer)
        scheduler.step()


@pytest.mark.parametrize("name", ["fit_loop", "train_dataloader"])
def test_a_scheduler_that_reads_the_loop_of_this_run_is_refused(name):
    module = Reading(lambda host: getattr(host, name))
    with pytest.raises(MisconfigurationException, match=rf"reads `trainer\.{name}`.*`trainer\.num_training_batches`"):
        fit(module, MultigridCallback(), max_epochs=2)


def test_a_scheduler_that_holds_the_trainer_sees_the_baselines_numbers():
    """As one that asks `module.trainer`: in each step the LR is that of the baseline there, and at the end near 0."""

    def decaying(ask):
        def schedulers(optimizer, module):
            host, seen = module.trainer, ask(module)
            rule = lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / seen().estimated_stepping_batches)
            assert host is module.trainer
            return {"scheduler": rule, "interval": "step"}

        module = Module(schedulers)
        fit(module, MultigridCallback(lr_scaling="none"), max_epochs=2)
        return module.lrs

    asking = decaying(lambda module: lambda: module.trainer)
    holding = decaying(lambda module: lambda host=module.trainer: host)
    assert holding == asking
    assert 0 < holding[-1] < 0.1 * holding[0]


def test_a_scheduler_sees_the_limit_of_mini_batches_of_its_script():
    seen = set()
    fit(
        Reading(lambda host: seen.add(host.limit_train_batches)),
        MultigridCallback(),
        max_epochs=2,
        limit_train_batches=0.5,
    )
    assert seen == {0.5}


@pytest.mark.parametrize("interval", sampled(["step", "epoch"], "step"))
def test_learning_rate_monitor_shows_the_scripts_schedule_and_we_log_what_is_used(tmp_path, interval):
    module = Module(lambda one, _: {"scheduler": lr_scheduler.CosineAnnealingLR(one, 100), "interval": "step"})
    logger, monitor = CSVLogger(tmp_path), LearningRateMonitor(logging_interval=interval)
    sampler = schedule_of(fit(module, monitor, MultigridCallback(), logger=logger, log_every_n_steps=1))
    with open(f"{logger.log_dir}/metrics.csv") as file:
        rows = list(csv.DictReader(file))
    scales = [sampler.epoch(epoch)[batch].lr_scale for epoch, batch, *_ in module.seen]
    first = [interval == "step" or batch == 0 for _, batch, *_ in module.seen]
    schedule = [lr / scale for lr, scale, shown in zip(module.lrs, scales, first, strict=True) if shown]
    shown = [float(row["lr-SGD"]) for row in rows if row["lr-SGD"]]
    assert shown == pytest.approx(schedule, rel=1e-6)  # the logger keeps float32
    assert [float(row["multigrid/lr"]) for row in rows if row["multigrid/lr"]] == pytest.approx(module.lrs, rel=1e-6)
    assert len(set(scales)) == 4


@pytest.mark.filterwarnings("ignore:Found .* module")
@pytest.mark.parametrize(("first", "in_tensor"), sampled(list(product((True, False), repeat=2)), (True, True)))
def test_a_backbone_thaws_at_its_share_of_the_baselines_lr(first, in_tensor):
    class Halves(Module):
        def __init__(self):
            super().__init__(optimizer=self.trainable)
            self.backbone, self.used = self.net[:1], []

        def trainable(self, parameters):
            lr = torch.tensor(0.1) if in_tensor else 0.1
            return SGD([p for p in parameters if p.requires_grad], lr=lr)

        def note_lr(self, optimizer, *_):
            if len(groups := optimizer.param_groups) == 2:
                self.used.append((*self.seen[-1][:2], *(float(group["lr"]) for group in groups)))

    module, thawing = Halves(), BackboneFinetuning(1, lambda epoch: 4, train_bn=False)
    callbacks = [thawing, MultigridCallback(lr_by_hand="run")]
    sampler = schedule_of(fit(module, *(callbacks if first else callbacks[::-1])))
    expected = {1: 0.01, 2: 0.04, 3: 0.1}  # a tenth, then four times as much, but no more than the head's
    for epoch, batch, head, backbone in module.used:
        scale = sampler.epoch(epoch)[batch].lr_scale
        assert (head, backbone) == pytest.approx((0.1 * scale, expected[epoch] * scale)), (epoch, batch)
    assert {epoch for epoch, *_ in module.used} == set(expected)


def scaled(optimizer):
    """Scales the LR in steps of an optimizer by 8."""
    in_step = LRInStep([optimizer], None)
    in_step.scale = 8.0
    in_step.start(Changes())


class Overwriting(SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] = self.written(group["lr"])
        return super().step(closure)


@pytest.mark.parametrize("lr", [1.0, torch.tensor(1.0)], ids=["float", "tensor"])
@pytest.mark.parametrize("written", [lambda lr: 0.5, lambda lr: torch.tensor(0.5)], ids=["to float", "to tensor"])
def test_an_lr_written_within_step_is_refused_and_the_baselines_comes_back(lr, written):
    weights = [torch.zeros(1, requires_grad=True) for _ in range(2)]
    optimizer = Overwriting([{"params": [weight]} for weight in weights], lr=lr)  # of one tensor, if it is one
    optimizer.written = written
    scaled(optimizer)
    with pytest.raises(MisconfigurationException, match="The LR was written within `step` of an optimizer"):
        optimizer.step()
    assert lr == 1.0


def test_an_optimizer_that_writes_the_same_lr_within_step_is_taken():
    """As `ZeroRedundancyOptimizer` does, which copies the groups: an equal number, and another object."""
    weight = torch.ones(1, requires_grad=True)
    optimizer = Overwriting([weight], lr=1.0)
    optimizer.written = lambda lr: float(str(lr))
    scaled(optimizer)
    weight.grad = torch.ones(1)
    optimizer.step()
    assert weight.item() == 1 - 8
    assert optimizer.param_groups[0]["lr"] == 1.0


def test_another_number_of_schedulers_on_resume_is_refused(tmp_path):
    saver = ModelCheckpoint(tmp_path, every_n_train_steps=5, filename="{step}", save_top_k=-1)
    fit(Module(), MultigridCallback(), saver, enable_checkpointing=True)
    module = Module(lambda optimizer, module: lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0))
    with pytest.raises(MisconfigurationException, match=r"The checkpoint has 0 LR scheduler\(s\), .* returns 1 now"):
        fit(module, MultigridCallback(), ckpt_path=tmp_path / "step=5.ckpt")


def onecycle(optimizer, module):
    total = int(module.trainer.estimated_stepping_batches)
    return {"scheduler": lr_scheduler.OneCycleLR(optimizer, 5 * optimizer.defaults["lr"], total), "interval": "step"}


def of_steps(optimizer, module, interval="step"):
    """As the schedules of transformers: a part of a scheduler that is a function of all steps."""
    falling = partial(lambda step, total: 1 - step / total, total=int(module.trainer.estimated_stepping_batches))
    parts = lr_scheduler.ConstantLR(optimizer, 1.0), lr_scheduler.LambdaLR(optimizer, falling)
    return {"scheduler": lr_scheduler.ChainedScheduler(parts), "interval": interval}


def multiplied(optimizer, _):
    return {"scheduler": lr_scheduler.MultiplicativeLR(optimizer, lambda step: 0.99), "interval": "step"}


def lr_at_the_end(path, batch_size, scheduler, **arguments):
    """Saves a checkpoint of 25 steps in a baseline's epoch, or continues it; returns the baseline's last LR."""
    saver = ModelCheckpoint(path.parent, every_n_train_steps=5, filename="{step}", save_top_k=-1)
    if path.exists():
        callbacks, arguments["ckpt_path"] = [], path
    else:
        callbacks, arguments["enable_checkpointing"] = [saver], True
    host = fit(Module(scheduler), MultigridCallback(), *callbacks, train=loader(batch_size), **arguments)
    return host.optimizers[0].param_groups[0]["lr"]


@pytest.mark.parametrize(
    ("scheduler", "name"), sampled([(of_steps, "LambdaLR"), (multiplied, "MultiplicativeLR")], (of_steps, "LambdaLR"))
)
def test_a_function_of_steps_is_refused_where_an_epoch_has_others_than_the_checkpoints(scheduler, name, tmp_path):
    path = tmp_path / "step=5.ckpt"
    whole = lr_at_the_end(path, 4, scheduler)
    message = f"baseline has 25 optimizer steps, and one of .* has 13. .* function of a {name} .* Keep the clips and"
    with pytest.raises(MisconfigurationException, match=message):
        lr_at_the_end(path, 8, scheduler)
    assert lr_at_the_end(path, 2, scheduler, accumulate_grad_batches=2) == pytest.approx(whole)


@pytest.mark.parametrize("scheduler", [partial(of_steps, interval="epoch"), onecycle])
def test_schedulers_of_epochs_and_those_in_the_checkpoint_go_on_with_other_steps(scheduler, tmp_path):
    path = tmp_path / "step=5.ckpt"
    lr_at_the_end(path, 4, scheduler)
    lr_at_the_end(path, 8, scheduler)


def test_the_schedulers_of_a_second_fit_begin_with_it():
    """As Lightning's: a head is trained first, and then all. They are not stepped to the Trainer's epoch at once."""

    def lrs(*multigrid):
        module = Module(lambda optimizer, _: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 - epoch / 4))
        host, found = trainer(*multigrid, max_epochs=2), []
        host.fit(module, loader())
        host.fit_loop.max_epochs = 5
        module.on_train_epoch_start = lambda: found.append(host.optimizers[0].param_groups[0]["lr"])
        host.fit(module, loader())
        return found

    assert lrs() == pytest.approx([0.1, 0.075, 0.05])
    assert lrs(MultigridCallback()) == pytest.approx(lrs())
