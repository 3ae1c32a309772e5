"""Ways to write the optimizers and schedulers of a script: rows of `tests/helpers/script_styles.py`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import SGD, lr_scheduler

from tests.helpers.scripts import Rows
from tests.helpers.small_scripts import (
    BATCH,
    CLIPS,
    Script,
    net,
)

row = Rows()


# --- Optimizers ---

OPTIMIZERS = "Optimizers"


def optimized(optimize: Any) -> Any:
    return lambda: Script(optimize=optimize)


def two_groups(module: Script) -> Any:
    parts = module.net[0].parameters(), module.net[5].parameters()
    return SGD([{"params": parts[0], "lr": 0.01}, {"params": parts[1]}], lr=0.1)


class Fused(torch.optim.SGD):
    """An optimizer of the script's own class."""


row(OPTIMIZERS, "SGD with momentum")
row(OPTIMIZERS, "SGD with Nesterov and weight decay",
    module=optimized(lambda m: SGD(m.parameters(), 0.1, 0.9, weight_decay=1e-4, nesterov=True)))  # fmt: skip
row(OPTIMIZERS, "parameter groups of several LRs", module=optimized(two_groups))
row(OPTIMIZERS, "AdamW", module=optimized(lambda m: torch.optim.AdamW(m.parameters(), 1e-3)),
    outcome="the LR grows with the square root of the clips")  # fmt: skip
row(OPTIMIZERS, "RMSprop, unscaled", module=optimized(lambda m: torch.optim.RMSprop(m.parameters(), 1e-3)),
    multigrid={"lr_scaling": "none"})  # fmt: skip
row(OPTIMIZERS, "an LR in a tensor",
    module=optimized(lambda m: torch.optim.AdamW(m.parameters(), torch.tensor(1e-3), capturable=False)))  # fmt: skip
row(OPTIMIZERS, "`foreach=True`", module=optimized(lambda m: SGD(m.parameters(), 0.1, foreach=True)))
row(OPTIMIZERS, "a class of one's own", module=optimized(lambda m: Fused(m.parameters(), 0.1)))
row(OPTIMIZERS, "in a list", module=optimized(lambda m: [SGD(m.parameters(), 0.1)]))
row(OPTIMIZERS, "in a dict", module=optimized(lambda m: {"optimizer": SGD(m.parameters(), 0.1)}))

# --- LR schedulers ---

SCHEDULERS = "LR schedulers"
BATCHES = CLIPS // BATCH  # of the baseline's epoch
STEPS = 2 * BATCHES


def scheduled(make: Any, **config: Any) -> Any:
    def optimize(module: Script) -> Any:
        optimizer = SGD(module.parameters(), lr=0.1, momentum=0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": make(optimizer), **config}}

    return optimized(optimize)


STEP = {"interval": "step"}


def sequence(optimizer: Any, *parts: Any, at: list[int]) -> Any:
    return lr_scheduler.SequentialLR(optimizer, list(parts), milestones=at)


def warm_cosine(optimizer: Any) -> Any:
    warm = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
    return sequence(optimizer, warm, lr_scheduler.CosineAnnealingLR(optimizer, STEPS - 5), at=[5])


def warm_steps(optimizer: Any) -> Any:
    warm = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)
    return sequence(optimizer, warm, lr_scheduler.MultiStepLR(optimizer, [10, 20]), at=[4])


def chained(optimizer: Any) -> Any:
    parts = lr_scheduler.ConstantLR(optimizer, 0.5, 1), lr_scheduler.ExponentialLR(optimizer, 0.7)
    return lr_scheduler.ChainedScheduler([*parts])


def estimated(module: Script) -> Any:
    optimizer = SGD(module.parameters(), lr=0.1, momentum=0.9)
    total = int(module.trainer.estimated_stepping_batches)
    return {
        "optimizer": optimizer,
        "lr_scheduler": {"scheduler": lr_scheduler.OneCycleLR(optimizer, 0.2, total), **STEP},
    }


row(SCHEDULERS, "none")
row(SCHEDULERS, "`MultiStepLR`", module=scheduled(lambda o: lr_scheduler.MultiStepLR(o, [1])))
row(SCHEDULERS, "`MultiStepLR` by step", module=scheduled(lambda o: lr_scheduler.MultiStepLR(o, [9, 25]), **STEP))
row(SCHEDULERS, "`StepLR`", module=scheduled(lambda o: lr_scheduler.StepLR(o, 1)))
row(SCHEDULERS, "cosine by epoch", module=scheduled(lambda o: lr_scheduler.CosineAnnealingLR(o, 2)))
row(SCHEDULERS, "cosine by step", module=scheduled(lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS), **STEP))
row(SCHEDULERS, "warm-up, then cosine", module=scheduled(warm_cosine, **STEP))
row(SCHEDULERS, "warm-up, then steps", module=scheduled(warm_steps, **STEP))
row(SCHEDULERS, "`OneCycleLR` of `estimated_stepping_batches`", module=optimized(estimated))
row(SCHEDULERS, "`ExponentialLR`", module=scheduled(lambda o: lr_scheduler.ExponentialLR(o, 0.9)))
row(SCHEDULERS, "`LambdaLR`", module=scheduled(lambda o: lr_scheduler.LambdaLR(o, lambda n: 1 / (1 + n)), **STEP))
row(SCHEDULERS, "`PolynomialLR`", module=scheduled(lambda o: lr_scheduler.PolynomialLR(o, STEPS, 2.0), **STEP))
row(SCHEDULERS, "`CosineAnnealingWarmRestarts`",
    module=scheduled(lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 10), **STEP))  # fmt: skip
