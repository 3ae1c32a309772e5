"""Precise BatchNorm against brute force over the clips, and what it must not touch."""

import copy
import multiprocessing
from functools import partial
from itertools import product

import lightning as L
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, callbacks
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import nn
from torch.optim import SGD
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from lightning_multigrid import LongCycle, MultigridCallback, NewestCheckpoint
from lightning_multigrid.loading import MultigridSampler, baseline_sampler, derive_seed, order_of
from lightning_multigrid.norm.population import tracking_layers
from tests.helpers import tiny
from tests.helpers.interrupts import ctrl_c, stopped
from tests.helpers.processes import ddp_of_this_process
from tests.helpers.sampling import sampled
from tests.helpers.tiny import CLASSES, ByHand, Module, clips, loader, trainer

pytestmark = pytest.mark.usefixtures("_unrehearsed")

NUMBER = 64
ALL = NUMBER // 4  # mini-batches of 4
STATISTICS = ("net.1.running_mean", "net.1.running_var")


def fit(*arguments, **options):
    return tiny.fit(*arguments, **{"max_epochs": 2} | options)  # three epochs of multigrid


def train(**arguments):
    return loader(number=NUMBER, **arguments)


def val():
    return loader(shuffle=False, number=16)


def statistics(state):
    return [state[name] for name in STATISTICS]


def brute_force(state, add=0):
    """Mean and variance of the first BatchNorm layer's inputs over all clips at once, in float64."""
    conv = nn.Conv3d(3, 6, 3, stride=2, padding=1).double()
    conv.load_state_dict({name: state[f"net.0.{name}"].double() for name in ("weight", "bias")})
    with torch.no_grad():
        values = conv(clips(NUMBER).tensors[0].double() + add).transpose(0, 1).flatten(1)
    return [values.mean(dim=1), values.var(dim=1, correction=0)]


def check(module, add=0, **weights):
    """Refuses other statistics than those of all clips at once, with the module's weights."""
    state = module.state_dict()
    expected = [value.float() for value in brute_force(state | weights, add)]
    assert_close(statistics(state), expected, rtol=2e-5, atol=1e-4)


class Snapshots(Callback):
    """The statistics that each validation is made with, and a brute force for its weights."""

    def __init__(self):
        self.before, self.after = [], []  # what the module holds before they are written, and after

    def on_validation_start(self, trainer, pl_module):
        if not trainer.sanity_checking:
            self.before.append(copy.deepcopy(pl_module.state_dict()))

    def on_validation_batch_start(self, trainer, pl_module, batch, batch_idx, dataloader_idx=0):
        if batch_idx == 0 and not trainer.sanity_checking:
            self.after.append(copy.deepcopy(pl_module.state_dict()))

    @property
    def found(self):
        return [statistics(state) for state in self.after]

    @property
    def expected(self):
        return [[value.float() for value in brute_force(state)] for state in self.after]


# --- What is estimated ---


@pytest.mark.parametrize("workers", sampled([0, 1], 1))
def test_every_validation_has_the_statistics_of_all_clips(workers):
    seen, module = Snapshots(), Module()
    before = set(multiprocessing.active_children())  # of other tests
    callback, arguments = MultigridCallback(precise_bn_batches=ALL), {"val": val(), "val_check_interval": 0.5}
    fit(module, callback, seen, train=train(num_workers=workers), **arguments)
    assert len(seen.found) == 4  # also in the middle of epochs
    assert_close(seen.found, seen.expected, rtol=2e-5, atol=1e-4)
    # The moving average, which the baseline keeps, is far from them.
    without = Snapshots()
    fit(Module(), MultigridCallback(), without, train=train(), val=val())
    worst = max(((f - e) / e).abs().max() for f, e in zip(without.found[-1], without.expected[-1], strict=True))
    assert worst > 0.02
    assert set(multiprocessing.active_children()) <= before


def sampler_of(callback):
    """The one that a run with this callback had."""
    plan = callback.run.plan
    return MultigridSampler(plan, order_of(train(), plan.seed))


class TwoLayers(Module):
    def make_net(self):
        net, second = super().make_net(), nn.Conv3d(6, 5, 3, padding=1)
        return nn.Sequential(*net[:3], second, nn.BatchNorm3d(5), *net[3:5], nn.Linear(5, CLASSES))


