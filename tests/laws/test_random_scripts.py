"""Scripts that are put together at random keep the laws of the drop-in callback, and looking at the loader is free."""

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from lightning.pytorch import callbacks as cb
from torch.utils.data import RandomSampler, WeightedRandomSampler, default_collate

from lightning_multigrid import MultigridCallback
from tests.helpers import styles_of_data as data
from tests.helpers import styles_of_modules as modules
from tests.helpers import styles_of_optimizers as optimizers
from tests.helpers.scripts import Style, check_style, run, weights
from tests.helpers.small_scripts import BATCH, CLIPS, Clips, Script, WithValidation, loader

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*`ModelCheckpoint\\(monitor"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory"),
]

TAIL = 97  # clips, of which the last one is a mini-batch of its own


def pair(x, y):
    return x, y


DATASETS = {  # the class and what it makes of a clip and its label, how the module takes a mini-batch apart, its axes
    "clips": (Clips, pair, pair, "NCTHW"),
    "augmented": (data.Augmented, pair, pair, "NCTHW"),
    "__getitems__": (data.Fetched, pair, pair, "NCTHW"),
    "NumPy": (Clips, lambda x, y: (x.numpy(), y), pair, "NCTHW"),
    "uint8": (Clips, lambda x, y: ((x * 255).to(torch.uint8), y), lambda x, y: (x / 255, y), "NCTHW"),
    "frames first": (Clips, lambda x, y: (x.transpose(0, 1), y), lambda x, y: (x.transpose(1, 2), y), "NTCHW"),
    "channels last": (
        Clips,
        lambda x, y: (x.permute(1, 2, 3, 0), y),
        lambda x, y: (x.permute(0, 4, 1, 2, 3), y),
        "NTHWC",
    ),
}
SAMPLERS = {
    "shuffle": lambda number: {"shuffle": True},
    "in order": lambda number: {"shuffle": False},
    "weighted": lambda number: {"sampler": WeightedRandomSampler([1.0 + i % 2 for i in range(number)], number)},
    "replacement": lambda number: {"sampler": RandomSampler(range(number), replacement=True, num_samples=number)},
    "set_epoch": lambda number: {"sampler": data.Own(number)},
    "own generator": lambda number: {"shuffle": True, "generator": torch.Generator().manual_seed(4)},
}
COLLATE = {"default": default_collate, "lists": lambda samples: list(default_collate(samples)), "mixed": data.mixed}
OPTIMIZERS = {
    "SGD": lambda module: torch.optim.SGD(module.parameters(), 0.1, momentum=0.9, nesterov=True),
    "groups": optimizers.two_groups,
    "AdamW": lambda module: torch.optim.AdamW(module.parameters(), 1e-3),
}
BY_STEP, BY_EPOCH = {"interval": "step"}, {"interval": "epoch"}
SCHEDULERS = {
    "none": None,
    "stages": (lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [1]), BY_EPOCH),
    "stages by step": (lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [7, 30]), BY_STEP),
    "cosine": (lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 60), BY_STEP),
    "warm-up and cosine": (optimizers.warm_cosine, BY_STEP),
    "chained": (optimizers.chained, BY_EPOCH),
    "every third": (lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9), {**BY_STEP, "frequency": 3}),
}
CALLBACKS = {
    "checkpoints": lambda: cb.ModelCheckpoint(every_n_epochs=1),
    "EMA": lambda: cb.EMAWeightAveraging(decay=0.9),
    "LR": lambda: cb.LambdaCallback(on_train_epoch_start=lambda trainer, module: trainer.train_dataloader.batch_size),
    "progress": modules.Progress,
    "peek": lambda: modules.Peek(),
}


@st.composite
def styles(draw):
    """A script of parts that are drawn one by one."""

    def one(parts):
        name = draw(st.sampled_from(sorted(parts)))
        names.append(name)
        return parts[name]

    names = []
    kind, wrap, unpack, axes = one(DATASETS)
    sampler, collate, optimize, scheduler = one(SAMPLERS), one(COLLATE), one(OPTIMIZERS), one(SCHEDULERS)
    number = draw(st.sampled_from([CLIPS, TAIL]))
    accumulate, limit, length, precision, validates = (
        draw(st.sampled_from(choices))
        for choices in ([1, 1, 2], [None, 40], ["epochs", "steps"], ["32-true", "bf16-mixed"], [False, True])
    )
    chosen = draw(st.sets(st.sampled_from(sorted(CALLBACKS)), max_size=2))
    batches = limit or -(-number // BATCH)
    trainer = {"accumulate_grad_batches": accumulate, "limit_train_batches": limit, "precision": precision}
    epochs = 2
    if length == "steps":
        per_epoch = -(-batches // accumulate)
        trainer |= {"max_epochs": -1, "max_steps": per_epoch + per_epoch // 2}
        epochs = None  # to within a step: what the plan says is what the steps are
    if validates:
        trainer |= {"val_check_interval": draw(st.sampled_from([0.5, 1.0]))}

    def configure(module):
        optimizer = optimize(module)
        if scheduler is None:
            return optimizer
        make, config = scheduler
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": make(optimizer), **config}}

    return Style(
        "random",
        ", ".join([*names, str(number), str(trainer), *sorted(chosen)]),
        module=lambda: (Script if not validates else WithValidation)(configure, lambda batch: unpack(*batch)),
        data=lambda: loader(kind(wrap, number), **{"shuffle": None, "collate_fn": collate, **sampler(number)}),
        trainer=trainer,
        callbacks=lambda: [CALLBACKS[name]() for name in sorted(chosen)],
        axes=axes,
        clips=number if limit is None else limit * BATCH,
        epochs=epochs,
    )


def check(style):
    note(style.name)
    with tempfile.TemporaryDirectory() as folder:
        check_style(style, Path(folder))
        peeking = replace(style, callbacks=lambda: [*style.callbacks(), modules.Peek()])
        one, other = (
            run(each, Path(folder) / str(number), MultigridCallback(**style.multigrid), enable_checkpointing=False)
            for number, each in enumerate((style, peeking))
        )
    assert one.watch.losses == other.watch.losses
    assert one.watch.lrs == other.watch.lrs
    mine, its = weights(one.module), weights(other.module)
    assert all(torch.equal(value, its[name]) for name, value in mine.items())


COMMON = {
    "deadline": None,
    "database": None,
    "derandomize": True,
    "phases": [Phase.generate],
    "suppress_health_check": [HealthCheck.too_slow],
}


@settings(max_examples=2, **COMMON)
@given(styles())
def test_scripts_of_random_parts(style):
    check(replace(style, resumes=None))


@pytest.mark.slow
@pytest.mark.timeout(3000)
@settings(max_examples=100, **COMMON)
@given(styles())
def test_many_scripts_of_random_parts_resume_too(style):
    check(style)
