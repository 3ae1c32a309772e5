"""The LR of every step against a real run of the baseline: scheduler(baseline clock) x scale."""

import csv
import math
from fractions import Fraction
from itertools import product

import pytest
import torch
from lightning.pytorch.callbacks import BackboneFinetuning, BaseFinetuning, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch.optim import SGD, lr_scheduler

from lightning_multigrid import MultigridCallback
from lightning_multigrid.host import MisconfigurationException
from lightning_multigrid.schedule.cycles import LongCycle, ShortCycle
from lightning_multigrid.schedule.plan import BaselineEpoch
from lightning_multigrid.training.lr.lr_in_step import LRInStep
from lightning_multigrid.training.script.lr_stages import lr_stages
from lightning_multigrid.training.trainer.changes import Changes
from tests.helpers.sampling import sampled
from tests.helpers.tiny import Module, fit, loader

pytestmark = pytest.mark.usefixtures("_unrehearsed")

BATCHES = 25  # of the baseline: 100 clips, 4 each


def cosine(optimizer, module):
    return {"scheduler": lr_scheduler.CosineAnnealingLR(optimizer, T_max=4 * BATCHES), "interval": "step"}


def warmup_then_steps(optimizer, module):
    warmup = lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=1)
    steps = lr_scheduler.MultiStepLR(optimizer, [1, 2])
    return lr_scheduler.SequentialLR(optimizer, [warmup, steps], milestones=[1])


def warmup_then_cosine(optimizer, module):
    warmup = lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=30)
    rest = lr_scheduler.CosineAnnealingLR(optimizer, T_max=70)
    return {"scheduler": lr_scheduler.SequentialLR(optimizer, [warmup, rest], milestones=[30]), "interval": "step"}


def one_cycle(optimizer, module):
    total = module.trainer.estimated_stepping_batches
    return {"scheduler": lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=total), "interval": "step"}


def every_fourth(optimizer, module):
    return {"scheduler": lr_scheduler.ExponentialLR(optimizer, 0.9), "interval": "step", "frequency": 4}


SCHEDULERS = {
    "MultiStepLR": lambda optimizer, module: lr_scheduler.MultiStepLR(optimizer, [2, 3]),
    "StepLR": lambda optimizer, module: lr_scheduler.StepLR(optimizer, 2),
    "cosine by step": cosine,
    "cosine by epoch": lambda optimizer, module: lr_scheduler.CosineAnnealingLR(optimizer, T_max=4),
    "warm-up, steps": warmup_then_steps,
    "warm-up, cosine by step": warmup_then_cosine,
    "OneCycleLR": one_cycle,
    "LambdaLR": lambda optimizer, module: lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch)),
    "every fourth step": every_fourth,
    "chained": lambda optimizer, module: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(optimizer, 0.5, 1), lr_scheduler.ExponentialLR(optimizer, 0.7)]
    ),
    "warm restarts": lambda optimizer, module: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=2),
    "none": None,
}


def schedule_of(host):
    return next(c for c in host.callbacks if isinstance(c, MultigridCallback)).run.plan


@pytest.mark.parametrize(
    ("name", "accumulate"),
    sampled(
        list(product(SCHEDULERS, (1, 2))),
        *(("warm-up, cosine by step", 1), ("every fourth step", 2), ("warm restarts", 1)),
    ),
)
def test_lr_is_the_schedulers_at_the_baseline_clock_times_the_scale(name, accumulate):
    baseline = Module(SCHEDULERS[name])
    fit(baseline, accumulate_grad_batches=accumulate)
    plain = {(epoch, batch): lr for epoch, batch, _, lr, _ in baseline.seen}
    assert len(plain) == 4 * BATCHES

    module = Module(SCHEDULERS[name])
    sampler = schedule_of(fit(module, MultigridCallback(), accumulate_grad_batches=accumulate))
    for epoch, batch, _, lr, _ in module.seen:
        # Micro-batches have the LR of the first one of their optimizer step.
        step = sampler.epoch(epoch)[batch - batch % accumulate]
        clock = sampler.schedule.baseline_epoch(epoch + Fraction(step.offset, sampler.clips))
        whole = math.floor(clock)
        expected = plain[whole, math.floor((clock - whole) * BATCHES)] * step.lr_scale
        assert lr == pytest.approx(expected, rel=1e-12), (epoch, batch)
    assert len({step.lr_scale for epoch in range(6) for step in sampler.epoch(epoch)}) == 4


