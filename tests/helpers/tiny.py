"""A small baseline script: module, data and Trainer as a user would write them, with a record of what happened."""

import functools

import lightning as L
import torch
from lightning.pytorch.callbacks import LambdaCallback
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

from tests.helpers.norms import shared_clips

CLIPS, FRAMES, SIZE, CLASSES = 100, 8, 32, 4
QUIET = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)


def clips(number=CLIPS, frames=FRAMES, size=SIZE, seed=0):
    """Noise whose class is in its mean, as a `TensorDataset` of clips C x T x H x W and labels."""
    return TensorDataset(*_tensors(number, frames, size, seed))


@functools.lru_cache(maxsize=4)
def _tensors(number, frames, size, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (number,), generator=generator)
    noise = torch.randn(number, 3, frames, size, size, generator=generator)
    return noise + labels.view(-1, 1, 1, 1, 1), labels


def loader(batch_size=4, shuffle=True, number=CLIPS, **arguments):
    return DataLoader(clips(number), batch_size, shuffle, **arguments)


def sgd(parameters):
    return SGD(parameters, lr=0.1, momentum=0.9)


class Module(L.LightningModule):
    """A plain module: a small 3D CNN with BatchNorm, SGD with momentum, and a scheduler that a test chooses."""

    def __init__(self, schedulers=None, optimizer=None):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.net = self.make_net()
        self.schedulers = schedulers
        self.optimizer = optimizer or sgd
        self.seen = []  # (epoch, batch, shape of the clips, LR in use, loss)
        self.sub_batches = []

    def make_net(self):
        body = nn.Conv3d(3, 6, 3, stride=2, padding=1), nn.BatchNorm3d(6), nn.ReLU(), nn.AdaptiveAvgPool3d(1)
        return nn.Sequential(*body, nn.Flatten(), nn.Dropout(0.1), nn.Linear(6, CLASSES))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        if isinstance(self._trainer, L.Trainer):  # the callback tries a copy without one
            self.seen.append((self.current_epoch, batch_idx, tuple(x.shape), None, loss.item()))
            self.sub_batches.append(shared_clips())
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val", nn.functional.cross_entropy(self.net(x), y))

    def configure_optimizers(self):
        optimizer = self.optimizer(self.parameters())
        optimizer.register_step_post_hook(self.note_lr)
        if self.schedulers is None:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": self.schedulers(optimizer, self)}

    def note_lr(self, optimizer, *_):
        """The LR in use, of all mini-batches of the step."""
        lr = float(optimizer.param_groups[0]["lr"])
        self.seen = [(*place, lr if known is None else known, loss) for *place, known, loss in self.seen]

    @property
    def lrs(self):
        return [lr for *_, lr, _ in self.seen]

    @property
    def shapes(self):
        """Clips x frames x size of each step."""
        return [(shape[0], shape[2], shape[3]) for _, _, shape, _, _ in self.seen]


class Constant(Module):
    """Its metric never improves."""

    def validation_step(self, batch, batch_idx):
        self.log("val", torch.tensor(1.0))


class ByHand:
    """Before a module among the bases of a class: optimizes by hand."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        optimizer.step()


def tells(kind):
    """A class of modules or callbacks, whose `told` gets the name of each hook before it, and "after NAME" after it."""

    def telling(name):
        own = getattr(kind, name)

        @functools.wraps(own)
        def hook(self, *args, **kwargs):
            self.told(name, *args)
            answer = own(self, *args, **kwargs)
            self.told(f"after {name}", *args)
            return answer

        return hook

    others = {"training_step", "validation_step", "backward", "configure_gradient_clipping", "optimizer_zero_grad"}
    others |= {"optimizer_step", "setup", "teardown"}
    names = {name for name in dir(kind) if name.startswith("on_") and callable(getattr(kind, name))} | others
    hooks = {name: telling(name) for name in names if hasattr(kind, name)}
    return type(kind.__name__, (kind,), {"__module__": kind.__module__, "__qualname__": kind.__qualname__, **hooks})


def trainer(*callbacks, **arguments):
    return L.Trainer(**{"accelerator": "cpu", "max_epochs": 4, **QUIET, **arguments}, callbacks=list(callbacks))


def fit(module, *callbacks, train=None, val=None, ckpt_path=None, **arguments):
    """Fits with a fixed seed; returns the Trainer."""
    L.seed_everything(arguments.pop("seed", 0), verbose=False)
    host = trainer(*callbacks, **arguments)
    host.fit(module, loader() if train is None else train, val, ckpt_path=ckpt_path)
    return host


def begin(module, *callbacks, **arguments):
    """Fits as far as the first step, which is left out: all is planned, refused and said by then."""
    leaves = LambdaCallback(on_train_start=lambda host, _: setattr(host, "should_stop", True))
    return fit(module, *callbacks, leaves, **arguments)


def stopping(where):
    """A callback that ends the training after a mini-batch, as scripts do; `where` gets the Trainer and its number."""

    def ends(host, module, outputs, batch, number):
        host.should_stop = where(host, number)

    return LambdaCallback(on_train_batch_end=ends)
