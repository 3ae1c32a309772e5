"""Kinds of optimizers: the training equals, weight by weight, a replay outside of Lightning with the LR in use.

The replay gets the same gradients, and the LR as a plain float: the baseline's times the scale of the phase. Outside of
an optimizer's step, a script finds the baseline's LR.
"""

import copy
import functools
import math
import pickle
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain, product, repeat
from operator import mul
from typing import Any, ClassVar

import lightning as L
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn
from torch.optim import LBFGS, SGD, Adafactor, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import ExponentialLR

from lightning_multigrid import MultigridCallback
from tests.helpers.sampling import sampled
from tests.helpers.tiny import clips, fit, tells

CLIPS, EPOCHS = 34, 2  # of the baseline, one clip each: enough for phases with four scales
SCALES = {7, 4, 2, 1}  # the coarsest size is rounded from 5.7 to 6 pixels

pytestmark = [
    pytest.mark.usefixtures("_unrehearsed"),
    pytest.mark.filterwarnings("ignore:The LR of .* will be multiplied"),
]


def data():
    return torch.utils.data.DataLoader(clips(CLIPS, frames=4, size=8), 1, shuffle=True)


def make_net(*first):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(*first, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4))


def listed(one):
    return one if isinstance(one, list) else [one]


def parameters_of(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


# --- The law ---


@dataclass
class Update:
    """What one call of an optimizer's `step` found, after all hooks; the lists have an item for each evaluation."""

    place: tuple[int, int] | None
    optimizer: int
    losses: list = field(default_factory=list)
    weights: list = field(default_factory=list)
    gradients: list = field(default_factory=list)
    lrs: list = field(default_factory=list)  # of each group

    @torch.compiler.disable
    def take(self, optimizer, loss=None):
        parameters = parameters_of(optimizer)
        self.losses.append(None if loss is None else float(loss))
        self.weights.append([parameter.detach().clone() for parameter in parameters])
        self.gradients.append([None if p.grad is None else p.grad.clone() for p in parameters])
        self.lrs.append([float(group["lr"]) for group in optimizer.param_groups])


class Recorder:
    """Makes kinds of optimizers that record what their innermost `step` finds."""

    def __init__(self, place=lambda: None):
        self.place, self.updates, self.kinds = place, [], 0

    @torch.compiler.disable
    def begin(self, number):
        self.updates.append(Update(self.place(), number))
        return self.updates[-1]

    def __call__(self, kind):
        # Without torch's hooks around it: torch puts them around the new one.
        step = kind.step.__wrapped__ if hasattr(kind.step, "hooked") else kind.step
        recorder, number = self, self.kinds
        self.kinds += 1

        class Recorded(kind):
            def step(self, closure=None):
                update = recorder.begin(number)
                if closure is None:
                    update.take(self)
                    return step(self)

                def evaluate():
                    loss = closure()
                    update.take(self, loss)
                    return loss

                return step(self, evaluate)

        return Recorded


@dataclass(frozen=True)
class Row:
    """A kind of optimizer, and how a script uses it."""

    make: Callable[[nn.Module, Recorder], Any]
    gamma: float | None = 0.97  # of a scheduler that is stepped after each update; None: without
    manual: Callable[..., None] | None = None  # the training step
    scaling: str = "linear"
    decays: bool = False  # whether the weight decay is scaled as the LR is
    trainer: Callable[[], dict[str, Any]] = dict
    replay: Callable[[nn.Module, Recorder], Any] | None = None  # other optimizers that make the same updates
    needs: str | None = None


class Script(L.LightningModule):
    def __init__(self, row):
        super().__init__()
        self.automatic_optimization = row.manual is None
        self.row, self.net, self.place = row, make_net(), None
        self.recorder = Recorder(lambda: self.place)
        self.gradients = []  # place, and what the last hook before each update found

    def loss(self, batch):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def on_train_batch_start(self, batch, batch_idx):
        self.place = self.current_epoch, batch_idx

    def training_step(self, batch, batch_idx):
        if self.row.manual is None:
            return self.loss(batch)
        if not isinstance(self._trainer, L.Trainer):  # the callback tries a copy
            return None
        self.row.manual(self, batch)
        schedulers = self.lr_schedulers()
        for scheduler in listed(schedulers) if schedulers else []:
            scheduler.step()
        return None

    def on_before_optimizer_step(self, optimizer):
        self.gradients.append((self.place, [parameter.grad.clone() for parameter in parameters_of(optimizer)]))

    def configure_optimizers(self):
        optimizers = listed(self.row.make(self.net, self.recorder))
        schedulers = [ExponentialLR(optimizer, self.row.gamma) for optimizer in optimizers if self.row.gamma]
        self.lrs = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
        return optimizers, [{"scheduler": scheduler, "interval": "step"} for scheduler in schedulers]


def run(module, *callbacks, **arguments):
    arguments = {"train": data(), "max_epochs": EPOCHS, **arguments}
    callback = MultigridCallback(**{"lr_scaling": "linear", **arguments.pop("options", {})})
    return fit(module, *callbacks, callback, **arguments), callback


def steps_in_use(plan, place):
    """The step of the plan whose LR an update has, and how many updates the baseline has had by then."""
    epoch, batch = place
    step = plan.epoch(epoch)[batch - batch % plan.accumulate]
    clock = epoch + Fraction(step.place.batch, plan.batches_per_epoch)  # the script's own, as the LR has no stages
    whole = math.floor(clock)
    return step, (whole * CLIPS + math.floor((clock - whole) * CLIPS)) // plan.accumulate


def decayed(lr, row, updates):
    """The baseline's LR after so many updates."""
    return functools.reduce(mul, repeat(row.gamma or 1.0, updates), lr)


def lrs_in_use(row, plan, updates):
    """The LR of each group in each update."""
    optimizers = listed((row.replay or row.make)(make_net(), Recorder()))
    for update in updates:
        step, ticks = steps_in_use(plan, update.place)
        groups = optimizers[update.optimizer].param_groups
        yield [float(decayed(group["lr"], row, ticks) * step.lr_scale) for group in groups]


def replay(row, updates, lrs, scales):
    """Makes the same updates outside of Lightning; returns them and the net."""
    net, again = make_net(), Recorder()
    optimizers = listed((row.replay or row.make)(net, again))
    decays = [[group.get("weight_decay") for group in optimizer.param_groups] for optimizer in optimizers]
    for update, found, scale in zip(updates, lrs, scales, strict=True):
        optimizer = optimizers[update.optimizer]
        for group, lr, decay in zip(optimizer.param_groups, found, decays[update.optimizer], strict=True):
            if row.decays:
                group["weight_decay"] = decay * scale
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr
        evaluations = iter(zip(update.losses, update.gradients, strict=True))

        def closure(optimizer=optimizer, evaluations=evaluations):
            loss, gradients = next(evaluations)
            for parameter, gradient in zip(parameters_of(optimizer), gradients, strict=True):
                parameter.grad = None if gradient is None else gradient.clone()
            return loss

        optimizer.step(closure)
        assert next(evaluations, None) is None
    return again.updates, net


# --- Kinds of optimizers ---


def steps(module, batch):
    """One step of each optimizer."""
    for optimizer in listed(module.optimizers()):
        optimizer.zero_grad()
        module.manual_backward(module.loss(batch))
        optimizer.step()


def closures(module, batch):
    optimizer = module.optimizers()

    def closure():
        optimizer.zero_grad()
        loss = module.loss(batch)
        module.manual_backward(loss)
        return loss.detach()

    optimizer.step(closure=closure)


class SAM(Optimizer):
    """Looks for flat minima: takes the gradient where the loss near the weights is largest."""

    def __init__(self, parameters, base, radius=0.05, **arguments):
        super().__init__(parameters, {"radius": radius, **arguments})
        self.base_optimizer = base(self.param_groups, **arguments)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self):
        norm = torch.stack([parameter.grad.norm() for parameter in parameters_of(self)]).norm()
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["before"] = parameter.clone()
                parameter.add_(parameter.grad * (group["radius"] / (norm + 1e-12)))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for parameter in parameters_of(self):
            parameter.copy_(self.state[parameter]["before"])
        self.base_optimizer.step()
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure):
        with torch.enable_grad():
            closure()
        self.first_step()
        with torch.enable_grad():
            loss = closure()
        self.second_step()
        return loss