def test_deep_layers_see_clips_that_are_normalised_as_in_training():
    """Mini-batch by mini-batch: the first layer normalises by its own, the second one's inputs are pooled."""
    module = TwoLayers()
    callback = MultigridCallback(precise_bn_batches=5, seed=3)
    fit(module, callback, train=train(), val=val(), precision="64-true")
    training = sampler_of(callback)
    last = training.number_of(training.plan.epoch(training.plan.epochs - 1)[-1])
    sampler = baseline_sampler(training, 5, last, seed=derive_seed(3, 1))
    data = clips(NUMBER).tensors[0].double()
    batches = [[request.index for request in requests] for requests in sampler]
    assert len({index for batch in batches for index in batch}) == 20
    hidden = []
    with torch.no_grad():
        for batch in batches:
            x = module.net[0](data[batch])
            x = nn.functional.batch_norm(x, None, None, *module.net[1].parameters(), training=True)
            hidden.append(module.net[3](x.relu()).transpose(0, 1).flatten(1))
    values = torch.cat(hidden, dim=1)
    assert_close(module.net[4].running_mean, values.mean(dim=1), rtol=1e-9, atol=1e-9)
    assert_close(module.net[4].running_var, values.var(dim=1, correction=0), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("baseline", [False, True])
def test_a_training_without_validations_and_checkpoints_ends_with_the_statistics_too(baseline):
    module = Module()
    make = MultigridCallback.baseline if baseline else MultigridCallback
    fit(module, make(precise_bn_batches=ALL), train=train())
    check(module)


# --- What is not touched ---


@pytest.mark.parametrize(
    "arguments", [pytest.param({}, marks=pytest.mark.slow), {"accumulate_grad_batches": 2, "val_check_interval": 0.3}]
)
def test_training_is_the_same_to_the_bit(arguments):
    """Dropout, gradients that wait for their optimizer step, and metrics of training among it."""
    modules = []
    for batches in (None, 3):
        modules.append(Module())
        host = fit(modules[-1], MultigridCallback(precise_bn_batches=batches), train=train(), val=val(), **arguments)
        modules[-1].logged = float(host.callback_metrics["loss"])
    plain, precise = modules
    assert (plain.seen, plain.logged) == (precise.seen, precise.logged)
    for (name, ours), theirs in zip(precise.state_dict().items(), plain.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs) is (name not in STATISTICS), name


@pytest.mark.rehearsed
def test_hooks_of_the_module_are_called_for_its_own_mini_batches_alone():
    """Neither for those of the rehearsal nor for those of the estimate, which a copy gets."""

    class Counting(Module):
        before = after = 0

        def on_before_batch_transfer(self, batch, dataloader_idx):
            self.before += self.trainer.training
            return batch

        def on_after_batch_transfer(self, batch, dataloader_idx):
            self.after += self.trainer.training
            return batch

    module = Counting()
    host = fit(module, MultigridCallback(precise_bn_batches=3), train=train(), val=val())
    assert module.before == module.after == host.global_step


class Frozen(Module):
    def on_train_epoch_start(self):
        self.net[1].eval()


class FrozenInStep(Module):
    def training_step(self, batch, batch_idx):
        self.net[1].eval()
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("kind", [Frozen, FrozenInStep])
def test_frozen_layers_keep_their_statistics(kind):
    module = kind()
    before = copy.deepcopy(statistics(module.state_dict()))
    fit(module, MultigridCallback(precise_bn_batches=3), train=train(), val=val())
    assert all(map(torch.equal, statistics(module.state_dict()), before))


# --- Checkpoints ---


def test_a_checkpoint_is_what_was_validated(tmp_path):
    """Also in the middle of an epoch, and where checkpoints and validations come in each other's way."""
    scores, saver = [], ModelCheckpoint(tmp_path, filename="{epoch}-{step}", save_top_k=-1)
    look = callbacks.LambdaCallback(
        on_validation_end=lambda host, _: scores.append(host.callback_metrics["val"].item())
    )
    arguments = {"val_check_interval": 0.5, "enable_checkpointing": True, "num_sanity_val_steps": 0}
    fit(Module(), MultigridCallback(precise_bn_batches=3), look, saver, train=train(), val=val(), **arguments)
    files = sorted(tmp_path.iterdir(), key=lambda file: file.stat().st_mtime_ns)
    assert len(files) == len(scores) == 4
    for file, score in zip(files, scores, strict=True):
        module = Module()
        module.load_state_dict(torch.load(file, weights_only=True)["state_dict"])
        [metrics] = trainer().validate(module, val(), verbose=False)
        assert metrics["val"] == score


def test_a_checkpoint_of_steps_has_the_moving_average_and_one_of_the_end_the_statistics(tmp_path):
    """To re-estimate for each would cost as much as many steps. They continue the same, whatever was saved."""
    states = []
    for batches in (None, ALL):
        callback = MultigridCallback(precise_bn_batches=batches)
        saver = ModelCheckpoint(tmp_path / str(batches), save_top_k=-1, every_n_train_steps=4, filename="{step}")
        newest = NewestCheckpoint(tmp_path / f"newest-{batches}")
        fit(Module(), callback, saver, newest, train=train(), enable_checkpointing=True)
        files = [*sorted((tmp_path / str(batches)).iterdir()), tmp_path / f"newest-{batches}" / "last.ckpt"]
        states.append([torch.load(file, weights_only=True)["state_dict"] for file in files])
    (*plain, _), (*precise, end) = states
    assert len(precise) > 1
    assert_close(precise, plain, rtol=0, atol=0)
    assert_close(statistics(end), [s.float() for s in brute_force(end)], rtol=2e-5, atol=1e-4)


class Validated(Frozen):
    """Notes what it validates, and may be stopped in its second validation, of four mini-batches."""

    def __init__(self, frozen, fails=False):
        super().__init__()
        self.frozen, self.fails = frozen, fails
        self.validated = []

    def on_train_epoch_start(self):
        if self.frozen:
            super().on_train_epoch_start()

    def validation_step(self, batch, batch_idx):
        super().validation_step(batch, batch_idx)
        if not self.trainer.sanity_checking:
            self.validated.append((self.current_epoch, batch_idx, *map(torch.Tensor.tolist, self.statistics)))
        if self.fails and len(self.validated) == 6:
            ctrl_c()

    @property
    def statistics(self):
        return statistics(self.state_dict())


@pytest.mark.parametrize("frozen", [False, True])
def test_a_validation_that_begins_anew_has_the_statistics_of_its_checkpoint(frozen, tmp_path):
    """The modes of the layers, and the step after which they were, are not known any more."""

    def run(folder, fails=False, **arguments):
        module = Validated(frozen, fails)
        both = MultigridCallback(precise_bn_batches=3), NewestCheckpoint(folder)
        fit(module, *both, train=train(), val=val(), enable_checkpointing=True, **arguments)
        return module

    whole = run(tmp_path / "whole")
    with stopped():
        run(tmp_path, fails=True)
    resumed = run(tmp_path, ckpt_path="last")
    assert resumed.validated == whole.validated[4:]
    assert all(map(torch.equal, resumed.statistics, whole.statistics))


@pytest.mark.skipif(not hasattr(callbacks, "EMAWeightAveraging"), reason="new in Lightning 2.6")
@pytest.mark.parametrize(
    ("updated", "validated", "first"),
    sampled(
        [*product(("epochs", "steps"), (True, False), (True, False))],
        *(("epochs", True, False), ("steps", True, False), ("steps", False, True)),
    ),
)
def test_averaged_weights_are_validated_and_end_with_their_own_statistics(updated, validated, first):
    class ByEpoch(callbacks.WeightAveraging):
        def should_update(self, step_idx=None, epoch_idx=None):
            return epoch_idx is not None  # after the epoch's validation

    average = ByEpoch() if updated == "epochs" else callbacks.EMAWeightAveraging(decay=0.5)
    both, seen, module = [average, MultigridCallback(precise_bn_batches=ALL)], Snapshots(), Module()
    fit(module, *(both if first else both[::-1]), seen, train=train(), val=val() if validated else None)
    assert bool(seen.found) == validated
    assert_close(seen.found, seen.expected, rtol=2e-5, atol=1e-4)
    check(module)


# --- Modules of every kind ---


class Pair(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, pathways):
        return self.net(pathways["fast"])


class Dicts(Module):
    """Batches that no guess about their structure would run."""

    def make_net(self):
        return Pair(super().make_net())

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self.net({"fast": batch["x"], "slow": batch["x"][:, :, ::2]}), batch["y"])
        self.log("loss", loss, sync_dist=True)
        return loss

    validation_step = training_step


