"""Styles of scripts that set their LR: the LR of every optimizer step is a recorded baseline's times the scale.

The recorded baseline is the same script without the callback.
"""

import copy
import math
from fractions import Fraction
from itertools import cycle, product

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from torch import nn
from torch.optim import SGD, Adam, lr_scheduler

from lightning_multigrid import MultigridCallback
from lightning_multigrid.host import MisconfigurationException
from lightning_multigrid.norm import SubBatchNorm3d
from tests.helpers.sampling import sampled
from tests.helpers.tiny import clips, fit

pytestmark = pytest.mark.usefixtures("_unrehearsed")

BATCHES, EPOCHS = 17, 3  # of the baseline: 66 clips, 4 each


def data():
    return torch.utils.data.DataLoader(clips(66, frames=4, size=16), 4, shuffle=True)


class Script(L.LightningModule):
    """Records each optimizer step: (epoch, batch, optimizer) and the LR that it used."""

    def __init__(self, make_scheduler=None):
        super().__init__()
        self.net, self.make_scheduler = self.make_net(), make_scheduler
        self.used, self.shapes, self.progress, self.batch = [], [], [], 0

    def make_net(self):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv3d(3, 2, 1), nn.BatchNorm3d(2), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(2, 4)
        )

    def recorded(self, optimizer, number=0):
        def record(optimizer, *_):
            self.used.append((self.current_epoch, self.batch, number, float(optimizer.param_groups[0]["lr"])))

        optimizer.register_step_post_hook(record)
        return optimizer

    def sgd(self, part, number=0, lr=0.1):
        return self.recorded(SGD(part.parameters(), lr=lr, momentum=0.9), number)

    def on_train_batch_start(self, batch, batch_idx):
        self.batch = batch_idx
        self.shapes.append((len(batch[0]), batch[0].shape[2], batch[0].shape[3]))

    def loss(self, batch):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def configure_optimizers(self):
        optimizer = self.sgd(self.net)
        return optimizer if self.make_scheduler is None else self.make_scheduler(self, optimizer)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.progress.append(self.trainer.global_step / self.trainer.estimated_stepping_batches)


def sampler_of(host):
    return next(callback for callback in host.callbacks if isinstance(callback, MultigridCallback)).run.plan


def run(make, *callbacks, **arguments):
    module = make()
    host = fit(module, *callbacks, **{"train": data(), "max_epochs": EPOCHS, **arguments})
    return module, host


def steps_of(host):
    """The plan: (epoch, batch) and step."""
    sampler = sampler_of(host)
    return {(e, b): step for e in range(sampler.schedule.epochs) for b, step in enumerate(sampler.epoch(e))}


def assert_follows(make, **arguments):
    """Shapes on plan, the LR of each step by a recorded baseline, everything put back; returns module and Trainer."""
    baseline, _ = run(make, **arguments)
    plain = {place: lr for *place, lr in baseline.used for place in [tuple(place)]}
    module, host = run(make, MultigridCallback(lr_scaling="linear"), **arguments)
    plan, sampler = steps_of(host), sampler_of(host)
    assert module.shapes == [(step.shape.clips, step.shape.frames, step.shape.size) for step in plan.values()]
    for epoch, batch, number, lr in module.used:
        step = plan[epoch, batch]
        clock = sampler.schedule.baseline_epoch(epoch + Fraction(step.offset, sampler.clips))
        whole = math.floor(clock)
        # An optimizer that does not step in each mini-batch has the LR that it would have had if it did.
        expected = plain.get((whole, math.floor((clock - whole) * BATCHES), number))
        if expected is not None:
            assert lr == pytest.approx(expected * step.lr_scale, rel=1e-9), (epoch, batch, number)
    assert len({lr for *_, lr in baseline.used}) > 1
    assert type(host) is L.Trainer
    assert all(type(group["lr"]) is float for optimizer in host.optimizers for group in optimizer.param_groups)
    assert not any(isinstance(layer, SubBatchNorm3d) for layer in module.modules())
    scheduler = host.lr_scheduler_configs[0].scheduler
    assert type(scheduler) is type(run(make, fast_dev_run=True)[1].lr_scheduler_configs[0].scheduler)
    return module, host


