"""Ways to write the optimizers and schedulers of a script: rows of `tests/helpers/script_styles.py`."""

import copy

import torch
from torch import nn
from torch.optim import SGD, lr_scheduler

from tests.helpers.scripts import Rows
from tests.helpers.small_scripts import BATCH, CLIPS, Script, WithValidation, net

row = Rows()


# --- Optimizers ---

OPTIMIZERS = "Optimizers"


def optimized(optimize):
    return lambda: Script(optimize=optimize)


def two_groups(module):
    parts = module.net[0].parameters(), module.net[5].parameters()
    return SGD([{"params": parts[0], "lr": 0.01}, {"params": parts[1]}], lr=0.1)


def shared(module):
    parts = module.net[0].parameters(), module.net[5].parameters()
    groups = [{"params": parts[0]}, {"params": parts[1], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, torch.tensor(1e-3))


def timm_adamw(module):
    from timm.optim import create_optimizer_v2

    return create_optimizer_v2(module, "adamw", lr=1e-3, weight_decay=0.05)


def lookahead(module):
    from timm.optim import Lookahead

    return Lookahead(SGD(module.parameters(), lr=0.1, momentum=0.9))


def schedule_free(module):
    from schedulefree import SGDScheduleFree

    optimizer = SGDScheduleFree(module.parameters(), lr=0.1)
    optimizer.train()
    return optimizer


row(OPTIMIZERS, "SGD with momentum")
row(OPTIMIZERS, "parameter groups of several LRs", module=optimized(two_groups))
row(OPTIMIZERS, "AdamW", module=optimized(lambda m: torch.optim.AdamW(m.parameters(), 1e-3)))
row(OPTIMIZERS, "an LR in a tensor",
    module=optimized(lambda m: torch.optim.AdamW(m.parameters(), torch.tensor(1e-3), capturable=False)))  # fmt: skip
row(OPTIMIZERS, "parameter groups that share an LR in a tensor", module=optimized(shared))
row(OPTIMIZERS, "timm's `create_optimizer_v2`", module=optimized(timm_adamw), needs="timm")
row(OPTIMIZERS, "LBFGS, unscaled", module=optimized(lambda m: torch.optim.LBFGS(m.parameters(), 0.1, max_iter=2)),
    multigrid={"lr_scaling": "none"})  # fmt: skip
row(OPTIMIZERS, "an optimizer without an LR in its parameter groups", module=optimized(lambda m: NoLR(m.parameters())),
    refused="but one of NoLR has none. Give the op", outcome="there is nothing to scale; call it `lr`")  # fmt: skip
row(OPTIMIZERS, "Adafactor, which compares the LR with its count of steps",
    module=optimized(lambda m: torch.optim.Adafactor(m.parameters(), 0.1)))  # fmt: skip
row(OPTIMIZERS, "timm's `Lookahead`", module=optimized(lookahead), needs="timm")
row(OPTIMIZERS, "schedule-free SGD", module=optimized(schedule_free), needs="schedulefree")
row(OPTIMIZERS, "in a list", module=optimized(lambda m: [SGD(m.parameters(), 0.1)]))
row(OPTIMIZERS, "in a dict", module=optimized(lambda m: {"optimizer": SGD(m.parameters(), 0.1)}))

# --- LR schedulers ---

SCHEDULERS = "LR schedulers"
BATCHES = CLIPS // BATCH  # of the baseline's epoch
STEPS = 2 * BATCHES


def scheduled(make, **config):
    def optimize(module):
        optimizer = SGD(module.parameters(), lr=0.1, momentum=0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": make(optimizer), **config}}

    return optimized(optimize)


STEP = {"interval": "step"}


def sequence(optimizer, *parts, at):
    return lr_scheduler.SequentialLR(optimizer, list(parts), milestones=at)


def warm_cosine(optimizer):
    warm = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
    return sequence(optimizer, warm, lr_scheduler.CosineAnnealingLR(optimizer, STEPS - 5), at=[5])


def warm_steps(optimizer):
    warm = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)
    return sequence(optimizer, warm, lr_scheduler.MultiStepLR(optimizer, [10, 20]), at=[4])


def chained(optimizer):
    parts = lr_scheduler.ConstantLR(optimizer, 0.5, 1), lr_scheduler.ExponentialLR(optimizer, 0.7)
    return lr_scheduler.ChainedScheduler([*parts])


def estimated(module):
    optimizer = SGD(module.parameters(), lr=0.1, momentum=0.9)
    total = int(module.trainer.estimated_stepping_batches)
    scheduler = {"scheduler": lr_scheduler.OneCycleLR(optimizer, 0.2, total), **STEP}
    return {"optimizer": optimizer, "lr_scheduler": scheduler}


def two_on_one(module):
    optimizer = SGD(module.parameters(), lr=0.1, momentum=0.9)
    slow, fast = lr_scheduler.ExponentialLR(optimizer, 0.7), lr_scheduler.ExponentialLR(optimizer, 0.99)
    return [optimizer], [slow, {"scheduler": fast, "frequency": 3, **STEP}]


def one_dict(module):
    optimizer = SGD(module.parameters(), lr=0.1, momentum=0.9)
    return [{"optimizer": optimizer, "lr_scheduler": lr_scheduler.ExponentialLR(optimizer, 0.5)}]


class Plateau(WithValidation):
    def configure_optimizers(self):
        optimizer = SGD(self.parameters(), lr=0.1)
        plateau = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=10.0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}


