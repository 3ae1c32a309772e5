"""How people write training scripts: a row for each way, run by `tests/laws/test_scripts.py`.

`python -m tests.helpers.script_styles` prints the tables of `docs/scripts.md`.
"""

from __future__ import annotations

import random
from collections import namedtuple
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch import callbacks as cb
from torch import nn
from torch.optim import SGD, lr_scheduler
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    random_split,
)

from lightning_multigrid.schedule import BatchShape
from tests.helpers.scripts import Style
from tests.helpers.small_scripts import BATCH, CLASSES, CLIPS, FRAMES, SIZE, Clips, Script, clip, label, loader, net

STYLES: list[Style] = []


def row(group: str, name: str, **how: Any) -> None:
    STYLES.append(Style(group, name, **how))


def unpacked(unpack: Any) -> Any:
    return lambda: Script(unpack=unpack)


def of(wrap: Any, **sizes: int) -> Any:
    return lambda: loader(Clips(wrap, **sizes))


# --- Datasets ---

DATASETS = "Datasets and samples"


def tensors() -> TensorDataset:
    return TensorDataset(torch.stack([clip(i) for i in range(CLIPS)]), torch.tensor([label(i) for i in range(CLIPS)]))


class Fetched(Clips):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Augmented(Clips):
    """Draws from torch, NumPy and `random`."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        x = x + 0.1 * torch.randn(()) + 0.1 * float(np.random.rand()) + 0.1 * random.random()  # noqa: NPY002
        return (x.flip(-1) if torch.rand(()) < 0.5 else x), y


Pair = namedtuple("Pair", ["clip", "label"])

row(DATASETS, "`TensorDataset`", data=lambda: loader(tensors()))
row(DATASETS, "a `Dataset` of one's own", data=lambda: loader(Clips()))
row(DATASETS, "`Subset`", data=lambda: loader(Subset(Clips(number=110), range(7, 7 + CLIPS))))
row(DATASETS, "`random_split`", data=lambda: loader(random_split(Clips(number=100), [CLIPS, 4])[0]))
row(DATASETS, "`ConcatDataset`", data=lambda: loader(ConcatDataset([Clips(number=40), Clips(number=56)])))
row(DATASETS, "`StackDataset`", data=lambda: loader(StackDataset([clip(i) for i in range(CLIPS)], range(CLIPS))),
    module=unpacked(lambda batch: (batch[0], batch[1] % CLASSES)))  # fmt: skip
row(DATASETS, "a list", data=lambda: loader([(clip(i), label(i)) for i in range(CLIPS)]))
row(DATASETS, "`__getitems__`", data=lambda: loader(Fetched()))
row(DATASETS, "random augmentation by torch, NumPy and `random`", data=lambda: loader(Augmented()))
row(DATASETS, "a dict", data=of(lambda x, y: {"video": x, "label": y}),
    module=unpacked(lambda batch: (batch["video"], batch["label"])))  # fmt: skip
row(DATASETS, "a nested dict", data=of(lambda x, y: {"inputs": {"pixel_values": x}, "labels": y}),
    module=unpacked(lambda batch: (batch["inputs"]["pixel_values"], batch["labels"])))  # fmt: skip
row(DATASETS, "a named tuple", data=of(Pair), module=unpacked(lambda batch: (batch.clip, batch.label)))
row(DATASETS, "names of files beside the clip", data=of(lambda x, y: (x, y, f"{y}.mp4")),
    module=unpacked(lambda batch: batch[:2]))  # fmt: skip
row(DATASETS, "NumPy arrays", data=of(lambda x, y: (x.numpy(), y)))
row(DATASETS, "uint8, scaled in the module", data=of(lambda x, y: ((x * 255).to(torch.uint8), y)),
    module=unpacked(lambda batch: (batch[0] / 255, batch[1])))  # fmt: skip
row(DATASETS, "float16", data=of(lambda x, y: (x.half(), y)), module=unpacked(lambda b: (b[0].float(), b[1])))
row(DATASETS, "bfloat16", data=of(lambda x, y: (x.bfloat16(), y)), module=unpacked(lambda b: (b[0].float(), b[1])))
row(DATASETS, "float64", data=of(lambda x, y: (x.double(), y)), module=unpacked(lambda b: (b[0].float(), b[1])))
row(DATASETS, "T x C x H x W", data=of(lambda x, y: (x.transpose(0, 1).contiguous(), y)), axes="NTCHW",
    module=unpacked(lambda b: (b[0].transpose(1, 2), b[1])))  # fmt: skip
row(DATASETS, "T x H x W x C", data=of(lambda x, y: (x.permute(1, 2, 3, 0).contiguous(), y)), axes="NTHWC",
    module=unpacked(lambda b: (b[0].permute(0, 4, 1, 2, 3), b[1])))  # fmt: skip
row(DATASETS, "two channels", data=of(lambda x, y: (x[:2], y)), multigrid={"layout": "CTHW"}, outcome="`layout`",
    module=lambda: Script(model=lambda: net(channels=2)))  # fmt: skip
row(DATASETS, "rectangular clips", data=of(lambda x, y: (x, y), width=24))
row(DATASETS, "images (T = 1)", data=of(lambda x, y: (x[:, 0], y)), axes="NCHW", shape=BatchShape(BATCH, 1, SIZE),
    module=unpacked(lambda b: (b[0].unsqueeze(2), b[1])))  # fmt: skip
row(DATASETS, "a key frame beside the clip", data=of(lambda x, y: (x, x[:, 0], y)),
    module=unpacked(lambda batch: (batch[0], batch[2])))  # fmt: skip
row(DATASETS, "features beside the clip", data=of(lambda x, y: (x, x.mean(dim=(1, 2, 3)), y)),
    module=unpacked(lambda batch: (batch[0], batch[2])))  # fmt: skip
row(DATASETS, "soft labels", data=of(lambda x, y: (x, nn.functional.one_hot(torch.tensor(y), CLASSES).float())))
row(DATASETS, "several labels", data=of(lambda x, y: (x, {"verb": y, "noun": (y + 1) % CLASSES})),
    module=unpacked(lambda b: (b[0], b[1]["verb"])))  # fmt: skip
row(DATASETS, "clips alone (self-supervision)", data=of(lambda x, y: x),
    module=unpacked(lambda b: (b, torch.zeros(len(b), dtype=torch.long))))  # fmt: skip

# --- Loaders ---

LOADERS = "Loaders and samplers"


class Own(Sampler[int]):
    """Goes through the data in an order that depends on the epoch."""

    def __init__(self, number: int) -> None:
        self.number, self.epoch = number, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.number

    def __iter__(self) -> Any:
        return iter([(index + 5 * self.epoch) % self.number for index in range(self.number)])


def as_dict(samples: list[Any]) -> dict[str, Any]:
    clips, labels = default_collate(samples)
    return {"x": clips, "y": labels}


def mixed(samples: list[Any]) -> Any:
    clips, labels = default_collate(samples)
    share = float(torch.rand(()))
    return share * clips + (1 - share) * clips.flip(0), labels


def pathways(samples: list[Any]) -> Any:
    clips, labels = default_collate(samples)
    return [clips[:, :, :1], clips], labels


def init_worker(worker: int) -> None:
    torch.manual_seed(worker)


row(LOADERS, "`shuffle=True`")
row(LOADERS, "in order", data=lambda: loader(shuffle=False))
row(LOADERS, "`drop_last=True`", data=lambda: loader(Clips(number=97), drop_last=True), clips=97)
row(LOADERS, "a last mini-batch that is smaller", data=lambda: loader(Clips(number=97)), clips=97)
row(LOADERS, "`WeightedRandomSampler`",
    data=lambda: loader(shuffle=None, sampler=WeightedRandomSampler([1.0, 2.0] * (CLIPS // 2), CLIPS)))  # fmt: skip
row(LOADERS, "`RandomSampler` with replacement",
    data=lambda: loader(shuffle=None, sampler=RandomSampler(Clips(), replacement=True, num_samples=CLIPS)))  # fmt: skip
row(LOADERS, "`SubsetRandomSampler`",
    data=lambda: loader(Clips(number=110), shuffle=None, sampler=SubsetRandomSampler(range(3, 3 + CLIPS))))  # fmt: skip
row(LOADERS, "a sampler of one's own with `set_epoch`", data=lambda: loader(shuffle=None, sampler=Own(CLIPS)))
row(LOADERS, "`generator=`", data=lambda: loader(generator=torch.Generator().manual_seed(5)))
row(LOADERS, "one worker", data=lambda: loader(num_workers=1))
row(LOADERS, "persistent workers", data=lambda: loader(num_workers=1, persistent_workers=True, prefetch_factor=3))
row(LOADERS, "`worker_init_fn`", data=lambda: loader(num_workers=1, worker_init_fn=init_worker))
row(LOADERS, "a `collate_fn` that returns a dict", data=lambda: loader(collate_fn=as_dict),
    module=unpacked(lambda b: (b["x"], b["y"])))  # fmt: skip
row(LOADERS, "mixup in `collate_fn`", data=lambda: loader(collate_fn=mixed))
row(LOADERS, "SlowFast's pathways made in `collate_fn`", data=lambda: loader(collate_fn=pathways), axes="NCTHW",
    module=unpacked(lambda b: (b[0][1], b[1])), refused=None)  # fmt: skip
row(LOADERS, "`batch_size=1`", data=lambda: loader(batch_size=1), shape=BatchShape(1, FRAMES, SIZE))
row(LOADERS, "`batch_sampler=BatchSampler(...)`",
    data=lambda: DataLoader(Clips(), batch_sampler=BatchSampler(RandomSampler(Clips()), BATCH, False)))  # fmt: skip
row(LOADERS, "`batch_size=None`", data=lambda: DataLoader([(clip(i)[None], torch.tensor([label(i)])) for i in range(CLIPS)],
    batch_size=None), refused="batch_size")  # fmt: skip

# --- Where the data come from ---

SOURCES = "Where the loader comes from"


class Data(L.LightningDataModule):
    def train_dataloader(self) -> Any:
        return loader()


class Moved(Data):
    """Normalises on the device."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        clips, labels = batch
        return (clips - 0.5) / 0.25, labels


