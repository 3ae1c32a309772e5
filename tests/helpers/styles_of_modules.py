"""Ways to write Trainers, callbacks and modules: rows of `tests/helpers/script_styles.py`."""

import copy

import lightning as L
import torch
from lightning.pytorch import callbacks as cb
from torch import nn

from tests.helpers.scripts import Rows
from tests.helpers.small_scripts import CLASSES, CLIPS, FRAMES, SIZE, Script, WithValidation, loader, net
from tests.helpers.styles_of_optimizers import Taught

row = Rows()


# --- The Trainer ---

TRAINER = "Arguments of the Trainer"
VALIDATED = {"module": WithValidation}

row(TRAINER, "`max_steps`", trainer={"max_epochs": -1, "max_steps": 120}, epochs=2.5)
row(TRAINER, "`limit_train_batches=40`", trainer={"limit_train_batches": 40}, clips=80)
row(TRAINER, "`limit_train_batches=0.5`", trainer={"limit_train_batches": 0.5}, clips=48)
row(TRAINER, "`accumulate_grad_batches=2`", trainer={"accumulate_grad_batches": 2})
row(TRAINER, "`gradient_clip_val`", trainer={"gradient_clip_val": 0.1})
row(TRAINER, "`precision='bf16-mixed'`", trainer={"precision": "bf16-mixed"})
row(TRAINER, "`precision='bf16-true'`", trainer={"precision": "bf16-true"})
row(TRAINER, "`precision='64-true'`", trainer={"precision": "64-true"}, resumes=False,
    outcome="Lightning loads the float64 of a checkpoint as float32")  # fmt: skip
row(TRAINER, "`val_check_interval=0.5`", trainer={"val_check_interval": 0.5}, **VALIDATED)
row(TRAINER, "`val_check_interval=6`", trainer={"val_check_interval": 6}, **VALIDATED)
row(TRAINER, "`check_val_every_n_epoch=2`", trainer={"check_val_every_n_epoch": 2}, **VALIDATED)
row(TRAINER, "`num_sanity_val_steps`", trainer={"num_sanity_val_steps": 2}, **VALIDATED)
row(TRAINER, "`log_every_n_steps=1`", trainer={"log_every_n_steps": 1})
row(TRAINER, "`deterministic=True`", trainer={"deterministic": True})
row(TRAINER, "`use_distributed_sampler=False`", trainer={"use_distributed_sampler": False})
row(TRAINER, "`inference_mode=False`", trainer={"inference_mode": False}, **VALIDATED)
row(TRAINER, "`sync_batchnorm=True`", trainer={"sync_batchnorm": True})
row(TRAINER, "`overfit_batches=40`", trainer={"overfit_batches": 40}, clips=80,
    data=lambda: loader(shuffle=False))  # fmt: skip
row(TRAINER, "`strategy='deepspeed'`", trainer={"strategy": "deepspeed"}, refused="DeepSpeed wraps both", plain=False,
    needs="deepspeed", outcome="it keeps the LR in an engine of its own; use `strategy='fsdp'`")  # fmt: skip
row(TRAINER, "`reload_dataloaders_every_n_epochs=1`", trainer={"reload_dataloaders_every_n_epochs": 1},
    refused="requests the training loader itself",
    outcome="the plan needs one loader; leave it out")  # fmt: skip
row(TRAINER, "no end (`max_epochs=-1`)", trainer={"max_epochs": -1}, refused="has no end", plain=False,
    outcome="the plan needs a length; give `max_epochs` or `max_steps`")  # fmt: skip

# --- Callbacks ---

CALLBACKS = "Callbacks of the script"


def with_callback(make):
    return {"callbacks": lambda: [make()]}


class Peek(L.Callback):
    """Looks at the training loader in every hook that it has."""

    def look(self, trainer):
        next(iter(trainer.train_dataloader))
        assert len(trainer.train_dataloader.dataset) >= CLIPS
        for _ in trainer.train_dataloader:
            break

    def on_train_start(self, trainer, pl_module):
        self.look(trainer)

    def on_train_epoch_start(self, trainer, pl_module):
        self.look(trainer)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx % 3 == 1:
            self.look(trainer)