# --- Automatic optimization ---


class OwnScheduler:
    """A scheduler that is none of torch's, and is told the epoch."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self, epoch):
        self.optimizer.param_groups[0]["lr"] = 0.1 / (2 + epoch)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class TellsEpoch(Script):
    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step(epoch=self.current_epoch)


class TellsSteps(Script):
    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step_update(num_updates=self.global_step)


def timm_cosine(by_steps):
    def make(module, optimizer):
        timm = pytest.importorskip("timm.scheduler")
        length = module.trainer.estimated_stepping_batches if by_steps else EPOCHS + 1
        arguments = {"t_initial": length, "warmup_t": length // 5, "warmup_lr_init": 1e-3, "t_in_epochs": not by_steps}
        scheduler = timm.CosineLRScheduler(optimizer, **arguments)
        return [optimizer], [{"scheduler": scheduler, "interval": "step" if by_steps else "epoch"}]

    return make


def asks_the_trainer(module, optimizer):
    """A `LambdaLR` that ignores its own count."""

    def factor(_):
        trainer = module.trainer
        share = trainer.global_step / trainer.estimated_stepping_batches
        return 1 - 0.5 * share + 0.1 * trainer.current_epoch / trainer.max_epochs + trainer.num_training_batches / 100

    return [optimizer], [{"scheduler": lr_scheduler.LambdaLR(optimizer, factor), "interval": "step"}]


def every_third(module, optimizer):
    return [optimizer], [{"scheduler": lr_scheduler.ExponentialLR(optimizer, 0.9), "interval": "step", "frequency": 3}]


def two_on_one(module, optimizer):
    slow = lr_scheduler.ExponentialLR(optimizer, 0.7)
    return [optimizer], [slow, {"scheduler": lr_scheduler.ExponentialLR(optimizer, 0.99), "interval": "step"}]


AUTOMATIC = {
    "timm by epoch": lambda: TellsEpoch(timm_cosine(by_steps=False)),
    "timm by step": lambda: TellsSteps(timm_cosine(by_steps=True)),
    "an own class": lambda: TellsEpoch(lambda _, optimizer: ([optimizer], [OwnScheduler(optimizer)])),
    "LambdaLR that asks the Trainer": lambda: Script(asks_the_trainer),
    "every third step": lambda: Script(every_third),
    "two on one optimizer": lambda: Script(two_on_one),
    "a list of one dict": lambda: Script(
        lambda _, optimizer: [{"optimizer": optimizer, "lr_scheduler": lr_scheduler.ExponentialLR(optimizer, 0.5)}]
    ),
}


@pytest.mark.parametrize(
    "style",
    sampled(AUTOMATIC, "an own class", "two on one optimizer"),
)
def test_schedulers_follow_the_baselines_clock(style):
    assert_follows(AUTOMATIC[style])


# --- Manual optimization ---


class Manual(Script):
    """Two parts that learn in turn, as in a GAN: each has its own loss, optimizer and scheduler."""

    def __init__(self, when="step", declared=None, second_every=1):
        super().__init__()
        self.automatic_optimization = False
        self.when, self.declared, self.second_every = when, declared or {}, second_every
        self.other = self.make_net()

    def training_step(self, batch, batch_idx):
        first, second = self.optimizers()
        for optimizer, net, every in ((first, self.net, 1), (second, self.other, self.second_every)):
            if batch_idx % every == 0:
                loss = nn.functional.cross_entropy(net(batch[0]), batch[1])
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()
        last = self.when == "last batch" and self.trainer.is_last_batch
        if self.when == "step" or last or (self.when == "every fourth" and (batch_idx + 1) % 4 == 0):
            self.step_schedulers()

    def step_schedulers(self):
        for scheduler in self.lr_schedulers():
            scheduler.step()

    def on_train_epoch_end(self):
        if self.when == "epoch":
            self.step_schedulers()

    def configure_optimizers(self):
        first, second = self.sgd(self.net), self.recorded(Adam(self.other.parameters(), lr=0.02), 1)
        schedulers = lr_scheduler.ExponentialLR(first, 0.8), lr_scheduler.CosineAnnealingLR(second, T_max=60)
        return [first, second], [{"scheduler": scheduler, **self.declared} for scheduler in schedulers]


class Teacher(Script):
    """A student that learns by hand, and a teacher that is its moving average."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.teacher = copy.deepcopy(self.net).requires_grad_(False)

    def training_step(self, batch, batch_idx):
        with torch.no_grad():
            target = self.teacher(batch[0]).softmax(dim=1)
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch) + nn.functional.cross_entropy(self.net(batch[0]), target))
        optimizer.step()
        self.lr_schedulers().step()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        with torch.no_grad():
            for mine, its in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
                mine.lerp_(its, 0.1)

    def configure_optimizers(self):
        optimizer = self.sgd(self.net)
        return [optimizer], [lr_scheduler.OneCycleLR(optimizer, 0.2, self.trainer.estimated_stepping_batches)]