def two_steps_of_sam(module, batch):
    optimizer = module.optimizers()
    for step in (optimizer.first_step, optimizer.second_step):
        module.manual_backward(module.loss(batch))
        step()


class Duck:
    """What Lightning asks of an optimizer, and no more: none of torch's, and without hooks."""

    def __init__(self, parameters, lr):
        self.param_groups, self.defaults = [{"params": list(parameters), "lr": lr}], {"lr": lr}
        self.state = defaultdict(dict)

    def zero_grad(self):
        for parameter in parameters_of(self):
            parameter.grad = None

    def step(self, closure=None):
        loss = None if closure is None else closure()
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.sub_(parameter.grad, alpha=group["lr"])
        return loss

    def state_dict(self):
        return {"param_groups": [{"lr": group["lr"]} for group in self.param_groups]}

    def load_state_dict(self, state):
        for group, saved in zip(self.param_groups, state["param_groups"], strict=True):
            group.update(saved)


class NotInitialized(Duck, Optimizer):
    """By its class one of torch's, but it has none of their attributes."""

    def __init__(self, parameters, lr):
        Duck.__init__(self, parameters, lr)


def sgd(net, record, **arguments):
    return record(SGD)(net.parameters(), 0.1, **{"momentum": 0.9, **arguments})


def nested(net, record):
    """Calls the step of its base class. Torch puts its hooks around both: around a class's when it makes the first."""
    kind = record(SGD)
    kind(net.parameters())

    class Nested(kind):
        def step(self, closure=None):
            return super().step(closure)

    return Nested(net.parameters(), 0.1)