class Halves(Script):
    """Has a backbone that a callback freezes and thaws."""

    def __init__(self):
        super().__init__(
            lambda module: torch.optim.SGD([p for p in module.parameters() if p.requires_grad], 0.1, momentum=0.9)
        )
        self.backbone, self.net = self.net[:2], self.net[2:]

    def forward(self, clips):
        return self.net(self.backbone(clips))


row(CALLBACKS, "`ModelCheckpoint` by a metric", module=WithValidation,
    **with_callback(lambda: cb.ModelCheckpoint(monitor="val_loss", save_last=True)))  # fmt: skip
row(CALLBACKS, "`ModelCheckpoint` by epochs", **with_callback(lambda: cb.ModelCheckpoint(every_n_epochs=1)))
row(CALLBACKS, "`EarlyStopping`", module=WithValidation,
    **with_callback(lambda: cb.EarlyStopping("val_loss", patience=9)))  # fmt: skip
row(CALLBACKS, "`TQDMProgressBar`", trainer={"enable_progress_bar": True}, **with_callback(cb.TQDMProgressBar))
row(CALLBACKS, "`RichProgressBar`", trainer={"enable_progress_bar": True}, **with_callback(cb.RichProgressBar))
row(CALLBACKS, "looks at the training loader", **with_callback(Peek))
row(CALLBACKS, "`LearningRateMonitor`", trainer={"logger": True},
    **with_callback(lambda: cb.LearningRateMonitor("step")))  # fmt: skip
row(CALLBACKS, "`EMAWeightAveraging`", **with_callback(lambda: cb.EMAWeightAveraging(decay=0.9)))
row(CALLBACKS, "`BackboneFinetuning`", module=Halves, resumes=False, lr=False,
    outcome="Lightning leaves the backbone frozen when it resumes later",
    **with_callback(lambda: cb.BackboneFinetuning(1, lambda epoch: 1.5, train_bn=False)))  # fmt: skip
row(CALLBACKS, "`StochasticWeightAveraging`", refused="StochasticWeightAveraging",
    outcome="it also drives the LR; use `WeightAveraging` or `EMAWeightAveraging`",
    **with_callback(lambda: cb.StochasticWeightAveraging(1e-2)))  # fmt: skip
row(CALLBACKS, "`GradientAccumulationScheduler`", refused="GradientAccumulationScheduler",
    outcome="the plan has complete optimizer steps; use `accumulate_grad_batches`",
    **with_callback(lambda: cb.GradientAccumulationScheduler({1: 2})))  # fmt: skip


# --- Modules ---

MODULES = "Modules and models"


class Logging(Script):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return {"loss": loss, "kept": loss.detach()}


class Contrasts(Script):
    def training_step(self, batch, batch_idx):
        places = nn.functional.normalize(self(batch[0]), dim=1)
        return nn.functional.cross_entropy(places @ places.T / 0.1, torch.arange(len(places)))


class Measures(Script):
    def __init__(self):
        from torchmetrics import Accuracy

        super().__init__()
        self.accuracy = Accuracy("multiclass", num_classes=CLASSES)

    def training_step(self, batch, batch_idx):
        scores = self(batch[0])
        self.accuracy(scores, batch[1])
        self.log("accuracy", self.accuracy, on_step=True, on_epoch=True)
        return nn.functional.cross_entropy(scores, batch[1])


class Clips(Script):
    def configure_gradient_clipping(self, optimizer, *_, **__):
        self.clip_gradients(optimizer, gradient_clip_val=0.5, gradient_clip_algorithm="norm")


class KeepsStatistics(Script):
    def train(self, mode=True):
        super().train(mode)
        self.net[1].eval()
        return self


class Freezes(Script):
    def on_train_epoch_start(self):
        self.net[0].requires_grad_(self.current_epoch > 0)


class Skips(Script):
    def training_step(self, batch, batch_idx):
        return None if batch_idx % 5 == 4 else self.loss(batch)


class Late(Script):
    def __init__(self):
        super().__init__()
        self.net = None

    def configure_model(self):
        if self.net is None:
            self.net = net()