MANUAL = {
    "by step": Manual,
    "by epoch": lambda: Manual("epoch"),
    "at the last batch": lambda: Manual("last batch"),
    "every fourth step, which it says": lambda: Manual("every fourth", {"interval": "step", "frequency": 4}),
    "by step, which it says": lambda: Manual("step", {"interval": "step"}),
    "a critic of three steps": lambda: Manual("step", second_every=3),
    "a teacher": Teacher,
}


@pytest.mark.filterwarnings("ignore:The LR of Adam will be multiplied")
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize(
    "style",
    sampled(MANUAL, "at the last batch", "a critic of three steps"),
)
def test_manual_optimization_follows_the_baselines_clock(style):
    _, host = assert_follows(MANUAL[style])
    for config in host.lr_scheduler_configs:
        ticks = config.scheduler.last_epoch
        if not isinstance(config.scheduler, lr_scheduler.OneCycleLR):  # which counts its steps
            config.scheduler.step()  # the script's own again
            assert config.scheduler.last_epoch == ticks + 1


RESUMED = {"by step": Manual, "by epoch": lambda: Manual("epoch"), "a teacher": Teacher}


@pytest.mark.filterwarnings("ignore:The LR of Adam will be multiplied")
@pytest.mark.parametrize("name", sampled(RESUMED, "a teacher"))
def test_manual_optimization_resumes_to_the_bit(name, tmp_path):
    make = RESUMED[name]
    whole = make()
    moved = whole.on_train_batch_end

    def save(outputs, batch, batch_idx):  # after the teacher has moved; Lightning calls hooks of callbacks before
        moved(outputs, batch, batch_idx)
        whole.trainer.save_checkpoint(tmp_path / f"{len(whole.shapes)}.ckpt")

    whole.on_train_batch_end = save
    run(lambda: whole, MultigridCallback(lr_scaling="linear"))
    steps = len(whole.shapes)
    for done in (2, steps // 2, steps - 2):
        resumed, _ = run(make, MultigridCallback(lr_scaling="linear"), ckpt_path=tmp_path / f"{done}.ckpt")
        assert resumed.shapes == whole.shapes[done:]
        assert resumed.used == whole.used[-len(resumed.used) :]
        for name, value in whole.state_dict().items():
            assert torch.equal(value, resumed.state_dict()[name]), name


@pytest.mark.filterwarnings("ignore:The LR of Adam will be multiplied")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Manual("every fourth"),
            "called `step` of ExponentialLR 0 time.*expected a call after every epoch",
        ),
        (
            lambda: Manual("never"),
            r"called `step` of ExponentialLR 0 time\(s\) in epoch 0.*Let `configure_optimizers` ret",
        ),
        (lambda: Manual("step", {"interval": "step", "frequency": 2}), "after mini-batch 0 of epoch 0"),
    ],
)
def test_steps_of_schedulers_that_follow_no_rule_are_refused(make, message):
    with pytest.raises(Exception, match=message):
        run(make, MultigridCallback(lr_scaling="linear"))