def adam(kind=AdamW, lr=0.01, **arguments):
    return lambda net, record: record(kind)(net.parameters(), lr=lr, **arguments)


def tensor_lr(net, record):
    """One tensor for both groups."""
    parts = {"params": net[2].parameters()}, {"params": net[4].parameters()}
    return record(AdamW)([*parts], lr=torch.tensor(0.01))


def compiled(net, record):
    optimizer = tensor_lr(net, record)
    optimizer.step = torch.compile(optimizer.step, backend="eager")
    return optimizer


def of_timm(name, **arguments):
    def make(net, record):
        import timm.optim

        return record(getattr(timm.optim, name))(net.parameters(), lr=0.1, **arguments)

    return make


def lookahead(kind, **arguments):
    def make(net, record):
        import timm.optim

        return timm.optim.Lookahead(record(kind)(net.parameters(), lr=0.1, **arguments), k=3)

    return make


def schedule_free(name):
    def make(net, record):
        import schedulefree

        optimizer = record(getattr(schedulefree, name))(net.parameters(), lr=0.1)
        optimizer.train()
        return optimizer

    return make


def schedule_free_wrapper(net, record):
    import schedulefree

    base = record(SGD)(net.parameters(), lr=0.1)
    optimizer = schedulefree.ScheduleFreeWrapper(base)
    optimizer.defaults = base.defaults  # Lightning asks for it
    optimizer.train()
    return optimizer


def sam(net, record):
    return SAM(net.parameters(), record(SGD), lr=0.1, momentum=0.9)


def two(net, record):
    return [record(SGD)(net[2].parameters(), 0.1, momentum=0.9), record(AdamW)(net[4].parameters(), 0.01)]


def muon(net, record):
    biases = [net[2].bias, net[4].bias]
    return [record(SGD)(biases, 0.1), record(torch.optim.Muon)([net[2].weight, net[4].weight], lr=0.02)]


def groups(net, record):
    parts = {"params": net[2].parameters(), "lr": 0.01}, {"params": net[4].parameters(), "weight_decay": 0.1}
    return record(SGD)([*parts], lr=0.1)


def amp():
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=5)
    return {"plugins": [MixedPrecision("16-mixed", "cpu", scaler)]}