def test_lr_by_hand():
    # 3 epochs with milestones at 1 and 2; base shapes of 2x and 1x the clips, no short cycle, 1.0x epochs. Each stage
    # has 2/3 of its epoch at twice the LR and 1/3 at once; fine-tuning takes 2/3 epochs, at the saving of 3/2 of the
    # stages. That is 8/3 in all, stretched to 3: the phases end at 0.75, 1.125, 1.875, 2.25 and 3, and the last half of
    # fine-tuning starts at 2.625.
    callback = MultigridCallback(epoch_factor=1, long_cycle=LongCycle(((0.5, 1), (1, 1))), short_cycle=ShortCycle((1,)))
    module = Module(lambda optimizer, _: lr_scheduler.MultiStepLR(optimizer, [1, 2]))
    fit(module, callback, max_epochs=3, train=loader(batch_size=5))
    per_epoch = [
        # 75 of the 100 clips in tens, and what is left in fives
        [0.2] * 8 + [0.1] * 4,
        # to 0.125 in fives, to 0.875 in tens, the rest in fives
        [0.1] * 3 + [0.02] * 8 + [0.01] * 1,
        # to 0.25 at the end of the second stage, to 0.625 at its LR, the rest at the last one
        [0.01] * 5 + [0.01] * 8 + [0.001] * 7,
    ]
    assert module.lrs == pytest.approx([lr for epoch in per_epoch for lr in epoch])
    assert [clips for clips, *_ in module.shapes] == [10] * 8 + [5] * 4 + [5] * 3 + [10] * 8 + [5] * 1 + [5] * 20


def test_stepwise_fine_tuning_halves():
    # Sec. 3.2: the first half of fine-tuning keeps the LR of the stage before, the second half takes the last.
    module = Module(SCHEDULERS["MultiStepLR"])
    sampler = schedule_of(fit(module, MultigridCallback()))
    last = sampler.schedule.phases[-1]
    middle = (last.start_epoch + last.end_epoch) / 2
    tuning = {True: set(), False: set()}
    for epoch, batch, _, lr, _ in module.seen:
        step = sampler.epoch(epoch)[batch]
        position = epoch + Fraction(step.offset, sampler.clips)
        if position >= last.start_epoch:
            tuning[position < middle].add(round(lr, 9))
    assert tuning == {True: {0.01}, False: {0.001}}


@pytest.mark.parametrize("interval", sampled(["step", "epoch"], "step"))
def test_learning_rate_monitor_shows_the_scripts_schedule_and_we_log_what_is_used(tmp_path, interval):
    module = Module(cosine)
    logger = CSVLogger(tmp_path)
    monitor = LearningRateMonitor(logging_interval=interval)
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


def in_step(used, optimizer):
    """Notes the LRs of all groups in each step of an optimizer."""
    optimizer.register_step_pre_hook(
        lambda optimizer, *_: used.append([float(group["lr"]) for group in optimizer.param_groups])
    )
    return optimizer


def test_every_parameter_group_is_scaled():
    used = []

    def two_groups(parameters):
        weight, *rest = parameters
        return in_step(used, SGD([{"params": [weight], "lr": 0.3}, {"params": rest}], lr=0.1, momentum=0.9))

    module = Module(SCHEDULERS["MultiStepLR"], two_groups)
    fit(module, MultigridCallback())
    assert all(first == pytest.approx(3 * second) for first, second in used)
    assert [first for first, _ in used] == module.lrs
    assert max(used) == [8 * 0.3, 8 * 0.1]


def test_an_lr_in_a_tensor_stays_the_same_tensor():
    lr = torch.tensor(0.1)
    module = Module(SCHEDULERS["MultiStepLR"], lambda parameters: SGD(parameters, lr=lr, momentum=0.9))
    reference = Module(SCHEDULERS["MultiStepLR"])
    fit(module, MultigridCallback())
    fit(reference, MultigridCallback())
    assert module.trainer.optimizers[0].param_groups[0]["lr"] is lr
    assert module.lrs == pytest.approx(reference.lrs, rel=1e-5)


def test_plateau_is_lightnings_and_works_on_the_baselines_lr():
    def plateau(optimizer, module):
        scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=10.0, min_lr=0.03)
        return {"scheduler": scheduler, "monitor": "val"}

    module = Module(plateau)
    sampler = schedule_of(fit(module, MultigridCallback(), val=loader(shuffle=False, number=8)))
    scales = [sampler.epoch(epoch)[batch].lr_scale for epoch, batch, *_ in module.seen]
    baseline = [lr / scale for lr, scale in zip(module.lrs, scales, strict=True)]
    # The threshold makes every validation a bad one, after epochs 0, 2, 3 and 5: halved, but not below the minimum.
    per_epoch = [0.1, 0.05, 0.05, 0.03, 0.03, 0.03]
    assert baseline == pytest.approx([per_epoch[epoch] for epoch, *_ in module.seen])