class Complete(Script):
    """Has its own loader, made from what the Trainer knows."""

    def train_dataloader(self) -> Any:
        return loader()


class WithValidation(Script):
    def val_dataloader(self) -> Any:
        return loader(Clips(number=6), shuffle=False)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        assert batch[0].shape == (BATCH, 3, FRAMES, SIZE, SIZE)
        self.log("val_loss", self.loss(batch))


row(SOURCES, "given to `fit`")
row(SOURCES, "a data module", data=Data)
row(SOURCES, "a hook of the data module normalises on the device", data=Moved)
row(SOURCES, "the module's `train_dataloader`", module=Complete, data=None)
row(SOURCES, "validation data", module=WithValidation)
row(SOURCES, "a dict of loaders", data=lambda: {"a": loader(), "b": loader()}, refused="needs one",
    module=lambda: Script(unpack=lambda b: b["a"] if isinstance(b, dict) else b))  # fmt: skip

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
    multigrid={"lr_scaling": "sqrt"}, outcome="better with `lr_scaling`")  # fmt: skip
row(OPTIMIZERS, "RMSprop, unscaled", module=optimized(lambda m: torch.optim.RMSprop(m.parameters(), 1e-3)),
    multigrid={"lr_scaling": "none"}, outcome="better with `lr_scaling`")  # fmt: skip