of_adamw = lookahead(AdamW, weight_decay=0.1)
ROWS = {
    "SGD with momentum": Row(sgd),
    "SGD with Nesterov": Row(functools.partial(sgd, nesterov=True, weight_decay=0.05), scaling="sqrt"),
    "several groups": Row(groups),
    "Adam": Row(adam(Adam)),
    "Adam with weight decay": Row(adam(Adam, weight_decay=0.1), scaling="sqrt"),
    "AdamW by the square root": Row(adam(weight_decay=0.1), scaling="sqrt", decays=True),
    "Adafactor by the square root": Row(adam(Adafactor, lr=0.3, weight_decay=0.1), scaling="sqrt", decays=True),
    "Lookahead of AdamW by the square root": Row(of_adamw, scaling="sqrt", decays=True, needs="timm"),
    "AdamW with foreach": Row(adam(foreach=True)),
    "fused AdamW": Row(adam(fused=True)),
    "an LR in a tensor": Row(tensor_lr),
    "an LR in a tensor, by hand": Row(tensor_lr, manual=steps),
    "compiled": Row(compiled, gamma=None, manual=steps),
    "Adafactor": Row(adam(Adafactor, lr=0.3)),  # computes with `min(lr, 1 / step**0.5)`
    "LARS": Row(of_timm("Lars", momentum=0.9, weight_decay=0.01, trust_clip=True), needs="timm"),
    "LAMB": Row(of_timm("Lamb", weight_decay=0.01), needs="timm"),
    "schedule-free SGD": Row(schedule_free("SGDScheduleFree"), gamma=1.03, needs="schedulefree"),
    "schedule-free AdamW": Row(schedule_free("AdamWScheduleFree"), gamma=1.03, needs="schedulefree"),
    "schedule-free wrapper": Row(schedule_free_wrapper, gamma=None, needs="schedulefree"),
    "SAM": Row(sam, replay=sgd),
    "SAM, two steps by hand": Row(sam, replay=sgd, manual=two_steps_of_sam, gamma=None),
    "LBFGS": Row(adam(LBFGS, max_iter=2)),
    "LBFGS, closures by hand": Row(adam(LBFGS, max_iter=2), manual=closures),
    "Lookahead of SGD": Row(lookahead(SGD, momentum=0.9), needs="timm"),
    "Lookahead of AdamW": Row(lookahead(AdamW), needs="timm"),
    "Muon and SGD": Row(muon, manual=steps, needs="torch.optim._muon"),
    "none of torch's": Row(lambda net, record: record(Duck)(net.parameters(), 0.1), gamma=None),
    "not initialized": Row(lambda net, record: record(NotInitialized)(net.parameters(), 0.1), gamma=None),
    "a step that calls the step of its base class": Row(nested),
    "two, by hand": Row(two, manual=steps),
    "closures by hand": Row(sgd, manual=closures),
    "accumulated gradients": Row(sgd, trainer=lambda: {"accumulate_grad_batches": 2}),
    "clipped gradients": Row(sgd, trainer=lambda: {"gradient_clip_val": 0.1}),
    "scaled gradients": Row(sgd, trainer=amp),
}


def assert_gradients_are_left_alone(module):
    """Each update got the gradients of its mini-batch."""
    updates = [gradients for update in module.recorder.updates for gradients in update.gradients]
    for (place, before), gradients in zip(module.gradients, updates, strict=True):
        for mine, other in zip(before, gradients, strict=True):
            assert torch.equal(mine, other), place


# One of each way to find the LR, to count steps and to call closures; `compiled` compiles.
SAMPLE = ("SGD with Nesterov", "AdamW by the square root", "Lookahead of AdamW by the square root", "several groups")
SAMPLE += ("an LR in a tensor, by hand", "Adafactor", "schedule-free AdamW", "SAM, two steps by hand", "LBFGS")
SAMPLE += ("Lookahead of SGD", "Muon and SGD", "closures by hand", "accumulated gradients")