class Unfreezing(BaseFinetuning):
    """Lightning's own callback for fine-tuning: adds the first layer to the optimizer after some epochs."""

    def freeze_before_training(self, pl_module):
        self.freeze(pl_module.net[0])

    def finetune_function(self, pl_module, epoch, optimizer):
        if epoch == 3:
            self.unfreeze_and_add_param_group(pl_module.net[0], optimizer)  # at a tenth of the first group's LR


@pytest.mark.parametrize("first", sampled([True, False], False))
def test_a_group_that_is_added_while_training_keeps_its_share_of_the_lr(first):
    used = []

    def trainable(parameters):
        return in_step(used, SGD([p for p in parameters if p.requires_grad], lr=0.1, momentum=0.9))

    callbacks = [Unfreezing(), MultigridCallback()]
    fit(Module(SCHEDULERS["MultiStepLR"], trainable), *(callbacks if first else reversed(callbacks)))
    both = [lrs for lrs in used if len(lrs) == 2]
    assert len({lr for lr, _ in both}) > 3  # several phases and stages
    assert all(added == pytest.approx(lr / 10) for lr, added in both)


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

    module, thawing = Halves(), BackboneFinetuning(2, lambda epoch: 4, train_bn=False)
    callbacks = [thawing, MultigridCallback(lr_by_hand="run")]
    sampler = schedule_of(fit(module, *(callbacks if first else callbacks[::-1])))
    expected = {2: 0.01, 3: 0.04, 4: 0.1, 5: 0.1}  # a tenth, then four times as much, but no more than the head's
    for epoch, batch, head, backbone in module.used:
        scale = sampler.epoch(epoch)[batch].lr_scale
        assert (head, backbone) == pytest.approx((0.1 * scale, expected[epoch] * scale)), (epoch, batch)
    assert {epoch for epoch, *_ in module.used} == set(expected)


class Remembering(Module):
    """Keeps the LR in places that end up in checkpoints."""

    def on_train_start(self):
        self.hparams.lr = self.optimizers().param_groups[0]["lr"]

    def on_save_checkpoint(self, checkpoint):
        checkpoint["lrs"] = tuple(group["lr"] for group in self.trainer.optimizers[0].param_groups)

    def on_train_batch_start(self, batch, batch_idx):
        if self.trainer.current_epoch == 1 and batch_idx == 0:  # keeps `initial_lr` in each group
            self.own = lr_scheduler.ExponentialLR(self.optimizers().optimizer, 1)


@pytest.mark.filterwarnings("ignore:Found .* module")
@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.filterwarnings("ignore:The dirpath has changed")
@pytest.mark.parametrize("first", sampled([True, False], True))
def test_checkpoints_with_callbacks_for_fine_tuning_load_as_weights_only(first, tmp_path):
    def groups(parameters):
        return SGD([p for p in parameters if p.requires_grad], lr=0.1, momentum=0.9)

    def train(name, module, *callbacks, **arguments):
        saver = ModelCheckpoint(tmp_path / name, "{step}", save_top_k=-1, every_n_train_steps=4)
        host = fit(module, *callbacks, saver, enable_checkpointing=True, **arguments)
        host.save_checkpoint(tmp_path / name / "end.ckpt")
        return sorted((tmp_path / name).glob("step*.ckpt"), key=lambda path: path.stat().st_mtime)

    def both():
        callbacks = [Unfreezing(), MultigridCallback()]
        return callbacks if first else callbacks[::-1]

    def checked(path):
        saved = torch.load(path, weights_only=True)
        lrs = [group["lr"] for group in saved["callbacks"]["Unfreezing"]["internal_optimizer_metadata"][0]]
        assert lrs == pytest.approx([0.1, 0.01][: len(lrs)])
        assert [group["lr"] for group in saved["optimizer_states"][0]["param_groups"]] == pytest.approx(lrs)
        return saved

    plain = Remembering(SCHEDULERS["none"], groups)
    train("plain", plain, Unfreezing())
    module = Remembering(SCHEDULERS["none"], groups)
    kept = train("ours", module, *both())
    expected, found = checked(tmp_path / "plain" / "end.ckpt"), checked(tmp_path / "ours" / "end.ckpt")
    for name in ("optimizer_states", "callbacks"):
        one, other = expected[name], found[name]
        pairs = zip(*(metadata(part) for part in (one, other)), strict=True)
        assert all(mine.keys() == theirs.keys() for mine, theirs in pairs)
    middle = next(path for path in kept if len(checked(path)["optimizer_states"][0]["param_groups"]) == 2)
    assert (checked(middle)["lrs"], checked(middle)["hyper_parameters"]) == ((0.1, pytest.approx(0.01)), {"lr": 0.1})
    rest = Remembering(SCHEDULERS["none"], groups)
    train("rest", rest, *both(), ckpt_path=middle)
    assert 0 < len(rest.lrs) < len(module.lrs)
    assert rest.lrs == module.lrs[-len(rest.lrs) :]  # weights differ, as Lightning leaves thawed layers frozen then
    fit(Remembering(SCHEDULERS["none"], groups), Unfreezing(), ckpt_path=tmp_path / "ours" / "end.ckpt", max_epochs=7)