def test_manual_steps_with_arguments_or_of_a_schedule_with_stages_are_refused():
    class TellsEpochs(Teacher):
        def training_step(self, batch, batch_idx):
            self.optimizers().step()
            self.lr_schedulers().step(self.current_epoch)

    with pytest.raises(Exception, match="after mini-batch 0 of epoch 0 with arguments"):
        run(TellsEpochs, MultigridCallback(lr_scaling="linear"))

    class Stages(Teacher):
        def configure_optimizers(self):
            optimizer = self.sgd(self.net)
            return [optimizer], [lr_scheduler.MultiStepLR(optimizer, [20, 40])]

    with pytest.raises(Exception, match=r"MultiStepLR after mini-batch 0 of epoch 0.*`\{\"scheduler\""):
        run(Stages, MultigridCallback(lr_scaling="linear"))  # the plan has taken 20 and 40 for epochs


def test_a_plateau_that_the_script_steps_works_on_the_baselines_lr():
    class Plateau(Teacher):
        def training_step(self, batch, batch_idx):
            self.optimizers().step()

        def on_train_epoch_end(self):
            self.lr_schedulers().step(1.0)

        def configure_optimizers(self):
            optimizer = self.sgd(self.net)
            plateau = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=10.0, min_lr=0.03)
            return [optimizer], [plateau]

    module, host = run(Plateau, MultigridCallback())
    plan, halved = steps_of(host), [0.1, 0.05, 0.03, 0.03, 0.03]  # every epoch is a bad one
    assert [lr for *_, lr in module.used] == pytest.approx(
        [halved[epoch] * plan[epoch, batch].lr_scale for epoch, batch, *_ in module.used]
    )


# --- Written by hand ---


class ByHand(Script):
    """Writes a falling LR, in one of the places where scripts do."""

    def __init__(self, place, relative=False):
        super().__init__()
        self.place, self.relative, self.count, self.written = place, relative, 0, []

    def write(self, place):
        if place != self.place or not isinstance(self._trainer, L.Trainer):
            return
        self.count += 1
        for group in self.trainer.optimizers[0].param_groups:
            if self.relative:
                group["lr"] *= 0.95
            else:
                group["lr"] = 0.1 * 0.95**self.count

    def on_train_start(self):
        self.write("on_train_start")

    def on_train_batch_start(self, batch, batch_idx):
        super().on_train_batch_start(batch, batch_idx)
        self.write("on_train_batch_start")

    def training_step(self, batch, batch_idx):
        self.write("training_step")
        return super().training_step(batch, batch_idx)

    def on_before_optimizer_step(self, optimizer):
        self.write("on_before_optimizer_step")

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        self.write("optimizer_step, before")
        optimizer.step(closure=optimizer_closure)
        self.written.append(self.count)
        self.write("optimizer_step, after")

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.write("on_train_batch_end")

    def on_train_epoch_end(self):
        self.write("on_train_epoch_end")