@pytest.mark.rehearsed
@pytest.mark.parametrize("name", sampled(ROWS, *SAMPLE))
def test_the_weights_are_those_of_a_replay_with_the_lr_in_use(name):
    row = ROWS[name]
    if row.needs:
        pytest.importorskip(row.needs)
    module = Script(row)
    host, callback = run(module, options={"lr_scaling": row.scaling}, **row.trainer())
    plan, updates = callback.run.plan, module.recorder.updates
    lrs_used = list(lrs_in_use(row, plan, updates))
    for update, found in zip(updates, lrs_used, strict=True):
        assert update.lrs == [found] * len(update.lrs), update.place
    scales = [steps_in_use(plan, update.place)[0].lr_scale for update in updates]
    assert {round(scale**2 if row.scaling == "sqrt" else scale, 9) for scale in scales} == SCALES
    if row.replay is None and not host.gradient_clip_val:
        assert_gradients_are_left_alone(module)
    again, net = replay(row, updates, lrs_used, scales)
    for update, its in zip(updates, again, strict=True):
        for mine, other in zip(chain(*update.weights), chain(*its.weights), strict=True):
            assert torch.equal(mine, other), update.place
    for mine, other in zip(module.net.parameters(), net.parameters(), strict=True):
        assert torch.equal(mine, other)
    fresh = listed(row.make(make_net(), Recorder()))
    for optimizer, other, lrs in zip(host.optimizers, fresh, module.lrs, strict=True):
        for group, its, lr in zip(optimizer.param_groups, other.param_groups, lrs, strict=True):
            assert group["lr"] is lr if isinstance(lr, torch.Tensor) else type(group["lr"]) is float
            assert group["lr"] == decayed(its["lr"], row, EPOCHS * CLIPS // plan.accumulate)
            assert group.get("weight_decay") == its.get("weight_decay")


# --- What a script finds ---


class Plain(L.LightningModule):
    """A module that a test can pickle."""

    kind = SGD

    def __init__(self, lr=0.1, manual=False, gamma=None):
        super().__init__()
        self.lr, self.gamma, self.automatic_optimization = lr, gamma, not manual
        self.net = make_net()

    def loss(self, batch):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def training_step(self, batch, batch_idx):
        if self.automatic_optimization or not isinstance(self._trainer, L.Trainer):  # the callback tries a copy
            return self.loss(batch)
        steps(self, batch)
        if self.gamma:
            self.lr_schedulers().step()
        return None

    def validation_step(self, batch, batch_idx):
        self.loss(batch)

    def configure_optimizers(self):
        lr = self.lr.clone() if isinstance(self.lr, torch.Tensor) else self.lr
        optimizer = self.kind(self.net.parameters(), lr, momentum=0.9, weight_decay=0.05)
        if self.gamma is None:
            return optimizer
        return [optimizer], [{"scheduler": ExponentialLR(optimizer, self.gamma), "interval": "step"}]

    @property
    def group(self):
        (group,) = self.trainer.optimizers[0].param_groups
        return group


class Recording(Plain):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.recorder = Recorder()
        self.kind = self.recorder(self.kind)

    @property
    def used(self):
        return [update.lrs[-1][0] for update in self.recorder.updates]


def planned(callback):
    """Place and step of each mini-batch."""
    plan = callback.run.plan
    return [(step.place, step) for epoch in range(plan.epochs) for step in plan.epoch(epoch)]


def few_clips():
    return torch.utils.data.DataLoader(clips(2, frames=4, size=8), 1)


BOTH = pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)], ids=["number", "tensor"])


def assert_baselines(group, lr):
    assert type(group["lr"]) is type(lr)
    assert group["lr"] == lr


HOOKS = {"on_train_start", "on_train_epoch_start", "on_train_batch_start", "training_step", "on_before_backward"}
HOOKS |= {"backward", "on_after_backward", "on_before_optimizer_step", "on_train_batch_end", "on_validation_start"}
HOOKS |= {"validation_step", "on_validation_end", "on_train_epoch_end", "on_train_end", "teardown"}
HOOKS_OF_AUTOMATIC = {"optimizer_step", "optimizer_zero_grad", "on_before_zero_grad", "configure_gradient_clipping"}
OF_FIT = HOOKS - {"teardown"}