row(SCHEDULERS, "`CyclicLR`",
    module=scheduled(lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 6, cycle_momentum=False), **STEP))  # fmt: skip
row(SCHEDULERS, "`ChainedScheduler`", module=scheduled(chained))
row(SCHEDULERS, "every third step", module=scheduled(lambda o: lr_scheduler.ExponentialLR(o, 0.9), frequency=3, **STEP))

# --- The script's own clock ---

OWN = "LR by hand, and schedulers of one's own"


class Timm(Script):
    """A scheduler that is told the epoch or the step."""

    def __init__(self, by_steps: bool) -> None:
        super().__init__()
        self.by_steps = by_steps

    def configure_optimizers(self) -> Any:
        from timm.scheduler import CosineLRScheduler

        optimizer = SGD(self.parameters(), lr=0.1, momentum=0.9)
        length = {"t_initial": STEPS, "warmup_t": 6} if self.by_steps else {"t_initial": 3, "warmup_t": 1}
        scheduler = CosineLRScheduler(optimizer, **length, warmup_lr_init=1e-3, t_in_epochs=not self.by_steps)
        return [optimizer], [{"scheduler": scheduler, "interval": "step" if self.by_steps else "epoch"}]

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        if self.by_steps:
            scheduler.step_update(num_updates=self.global_step)
        else:
            scheduler.step(epoch=self.current_epoch)


class Steps(Script):
    """Steps its scheduler in its own way."""

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        scheduler.step()

    def configure_optimizers(self) -> Any:
        optimizer = SGD(self.parameters(), lr=0.1)
        return [optimizer], [{"scheduler": lr_scheduler.ExponentialLR(optimizer, 0.95), **STEP}]


class Written(Script):
    """Writes the LR before each step, by its own count."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        for group in self.optimizers().param_groups:
            group["lr"] = 0.1 * (1 - 0.9 * self.global_step / self.trainer.estimated_stepping_batches)


class Halved(Script):
    """Halves the LR at the end of each epoch."""

    def on_train_epoch_end(self) -> None:
        for group in self.optimizers().param_groups:
            group["lr"] *= 0.5


class WrittenTensor(Script):
    def __init__(self) -> None:
        super().__init__(lambda m: torch.optim.AdamW(m.parameters(), torch.tensor(1e-3)))

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.optimizers().param_groups[0]["lr"].fill_(1e-4)


CLOCK = "the LR is scaled; its clock is the script's"
row(OWN, "timm by epoch, in `lr_scheduler_step`", module=lambda: Timm(by_steps=False), needs="timm", resume=True)
row(OWN, "timm by step, in `lr_scheduler_step`", module=lambda: Timm(by_steps=True), needs="timm", resume=True)
row(OWN, "`lr_scheduler_step`", module=Steps)
row(OWN, "a number written in a hook, from `global_step`", module=Written, lr=False, resume=True,
    warns="sets the LR itself", outcome=CLOCK)  # fmt: skip
row(OWN, '`group["lr"] *= 0.5` after each epoch', module=Halved, lr=False, resume=True, outcome=CLOCK)
row(
    OWN,
    "an LR in a tensor, written in a hook",
    module=WrittenTensor,
    refused="LR that is in a tensor",
    late=True,
    outcome="both write the same tensor; give the optimizer a number",
)

# --- Manual optimization ---

MANUAL = "Manual optimization"


class Manual(Script):
    """One optimizer or two, in turn."""

    def __init__(self, optimizers: int = 1, when: str = "", declared: Any = None) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.number, self.when, self.declared = optimizers, when, declared or {}
        self.other = net()

    def stepped(self) -> None:
        schedulers = self.lr_schedulers()
        for scheduler in schedulers if isinstance(schedulers, list) else [schedulers]:
            scheduler.step()

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizers = self.optimizers()
        for optimizer, model in zip(
            [optimizers] if self.number == 1 else optimizers, (self.net, self.other), strict=False
        ):
            optimizer.zero_grad()
            self.manual_backward(nn.functional.cross_entropy(model(batch[0]), batch[1]))
            optimizer.step()
        if self.when == "step" or (self.when == "fourth" and (batch_idx + 1) % 4 == 0):
            self.stepped()

    def on_train_epoch_end(self) -> None:
        if self.when == "epoch":
            self.stepped()

    def configure_optimizers(self) -> Any:
        made = [SGD(model.parameters(), lr=lr) for model, lr in ((self.net, 0.1), (self.other, 0.02))][: self.number]
        if not self.when:
            return made
        return made, [{"scheduler": lr_scheduler.ExponentialLR(one, 0.95), **self.declared} for one in made]


row(MANUAL, "one optimizer", module=Manual)
row(MANUAL, "two optimizers", module=lambda: Manual(2))
row(MANUAL, "a scheduler, stepped in each mini-batch", module=lambda: Manual(1, "step"), resume=True)
row(MANUAL, "two optimizers and schedulers, stepped in each mini-batch", module=lambda: Manual(2, "step"))
row(MANUAL, "two optimizers and schedulers, stepped after each epoch", module=lambda: Manual(2, "epoch"), resume=True)
row(MANUAL, "a scheduler, stepped in every fourth mini-batch as `frequency` says",
    module=lambda: Manual(1, "fourth", {**STEP, "frequency": 4}))  # fmt: skip
row(MANUAL, "a scheduler, stepped in every fourth mini-batch", module=lambda: Manual(1, "fourth"),
    refused="expected a call after every epoch", late=True, outcome="say it by `interval` and `frequency`")  # fmt: skip