row(SCHEDULERS, "none")
row(SCHEDULERS, "`MultiStepLR`", module=scheduled(lambda o: lr_scheduler.MultiStepLR(o, [1])))
row(SCHEDULERS, "`MultiStepLR` by step", module=scheduled(lambda o: lr_scheduler.MultiStepLR(o, [9, 25]), **STEP))
row(SCHEDULERS, "`StepLR`", module=scheduled(lambda o: lr_scheduler.StepLR(o, 1)))
row(SCHEDULERS, "cosine by epoch", module=scheduled(lambda o: lr_scheduler.CosineAnnealingLR(o, 2)))
row(SCHEDULERS, "cosine by step", module=scheduled(lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS), **STEP))
row(SCHEDULERS, "warm-up, then cosine", module=scheduled(warm_cosine, **STEP))
row(SCHEDULERS, "warm-up, then steps", module=scheduled(warm_steps, **STEP))
row(SCHEDULERS, "`OneCycleLR` of `estimated_stepping_batches`", module=optimized(estimated))
row(SCHEDULERS, "`LambdaLR`", module=scheduled(lambda o: lr_scheduler.LambdaLR(o, lambda n: 1 / (1 + n)), **STEP))
row(SCHEDULERS, "`CyclicLR`",
    module=scheduled(lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 6, cycle_momentum=False), **STEP))  # fmt: skip
row(SCHEDULERS, "`ChainedScheduler`", module=scheduled(chained))
row(SCHEDULERS, "`ReduceLROnPlateau`", module=Plateau, lr=False, resumes=None)
row(SCHEDULERS, "two for one optimizer: by epoch, and every third step", module=optimized(two_on_one))
row(SCHEDULERS, "in a list of one dict", module=optimized(one_dict))

# --- The script's own clock ---

OWN = "LR by hand, and your own schedulers"
BY_RUN = {"lr": False, "multigrid": {"lr_by_hand": "run"}}


class Timm(Script):
    """A scheduler that is told the epoch or the step."""

    def __init__(self, by_steps):
        super().__init__()
        self.by_steps = by_steps

    def configure_optimizers(self):
        from timm.scheduler import CosineLRScheduler

        optimizer = SGD(self.parameters(), lr=0.1, momentum=0.9)
        length = {"t_initial": STEPS, "warmup_t": 6} if self.by_steps else {"t_initial": 3, "warmup_t": 1}
        scheduler = CosineLRScheduler(optimizer, **length, warmup_lr_init=1e-3, t_in_epochs=not self.by_steps)
        return [optimizer], [{"scheduler": scheduler, "interval": "step" if self.by_steps else "epoch"}]

    def lr_scheduler_step(self, scheduler, metric):
        if self.by_steps:
            scheduler.step_update(num_updates=self.global_step)
        else:
            scheduler.step(epoch=self.current_epoch)


