"""A script as users of either package of Lightning write it: `python -m tests.helpers.either_package PACKAGE FOLDER`.

It prints what happened as JSON: the last line of its output.
"""

import hashlib
import importlib
import json
import sys
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

PACKAGE = sys.argv[1] if __name__ == "__main__" else "lightning.pytorch"
pl = importlib.import_module(PACKAGE)

from lightning_multigrid import (  # noqa: E402  # after the package of the script
    AtomicCheckpointIO,
    LongCycle,
    MovingShapesDataModule,
    MultigridCallback,
    ShortCycle,
    VideoClassifier,
)

QUIET = {"accelerator": "cpu", "logger": False, "enable_model_summary": False, "max_epochs": 2}

FOUR_GRIDS = {"long_cycle": LongCycle(((0.5, 0.75), (1, 1))), "short_cycle": ShortCycle((0.5, 1))}
DATA = {"train_per_class": 2, "val_per_class": 1, "batch_size": 2, "frames": 8, "size": 16, "num_workers": 0}


def blocks():
    return nn.Conv3d(3, 4, 3, padding=1), nn.BatchNorm3d(4), nn.AdaptiveAvgPool3d(1), nn.Flatten()


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(*blocks(), nn.Dropout(), nn.Linear(4, 16))
        self.seen = []

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        if isinstance(self._trainer, pl.Trainer):
            self.step = [self.current_epoch, batch_idx, list(batch[0].shape), None, loss.item()]
        self.log("loss", loss)
        return loss

    def note_lr(self, optimizer, *_):
        self.lr = optimizer.param_groups[0]["lr"]

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.step[3] = self.lr
        self.seen.append(self.step)  # not those of the rehearsal

    def validation_step(self, batch, batch_idx):
        self.log("val", nn.functional.cross_entropy(self.model(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        optimizer.register_step_post_hook(self.note_lr)
        return [optimizer], [CosineAnnealingLR(optimizer, 2)]


def digest(module):
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in module.state_dict().values())).hexdigest()


def fit(folder, ckpt_path=None):
    """Trains with callbacks of all kinds; returns the steps, the weights and the checkpoints."""
    pl.seed_everything(1, verbose=False)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(44, 3, 8, 16, 16, generator=generator)
    train = DataLoader(TensorDataset(noise[:40], torch.arange(40) % 4), 2, shuffle=True)
    val = DataLoader(TensorDataset(noise[40:], torch.arange(4)), 2)
    checkpoint = pl.callbacks.ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=3)
    callbacks = [MultigridCallback(**FOUR_GRIDS, precise_bn_batches=2), checkpoint, pl.callbacks.TQDMProgressBar()]
    callbacks.append(pl.callbacks.EarlyStopping("val", patience=99))
    if hasattr(pl.callbacks, "EMAWeightAveraging"):  # new in Lightning 2.6
        callbacks.append(pl.callbacks.EMAWeightAveraging())
    trainer = pl.Trainer(**QUIET, callbacks=callbacks, plugins=[AtomicCheckpointIO()])
    module = Module()
    trainer.fit(module, train, val, ckpt_path=ckpt_path)
    return module.seen, digest(module), sorted(Path(folder).glob("*.ckpt"))


def videos():
    """Trains and tests our module on our data; returns its weights and results."""
    module = VideoClassifier(nn.Sequential(*blocks(), nn.Linear(4, 16)), 16)
    data = MovingShapesDataModule(**DATA)
    trainer = pl.Trainer(**QUIET, callbacks=[MultigridCallback(short_cycle=ShortCycle())], enable_checkpointing=False)
    trainer.fit(module, datamodule=data)
    return digest(module), trainer.test(module, datamodule=data, verbose=False)


def command_line(folder):
    """Trains by `LightningCLI` with the callback in its config."""
    config = Path(folder, "config.yaml")
    arguments = "{short_cycle: {factors: [0.5, 0.7071, 1]}}"
    callback = f"{{class_path: lightning_multigrid.MultigridCallback, init_args: {arguments}}}"
    config.write_text(f"trainer: {{callbacks: [{callback}], max_epochs: 2}}")
    quiet = [f"--trainer.{name}=false" for name in ("logger", "enable_checkpointing", "enable_model_summary")]
    data = [f"--data.{name}={value}" for name, value in DATA.items()]
    cli = importlib.import_module(f"{PACKAGE}.cli").LightningCLI(
        Module,
        MovingShapesDataModule,
        save_config_callback=None,
        args=["fit", f"--config={config}", "--trainer.accelerator=cpu", *quiet, *data],
    )
    return cli.model.seen


def outcome(folder):
    """What happened, as JSON."""
    whole = fit(f"{folder}/whole")
    resumed = fit(f"{folder}/resumed", whole[2][0])
    told = {"seen": whole[0], "resumed": resumed[0], "weights": [whole[1], resumed[1]], "videos": videos()}
    told["command line"] = command_line(folder)
    told["imported"] = sorted({"lightning.pytorch", "pytorch_lightning"} & set(sys.modules))
    return json.dumps(told)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print(outcome(sys.argv[2]))