row(OPTIMIZERS, "an LR in a tensor",
    module=optimized(lambda m: torch.optim.AdamW(m.parameters(), torch.tensor(1e-3), capturable=False)),
    multigrid={"lr_scaling": "sqrt"}, outcome="better with `lr_scaling`")  # fmt: skip
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


def estimated(module: Script) -> Any:
    optimizer = SGD(module.parameters(), lr=0.1, momentum=0.9)
    total = int(module.trainer.estimated_stepping_batches)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": lr_scheduler.OneCycleLR(optimizer, 0.2, total), **STEP}}


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
row(SCHEDULERS, "`ChainedScheduler`", module=scheduled(
    lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.ConstantLR(o, 0.5, 1), lr_scheduler.ExponentialLR(o, 0.7)])))  # fmt: skip
row(SCHEDULERS, "every third step", module=scheduled(lambda o: lr_scheduler.ExponentialLR(o, 0.9), frequency=3, **STEP))
row(SCHEDULERS, "`ReduceLROnPlateau`", lr=False,
    module=scheduled(lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0), monitor="loss", strict=False))  # fmt: skip

# --- The Trainer ---

TRAINER = "Arguments of the Trainer"
VALIDATED: dict[str, Any] = {"module": WithValidation}

row(TRAINER, "`max_steps`", trainer={"max_epochs": -1, "max_steps": 120}, epochs=2.5)
row(TRAINER, "`limit_train_batches=40`", trainer={"limit_train_batches": 40}, clips=80)
row(TRAINER, "`limit_train_batches=0.5`", trainer={"limit_train_batches": 0.5}, clips=48)
row(TRAINER, "`accumulate_grad_batches=2`", trainer={"accumulate_grad_batches": 2})
row(TRAINER, "`gradient_clip_val`", trainer={"gradient_clip_val": 0.1})
row(TRAINER, "`precision='bf16-mixed'`", trainer={"precision": "bf16-mixed"})
row(TRAINER, "`precision='bf16-true'`", trainer={"precision": "bf16-true"})
row(TRAINER, "`precision='64-true'`", trainer={"precision": "64-true"})
row(TRAINER, "`val_check_interval=0.5`", trainer={"val_check_interval": 0.5}, **VALIDATED)
row(TRAINER, "`val_check_interval=6`", trainer={"val_check_interval": 6}, **VALIDATED)
row(TRAINER, "`check_val_every_n_epoch=2`", trainer={"check_val_every_n_epoch": 2}, **VALIDATED)
row(TRAINER, "`num_sanity_val_steps`", trainer={"num_sanity_val_steps": 2}, **VALIDATED)
row(TRAINER, "`limit_val_batches=0`", trainer={"limit_val_batches": 0}, **VALIDATED)
row(TRAINER, "`log_every_n_steps=1`", trainer={"log_every_n_steps": 1})
row(TRAINER, "`max_time`", trainer={"max_time": "01:00:00:00"})
row(TRAINER, "`min_epochs`", trainer={"min_epochs": 1})
row(TRAINER, "`detect_anomaly=True`", trainer={"detect_anomaly": True})
row(TRAINER, "`deterministic=True`", trainer={"deterministic": True})
row(TRAINER, "`profiler='simple'`", trainer={"profiler": "simple"})
row(TRAINER, "`use_distributed_sampler=False`", trainer={"use_distributed_sampler": False})
row(TRAINER, "`inference_mode=False`", trainer={"inference_mode": False}, **VALIDATED)
row(TRAINER, "`sync_batchnorm=True`", trainer={"sync_batchnorm": True}, outcome="as one device has nothing to share")
row(TRAINER, "`reload_dataloaders_every_n_epochs=1`", trainer={"reload_dataloaders_every_n_epochs": 1},
    refused="requests the training loader itself")  # fmt: skip