class TimmSteps(Script):
    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step(epoch=self.current_epoch + 1)


def timm_steps(module):
    from timm.scheduler import create_scheduler_v2

    optimizer = SGD(module.parameters(), lr=0.1, momentum=0.9)
    epochs = {"num_epochs": 2, "decay_epochs": 1, "warmup_epochs": 0}
    return [optimizer], [create_scheduler_v2(optimizer, "step", decay_rate=0.1, **epochs)[0]]


def hugging_face(module):
    from transformers import get_cosine_schedule_with_warmup

    optimizer = torch.optim.AdamW(module.parameters(), 1e-3)
    total = int(module.trainer.estimated_stepping_batches)
    return [optimizer], [{"scheduler": get_cosine_schedule_with_warmup(optimizer, 6, total), **STEP}]


class Steps(Script):
    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step()

    def configure_optimizers(self):
        optimizer = SGD(self.parameters(), lr=0.1)
        return [optimizer], [{"scheduler": lr_scheduler.ExponentialLR(optimizer, 0.95), **STEP}]


class OwnScheduler:
    """A scheduler that is none of torch's, and is told the epoch."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self, epoch):
        self.optimizer.param_groups[0]["lr"] = 0.1 / (2 + epoch)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        """It has none."""


class TellsEpoch(Script):
    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step(epoch=self.current_epoch)

    def configure_optimizers(self):
        optimizer = SGD(self.parameters(), lr=0.1)
        return [optimizer], [OwnScheduler(optimizer)]


def asks_the_trainer(module):
    def factor(_):
        trainer = module.trainer
        share = trainer.global_step / trainer.estimated_stepping_batches
        return 1 - 0.5 * share + 0.1 * trainer.current_epoch / trainer.max_epochs + trainer.num_training_batches / 100

    optimizer = SGD(module.parameters(), lr=0.1)
    return [optimizer], [{"scheduler": lr_scheduler.LambdaLR(optimizer, factor), **STEP}]


class Written(Script):
    """Writes the LR before each step, by its own count."""

    def on_train_batch_start(self, batch, batch_idx):
        for group in self.optimizers().param_groups:
            group["lr"] = 0.1 * (1 - 0.9 * self.global_step / self.trainer.estimated_stepping_batches)


class WrittenDecay(Script):
    """Writes the weight decay before each step, by its own count, as self-supervised recipes do."""

    def on_train_batch_start(self, batch, batch_idx):
        for group in self.optimizers().param_groups:
            group["weight_decay"] = 0.04 + 0.36 * self.global_step / self.trainer.estimated_stepping_batches


class Halved(Script):
    def on_train_epoch_end(self):
        for group in self.optimizers().param_groups:
            group["lr"] *= 0.5


class WrittenTensor(Script):
    def __init__(self):
        super().__init__(lambda m: torch.optim.AdamW(m.parameters(), torch.tensor(1e-3)))

    def on_train_batch_start(self, batch, batch_idx):
        self.optimizers().param_groups[0]["lr"].fill_(1e-4)


class Constant(Script):
    """Writes what the optimizer has anyway."""

    def __init__(self, each):
        super().__init__()
        self.each = each

    def write(self):
        for group in self.optimizers().param_groups:
            group["lr"] = float("0.1")  # each time another object

    def on_train_start(self):
        self.write()

    def on_before_optimizer_step(self, optimizer):
        if self.each:
            self.write()


class Floor(Script):
    def on_train_batch_start(self, batch, batch_idx):
        for group in self.optimizers().param_groups:
            group["lr"] = max(group["lr"] * 0.95, 0.04)


class WarmsUp(Script):
    """Warms up as Lightning's documentation has it."""

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer.step(closure=optimizer_closure)
        if self.trainer.global_step < 500:
            for group in optimizer.param_groups:
                group["lr"] = 0.1 * min(1.0, (self.trainer.global_step + 1) / 500)


