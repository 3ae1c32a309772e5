"""One test for each entry of `lightning_internals`, on Lightning itself: each fails when Lightning changes."""

import gc
import inspect
import re
import signal
import weakref

import lightning as L
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import LambdaCallback, ModelCheckpoint
from lightning.pytorch.loggers import Logger
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.utilities import CombinedLoader

from lightning_multigrid import Baseline, BatchShape, LongCycle, MultigridCallback, MultigridSchedule, Plan, ShortCycle
from lightning_multigrid.training.rehearsal.copies import TrainerView
from lightning_multigrid.training.trainer import lightning_internals
from lightning_multigrid.training.trainer.changes import Changes
from lightning_multigrid.training.trainer.lightning_internals import (
    LoopCounters,
    Place,
    add_steps_elsewhere,
    attach,
    batch_index,
    copy_without_trainer,
    counted_checkpoints,
    global_seed,
    limit_loop,
    loader_seen_as,
    optimizer_overrides,
    reload_every,
    replace_loader,
    request_once,
    slurms_checkpoint,
    splits_data,
    stage_of_training,
    step_is_logged,
    training_source,
)
from tests.helpers.entries import entries
from tests.helpers.tiny import Module, fit, loader, sgd, trainer

OFF_LONG, OFF_SHORT = LongCycle(((1, 1),)), ShortCycle((1,))


def few(number=8):
    """Two mini-batches of 4."""
    return loader(shuffle=False, number=number)


def test_every_entry_names_its_place_and_has_a_test():
    assert "Lightning 2.5.3 to 2." in lightning_internals.__doc__
    for name in entries(lightning_internals):
        test = "test_" + re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
        assert callable(globals()[test])
        assert re.search(r"# `[\w/]+\.pyi?`", inspect.getsource(getattr(lightning_internals, name)))


def test_optimizer_overrides():
    """A module that sees such a strategy returns them, and a single one by itself."""
    module, host = Module(), trainer()
    for number in (1, 2):
        optimizers = [sgd(module.parameters()) for _ in range(number)]
        module.trainer = TrainerView(host, strategy=TrainerView(host.strategy, **optimizer_overrides(optimizers)))
        assert module.optimizers() == (optimizers[0] if number == 1 else optimizers)


def test_splits_data():
    for given in (True, False):
        assert splits_data(trainer(use_distributed_sampler=given)) is given
    assert splits_data(trainer())


class Asks(Module):
    """Makes its loader itself, and asks for the length of the training before Lightning does."""

    asked = 0

    def __init__(self, make=loader):
        super().__init__()
        self.make = make

    def train_dataloader(self):
        self.asked += 1
        return self.make()

    def configure_optimizers(self):
        self.of_script = self.trainer.estimated_stepping_batches
        return super().configure_optimizers()


def test_request_once():
    """Asks again where Lightning has no loader any more, or another one is put in."""
    for callbacks in ([], [MultigridCallback()], [MultigridCallback()]):
        module = Asks()
        trainer(*callbacks, max_epochs=2).fit(module)
        assert (module.asked, module.of_script) == (1, 2 * len(loader()))
    host, module = trainer(max_epochs=1), Asks()
    with Changes() as changes:
        attach(host, module, changes)
        source = training_source(host)
        source.instance = module
        request_once(host, changes)
        first = source.dataloader()
        host.fit_loop._combined_loader = CombinedLoader(first)
        assert source.dataloader() is host.train_dataloader is first
        host.fit_loop._combined_loader = None  # as tuners do
        assert source.dataloader() is not first
        source.instance = other = few()
        assert source.dataloader() is other
    assert "dataloader" not in vars(source)


def test_training_source():
    source, data = training_source(trainer()), few()
    assert {"instance", "name"} <= set(vars(source))
    assert list(inspect.signature(source.dataloader).parameters) == []
    host = fit(Module(), train=data, max_epochs=1)
    assert training_source(host).instance is training_source(host).dataloader() is data
    other, module = few(12), Module()
    host = trainer(at_start(lambda host: setattr(training_source(host), "instance", other)), max_epochs=1)
    host.fit(module, data)
    assert len(module.seen) == 3


def test_a_loader_that_is_seen_goes_with_the_one_that_is_iterated():
    """Without waiting for Python to collect garbage: workers that persist live as long."""
    seen = few()
    held = weakref.ref(seen)
    gc.disable()
    both = loader_seen_as(trainer(), few(), seen)
    del both, seen
    gc.enable()
    assert held() is None


def test_loader_seen_as():
    seen, front = [], few(4)

    class Looking(Module):
        def on_train_batch_end(self, *_):
            seen.append(self.trainer.train_dataloader)
            next(iter(seen[-1]))

    module = Looking()
    host = trainer(max_epochs=2)
    host.fit(module, loader_seen_as(host, few(), front))
    assert [(epoch, batch) for epoch, batch, *_ in module.seen] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(loader is front for loader in [*seen, host.train_dataloader])