class Summing(SGD):
    """Keeps a sum of LRs, as optimizers do that average weights by them, and steps as its base class does."""

    def step(self, closure=None):
        group = self.param_groups[0]
        group["sum"] = group.get("sum", 0.0) + group["lr"]
        return super().step(closure)


def test_a_step_that_calls_that_of_its_base_class_scales_the_gradient_once():
    SGD([torch.zeros(1, requires_grad=True)], lr=1.0)  # torch then calls the hooks of `SGD.step`, too
    weight = torch.zeros(1, requires_grad=True)
    optimizer = Summing([weight], lr=1.0)
    LRInStep(optimizer, {"lr": 8.0}, lambda optimizer: weight.grad.mul_(0.5), lambda *_: None).start(Changes())
    for _ in range(2):
        weight.grad = torch.ones(1)
        optimizer.step()
        assert weight.grad == 0.5

        def closure():
            weight.grad = torch.ones(1)
            return weight.sum()

        optimizer.step(closure)
        assert weight.grad == 0.5


class Overwriting(SGD):
    """Writes its LR within `step`."""

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
    LRInStep(optimizer, {"lr": 8.0}, lambda optimizer: None, lambda *_: None).start(Changes())
    with pytest.raises(MisconfigurationException, match="The LR was written within `step` of Overwriting"):
        optimizer.step()
    assert lr == 1.0


def test_an_optimizer_that_writes_the_same_lr_within_step_is_taken():
    """As `ZeroRedundancyOptimizer` does, which copies the groups: an equal number, and another object."""
    weight = torch.ones(1, requires_grad=True)
    optimizer = Overwriting([weight], lr=1.0)
    optimizer.written = lambda lr: float(str(lr))
    LRInStep(optimizer, {"lr": 8.0}, lambda optimizer: None, lambda *_: None).start(Changes())
    weight.grad = torch.ones(1)
    optimizer.step()
    assert weight.item() == 1 - 8
    assert optimizer.param_groups[0]["lr"] == 1.0


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_another_number_of_schedulers_on_resume_is_refused(tmp_path):
    saver = ModelCheckpoint(tmp_path, every_n_train_steps=5, filename="{step}", save_top_k=-1)
    fit(Module(), MultigridCallback(), saver, enable_checkpointing=True)
    module = Module(lambda optimizer, module: lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0))
    with pytest.raises(MisconfigurationException, match=r"The checkpoint has 0 LR scheduler\(s\) .* returns 1 now"):
        fit(module, MultigridCallback(), ckpt_path=tmp_path / "step=5.ckpt")


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_what_an_optimizer_computes_from_the_lr_in_use_resumes(tmp_path):
    def summing(parameters):
        return Summing(parameters, lr=0.1)

    checkpoints = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=5, save_top_k=-1, save_weights_only=False)
    whole = fit(
        Module(optimizer=summing), MultigridCallback(seed=0), checkpoints, max_epochs=3, enable_checkpointing=True
    )
    rest = fit(
        Module(optimizer=summing), MultigridCallback(seed=0), ckpt_path=tmp_path / "step=5.ckpt", max_epochs=3, seed=1
    )
    sums = [host.optimizers[0].param_groups[0]["sum"] for host in (whole, rest)]
    assert sums[0] == pytest.approx(sums[1]) != pytest.approx(0.1 * whole.global_step)


def metadata(state):
    """The parameter groups in a checkpoint's optimizers, or in its callback's state."""
    return (
        state[0]["param_groups"] if isinstance(state, list) else state["Unfreezing"]["internal_optimizer_metadata"][0]
    )