class DictClips(TensorDataset):
    def __getitem__(self, index):
        return dict(zip("xy", super().__getitem__(index), strict=True))


class Collecting(Module):
    """Keeps the losses of an epoch with their graphs, as Lightning 2 asks for in the place of `training_epoch_end`."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def training_step(self, batch, batch_idx):
        self.losses.append(super().training_step(batch, batch_idx))
        return self.losses[-1]

    def on_train_epoch_end(self):
        self.log("mean", torch.stack(self.losses).mean())
        self.losses.clear()


class Silent(Module):
    """Logs nothing, which can't be compiled."""

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch.compile's own
@pytest.mark.parametrize(
    "kind",
    [Dicts, Collecting, pytest.param(Silent, marks=pytest.mark.slow)],  # it compiles
)
def test_modules_of_every_kind(kind):
    module = kind()
    data = DictClips(*clips(NUMBER).tensors) if kind is Dicts else clips(NUMBER)
    L.seed_everything(0, verbose=False)
    fitted = torch.compile(module, backend="eager", dynamic=True) if kind is Silent else module
    host = trainer(MultigridCallback(precise_bn_batches=ALL), max_epochs=1)
    host.fit(fitted, DataLoader(data, 4, shuffle=True), DataLoader(data, 4))
    state = {f"net.{name.rpartition('net.')[2]}": p for name, p in module.state_dict().items()}
    state = {name.replace("_orig_mod.", ""): value for name, value in state.items()}
    [layer] = tracking_layers(module).values()
    assert_close([layer.running_mean, layer.running_var], [s.float() for s in brute_force(state)], rtol=2e-5, atol=1e-4)


