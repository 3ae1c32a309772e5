"""Scripts that step their schedulers by hand or write their LR: each step has the baseline's LR times the scale.

Schedulers that follow the baseline's epochs are rows of `tests/helpers/styles_of_optimizers.py`.
"""

import copy
from functools import partial
from itertools import count, cycle, product

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback
from torch import nn
from torch.optim import SGD, lr_scheduler

from lightning_multigrid import MultigridCallback
from lightning_multigrid.host import MisconfigurationException
from tests.helpers import small_scripts, tiny
from tests.helpers.sampling import sampled
from tests.helpers.styles_of_optimizers import Manual
from tests.helpers.tiny import Module, clips, tells

pytestmark = pytest.mark.usefixtures("_unrehearsed")

BATCHES, EPOCHS = 17, 3  # of the baseline: 66 clips, 4 each
OF_SCRIPT = small_scripts.CLIPS // small_scripts.BATCH


def fit(module, *callbacks, **arguments):
    train = torch.utils.data.DataLoader(clips(66, frames=4, size=16), 4, shuffle=True)
    return tiny.fit(module, *callbacks, **{"train": train, "max_epochs": EPOCHS, **arguments})


def plan_of(host):
    return next(callback for callback in host.callbacks if isinstance(callback, MultigridCallback)).run.plan


def scales(host):
    """Of each step of the plan."""
    plan = plan_of(host)
    return [step.lr_scale for epoch in range(plan.epochs) for step in plan.epoch(epoch)]


# --- Manual optimization ---


@tells
class Calls(Manual):
    """Steps its scheduler where `calls` says, and notes its ticks in each training step."""

    def __init__(self, calls, declared=None, make=lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.95)):
        super().__init__(1, "", declared)
        self.calls, self.make, self.ticks = calls, make, []

    def told(self, place, *given):
        if not isinstance(self._trainer, L.Trainer) or self.trainer.sanity_checking:
            return
        if place in self.calls and self.calls[place](self.trainer):
            self.stepped()
        if place == "after training_step":
            self.ticks.append(self.lr_schedulers().last_epoch)

    def validation_step(self, batch, batch_idx):
        """Nothing to validate."""

    def configure_optimizers(self):
        optimizer = SGD(self.net.parameters(), 0.1)
        return [optimizer], [{"scheduler": self.make(optimizer), **self.declared}]


def always(_):
    return True


def fit_by_hand(module, train=None, **arguments):
    return fit(module, MultigridCallback(milestones="script"), train=train or small_scripts.loader(), **arguments)


PER_STEP = {
    "in each step": {"after training_step": always},
    "before each step": {"on_train_batch_start": always},
    "after each step": {"on_train_batch_end": always},
}
PER_EPOCH = {
    "at an epoch's end": {"on_train_epoch_end": always},
    "at an epoch's start": {"on_train_epoch_start": always},
    "after a validation": {"on_validation_end": always},
    "in an epoch's last step": {"after training_step": lambda host: host.is_last_batch},
    "after an epoch's last step": {"on_train_batch_end": lambda host: host.is_last_batch},
}

FIRST = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")  # before the first step