row(TRAINER, "no end (`max_epochs=-1`)", trainer={"max_epochs": -1}, refused="has no end", outcome="!")

# --- Callbacks ---

CALLBACKS = "Callbacks of the script"


def with_callback(make: Any) -> dict[str, Any]:
    return {"callbacks": lambda: [make()]}


class Peek(L.Callback):
    """Looks at the training loader in every hook that it has."""

    def look(self, trainer: Any) -> None:
        clips, labels = next(iter(trainer.train_dataloader))
        assert clips.ndim == 5
        assert len(trainer.train_dataloader.dataset) == CLIPS
        for _ in trainer.train_dataloader:
            break

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.look(trainer)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.look(trainer)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx % 3 == 1:
            self.look(trainer)


class Progress(L.Callback):
    """Ramps something up with the training's progress."""

    def __init__(self) -> None:
        self.shares: list[float] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.shares.append(trainer.global_step / trainer.estimated_stepping_batches)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        assert self.shares == sorted(self.shares)
        assert self.shares[-1] == 1


row(CALLBACKS, "`ModelCheckpoint` by a metric", module=WithValidation,
    **with_callback(lambda: cb.ModelCheckpoint(monitor="val_loss", save_last=True)))  # fmt: skip
row(CALLBACKS, "`ModelCheckpoint` by epochs", **with_callback(lambda: cb.ModelCheckpoint(every_n_epochs=1)))
row(CALLBACKS, "`EarlyStopping`", module=WithValidation, **with_callback(lambda: cb.EarlyStopping("val_loss", patience=9)))
row(CALLBACKS, "`EMAWeightAveraging`", **with_callback(lambda: cb.EMAWeightAveraging(0.9)))
row(CALLBACKS, "`BackboneFinetuning`-like freezing", **with_callback(lambda: Freeze()))
row(CALLBACKS, "`TQDMProgressBar`", trainer={"enable_progress_bar": True}, **with_callback(cb.TQDMProgressBar))
row(CALLBACKS, "`RichProgressBar`", trainer={"enable_progress_bar": True}, **with_callback(cb.RichProgressBar))
row(CALLBACKS, "`ModelSummary`", trainer={"enable_model_summary": True}, **with_callback(cb.ModelSummary))
row(CALLBACKS, "`Timer`", **with_callback(lambda: cb.Timer("01:00:00:00")))
row(CALLBACKS, "`LambdaCallback`", **with_callback(lambda: cb.LambdaCallback(on_train_start=lambda *_: None)))
row(CALLBACKS, "`OnExceptionCheckpoint`", **with_callback(lambda: cb.OnExceptionCheckpoint(".")))
row(CALLBACKS, "looks at the training loader", **with_callback(Peek))
row(CALLBACKS, "computes progress from `estimated_stepping_batches`", resumes=False, **with_callback(Progress))
row(CALLBACKS, "`StochasticWeightAveraging`", refused="StochasticWeightAveraging",
    **with_callback(lambda: cb.StochasticWeightAveraging(1e-2)))  # fmt: skip