def at_start(change, **hooks):
    """Does something to the Trainer when `fit` starts, as our callback does, and in other hooks."""
    hooks["on_fit_start"] = change
    return LambdaCallback(**{name: lambda host, *_, does=does: does(host) for name, does in hooks.items()})


@pytest.mark.parametrize(("first", "later", "requests"), [(0, 0, 1), (-1, 0, 3), (1, 0, 1), (-1, 1, 5)])
def test_reload_every(first, later, requests):
    """The first request is of `configure_optimizers`; at -1 come two more: as the loop is set up, and as it begins."""

    def at(number):
        return lambda host: reload_every(host, number)

    module = Asks(few)
    trainer(at_start(at(first), on_train_epoch_start=at(0), on_train_epoch_end=at(later)), max_epochs=3).fit(module)
    assert (module.asked, module.of_script) == (requests, 6)
    with pytest.raises(MisconfigurationException, match="should be an int >= 0"):
        L.Trainer(reload_dataloaders_every_n_epochs=-1)


def short_plan(**arguments):
    """Two epochs of four steps, where the script has two of eight mini-batches."""
    schedule = MultigridSchedule(Baseline(BatchShape(2, 4, 16), epochs=2), OFF_LONG, OFF_SHORT, epoch_factor=0.5)
    return Plan(schedule, 16, **arguments)


def test_limit_loop():
    changes, module = Changes(), Module()
    set_limits = at_start(lambda host: limit_loop(host, short_plan(), changes))
    arguments = {"train": few(32), "max_epochs": 9, "limit_train_batches": 1}
    host = fit(module, set_limits, max_steps=16, min_steps=6, **arguments)
    assert len(module.seen) == host.max_steps == 8  # and its mini-batches are no longer limited
    assert host.min_steps == 3
    assert [batch for _, batch, *_ in module.seen] == [*range(8)]
    changes.close()
    assert (host.limit_train_batches, host.max_steps, host.min_steps) == (1, 16, 6)
    unlimited = trainer(max_epochs=3)
    unlimited.fit(Module(), few())
    limit_loop(unlimited, short_plan(), changes)
    assert (unlimited.max_steps, unlimited.min_steps) == (-1, None)
    with pytest.raises(AttributeError):
        host.max_steps = 3  # the public way, if there were one


def test_add_steps_elsewhere():
    for limit, steps in ((4, 7), (-1, 10)):
        changes, module = Changes(), Module()
        adds = at_start(lambda host, changes=changes: add_steps_elsewhere(host, 3, changes))
        host = fit(module, adds, train=few(20), max_epochs=2, max_steps=limit)
        assert len(module.seen) == steps
        changes.close()
        assert host.max_steps == limit


def test_batch_index():
    class Asked:
        """Asks where the training is when its first mini-batch is asked for, as our loader does."""

        def __init__(self):
            self.indices = []

        def __len__(self):
            return 2

        def __iter__(self):
            self.indices.append(batch_index(host))
            yield from few()

    found = []
    look = LambdaCallback(on_train_batch_start=lambda host, *given: found.append(batch_index(host) - given[-1]))
    data, host = Asked(), trainer(look, max_epochs=3)
    host.fit(Module(), data)
    assert data.indices == [-1, -1, -1]
    assert {*found} == {0}


class Memory(Logger):
    name, version = "memory", 0

    def __init__(self):
        self.steps = []

    def log_metrics(self, metrics, step=None):
        if "loss" in metrics:
            self.steps.append(step)

    def log_hyperparams(self, params=None):
        """Nowhere."""


@pytest.mark.parametrize("accumulate", [1, 2])
def test_step_is_logged(accumulate):
    logger, steps = Memory(), []
    look = LambdaCallback(on_train_batch_start=lambda host, *_: steps.extend([host.global_step] * step_is_logged(host)))
    arguments = {"accumulate_grad_batches": accumulate, "log_every_n_steps": 3}
    fit(Module(), look, train=few(20), max_epochs=4, logger=logger, **arguments)
    assert logger.steps == sorted({*steps}) == list(range(2, 20 if accumulate == 1 else 12, 3))
    assert not step_is_logged(trainer(log_every_n_steps=0))


def test_global_seed(monkeypatch):
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    host = trainer()
    torch.manual_seed(1)
    drawn = [global_seed(host), global_seed(host)]
    assert len(set(drawn)) == 2
    torch.manual_seed(1)
    assert global_seed(host) == drawn[0]
    L.seed_everything(7, verbose=False)
    assert global_seed(host) == 7


def test_counted_checkpoints():
    callbacks = [ModelCheckpoint(), ModelCheckpoint(every_n_train_steps=50), ModelCheckpoint(every_n_epochs=2)]
    [(name, steps)] = counted_checkpoints(trainer(*callbacks, enable_checkpointing=True))
    assert (name, steps) == ("`every_n_train_steps=50` of ModelCheckpoint", 50)


