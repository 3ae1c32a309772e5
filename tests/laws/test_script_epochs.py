"""An epoch is the script's epoch: what counts epochs does what it does in plain Lightning on a loader of that length.

Each story of a run is compared with that of a run without the callback, whose loader has as many mini-batches.
"""

from fractions import Fraction
from itertools import product

import lightning as L
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import callbacks
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau
from torch.utils.data import DataLoader

from lightning_multigrid import LongCycle, MultigridCallback, ShortCycle
from tests.helpers.sampling import sampled
from tests.helpers.tiny import Module, clips, fit, loader

pytestmark = [
    pytest.mark.usefixtures("_unrehearsed"),
    pytest.mark.filterwarnings("ignore:Found .* module", "ignore:.*`ModelCheckpoint\\(monitor"),
]
EPOCHS = 7


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # checkpoints that no test asks for


class Story(L.Callback):
    """Notes what happens: each hook with the epoch, the steps so far, and the mini-batch."""

    def __init__(self):
        self.events = []

    def note(self, name, trainer, *details):
        self.events.append((name, trainer.current_epoch, trainer.global_step, trainer.is_last_batch, *details))

    def on_train_start(self, trainer, module):
        self.note("train start", trainer, trainer.max_epochs, trainer.num_training_batches, trainer.val_check_batch)

    def on_train_epoch_start(self, trainer, module):
        self.note("epoch start", trainer)

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.note("batch", trainer, batch_idx)

    def on_validation_start(self, trainer, module):
        self.note("validation", trainer, trainer.sanity_checking)

    def on_train_epoch_end(self, trainer, module):
        self.note("epoch end", trainer)

    def on_save_checkpoint(self, trainer, module, checkpoint):
        self.note("checkpoint", trainer, checkpoint["epoch"], checkpoint["global_step"])

    def on_train_end(self, trainer, module):
        self.note("train end", trainer, trainer.should_stop)


class Scored(Module):
    """Its metric gets worse from the third validation on."""

    def __init__(self, schedulers=None):
        super().__init__(schedulers)
        self.validations, self.backbone = 0, self.net[:2]

    def on_validation_start(self):
        self.validations += not self.trainer.sanity_checking

    def validation_step(self, batch, batch_idx):
        self.log("val", torch.tensor(float(abs(self.validations - 3))))


def story(*used, batches=None, schedulers=None, **arguments):
    """The story of a script with these callbacks: by multigrid, or plain with so many mini-batches in an epoch."""
    seen, module = Story(), Scored(schedulers)
    multigrid = [] if batches else [MultigridCallback(long_cycle=LongCycle(((0.5, 0.5), (1, 1))))]
    train = DataLoader(clips(2 * batches, 4, 16), 2) if batches else DataLoader(clips(100, 4, 16), 4, shuffle=True)
    given = {"val": DataLoader(clips(8, 4, 16), 4), "enable_checkpointing": True, "max_epochs": EPOCHS} | arguments
    host = fit(module, *multigrid, *used, seen, train=train, **given)
    told = [value for one in used for value in getattr(one, "told", ())]
    return seen.events, told, multigrid[0].run.plan if multigrid else None, host


class Pruning(callbacks.ModelPruning):
    def __init__(self, apply):
        super().__init__("l1_unstructured", parameters_to_prune=None, amount=self.amount_of, apply_pruning=apply)
        self.told = []

    def amount_of(self, epoch):
        self.told.append(epoch)
        return 0.1


class Unfreezing(callbacks.BaseFinetuning):
    def __init__(self):
        super().__init__()
        self.told = []

    def freeze_before_training(self, module):
        self.freeze(module.backbone)

    def finetune_function(self, module, epoch, optimizer):
        self.told.append(epoch)


class Curriculum(L.Callback):
    def __init__(self):
        self.told = []

    def on_train_epoch_start(self, trainer, module):
        if (trainer.current_epoch + 1) % 4 == 0:
            self.told.append((trainer.current_epoch, trainer.max_epochs))