row(CALLBACKS, "`GradientAccumulationScheduler`", refused="GradientAccumulationScheduler",
    **with_callback(lambda: cb.GradientAccumulationScheduler({1: 2})))  # fmt: skip


class Freeze(cb.BaseFinetuning):
    """Trains the first layer from the second epoch on."""

    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.net[0])

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.net[0], optimizer, lr=0.01)


# --- Modules ---

MODULES = "Modules and models"


class Logging(Script):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return {"loss": loss, "kept": loss.detach()}


class Late(Script):
    """Makes its model in `configure_model`."""

    def __init__(self) -> None:
        super().__init__()
        self.net = None  # type: ignore[assignment]

    def configure_model(self) -> None:
        if self.net is None:
            self.net = net()


class PerFrame(nn.Module):
    """A 2D model on each frame, and the mean over frames: frames are folded into the batch (TSN)."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.frames = nn.Sequential(
                nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES)
            )

    def forward(self, clips: Any) -> Any:
        scores = self.frames(clips.transpose(1, 2).flatten(0, 1))
        return scores.view(len(clips), -1, CLASSES).mean(dim=1)


class Recurrent(nn.Module):
    """A recurrent layer over the frames' features."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.conv, self.lstm, self.head = nn.Conv3d(3, 4, (1, 3, 3)), nn.LSTM(4, 5, batch_first=True), nn.Linear(5, CLASSES)

    def forward(self, clips: Any) -> Any:
        return self.head(self.lstm(self.conv(clips).mean(dim=(3, 4)).transpose(1, 2))[0][:, -1])