class PerFrame(nn.Module):
    """A 2D model on each frame, and the mean over frames: frames are folded into the batch (TSN)."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            body = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
            self.frames = nn.Sequential(*body, nn.Linear(4, CLASSES))

    def forward(self, clips):
        scores = self.frames(clips.transpose(1, 2).flatten(0, 1))
        return scores.view(len(clips), -1, CLASSES).mean(dim=1)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.conv, self.lstm = nn.Conv3d(3, 4, (1, 3, 3)), nn.LSTM(4, 5, batch_first=True)
            self.head = nn.Linear(5, CLASSES)

    def forward(self, clips):
        return self.head(self.lstm(self.conv(clips).mean(dim=(3, 4)).transpose(1, 2))[0][:, -1])


def swapped(norm):
    def make():
        layers = net()
        layers[1] = norm()
        return layers

    return lambda: Script(model=make)


def headed(*head):
    def make():
        layers = net()
        return nn.Sequential(*layers[:3], *copy.deepcopy(head))  # each run has its own

    return lambda: Script(model=make)


class Positions(nn.Module):
    """Adds a learned place to each cell of a clip of one size."""

    def __init__(self):
        super().__init__()
        self.net, self.places = net(), nn.Parameter(torch.zeros(1, 3, FRAMES, SIZE, SIZE))

    def forward(self, clips):
        return self.net(clips + self.places)


class FirstRows(Positions):
    def forward(self, clips):
        return self.net(clips + self.places[:, :, : clips.shape[2], :1, :1])


class Resizes(Script):
    def forward(self, clips):
        return self.net(nn.functional.interpolate(clips, (FRAMES, SIZE, SIZE)))


class ResizesOnDevice(Script):
    def on_after_batch_transfer(self, batch, dataloader_idx):
        clips, labels = batch
        return nn.functional.interpolate(clips, (FRAMES, SIZE, SIZE)), labels


class Normalises(Script):
    def on_before_batch_transfer(self, batch, dataloader_idx):
        clips, labels = batch
        return clips - 0.5, labels


row(MODULES, "a 3D CNN with BatchNorm")
row(MODULES, "a teacher that is a moving average of the model", module=lambda: Taught(manual=False))
row(MODULES, "leaves steps out (`training_step` returns None)", module=Skips)
row(MODULES, "a loss that compares the clips of a mini-batch", module=Contrasts)
row(MODULES, "a metric of torchmetrics", module=Measures, needs="torchmetrics")
row(MODULES, "`configure_gradient_clipping`", module=Clips)
row(MODULES, "BatchNorm kept as it is by `train()`", module=KeepsStatistics)
row(MODULES, "freezes and thaws a layer by `requires_grad`", module=Freezes)
row(MODULES, "logs, and returns a dict", module=Logging)
row(MODULES, "`configure_model`", module=Late)
row(MODULES, "normalises in `on_before_batch_transfer`", module=Normalises)
row(MODULES, "GroupNorm", module=swapped(lambda: nn.GroupNorm(2, 4)))
row(MODULES, "InstanceNorm", module=swapped(lambda: nn.InstanceNorm3d(4, affine=True)))
row(MODULES, "frozen BatchNorm", module=swapped(lambda: nn.BatchNorm3d(4).eval().requires_grad_(False)))
row(MODULES, "dropout", module=headed(nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Dropout(0.3), nn.Linear(4, CLASSES)))
row(MODULES, "frames folded into the batch (TSN)", module=lambda: Script(model=PerFrame))
row(MODULES, "a recurrent layer over frames", module=lambda: Script(model=Recurrent))
row(MODULES, "a pool of a fixed size", module=headed(nn.AvgPool3d((2, 8, 8)), nn.Flatten(), nn.Linear(4, CLASSES)))
row(MODULES, "a fixed table of positions", module=lambda: Script(model=Positions), refused="cannot take clips",
    outcome="it has the positions of one grid; interpolate it in a method `set_grid`")  # fmt: skip
row(MODULES, "the first rows of a table of positions", module=lambda: Script(model=FirstRows), refused="counts places",
    outcome="they are the positions of other frames; spread them in a method `set_grid`")  # fmt: skip
row(MODULES, "resizes in `forward`", module=Resizes, refused="forward",
    outcome="that undoes the grid; resize in the dataset")  # fmt: skip
row(MODULES, "resizes in `on_after_batch_transfer`", module=ResizesOnDevice,
    refused="a hook of the mini-batch", outcome="that undoes the grid; resize in the dataset")  # fmt: skip