# --- Ticks ---


@pytest.mark.parametrize("batches", [5, 8])
@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.parametrize("frequency", [1, 2, 4])
def test_ticks_are_those_of_lightnings_rule(batches, accumulate, frequency):
    epoch = BaselineEpoch(batches, accumulate)
    ticks = 0
    for done in range(3 * batches):
        assert epoch.ticks(Fraction(done, batches), "step", frequency) == ticks
        position = done % batches + 1
        if position % frequency == 0 and (position % accumulate == 0 or position == batches):
            ticks += 1
            assert epoch.after_ticks(ticks, "step", frequency) == Fraction(done + 1, batches)


def test_epoch_ticks():
    epoch = BaselineEpoch(10)
    assert [epoch.ticks(Fraction(e, 2), "epoch", 2) for e in range(9)] == [0, 0, 0, 0, 1, 1, 1, 1, 2]
    assert epoch.after_ticks(3, "epoch", 2) == 6


# --- Stages ---


def stages(scheduler, interval="epoch", epochs=10, batches=20):
    config = LRSchedulerConfig(scheduler, interval=interval)
    return lr_stages([config], BaselineEpoch(batches), Fraction(epochs))


@pytest.fixture
def optimizer():
    return SGD([torch.zeros(1, requires_grad=True)], lr=0.1)


def test_milestones_are_read_off_schedulers(optimizer):
    assert stages(lr_scheduler.MultiStepLR(optimizer, [4, 8, 20])) == ((4, 8), 0, True)
    assert stages(lr_scheduler.MultiStepLR(optimizer, [90, 150]), "step") == (
        (Fraction(9, 2), Fraction(15, 2)),
        0,
        True,
    )
    assert stages(lr_scheduler.StepLR(optimizer, 4)) == ((4, 8), 0, True)


def test_warmup_and_milestones_are_read_inside_other_schedulers(optimizer):
    # The names of the parts are torch's own business: this fails when they change.
    warmup = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
    steps = lr_scheduler.MultiStepLR(optimizer, [3, 5])
    sequential = lr_scheduler.SequentialLR(optimizer, [warmup, steps], milestones=[2])
    assert stages(sequential) == ((5, 7), 2, True)
    chained = lr_scheduler.ChainedScheduler([warmup, steps])
    assert stages(chained) == ((3, 5), 2, True)


def test_other_schedulers_get_the_papers_kinetics_proportions(optimizer):
    kinetics = tuple(Fraction(share, 112) * 10 for share in (44, 72, 92))
    assert stages(lr_scheduler.CosineAnnealingLR(optimizer, 10)) == (kinetics, 0, False)
    assert lr_stages([], BaselineEpoch(20), Fraction(10)) == (kinetics, 0, False)
    # A step every epoch is a smooth decay in disguise.
    assert stages(lr_scheduler.StepLR(optimizer, 1), epochs=20).milestones[0] == Fraction(44, 112) * 20


def test_a_warmup_longer_than_the_papers_first_stage_comes_before_it(optimizer):
    warmup = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
    rest = lr_scheduler.CosineAnnealingLR(optimizer, 5)
    read = stages(lr_scheduler.SequentialLR(optimizer, [warmup, rest], milestones=[5]))
    assert read.warmup_epochs == 5
    assert read.milestones[0] == 5 + Fraction(44, 112) * 5


def test_a_falling_linear_lr_is_no_warmup(optimizer):
    assert stages(lr_scheduler.LinearLR(optimizer, 1.0, 0.0, 10)).warmup_epochs == 0


@pytest.mark.parametrize(("accumulate", "frequency"), [(1, 11), (4, 3), (4, 10), (1, 10), (3, 1)])
def test_an_epoch_after_so_many_ticks_is_the_first_that_has_had_them(accumulate, frequency):
    """With 10 batches, a scheduler of every 11th step never ticks, nor one of every 3rd where every 4th is a step."""
    epoch = BaselineEpoch(batches=10, accumulate=accumulate)
    assert epoch.after_ticks(0, "step", frequency) in (0, 10**9)
    for ticks in range(1, 12):
        at = epoch.after_ticks(ticks, "step", frequency)
        if at == 10**9:
            assert epoch.ticks(Fraction(100), "step", frequency) == 0
        else:
            assert epoch.ticks(at, "step", frequency) >= ticks
            assert epoch.ticks(at - Fraction(1, 10), "step", frequency) < ticks