class Looking(Plain):
    """Looks in each hook of each epoch, once."""

    def told(self, name, *_):
        place = self.current_epoch, name.removeprefix("after ")
        if place[1] in OF_FIT and isinstance(self._trainer, L.Trainer) and place not in self.seen:
            self.seen.add(place)
            self.look()


@BOTH
@pytest.mark.parametrize("manual", [False, True], ids=["automatic", "manual"])
def test_every_hook_finds_the_baselines_values(lr, manual):
    found, seen = [], set()

    def look(_, name, *__):
        if isinstance(module._trainer, L.Trainer) and module.trainer.optimizers:
            found.append(module.group["lr"])
            assert_baselines(module.group, lr)
            assert found[-1] is found[0]
            seen.add(name)

    module = tells(type("Told", (Recording,), {"told": look}))(lr, manual)
    before, after = (tells(type("Told", (L.Callback,), {"told": look}))() for _ in range(2))
    callback = MultigridCallback()
    fit(module, before, callback, after, train=data(), val=few_clips(), max_epochs=EPOCHS)
    assert module.used == [float(lr * step.lr_scale) for _, step in planned(callback)]
    assert seen >= HOOKS
    assert manual or seen >= HOOKS_OF_AUTOMATIC


@BOTH
@pytest.mark.parametrize("where", ["the closure", "the update", "a hook of torch's"])
def test_an_error_within_a_step_leaves_the_baselines_values(lr, where):
    class Breaks(SGD):
        def step(self, closure=None):
            loss = super().step(closure)
            module.reached("the update")
            return loss

    class Broken(Plain):
        kind, updates = Breaks, 0

        def on_before_optimizer_step(self, optimizer):
            self.updates, self.found = self.updates + 1, self.group["lr"]
            self.reached("the closure")

        def reached(self, here):
            if (here, self.updates) == (where, 3):
                raise RuntimeError("broken")

        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            optimizer.register_step_post_hook(lambda *_: self.reached("a hook of torch's"))
            return optimizer

    class Before(L.Callback):
        def on_exception(self, trainer, pl_module, exception):
            assert_baselines(module.group, lr)
            assert module.group["lr"] is module.found
            asked.append(exception)

    module, asked = Broken(lr), []
    with pytest.raises(RuntimeError, match="broken"):
        run(module, Before())
    assert [str(one) for one in asked] == ["broken"]


@BOTH
def test_checkpoints_of_all_hooks_hold_the_baselines_values(lr, tmp_path):
    @tells
    class Saves(Looking):
        seen: ClassVar = set()

        def look(self):
            self.trainer.save_checkpoint(tmp_path / "one.ckpt")
            (state,) = torch.load(tmp_path / "one.ckpt", weights_only=True)["optimizer_states"]
            assert_baselines(state["param_groups"][0], lr)

    run(Saves(lr), val=few_clips())
    assert {name for _, name in Saves.seen} == OF_FIT


@tells
class Pickled(Looking):
    """Looks at copies of itself, of its optimizer and of its scheduler."""

    seen: ClassVar = set()

    def look(self):
        originals = [self, *self.trainer.optimizers, *(one.scheduler for one in self.trainer.lr_scheduler_configs)]
        for one, kind in zip(originals, (Pickled, SGD, ExponentialLR), strict=False):
            for again in (pickle.loads(pickle.dumps(one)), copy.deepcopy(one)):
                assert type(again) is kind
                if kind is SGD:
                    assert_baselines(again.param_groups[0], self.group["lr"])


@pytest.mark.parametrize(
    ("manual", "gamma"), sampled(list(product((False, True), (None, 0.97))), (False, 0.97), (True, None))
)
def test_module_optimizer_and_scheduler_can_be_pickled_and_copied_in_mid_fit(manual, gamma):
    Pickled.seen.clear()
    run(Pickled(manual=manual, gamma=gamma), val=few_clips())
    assert {name for _, name in Pickled.seen} == OF_FIT