def saving(**arguments):
    return lambda folder: callbacks.ModelCheckpoint(folder, save_top_k=-1, filename="{epoch}-{step}", **arguments)


def averaging(_):
    class Averages(callbacks.WeightAveraging):
        def should_update(self, step_idx=None, epoch_idx=None):
            return epoch_idx is not None and epoch_idx >= 3

    return Averages(use_buffers=False)


CASES = {  # `own` makes a callback for a folder
    "nothing": {},
    "check_val_every_n_epoch": {"check_val_every_n_epoch": 3},
    "val_check_interval=0.25": {"val_check_interval": 0.25},
    "val_check_interval=0.4 of every second": {"val_check_interval": 0.4, "check_val_every_n_epoch": 2},
    "accumulation": {"accumulate_grad_batches": 3, "val_check_interval": 0.5},
    "ModelCheckpoint": {"own": saving()},
    "ModelCheckpoint, every_n_epochs": {"own": saving(every_n_epochs=3)},
    "ModelCheckpoint, best": {"own": lambda folder: callbacks.ModelCheckpoint(folder, monitor="val")},
    "ModelCheckpoint, last": {"own": saving(save_last=True, save_on_train_epoch_end=True)},
    "BaseFinetuning": {"own": lambda _: Unfreezing()},
    "ModelPruning": {"own": lambda _: Pruning(lambda epoch: epoch % 2 == 0)},
    "your own, every fourth epoch": {"own": lambda _: Curriculum()},
    "WeightAveraging by epochs": {"own": averaging},
    "LearningRateMonitor": {"own": lambda _: callbacks.LearningRateMonitor("epoch"), "logger": True},
}


@pytest.mark.parametrize(
    "name", sampled(CASES, "val_check_interval=0.25", "accumulation", "ModelCheckpoint, every_n_epochs", "ModelPruning")
)
def test_the_story_of_a_run_is_that_of_lightning_on_a_loader_of_its_length(name, tmp_path):
    if "WeightAveraging" in name and not hasattr(callbacks, "WeightAveraging"):
        pytest.skip("new in Lightning 2.6")
    arguments, folders = dict(CASES[name]), [tmp_path / run for run in ("multigrid", "plain")]
    own = arguments.pop("own", None)
    if arguments.get("logger"):
        arguments["logger"] = L.pytorch.loggers.CSVLogger(tmp_path)
    made = [[own(folder)] if own else [] for folder in folders]
    events, told, plan, _ = story(*made[0], **arguments)
    its, its_told, _, _ = story(*made[1], batches=plan.batches_per_epoch, **arguments)
    assert events == its
    assert told == its_told
    assert len({event[1] for event in events}) == EPOCHS + ("train end" in {event[0] for event in events})
    if all(map(type(tmp_path).exists, folders)):
        names = [sorted(path.name for path in folder.iterdir()) for folder in folders]
        assert names[0] == names[1] != []


@pytest.mark.parametrize(
    ("kind", "frequency"),
    sampled(list(product((ExponentialLR, ReduceLROnPlateau), (1, 2))), (ExponentialLR, 2), (ReduceLROnPlateau, 1)),
)
def test_schedulers_tick_at_lightnings_epochs(kind, frequency):
    """And a plateau that goes by epochs sees the validation of each."""

    def schedulers(optimizer, module):
        scheduler = kind(optimizer, **({"gamma": 0.5} if kind is ExponentialLR else {"patience": 0, "factor": 0.5}))
        return {"scheduler": scheduler, "monitor": "val", "frequency": frequency}

    lrs = []
    for batches in (None, 10):
        of_epochs = L.pytorch.callbacks.LambdaCallback(
            on_train_epoch_start=lambda host, _: lrs[-1].append(host.optimizers[0].param_groups[0]["lr"])
        )
        lrs.append([])
        *_, plan, _ = story(of_epochs, batches=batches, schedulers=schedulers)
        assert plan is None or plan.batches_per_epoch == 10
    assert lrs[0] == pytest.approx(lrs[1])
    assert len(set(lrs[0])) > 2