class Grows(Script):
    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            self.more = nn.Parameter(torch.zeros(1))
            self.optimizers().optimizer.add_param_group({"params": [self.more], "lr": torch.tensor(1e-4)})


class Renewed(Script):
    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            self.trainer.optimizers = [SGD(self.parameters(), lr=0.1, momentum=0.9)]


class NoLR(SGD):
    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        for group in self.param_groups:
            group["step_size"] = group.pop("lr")

    def step(self, closure):
        loss = closure()
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter -= group["step_size"] * parameter.grad
        return loss


row(OWN, "timm by epoch, in `lr_scheduler_step`", module=lambda: Timm(by_steps=False), needs="timm")
row(OWN, "timm by step, in `lr_scheduler_step`", module=lambda: Timm(by_steps=True), needs="timm")
row(OWN, "`lr_scheduler_step`", module=Steps)
row(OWN, "your own class of scheduler, told the epoch", module=TellsEpoch)
row(OWN, "a `LambdaLR` that ignores its count and asks the Trainer", module=optimized(asks_the_trainer))
row(OWN, "a number written in a hook, from `global_step`", module=Written, **BY_RUN)
row(OWN, '`group["lr"] *= 0.5` after each epoch', module=Halved)
row(OWN, "a constant, written before each step", module=lambda: Constant(each=True), **BY_RUN)
row(OWN, "a constant, written once", module=lambda: Constant(each=False))
row(OWN, '`group["lr"] = max(group["lr"] * 0.95, 0.04)`', module=Floor, **BY_RUN)
row(OWN, "a warm-up of 500 steps in `optimizer_step`", module=WarmsUp, **BY_RUN)
row(OWN, "an LR that is written by the script's own count", module=Written, late=True,
    refused=r"(?s)has written the LR within an epoch: .*, it was 0\.1.*MultigridCallback\(lr_by_hand='run'\)",
    outcome="the run has other steps; write it between two epochs, return a scheduler, or give `lr_by_hand='run'` if "
    "it goes by `estimated_stepping_batches`")  # fmt: skip
row(OWN, "a weight decay that is written by the script's own count", module=WrittenDecay, late=True,
    refused=r"(?s)has written `weight_decay` of a parameter group within an epoch: .*, it was 0\..*lr_by_hand='run'",
    outcome="the run has other steps; write it between two epochs, or give `lr_by_hand='run'`")  # fmt: skip
row(OWN, "a weight decay written in a hook, from `global_step`", module=WrittenDecay, multigrid=BY_RUN["multigrid"])
row(OWN, "timm's `create_scheduler_v2`", module=lambda: TimmSteps(timm_steps), needs="timm")
row(OWN, "transformers' `get_cosine_schedule_with_warmup`", module=optimized(hugging_face), needs="transformers")
row(OWN, "a parameter group with an LR in a tensor, added in a hook", lr=False,
    module=lambda: Grows(lambda m: torch.optim.AdamW(m.parameters(), torch.tensor(1e-3))), resumes=None,
    outcome="it is also scaled")  # fmt: skip
row(OWN, "another optimizer, put in by a hook", module=Renewed, refused="has other optimizers now", late=True,
    outcome="its LR would not be scaled; change the parameter groups instead")  # fmt: skip
row(OWN, "an LR in a tensor, written in a hook", module=WrittenTensor, **BY_RUN)

# --- Manual optimization ---

MANUAL = "Manual optimization"


