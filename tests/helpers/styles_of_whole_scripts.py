"""A script as a whole: a row of `tests/helpers/script_styles.py`."""

import lightning as L
from lightning.pytorch import callbacks as cb
from torch import nn
from torch.optim import SGD, lr_scheduler
from torch.utils.data import DataLoader

from tests.helpers.scripts import Rows
from tests.helpers.small_scripts import BATCH, CLIPS, EPOCHS, FRAMES, SIZE, Clips, net

row = Rows()


class Classifier(L.LightningModule):
    """A module as a template has it."""

    def __init__(self, lr=0.1, warmup_epochs=1):
        super().__init__()
        self.save_hyperparameters()
        self.net = net()
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    def forward(self, clips):
        return self.net(clips)

    def shared_step(self, batch, stage):
        clips, labels = batch
        scores = self(clips)
        loss = self.criterion(scores, labels)
        accuracy = (scores.argmax(dim=1) == labels).float().mean()
        self.log_dict({f"{stage}/loss": loss, f"{stage}/acc": accuracy}, prog_bar=True, on_epoch=True)
        return loss

    def training_step(self, batch, batch_idx):
        return self.shared_step(batch, "train")

    def validation_step(self, batch, batch_idx):
        assert batch[0].shape[2:] == (FRAMES, SIZE, SIZE)
        self.shared_step(batch, "val")

    def configure_optimizers(self):
        weights = [parameter for parameter in self.parameters() if parameter.ndim > 1]
        others = [parameter for parameter in self.parameters() if parameter.ndim <= 1]
        groups = [{"params": weights, "weight_decay": 1e-4}, {"params": others, "weight_decay": 0.0}]
        optimizer = SGD(groups, lr=self.hparams.lr, momentum=0.9, nesterov=True)
        warmup, steps = self.hparams.warmup_epochs * CLIPS // BATCH, self.trainer.estimated_stepping_batches
        warm = lr_scheduler.LinearLR(optimizer, 0.01, total_iters=warmup)
        falling = lr_scheduler.CosineAnnealingLR(optimizer, int(steps) - warmup)
        scheduler = lr_scheduler.SequentialLR(optimizer, [warm, falling], milestones=[warmup])
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Data(L.LightningDataModule):
    """A data module that makes its datasets in `setup`."""

    def __init__(self, batch_size=BATCH):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage):
        self.train, self.val = Clips(), Clips(number=6)

    def train_dataloader(self):
        return DataLoader(self.train, self.hparams.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, self.hparams.batch_size)


def callbacks():
    checkpoint = cb.ModelCheckpoint(monitor="val/loss", filename="{epoch}", save_top_k=2, save_last=True)
    return [checkpoint, cb.LearningRateMonitor("step"), cb.EarlyStopping("val/loss", patience=10)]


row("Complete scripts", "`import lightning as L`", module=Classifier, data=Data, callbacks=callbacks,
    trainer={"logger": True, "max_epochs": EPOCHS, "gradient_clip_val": 1.0, "num_sanity_val_steps": 1})  # fmt: skip