def test_early_stopping_waits_for_min_epochs():
    """The fine-tuning begins at 3.5 of 7 epochs."""
    _, _, _, host = story(callbacks.EarlyStopping("val", patience=1), min_epochs=6)
    assert host.current_epoch == 6


class Manual(Scored):
    def __init__(self, number=1):
        super().__init__()
        self.automatic_optimization, self.number = False, number

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        if isinstance(self._trainer, L.Trainer):
            self.net.zero_grad()
            self.manual_backward(loss)
            for optimizer in [self.optimizers()] if self.number == 1 else self.optimizers():
                optimizer.step()
        return loss

    def configure_optimizers(self):
        return [torch.optim.SGD(self.net[layer].parameters(), 0.1) for layer in (0, 6)[: self.number]]


# 100 clips in batches of 4, two batches per optimizer step: 13 optimizer steps an epoch.
@pytest.mark.parametrize(("steps", "whole", "part", "accumulate"), [(60, 2, 10, 1), (50, 2, 0, 1), (45, 3, 12, 2)])
def test_max_steps_end_the_run_at_the_same_point_of_the_epoch(steps, whole, part, accumulate):
    """Of 25 mini-batches."""
    module, callback = Scored(), MultigridCallback()
    host = fit(module, callback, max_epochs=-1, max_steps=steps, accumulate_grad_batches=accumulate)
    assert (host.max_epochs, host.max_steps) == (-1, steps)  # again
    plan = callback.run.plan
    assert plan.schedule.baseline.epochs == whole + Fraction(part, 25)
    wanted = [plan.batches_per_epoch] * whole
    wanted += [accumulate * -(-plan.steps_per_epoch * part // 25)] * bool(part)
    assert [[epoch for epoch, *_ in module.seen].count(epoch) for epoch in range(len(wanted))] == wanted
    assert len(module.seen) == sum(wanted) == sum(plan.phase_steps)
    assert module.seen[-1][2][2] == 8  # in the fine-tuning


@pytest.mark.parametrize(("number", "epochs"), [(1, -1), (2, 2)])
def test_max_steps_by_hand_say_nothing_of_the_length(number, epochs):
    """A script may step after several mini-batches, or several times in each."""
    message = "`max_steps=60` counts each `step` of an optimizer .* under manual .* Give the Trainer `max_epochs` alone"
    with pytest.raises(MisconfigurationException, match=message):
        fit(Manual(number), MultigridCallback(), max_epochs=epochs, max_steps=60)
    assert fit(Manual(number), MultigridCallback(), max_epochs=2).current_epoch == 2


def test_the_story_of_a_run_that_ends_within_an_epoch_is_lightnings_too():
    events, _, plan, _ = story(max_epochs=-1, max_steps=60)
    its, *_ = story(batches=plan.batches_per_epoch, max_epochs=-1, max_steps=plan.optimizer_steps)
    assert events == its


def test_what_is_written_as_numbers_of_mini_batches_is_converted():
    """12 of the script's 25 mini-batches, and so on."""
    callback, seen = MultigridCallback(short_cycle=ShortCycle((1,))), Story()
    arguments = {"val_check_interval": 12, "min_steps": 60, "log_every_n_steps": 5, "max_epochs": 3}
    names, told = ("val_check_batch", "min_steps", "log_every_n_steps"), []
    look = callbacks.LambdaCallback(on_train_start=lambda host, _: told.extend(getattr(host, name) for name in names))
    host = fit(Scored(), callback, seen, look, val=loader(shuffle=False, number=8), **arguments)
    length = callback.run.plan.batches_per_epoch
    assert told == [round(of_script * length / 25) for of_script in (12, 60, 5)]
    assert (host.min_steps, host.val_check_interval, host.log_every_n_steps) == (60, 12, 5)
    assert [event[0] for event in seen.events].count("validation") == 1 + 3 * (length // round(12 * length / 25))