class WeightNorm(Module):
    """Its first weights are made of others by a hook, before each `forward`."""

    def make_net(self):
        net = super().make_net()
        net[0] = nn.utils.weight_norm(net[0])
        return net


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
def test_weights_that_a_hook_makes_are_those_of_the_last_step():
    module = WeightNorm()
    fit(module, MultigridCallback(precise_bn_batches=ALL), train=train())
    state = module.state_dict()
    direction, length = state["net.0.weight_v"], state["net.0.weight_g"]
    norms = direction.flatten(1).norm(dim=1).view_as(length)
    check(module, **{"net.0.weight": direction * length / norms})


class Curriculum(Module):
    """Brightens the clips of its second and last epoch."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        return super().training_step((x + 10 * self.current_epoch, y), batch_idx)


class Brightens(ByHand, Module):
    """Optimizes by hand, and brightens its clips in the step."""

    def training_step(self, batch, batch_idx):
        super().training_step((batch[0] + 10, batch[1]), batch_idx)


@pytest.mark.parametrize("kind", [Curriculum, Brightens])
def test_a_step_finds_the_epoch_of_the_last_step_also_at_the_end_and_moves_nothing_by_hand(kind):
    """So the statistics have what it does to clips, and are those of the weights after the last step."""
    module, seen = kind(), Snapshots()
    fit(module, MultigridCallback(precise_bn_batches=ALL), train=train())
    check(module, add=10)
    fit(kind(), MultigridCallback(precise_bn_batches=ALL), seen, train=train(), val=val())
    if kind is Curriculum:  # after the first epoch, whose clips are as they are
        assert_close(seen.found[0], seen.expected[0], rtol=2e-5, atol=1e-4)


class Teacher(Module):
    """Its step moves a teacher after the student, as BYOL, MoCo and mean teachers do, and a queue."""

    def __init__(self, momentum=0.9):
        super().__init__()
        self.teacher, self.momentum = self.make_net().requires_grad_(False), momentum
        self.register_buffer("queue", torch.zeros(8))

    def training_step(self, batch, batch_idx):
        with torch.no_grad():
            for own, followed in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
                own.lerp_(followed, 1 - self.momentum)
            self.queue = torch.cat([self.queue[1:], self.teacher(batch[0]).mean()[None]])
        return super().training_step(batch, batch_idx)


def test_a_teacher_stays_where_it_is_to_the_bit():
    held, module = Snapshots(), Teacher()
    fit(module, MultigridCallback(precise_bn_batches=ALL), held, train=train(), val=val())
    assert len(held.before) == 2
    for before, after in zip(held.before, held.after, strict=True):
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        assert changed == {f"{net}.1.{name}" for net in ("net", "teacher") for name in ("running_mean", "running_var")}
    assert not torch.equal(module.teacher[0].weight, module.net[0].weight)


def test_a_teacher_that_moves_in_the_clone_is_seen_with_its_own_weights_by_each_mini_batch():
    """But for what one step moves it: here a tenth of the way to the student."""
    module = Teacher()
    fit(module, MultigridCallback(precise_bn_batches=ALL), train=train())
    state = module.state_dict()
    moved = {name: torch.lerp(state[f"teacher.0.{name}"], state[f"net.0.{name}"], 0.1) for name in ("weight", "bias")}
    found = [state["teacher.1.running_mean"], state["teacher.1.running_var"]]
    expected = brute_force({f"net.0.{name}": value for name, value in moved.items()})
    assert_close(found, [value.float() for value in expected], rtol=2e-5, atol=1e-4)


class NoWay(Module):
    """No copy of it runs."""

    def training_step(self, batch, batch_idx):
        if not isinstance(self.trainer, L.Trainer):
            raise RuntimeError("a copy")
        return super().training_step(batch, batch_idx)


class Aside(Module):
    """Its BatchNorm is not part of what a step computes."""

    def __init__(self):
        super().__init__()
        self.net[1] = nn.Identity()
        self.aside = nn.BatchNorm3d(6)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Aside, r"runs `training_step` of Aside on a copy of the module, but no BatchNorm layer is reached\. Let"),
        (NoWay, r"runs `training_step` of NoWay on a copy .*, but that fails with RuntimeError: a copy\. Let the step"),
    ],
)
def test_modules_that_cannot_be_estimated_are_refused_before_the_first_step(kind, message):
    module = kind()
    with pytest.raises(MisconfigurationException, match=message):
        fit(module, MultigridCallback(precise_bn_batches=3), train=train())
    assert module.seen == []


def test_sharded_models_are_refused():
    late = type("Late", (SingleDeviceStrategy,), {"restore_checkpoint_after_setup": True})  # as those do that shard
    with pytest.raises(MisconfigurationException, match="needs a copy of the module, but Late shards it. Leave the"):
        trainer(MultigridCallback(precise_bn_batches=2), strategy=late("cpu")).fit(Module(), loader())


# --- Ranks ---


class OnRanks(TwoLayers):
    """Keeps its weights, and writes down its statistics on each rank."""

    def __init__(self, folder):
        super().__init__(optimizer=partial(SGD, lr=0.0))
        self.folder = str(folder)
        self.before, self.validated = [], []

    def statistics(self):
        return copy.deepcopy([buffer for name, buffer in self.named_buffers() if "running" in name])

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.last = self.statistics()

    def on_validation_batch_start(self, batch, batch_idx):
        if batch_idx == 0 and not self.trainer.sanity_checking:
            self.before.append(self.last)
            self.validated.append(self.statistics())

    def on_train_end(self):
        name = f"{self.folder}/{self.trainer.world_size}-{self.global_rank}.pt"
        torch.save((self.before, self.validated, self.statistics()), name)


# Forks have the filters of this process, in which warnings are errors.
RANKS = pytest.mark.filterwarnings("ignore:.*sync_dist=True", "ignore:This process .* is multi-threaded")


def fit_on_ranks(folder, world, batch_size, **arguments):
    strategy = {"strategy": ddp_of_this_process(), "devices": world} if world > 1 else {}
    callback = MultigridCallback(seed=5, long_cycle=LongCycle(((1, 1),)), **arguments)
    host = trainer(callback, precision="64-true", max_epochs=2, **strategy)
    host.fit(OnRanks(folder), train(batch_size=batch_size), train(batch_size=batch_size, shuffle=False))
    return [torch.load(f"{folder}/{world}-{rank}.pt") for rank in range(world)]


@RANKS
@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_estimate_what_one_does(tmp_path, world):
    """Ranks with fewer clips than a sub-mini-batch share its statistics; the order is of the global mini-batch."""
    [(_, expected, _)] = fit_on_ranks(tmp_path, 1, 8, precise_bn_batches=4)
    ranks = fit_on_ranks(tmp_path, world, 8 // world, precise_bn_batches=4)
    for _, validated, last in ranks:
        assert_close(validated, expected, rtol=1e-9, atol=1e-9)
        assert_close(last, expected[-1], rtol=1e-9, atol=1e-9)
        assert len(validated) == 2
    assert all(torch.equal(*pair) for pair in zip(ranks[0][2], ranks[1][2], strict=True))


@RANKS
def test_ranks_with_statistics_of_their_own_are_averaged_for_validation(tmp_path):
    ranks = fit_on_ranks(tmp_path, 2, 8)
    (before, validated, last), (before_, validated_, last_) = ranks
    assert len(validated) == 2
    for mine, theirs, ours in zip(before, before_, validated, strict=True):
        assert not torch.equal(mine[0], theirs[0])
        assert_close(ours, [(a + b) / 2 for a, b in zip(mine, theirs, strict=True)], rtol=1e-12, atol=1e-12)
    assert_close(validated, validated_, rtol=0, atol=0)
    assert_close(last, last_, rtol=0, atol=0)