@FIRST
@pytest.mark.parametrize("when", PER_STEP)
def test_a_scheduler_that_is_stepped_by_hand_with_the_steps_has_the_ticks_of_the_baseline(when):
    """At each point of an epoch, as many as the baseline's mini-batches by then."""
    module = Calls(PER_STEP[when])
    steps = plan_of(fit_by_hand(module)).batches_per_epoch
    calls = range(when != "after each step", EPOCHS * steps + (when != "after each step"))
    assert module.ticks == [call * OF_SCRIPT // steps for call in calls]
    assert module.lr_schedulers().last_epoch == EPOCHS * OF_SCRIPT


@FIRST
@pytest.mark.parametrize("when", PER_EPOCH)
def test_a_scheduler_that_is_stepped_by_hand_with_the_epochs_has_their_ticks(when):
    module = Calls(PER_EPOCH[when])
    steps = plan_of(fit_by_hand(module, val=small_scripts.loader(shuffle=False))).batches_per_epoch
    first = when == "at an epoch's start"
    assert module.ticks[::steps] == [epoch + first for epoch in range(EPOCHS)]
    assert module.lr_schedulers().last_epoch == EPOCHS


def test_a_scheduler_that_is_stepped_by_hand_in_each_third_step_has_as_many_ticks_as_in_the_baseline():
    counts = count(1)
    module = Calls({"after training_step": lambda _: next(counts) % 3 == 0})
    steps = plan_of(fit_by_hand(module)).batches_per_epoch
    ticks = module.lr_schedulers().last_epoch
    assert abs(ticks - EPOCHS * OF_SCRIPT / 3) < 1 + OF_SCRIPT / steps  # what one call stands for


def test_milestones_that_the_script_steps_to_by_hand_are_where_it_says():
    """In the first half of the fine-tuning, a scheduler that Lightning steps would have the LR of the stage before."""
    module = Calls(PER_EPOCH["at an epoch's end"], make=partial(lr_scheduler.MultiStepLR, milestones=[1, 2]))
    host = fit_by_hand(module)
    assert plan_of(host).schedule.baseline.milestones == (1, 2)
    assert not plan_of(host).schedule.stepwise
    steps = plan_of(host).batches_per_epoch
    assert module.ticks == [epoch for epoch in range(EPOCHS) for _ in range(steps)]


def test_a_scheduler_that_is_never_stepped_by_hand_stands_still():
    module = Calls({})
    fit_by_hand(module)
    assert not any(module.ticks)


class TellsEpochs(Calls):
    def stepped(self):
        self.lr_schedulers().step(self.current_epoch + 1)


@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step\\(\\)`")
def test_a_scheduler_may_be_told_the_epoch_after_it_and_not_in_a_step():
    module = TellsEpochs(PER_EPOCH["at an epoch's end"])
    steps = plan_of(fit_by_hand(module)).batches_per_epoch
    assert module.ticks[::steps] == list(range(EPOCHS))
    said = r"with arguments in a mini-batch.*Call it without.*call it in `lr_scheduler_step`"
    with pytest.raises(MisconfigurationException, match=said):
        fit_by_hand(TellsEpochs(PER_STEP["in each step"]))


def test_a_scheduler_that_the_plan_takes_for_one_of_epochs_is_refused_in_a_step():
    """By its milestones; or as epochs have one mini-batch of this run, and three of the baseline: of ten clips."""
    says = r'in a mini-batch, but did not say so .*`\{"scheduler": \.\.\., "interval": "step"\}`; if after each epoch'
    stages = partial(lr_scheduler.MultiStepLR, milestones=[1, 2])
    with pytest.raises(MisconfigurationException, match=f"MultiStepLR {says}"):
        fit_by_hand(Calls(PER_STEP["in each step"], make=stages))
    train = small_scripts.loader(torch.utils.data.Subset(small_scripts.Clips(), range(10)), batch_size=4)
    with pytest.raises(MisconfigurationException, match=f"ExponentialLR {says}"):
        fit_by_hand(Calls(PER_STEP["in each step"]), train=train)
    for calls, declared, ticks in ((PER_STEP, {"interval": "step"}, 3), (PER_EPOCH, None, 1)):
        module = Calls(next(iter(calls.values())), declared)
        host = fit_by_hand(module, train=train)
        assert plan_of(host).batches_per_epoch == 1
        assert module.lr_schedulers().last_epoch == EPOCHS * ticks


def test_a_plateau_that_the_script_steps_works_on_the_baselines_lr():
    class Plateau(tiny.ByHand, Module):
        def on_train_epoch_end(self):
            self.lr_schedulers().step(1.0)

    settings = {"factor": 0.5, "patience": 0, "threshold": 10.0, "min_lr": 0.03}
    module = Plateau(schedulers=lambda optimizer, _: lr_scheduler.ReduceLROnPlateau(optimizer, **settings))
    host = fit(module, MultigridCallback())
    halved = [0.1, 0.05, 0.03]  # every epoch is a bad one
    expected = [halved[epoch] * scale for (epoch, *_), scale in zip(module.seen, scales(host), strict=True)]
    assert module.lrs == pytest.approx(expected)


# --- Written by hand ---


@tells
class ByHand(Module):
    """Writes a falling LR, which may be a tensor, in one of the places where scripts do."""

    def __init__(self, place, relative=False, lr=0.1):
        super().__init__(optimizer=lambda parameters: SGD(parameters, copy.deepcopy(lr), momentum=0.9))
        self.place, self.relative, self.count, self.written = place, relative, 0, []

    def told(self, place, *_):
        if place != self.place or not isinstance(self._trainer, L.Trainer):
            return
        self.count += 1
        for group in self.trainer.optimizers[0].param_groups:
            if self.relative:
                group["lr"] *= 0.95
            elif isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(0.1 * 0.95**self.count)
            else:
                group["lr"] = 0.1 * 0.95**self.count
            self.found = group["lr"]

    def note_lr(self, optimizer, *_):
        super().note_lr(optimizer)
        self.written.append(self.count)


HAND = LambdaCallback(
    on_train_batch_start=lambda _, module, *__: module.told("a callback"),
    on_train_batch_end=lambda _, module, *__: module.told("a callback, after"),
)
PLACES = ["on_train_start", "on_train_batch_start", "training_step", "on_before_optimizer_step", "optimizer_step"]
PLACES += ["after optimizer_step", "on_train_batch_end", "on_train_epoch_end", "a callback", "a callback, after"]
WAYS = [*product((False, True), (0.1, torch.tensor(0.1)))]


@pytest.mark.parametrize(
    ("place", "way"),
    sampled(list(product(PLACES, range(4))), *zip(PLACES, cycle([0, 3, 1, 2]), strict=False)),
)
def test_an_lr_that_is_written_is_the_baselines_and_is_scaled(place, way):
    callbacks = [HAND, MultigridCallback(lr_by_hand="run")]
    if place == "a callback":
        callbacks.reverse()
    module = ByHand(place, *WAYS[way])
    host = fit(module, *callbacks)
    scaled = scales(host)
    # A write after a mini-batch counts from the next one on.
    counts = module.written if place != "training_step" and "on_before" not in place else range(1, len(scaled) + 1)
    assert module.lrs == pytest.approx([0.1 * 0.95**count * scale for count, scale in zip(counts, scaled, strict=True)])
    assert host.optimizers[0].param_groups[0]["lr"] is module.found


WITHIN = [place for place in PLACES[1:] if place != "on_train_epoch_end"]


@pytest.mark.parametrize("place", sampled(WITHIN, "training_step", "after optimizer_step"))
def test_an_lr_that_is_written_is_refused_unless_its_clock_is_said(place):
    message = r"(?s)ByHand, or a callback, has written the LR within an epoch: 0\.09\d*, it was 0\.\d*\..*configure_opt"
    with pytest.raises(MisconfigurationException, match=message):
        fit(ByHand(place), HAND, MultigridCallback())
    fit(ByHand(place), HAND, MultigridCallback.baseline())  # whose steps are the script's
    with pytest.raises(ValueError, match="`lr_by_hand` must be 'run' or None, got 'epoch'"):
        MultigridCallback(lr_by_hand="epoch")


@tells
class OtherNumber(Module):
    """Writes another number of a parameter group than its LR, in a hook."""

    def __init__(self, name, hook, value):
        super().__init__(optimizer=lambda parameters: torch.optim.AdamW(parameters, 0.01, weight_decay=0.1))
        self.hook, self.name, self.value, self.used = hook, name, value, []

    def told(self, hook, *_):
        if hook == self.hook and isinstance(self._trainer, L.Trainer):
            self.optimizers().param_groups[0][self.name] = self.value(self.global_step)

    def note_lr(self, optimizer, *_):
        self.used.append(optimizer.param_groups[0][self.name])


NUMBERS = {
    "weight_decay": lambda step: 0.04 + 0.01 * step,
    "betas": lambda step: [0.9 - 0.01 * step, 0.999],
    "eps": lambda step: 1e-8 * (1 + step),
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("hook", ["on_train_batch_start", "on_before_optimizer_step"])
def test_any_number_of_a_group_that_is_written_within_an_epoch_is_refused_unless_its_clock_is_said(name, hook):
    message = rf"(?s)OtherNumber, or a callback, has written `{name}` of a parameter group within an epoch: .*by_hand="
    with pytest.raises(MisconfigurationException, match=message):
        fit(OtherNumber(name, hook, NUMBERS[name]), MultigridCallback(lr_scaling="none"))
    module = OtherNumber(name, hook, NUMBERS[name])
    fit(module, MultigridCallback(lr_scaling="none", lr_by_hand="run"))
    assert module.used == [NUMBERS[name](step) for step in range(len(module.used))]


def test_any_number_of_a_group_may_be_written_between_two_epochs_and_is_scaled_only_if_it_grows():
    module = OtherNumber("weight_decay", "on_train_epoch_start", NUMBERS["weight_decay"])
    host = fit(module, MultigridCallback())  # whose weight decay grows with the LR of AdamW
    steps = plan_of(host).batches_per_epoch
    written = [NUMBERS["weight_decay"](step - step % steps) for step in range(len(module.used))]
    assert module.used == pytest.approx([decay * scale for decay, scale in zip(written, scales(host), strict=True)])


@pytest.mark.parametrize("manual", [False, True])
def test_a_scheduler_may_write_any_number_of_a_group(manual):
    """`OneCycleLR` writes the momentum: as in the script at the same point of an epoch."""

    class Cycles(Calls):
        def __init__(self, used):
            super().__init__(PER_STEP["in each step"] if manual else {}, {"interval": "step"}, self.one_cycle)
            self.automatic_optimization, self.used = manual is False, used

        def one_cycle(self, optimizer):
            optimizer.register_step_pre_hook(lambda one, *_: self.used.append(one.param_groups[0]["momentum"]))
            return lr_scheduler.OneCycleLR(optimizer, 0.1, EPOCHS * OF_SCRIPT)

        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) if manual else self.loss(batch)

        def configure_optimizers(self):
            optimizer = SGD(self.net.parameters(), 0.1, momentum=0.9)
            return [optimizer], [{"scheduler": self.make(optimizer), **self.declared}]

    ours, plain = [], []
    steps = plan_of(fit_by_hand(Cycles(ours))).batches_per_epoch
    tiny.fit(Cycles(plain), train=small_scripts.loader(), max_epochs=EPOCHS)
    assert ours == [plain[step * OF_SCRIPT // steps] for step in range(EPOCHS * steps)]
    assert len(set(ours)) > steps


@tells
class ByEpoch(Module):
    """Writes the LR of an epoch by hand, where scripts do: between two epochs, or before the first update of one."""

    def __init__(self, place):
        super().__init__()
        self.place = place

    def told(self, place, *given):
        if place != self.place or not isinstance(self._trainer, L.Trainer) or self.trainer.sanity_checking:
            return
        last = self.trainer.is_last_batch
        if (place == "training_step" and given[1]) or (place == "on_train_batch_end" and not last):
            return
        epoch = self.current_epoch + (place not in ("on_train_epoch_start", "training_step"))
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = 0.1 * 0.5**epoch


BETWEEN = ["on_train_epoch_start", "on_train_epoch_end", "on_validation_end", "training_step", "on_train_batch_end"]


@pytest.mark.parametrize(
    ("place", "accumulate"), sampled(list(product(BETWEEN, (1, 2))), *zip(BETWEEN, cycle([1, 2]), strict=False))
)
def test_an_lr_that_is_written_between_two_epochs_is_that_of_the_epoch(place, accumulate):
    module = ByEpoch(place)
    val = torch.utils.data.DataLoader(clips(4, frames=4, size=16), 4)
    host = fit(module, MultigridCallback(), val=val, accumulate_grad_batches=accumulate)
    scaled = [0.1 * 0.5**epoch * scale for (epoch, *_), scale in zip(module.seen, scales(host), strict=True)]
    assert module.lrs == pytest.approx(scaled)
    assert {epoch for epoch, *_ in module.seen} == {0, 1, 2}


def test_an_lr_that_is_written_within_an_epoch_is_refused_at_the_first_write_and_not_at_the_first_change():
    """Of a recipe that decays late, it would else be refused in the middle of the training."""

    class Late(Module):
        def training_step(self, batch, batch_idx):
            if isinstance(self._trainer, L.Trainer):
                self.trainer.optimizers[0].param_groups[0]["lr"] = 0.1 * 0.5 ** (self.global_step // 30)
            return super().training_step(batch, batch_idx)

    module = Late()
    with pytest.raises(MisconfigurationException, match=r"within an epoch: 0\.1, it was 0\.1\. If it depends"):
        fit(module, MultigridCallback())
    assert module.lrs == [pytest.approx(0.8), None]  # the first update of an epoch may have a new one


@pytest.mark.parametrize("place", sampled(["on_train_epoch_end", "on_train_batch_end"], "on_train_epoch_end"))
def test_checkpoints_hold_what_was_written_and_resume_from_it(place, tmp_path):
    path = f"{tmp_path}/{{}}.ckpt"
    saves = LambdaCallback(on_train_epoch_end=lambda host, _: host.save_checkpoint(path.format(host.current_epoch)))
    whole, resumed = ByHand(place, relative=True), ByHand(place, relative=True)
    fit(whole, MultigridCallback(lr_by_hand="run"), saves)
    fit(resumed, MultigridCallback(lr_by_hand="run"), ckpt_path=tmp_path / "1.ckpt")
    saved = torch.load(tmp_path / "1.ckpt", weights_only=True)["optimizer_states"][0]["param_groups"][0]["lr"]
    done = sum(epoch < 2 for epoch, *_ in whole.seen)
    # Lightning calls a module's hook after those of callbacks, so the checkpoint has one epoch's end less.
    assert saved == pytest.approx(0.1 * 0.95 ** (done if place == "on_train_batch_end" else 1))
    if place == "on_train_batch_end":
        assert resumed.lrs == pytest.approx(whole.lrs[done:])


class TwoTensors(Module):
    """Two parameter groups, each with a tensor; a hook writes the second one at a step in mid-epoch."""

    def __init__(self, way):
        super().__init__(optimizer=self.two)
        self.way, self.used = way, []

    def two(self, _):
        both = [{"params": self.net[n].parameters(), "lr": torch.tensor(lr)} for n, lr in ((0, 0.1), (6, 0.05))]
        return SGD(both, lr=0.1)

    def note_lr(self, optimizer, *_):
        self.used.append([float(group["lr"]) for group in optimizer.param_groups])

    def on_train_batch_start(self, batch, batch_idx):
        if len(self.seen) != 2:
            return
        optimizer = self.optimizers().optimizer
        if self.way == "fill":
            optimizer.param_groups[1]["lr"].fill_(0.04)
        elif self.way == "replace":
            optimizer.param_groups[1]["lr"] = torch.tensor(0.04)
        elif self.way == "load":
            optimizer.load_state_dict(optimizer.state_dict())
        else:
            optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": torch.tensor(0.04)})


@pytest.mark.parametrize("way", sampled(["fill", "replace", "load", "add"], "replace", "load"))
def test_an_lr_in_a_tensor_may_be_written_replaced_loaded_and_added(way):
    """It is scaled, whatever the script does with its tensor between two steps, and is the baseline's afterwards."""
    module = TwoTensors(way)
    host = fit(module, MultigridCallback(lr_by_hand="run"))
    second = 0.04 if way in ("fill", "replace") else 0.05
    scaled = scales(host)
    groups = [[0.1, 0.05]] * 2 + [[0.1, second, *([0.04] if way == "add" else [])]] * (len(scaled) - 2)
    expected = [[lr * scale for lr in lrs] for lrs, scale in zip(groups, scaled, strict=True)]
    assert [pytest.approx(lrs) for lrs in expected] == module.used
    assert [float(group["lr"]) for group in host.optimizers[0].param_groups] == pytest.approx(groups[-1])
    assert len(set(scaled)) > 2


def test_an_lr_of_numpy_is_scaled_as_any_other():
    module = Module(optimizer=lambda parameters: SGD(parameters, lr=np.float32(0.1)))
    scaled = scales(fit(module, MultigridCallback()))
    assert module.lrs == pytest.approx([0.1 * scale for scale in scaled])
    assert len(set(scaled)) > 2


# --- Progress ---


class Progress(Module):
    def on_train_start(self):
        self.progress = []

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.progress.append(self.trainer.global_step / self.trainer.estimated_stepping_batches)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({}, marks=pytest.mark.slow),
        {"accumulate_grad_batches": 2},
        {"max_steps": 2 * BATCHES + 5},
        pytest.param({"max_epochs": -1, "max_steps": 2 * BATCHES}, marks=pytest.mark.slow),
        {"limit_train_batches": 16},
    ],
    ids=lambda arguments: ",".join(arguments) or "epochs",
)
def test_progress_runs_from_0_to_1(arguments):
    told = []

    class Asks(Progress):
        def configure_optimizers(self):
            told.append(self.trainer.estimated_stepping_batches)
            return super().configure_optimizers()

    module, baseline = Asks(), fit(Asks(), **arguments)
    host = fit(module, MultigridCallback(), **arguments)
    assert told[0] == told[1] == baseline.global_step  # schedulers are made for the baseline
    if plan_of(host).accumulate == 1:
        assert module.progress == [done / host.global_step for done in range(1, len(module.seen) + 1)]
    assert module.progress == sorted(module.progress)
    assert module.progress[-1] == 1