class Hand(L.Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        pl_module.write("a callback")

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        pl_module.write("a callback, after")


PLACES = [
    "on_train_start",
    "on_train_batch_start",
    "training_step",
    "on_before_optimizer_step",
    "optimizer_step, before",
    "optimizer_step, after",
    "on_train_batch_end",
    "on_train_epoch_end",
    "a callback",
    "a callback, after",
]


@pytest.mark.parametrize(
    ("place", "relative"),
    sampled(list(product(PLACES, (False, True))), *zip(PLACES, cycle([False, True]), strict=False)),
)
def test_an_lr_that_is_written_is_the_baselines_and_is_scaled(place, relative):
    callbacks = [Hand(), MultigridCallback(lr_by_hand="run")]
    if place == "a callback":
        callbacks.reverse()
    module, host = run(lambda: ByHand(place, relative), *callbacks)
    plan = steps_of(host)
    # A write after a mini-batch counts from the next one on.
    counts = module.written if place != "training_step" and "on_before" not in place else range(1, len(plan) + 1)
    expected = [0.1 * 0.95**count * step.lr_scale for count, step in zip(counts, plan.values(), strict=True)]
    assert [lr for *_, lr in module.used] == pytest.approx(expected)


@pytest.mark.parametrize("place", sampled(PLACES[1:], "training_step", "optimizer_step, after", "on_train_epoch_end"))
def test_an_lr_that_is_written_is_refused_unless_its_clock_is_said(place):
    message = r"(?s)ByHand, or a callback, has written the LR: 0\.095 in the place of 0\.1\..*def configure_optimizers"
    with pytest.raises(MisconfigurationException, match=message):
        run(lambda: ByHand(place), Hand(), MultigridCallback())
    run(lambda: ByHand(place), Hand(), MultigridCallback.baseline())  # the clocks are one
    with pytest.raises(ValueError, match="`lr_by_hand` must be 'run' or None, got 'epoch'"):
        MultigridCallback(lr_by_hand="epoch")


@pytest.mark.parametrize("place", sampled(["on_train_epoch_end", "on_train_batch_end"], "on_train_epoch_end"))
def test_checkpoints_hold_what_was_written_and_resume_from_it(place, tmp_path):
    class Saving(L.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            trainer.save_checkpoint(tmp_path / f"{trainer.current_epoch}.ckpt")

    def make():
        return ByHand(place, relative=True)

    whole, _ = run(make, MultigridCallback(lr_by_hand="run"), Saving())
    resumed, _ = run(make, MultigridCallback(lr_by_hand="run"), ckpt_path=tmp_path / "1.ckpt")
    saved = torch.load(tmp_path / "1.ckpt", weights_only=True)["optimizer_states"][0]["param_groups"][0]["lr"]
    done = sum(epoch < 2 for epoch, *_ in whole.used)
    # Lightning calls a module's hook after those of callbacks, so the checkpoint has one epoch's end less.
    assert saved == pytest.approx(0.1 * 0.95 ** (done if place == "on_train_batch_end" else 1))
    if place == "on_train_batch_end":
        assert [lr for *_, lr in resumed.used] == pytest.approx([lr for *_, lr in whole.used[done:]])


class Constant(Script):
    """Writes what the optimizer has anyway: once, or before each step."""

    def __init__(self, place, value=0.1):
        super().__init__()
        self.place, self.value = place, value

    def write(self, place):
        if place == self.place and isinstance(self._trainer, L.Trainer):
            for group in self.trainer.optimizers[0].param_groups:
                group["lr"] = self.value

    def on_train_start(self):
        self.write("on_train_start")

    def on_train_batch_start(self, batch, batch_idx):
        super().on_train_batch_start(batch, batch_idx)
        self.write("on_train_batch_start")

    def on_before_optimizer_step(self, optimizer):
        self.write("on_before_optimizer_step")

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.write("on_train_batch_end")


@pytest.mark.parametrize(
    "place",
    sampled(
        ["on_train_start", "on_train_batch_start", "on_before_optimizer_step", "on_train_batch_end"],
        "on_before_optimizer_step",
    ),
)
def test_a_constant_that_is_written_is_scaled_at_every_step(place):
    module, host = run(lambda: Constant(place), MultigridCallback())
    assert [lr for *_, lr in module.used] == pytest.approx([0.1 * step.lr_scale for step in steps_of(host).values()])


def test_a_number_that_is_written_is_scaled_also_if_it_happens_to_be_the_one_in_use():
    class Alternating(Constant):
        def on_train_batch_start(self, batch, batch_idx):
            self.value = (0.1, 0.8)[batch_idx % 2]
            super().on_train_batch_start(batch, batch_idx)

    module, host = run(lambda: Alternating("on_train_batch_start"), MultigridCallback(lr_by_hand="run"))
    expected = [(0.1, 0.8)[batch % 2] * step.lr_scale for (_, batch), step in steps_of(host).items()]
    assert [lr for *_, lr in module.used] == pytest.approx(expected)


def test_an_lr_of_an_earlier_phase_that_is_written_back_is_scaled_for_this_one():
    class Keeps(Script):
        def on_train_batch_start(self, batch, batch_idx):
            super().on_train_batch_start(batch, batch_idx)
            group = self.optimizers().param_groups[0]
            self.first = getattr(self, "first", group["lr"])
            group["lr"] = self.first

    module, host = run(Keeps, MultigridCallback())
    assert [lr for *_, lr in module.used] == pytest.approx([0.1 * step.lr_scale for step in steps_of(host).values()])


def test_a_floor_is_the_baselines():
    class Floor(Script):
        def on_train_batch_start(self, batch, batch_idx):
            super().on_train_batch_start(batch, batch_idx)
            group = self.optimizers().param_groups[0]
            if group["lr"] > 0.05:
                group["lr"] = max(group["lr"] * 0.9, 0.06)
            group["lr"] = min(group["lr"], 0.095)

    module, host = run(Floor, MultigridCallback(lr_by_hand="run"))
    plan = list(steps_of(host).values())
    expected = [max(0.1 * 0.9 ** (done + 1), 0.06) * step.lr_scale for done, step in enumerate(plan)]
    assert [lr for *_, lr in module.used] == pytest.approx(expected)


def test_an_optimizers_state_has_the_baselines_lr_whoever_asks_for_it():
    class Asking(Script):
        def training_step(self, batch, batch_idx):
            if isinstance(self._trainer, L.Trainer):
                state = self.optimizers().optimizer.state_dict()
                assert type(state["param_groups"][0]["lr"]) is float
                assert state["param_groups"][0]["lr"] == 0.1
                self.optimizers().optimizer.load_state_dict(state)
            return super().training_step(batch, batch_idx)

    module, host = run(Asking, MultigridCallback())
    assert [lr for *_, lr in module.used] == pytest.approx([0.1 * step.lr_scale for step in steps_of(host).values()])


def test_an_lr_in_a_tensor_that_is_written_is_the_baselines():
    class Writing(Script):
        def configure_optimizers(self):
            return self.recorded(SGD(self.parameters(), lr=torch.tensor(0.1)))

        def on_train_batch_start(self, batch, batch_idx):
            super().on_train_batch_start(batch, batch_idx)
            self.optimizers().param_groups[0]["lr"].fill_(0.05)

    module, host = run(Writing, MultigridCallback(lr_by_hand="run"))
    assert [lr for *_, lr in module.used] == pytest.approx([0.05 * step.lr_scale for step in steps_of(host).values()])


@pytest.mark.parametrize("lr", [None, "missing"])
def test_an_optimizer_without_an_lr_is_refused(lr):
    class Fixed(SGD):
        def __init__(self, parameters):
            super().__init__(parameters, lr=0.1)
            for group in self.param_groups:
                group.pop("lr") if lr else group.update(lr=None)

        def step(self, closure):
            return closure()

    class Own(Script):
        def configure_optimizers(self):
            return Fixed(self.parameters())

    run(Own)
    with pytest.raises(
        MisconfigurationException, match="of all parameter groups, but one of .* has none. Give the opt"
    ):
        run(Own, MultigridCallback())


def test_an_optimizer_that_replaces_another_one_is_refused():
    class Renewed(Script):
        def on_train_epoch_start(self):
            if self.current_epoch == 1:
                self.trainer.optimizers = [self.sgd(self.net)]

    run(Renewed)
    with pytest.raises(MisconfigurationException, match="but the Trainer has other ones now. Keep those"):
        run(Renewed, MultigridCallback())


class TwoTensors(Script):
    """Two parameter groups, with one tensor or two; a hook writes the second one at a step in mid-epoch."""

    def __init__(self, shared=False, way="fill"):
        super().__init__()
        self.shared, self.way = shared, way

    def configure_optimizers(self):
        lr = torch.tensor(0.1)
        parts = self.net[0].parameters(), self.net[4].parameters()
        both = [{"params": part, "lr": lr if self.shared else lr / (1 + n)} for n, part in enumerate(parts)]
        return self.recorded(SGD(both, lr=lr))

    def on_train_batch_start(self, batch, batch_idx):
        super().on_train_batch_start(batch, batch_idx)
        if len(self.shapes) != 3 or self.way == "none":
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
    used = []

    class Noting(TwoTensors):
        def recorded(self, optimizer, number=0):
            optimizer.register_step_pre_hook(
                lambda one, *_: used.append([float(group["lr"]) for group in one.param_groups])
            )
            return super().recorded(optimizer)

    _, host = run(lambda: Noting(way=way), MultigridCallback(lr_by_hand="run"))
    second = 0.04 if way in ("fill", "replace") else 0.05
    groups = [[0.1, 0.05]] * 2 + [[0.1, second, *([0.04] if way == "add" else [])]] * (len(used) - 2)
    scales = [step.lr_scale for step in steps_of(host).values()]
    expected = [[lr * scale for lr in lrs] for lrs, scale in zip(groups, scales, strict=True)]
    assert [pytest.approx(lrs) for lrs in expected] == used
    assert [float(group["lr"]) for group in host.optimizers[0].param_groups] == pytest.approx(groups[-1])
    assert len(set(scales)) > 2


@pytest.mark.parametrize("shared", [False, True])
def test_parameter_groups_may_share_the_tensor_of_their_lr(shared):
    module, host = run(lambda: TwoTensors(shared, "none"), MultigridCallback())
    assert [lr for *_, lr in module.used] == pytest.approx([0.1 * step.lr_scale for step in steps_of(host).values()])
    groups = host.optimizers[0].param_groups
    assert [float(group["lr"]) for group in groups] == pytest.approx([0.1, 0.1 if shared else 0.05])
    assert (groups[0]["lr"] is groups[1]["lr"]) == shared


def test_what_a_script_computes_from_the_lr_is_an_ordinary_number(tmp_path):
    class Reading(Script):
        def on_train_batch_start(self, batch, batch_idx):
            super().on_train_batch_start(batch, batch_idx)
            lr, plain = self.optimizers().param_groups[0]["lr"], float(self.optimizers().param_groups[0]["lr"])
            assert (lr * 2, 2 * lr, lr / 2, lr + 1, 1 + lr, lr - 1) == (
                *(plain * 2, 2 * plain, plain / 2, plain + 1, 1 + plain, plain - 1),
            )
            assert float(torch.ones(()) * lr) == pytest.approx(plain)
            assert copy.deepcopy(lr) == lr
            assert f"{lr:.3f}" == f"{plain:.3f}"

    run(Reading, MultigridCallback(), LearningRateMonitor(), logger=L.pytorch.loggers.CSVLogger(tmp_path))


# --- Progress ---


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

    def ask(module, optimizer):
        told.append(module.trainer.estimated_stepping_batches)
        return optimizer

    baseline, _ = run(lambda: Script(ask), **arguments)
    module, host = run(lambda: Script(ask), MultigridCallback(), **arguments)
    assert told[0] == told[1] == len(baseline.used)  # schedulers are made for the baseline
    accumulate = sampler_of(host).accumulate
    done = [min((batch + 1) // accumulate, len(module.used)) for batch in range(len(module.shapes))]
    if accumulate == 1:
        assert module.progress == [steps / len(module.used) for steps in done]
    assert module.progress == sorted(module.progress)
    assert module.progress[-1] == 1


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_progress_goes_on_after_resuming(tmp_path):
    saver = ModelCheckpoint(tmp_path, every_n_train_steps=3, save_top_k=-1, filename="{step}")
    whole, _ = run(Script, MultigridCallback(), saver, enable_checkpointing=True)
    resumed, _ = run(Script, MultigridCallback(), ckpt_path=tmp_path / "step=6.ckpt")
    assert resumed.progress == whole.progress[6:]