def test_slurms_checkpoint(tmp_path):
    host = trainer(default_root_dir=tmp_path)
    assert slurms_checkpoint(host) == set()
    host.strategy.connect(Module())
    for _ in range(10):
        host.save_checkpoint(path := host._checkpoint_connector.hpc_save_path(str(tmp_path)))
    assert slurms_checkpoint(host) == {path} == {str(tmp_path / "hpc_ckpt_10.ckpt")}
    with pytest.warns(UserWarning, match="no last checkpoint available"):
        fit(Module(), max_epochs=1, default_root_dir=tmp_path, ckpt_path="last")  # Lightning itself doesn't look at it
    assert "_find_last_checkpoints" in vars(ModelCheckpoint)


def test_attach():
    host, module = trainer(), Module()
    with pytest.raises(RuntimeError, match="not attached"):
        module.trainer  # noqa: B018
    before = dict(vars(host))
    with Changes() as changes:
        attach(host, module, changes)
        training_source(host).instance = few()
        assert module.trainer.estimated_stepping_batches == 4 * 2
        assert host.lightning_module is module
    assert vars(host) == before
    with pytest.raises(RuntimeError, match="not attached"):
        module.trainer  # noqa: B018


def test_replace_loader():
    data, other, asked = few(), few(12), []
    # Lightning requests the loader for that.
    asks = at_start(lambda host: asked.append(host.estimated_stepping_batches))
    with Changes() as changes:
        module = Module()
        trainer(asks, at_start(lambda host: replace_loader(host, other, changes)), max_epochs=1).fit(module, data)
        assert asked == [2]
        assert len(module.seen) == 3


def test_stage_of_training():
    host = trainer()
    host.validating = True
    with stage_of_training(host):
        assert host.training
    assert host.validating
    assert not host.training


def test_copy_without_trainer():
    module = Module()
    fit(module, train=few(), max_epochs=1)
    copied = copy_without_trainer(module, {id(parameter): parameter for parameter in module.parameters()})
    assert module.trainer.current_epoch == 1
    with pytest.raises(RuntimeError, match="not attached"):
        copied.trainer  # noqa: B018
    assert all(a is b for a, b in zip(copied.parameters(), module.parameters(), strict=True))
    assert not any(a is b for a, b in zip(copied.buffers(), module.buffers(), strict=True))


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
def test_loop_counters(tmp_path):
    def saver(**arguments):
        return ModelCheckpoint(tmp_path, save_top_k=-1, auto_insert_metric_name=False, **arguments)

    def first_after(checkpoint):
        torch.save(checkpoint, tmp_path / "moved.ckpt")
        module = Module()
        fit(module, train=few(20), ckpt_path=tmp_path / "moved.ckpt")
        return module.seen[0][:2]

    def load(name):
        return torch.load(tmp_path / f"{name}.ckpt", weights_only=True)

    steps, ends = saver(every_n_train_steps=1, filename="{step}"), saver(filename="end {epoch}")
    fit(Module(), steps, ends, train=few(20), enable_checkpointing=True)  # 5 batches in an epoch
    for name, place, done in (("3", Place(0, 3), 3), ("5", Place(1, 0), 5), ("end 1", Place(2, 0), 10)):
        counters = LoopCounters(load(name))
        assert (counters.place, counters.optimizer_steps) == (place, done)
        assert first_after(load(name)) == place
    for name, place in (("3", Place(2, 1)), ("7", Place(1, 0)), ("end 0", Place(3, 4))):
        checkpoint = load(name)
        LoopCounters(checkpoint).move(place)
        assert LoopCounters(checkpoint).place == first_after(checkpoint) == place
    checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"] = [{}]
    LoopCounters(checkpoint).forget_loader()
    assert "combined_loader" not in checkpoint["loops"]["fit_loop"]["state_dict"]


def test_handle_from_now_on():
    def ours(number, frame):
        pass

    def sets(host, *_):
        lightning_internals.handle_from_now_on(host, signal.SIGUSR2, ours)
        signal.signal(signal.SIGALRM, ours)

    before = [signal.getsignal(number) for number in (signal.SIGUSR2, signal.SIGALRM)]
    try:
        fit(Module(), LambdaCallback(on_train_batch_end=sets), max_epochs=1)
        assert [signal.getsignal(number) for number in (signal.SIGUSR2, signal.SIGALRM)] == [ours, before[1]]
    finally:
        signal.signal(signal.SIGUSR2, before[0])


def test_requeue_signals(monkeypatch):
    assert lightning_internals.requeue_signals(trainer()) == set()
    for name, value in {"NTASKS": "1", "JOB_NAME": "train", "PROCID": "0", "LOCALID": "0"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    host = trainer(plugins=[SLURMEnvironment(requeue_signal=signal.SIGUSR2)])
    assert lightning_internals.requeue_signals(host) == {signal.SIGUSR2}