def swapped(norm: Any) -> Any:
    def make() -> nn.Sequential:
        layers = net()
        layers[1] = norm()
        return layers

    return lambda: Script(model=make)


def headed(*head: nn.Module) -> Any:
    def make() -> nn.Sequential:
        layers = net()
        return nn.Sequential(*layers[:3], *head)

    return lambda: Script(model=make)


class Positions(nn.Module):
    """Adds a learned place to each cell of a clip of one size."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.places = net(), nn.Parameter(torch.zeros(1, 3, FRAMES, SIZE, SIZE))

    def forward(self, clips: Any) -> Any:
        return self.net(clips + self.places)


class Resizes(Script):
    def forward(self, clips: Any) -> Any:
        return self.net(nn.functional.interpolate(clips, (FRAMES, SIZE, SIZE)))


class ResizesOnDevice(Script):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        clips, labels = batch
        return nn.functional.interpolate(clips, (FRAMES, SIZE, SIZE)), labels


class Normalises(Script):
    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        clips, labels = batch
        return clips - 0.5, labels


row(MODULES, "a 3D CNN with BatchNorm")
row(MODULES, "logs, and returns a dict", module=Logging)
row(MODULES, "`configure_model`", module=Late)
row(MODULES, "normalises in `on_before_batch_transfer`", module=Normalises)
row(MODULES, "GroupNorm", module=swapped(lambda: nn.GroupNorm(2, 4)))
row(MODULES, "no normalisation", module=swapped(nn.Identity))
row(MODULES, "InstanceNorm", module=swapped(lambda: nn.InstanceNorm3d(4, affine=True)))
row(MODULES, "frozen BatchNorm", module=swapped(lambda: nn.BatchNorm3d(4).eval().requires_grad_(False)))
row(MODULES, "dropout", module=headed(nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Dropout(0.3), nn.Linear(4, CLASSES)))
row(MODULES, "frames folded into the batch (TSN)", module=lambda: Script(model=PerFrame))
row(MODULES, "a recurrent layer over frames", module=lambda: Script(model=Recurrent))
row(MODULES, "a pool of a fixed size", refused="cannot take clips",
    module=headed(nn.AvgPool3d((2, 8, 8)), nn.Flatten(), nn.Linear(4, CLASSES)))  # fmt: skip
row(MODULES, "a fixed table of positions", module=lambda: Script(model=Positions), refused="cannot take clips")
row(MODULES, "resizes in `forward`", module=Resizes, refused="forward")
row(MODULES, "resizes in `on_after_batch_transfer`", module=ResizesOnDevice, refused="on_after_batch_transfer")


def tables() -> str:
    """The tables of the documentation, as Markdown."""
    parts = []
    for group in dict.fromkeys(style.group for style in STYLES):
        lines = [f"## {group}", "", "| the script | with the callback |", "| --- | --- |"]
        for style in STYLES:
            if style.group == group:
                lines.append(f"| {style.name} | {_outcome(style)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _outcome(style: Style) -> str:
    more = style.outcome.removeprefix("!")
    if style.refused is not None:
        return "refused" + (f": {more}" if more else "")
    said = "works"
    if not style.resumes:
        said += ", resumes at the same step"
    return said + (f"; {more}" if more else "")


if __name__ == "__main__":
    print(tables(), end="")