class Manual(Script):
    def __init__(self, optimizers=1, when="", declared=None):
        super().__init__()
        self.automatic_optimization = False
        self.number, self.when, self.declared = optimizers, when, declared or {}
        self.other = net()

    def stepped(self):
        schedulers = self.lr_schedulers()
        for scheduler in schedulers if isinstance(schedulers, list) else [schedulers]:
            scheduler.step()

    def training_step(self, batch, batch_idx):
        optimizers = self.optimizers()
        models = (self.net, self.other)[: self.number]
        for optimizer, model in zip([optimizers] if self.number == 1 else optimizers, models, strict=True):
            optimizer.zero_grad()
            self.manual_backward(nn.functional.cross_entropy(model(batch[0]), batch[1]))
            optimizer.step()
        last = self.when == "last" and self.trainer.is_last_batch
        if self.when == "step" or last or (self.when == "fourth" and (batch_idx + 1) % 4 == 0):
            self.stepped()

    def on_train_epoch_end(self):
        if self.when == "epoch":
            self.stepped()

    def configure_optimizers(self):
        made = [SGD(model.parameters(), lr=lr) for model, lr in ((self.net, 0.1), (self.other, 0.02))][: self.number]
        if not self.when:
            return made
        return made, [{"scheduler": lr_scheduler.ExponentialLR(one, 0.95), **self.declared} for one in made]


class Adversarial(Script):
    """A model and a critic that learn by losses of their own, the critic in every other mini-batch."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.critic = net()

    def training_step(self, batch, batch_idx):
        clips, labels = batch
        both = self.optimizers()
        losses = (
            lambda: nn.functional.cross_entropy(self.net(clips), labels) - 0.1 * self.critic(clips).mean(),
            lambda: nn.functional.cross_entropy(self.critic(clips), labels) + 0.1 * self.net(clips).detach().mean(),
        )
        for optimizer, loss in list(zip(both, losses, strict=True))[: 2 - batch_idx % 2]:
            self.toggle_optimizer(optimizer)
            optimizer.zero_grad()
            self.manual_backward(loss())
            self.clip_gradients(optimizer, 0.5, "norm")
            optimizer.step()
            self.untoggle_optimizer(optimizer)
        for scheduler in self.lr_schedulers():
            scheduler.step()

    def configure_optimizers(self):
        both = [SGD(self.net.parameters(), 0.1), SGD(self.critic.parameters(), 0.05)]
        return both, [{"scheduler": lr_scheduler.CosineAnnealingLR(one, STEPS), **STEP} for one in both]


class Taught(Script):
    def __init__(self, manual):
        super().__init__(estimated)
        self.automatic_optimization = not manual
        self.teacher = copy.deepcopy(self.net).requires_grad_(False)

    def training_step(self, batch, batch_idx):
        with torch.no_grad():
            for mine, its in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
                mine.lerp_(its, 0.1)
            target = self.teacher(batch[0]).softmax(dim=1)
        loss = self.loss(batch) + nn.functional.cross_entropy(self.net(batch[0]), target)
        if self.automatic_optimization:
            return loss
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.lr_schedulers().step()
        return None


class Accumulates(Script):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        self.manual_backward(self.loss(batch) / 2)
        if batch_idx % 2 or self.trainer.is_last_batch:
            optimizer.step()
            optimizer.zero_grad()


row(MANUAL, "one optimizer", module=Manual)
row(MANUAL, "a model and a critic (GAN), `toggle_optimizer`, schedulers", module=Adversarial, lr=False)
row(MANUAL, "a teacher that is a moving average of the model", module=lambda: Taught(manual=True))
row(MANUAL, "gradients of two mini-batches", module=Accumulates)
row(MANUAL, "two optimizers", module=lambda: Manual(2))
row(MANUAL, "a scheduler, stepped in each mini-batch as `interval` says", module=lambda: Manual(1, "step", STEP))
row(MANUAL, "two optimizers and schedulers, stepped in each mini-batch", module=lambda: Manual(2, "step"))
row(MANUAL, "two optimizers and schedulers, stepped after each epoch", module=lambda: Manual(2, "epoch"))
row(MANUAL, "two optimizers and schedulers, stepped in the last mini-batch of each epoch",
    module=lambda: Manual(2, "last"))  # fmt: skip
row(MANUAL, "a scheduler, stepped by hand in every fourth mini-batch", module=lambda: Manual(1, "fourth"), lr=False)
