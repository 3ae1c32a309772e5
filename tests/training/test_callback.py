"""`MultigridCallback` on plain Lightning scripts: real Trainers, a tiny model, no mocks."""

import gc
import re
import weakref
from types import SimpleNamespace

import lightning as L
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import BatchSizeFinder, LambdaCallback, LearningRateFinder, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.optim.lr_scheduler import MultiStepLR
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from lightning_multigrid import Baseline, BatchShape, LongCycle, MultigridCallback, MultigridSchedule, Plan, ShortCycle
from lightning_multigrid.positions import Following
from lightning_multigrid.training.parts.on_grid import OnGrid
from lightning_multigrid.training.trainer.lightning_internals import training_source
from tests.helpers.sampling import sampled
from tests.helpers.tiny import CLIPS, FRAMES, SIZE, Module, clips, fit, loader, trainer

pytestmark = pytest.mark.usefixtures("_unrehearsed")

BASELINE = Baseline(BatchShape(4, 8, 32), epochs=4, milestones=(2, 3))
PLAN = MultigridSchedule(BASELINE)
STEPS = [step for epoch in range(4) for step in Plan(PLAN, CLIPS).epoch(epoch)]


def steps_scheduler(optimizer, module):
    return MultiStepLR(optimizer, [2, 3])


def staged(**arguments):
    """With a long cycle for each of its stages."""
    return MultigridCallback(milestones="script", **arguments)


def planned(schedule=PLAN, number=CLIPS, **arguments):
    """Clips x frames x size of every step of a plan."""
    steps = [step for epoch in range(schedule.epochs) for step in Plan(schedule, number, **arguments).epoch(epoch)]
    return [(step.shape.clips, step.shape.frames, step.shape.size) for step in steps]


# --- One line on a baseline script ---


@pytest.fixture(scope="module")
def whole():
    """The run of the plain script: its module, callback and Trainer."""
    module, callback = Module(steps_scheduler), staged()
    return SimpleNamespace(module=module, callback=callback, host=fit(module, callback))


def test_a_plain_script_trains_on_the_plan_that_its_numbers_ask_for(whole):
    module, host = whole.module, whole.host
    assert whole.callback.run.plan.schedule.baseline == BASELINE
    assert module.shapes == planned()
    assert host.current_epoch == host.max_epochs == PLAN.epochs == 4
    assert host.global_step == len(planned())
    length = len(planned()) // 4
    assert [(e, b) for e, b, *_ in module.seen] == [(epoch, batch) for epoch in range(4) for batch in range(length)]


def test_groups_of_ranks_are_made_before_the_first_step_for_all_steps(monkeypatch):
    made = []
    monkeypatch.setattr("lightning_multigrid.training.parts.on_grid.make_groups", made.extend)
    callback = staged()

    class OnTwoRanks(L.Callback):
        def on_train_start(self, trainer, pl_module):
            plan = callback.run.plan
            grid = OnGrid(plan, trainer, Following(module, *plan.schedule.baseline.shape.clip))
            with monkeypatch.context() as ranks:
                ranks.setattr(L.Trainer, "world_size", property(lambda self: 2))
                grid.begin()

    module = Module(steps_scheduler)
    fit(module, callback, OnTwoRanks())
    assert {(shape[0], shared) for shape, shared in zip(module.shapes, module.sub_batches, strict=True)} <= {*made}


def test_callbacks_before_ours_find_the_model_on_the_baselines_grid_after_a_step():
    """As one that shows a prediction. So do those after ours."""

    class Positions(Module):
        def set_grid(self, frames, size):
            self.grid = frames, size

    class Looking(L.Callback):
        def __init__(self):
            self.found = set()

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            self.found.add(module.grid)

    before, after = Looking(), Looking()
    module = Positions(steps_scheduler)
    host = fit(module, before, staged(), after, max_epochs=1)
    assert before.found == after.found == {(FRAMES, SIZE)}
    assert host.callbacks[0] is before


@pytest.mark.rehearsed
def test_removing_the_callback_gives_the_baseline_bit_for_bit():
    before, after = Module(steps_scheduler), Module(steps_scheduler)
    fit(before)
    fit(Module(steps_scheduler), staged())  # leaves nothing behind
    fit(after)
    assert before.seen == after.seen
    for name, value in before.state_dict().items():
        assert torch.equal(value, after.state_dict()[name]), name


class Decoding(Dataset):
    """A clip dataset of its own: answers requests, and whole indices with what nobody should ask for."""

    frames, size, stride = 8, 32, 1

    def __init__(self, first=0, number=CLIPS):
        self.first, self.number = first, number

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        raise AssertionError("decoded without a request")

    def read_clip(self, request):
        return torch.zeros(3, request.frames, request.size, request.size), self.first + request.index


class Indices(Module):
    def training_step(self, batch, batch_idx):
        if batch[1].device.type != "meta":
            self.seen.append((self.current_epoch, batch[1].tolist(), batch[0].shape))
        return self.net(batch[0]).mean()


@pytest.mark.rehearsed
def test_parts_and_joins_of_a_clip_dataset_pass_requests_on():
    join = ConcatDataset([Subset(Decoding(number=80), range(0, 80, 2)), Decoding(1000, 60)])
    module = Indices(steps_scheduler)
    fit(module, staged(), train=DataLoader(join, 4, shuffle=True))
    first = [index for _, indices, _ in module.seen for index in indices][:100]
    assert sorted(first) == [*range(0, 80, 2), *range(1000, 1060)]
    assert [(shape[0], shape[2], shape[3]) for *_, shape in module.seen] == planned()
    other = Decoding()
    other.frames = 16
    with pytest.raises(ValueError, match="must have one baseline grid, got .* of \\[\\(8, 32, 1\\), \\(16, 32, 1\\)"):
        fit(Indices(), staged(), train=DataLoader(ConcatDataset([Decoding(), other]), 4))


# --- What is inferred ---


def test_given_values_win():
    callback = MultigridCallback(milestones=[1.5], warmup_epochs=0.5, epoch_factor=2, size_divisor=16)
    fit(Module(steps_scheduler), callback)
    schedule = callback.run.plan.schedule
    assert (schedule.baseline.milestones, schedule.baseline.warmup_epochs) == ((1.5,), 0.5)
    assert schedule.passes(4) == 8
    assert {shape.size for shape in schedule.grids} == {16, 32}
    given = MultigridSchedule(BASELINE, LongCycle(((0.5, 1), (1, 1))), ShortCycle((1,)), epoch_factor=1)
    module, callback = Module(steps_scheduler), MultigridCallback(given)
    fit(module, callback)
    assert callback.run.plan.schedule is given
    assert module.shapes == planned(given)


# --- The Trainer's other settings ---


class Validating(Module):
    def __init__(self, *args):
        super().__init__(*args)
        self.validated = []  # optimizer steps done at each validation

    def on_validation_start(self):
        if not self.trainer.sanity_checking:
            self.validated.append((self.current_epoch, self.trainer.global_step))


@pytest.mark.parametrize(
    ("arguments", "places"),
    [
        ({"val_check_interval": 0.5}, lambda length: [length // 2, length // 2 * 2]),
        ({"val_check_interval": 12}, lambda length: range(every := round(12 / 25 * length), length + 1, every)),
    ],
)
def test_validations_within_an_epoch_are_where_the_script_has_them(arguments, places):
    """An integer counts the script's 25 mini-batches."""
    module = Validating(steps_scheduler)
    fit(module, staged(), val=loader(shuffle=False, number=8), **arguments)
    length = len(planned()) // 4
    assert module.validated == [(epoch, epoch * length + done) for epoch in range(4) for done in places(length)]
    assert len(module.validated) == 8


def test_validations_across_epochs_are_where_the_script_has_them():
    module, across = Validating(steps_scheduler), {"val_check_interval": 20, "check_val_every_n_epoch": None}
    fit(module, staged(), val=loader(shuffle=False, number=8), **across)
    every = round(20 / 25 * len(planned()) / 4)
    assert [step for _, step in module.validated] == list(range(every, len(planned()) + 1, every))


def test_overfit_batches_see_the_same_clips_in_every_pass():
    class Labels(Module):
        def training_step(self, batch, batch_idx):
            if batch[1].device.type != "meta":
                labels.append(batch[1])
            return self.net(batch[0]).mean()

    labels = []
    fit(Labels(), MultigridCallback(), overfit_batches=20)
    passes = torch.cat(labels).split(80)
    assert len(passes) > 5
    for seen in passes:
        assert torch.equal(seen, clips().tensors[1][: len(seen)])


def test_fast_dev_run_trains_one_whole_coarse_batch():
    module = Module(steps_scheduler)
    host = fit(module, staged(), fast_dev_run=True)
    assert module.shapes == [(64, 2, 16)]
    assert host.global_step == 1
    module = Module(steps_scheduler)
    fit(module, staged(), fast_dev_run=2)
    assert module.shapes[0] == (64, 2, 16)
    assert len(module.shapes) == 2
    fit(Module(steps_scheduler), MultigridCallback(PLAN), fast_dev_run=True)


def test_sub_mini_batches_follow_the_plan_and_the_model_is_plain_again_afterwards(whole):
    module = whole.module
    assert module.sub_batches == [step.sub_batch for step in STEPS]
    assert {8, 16, 32} <= set(module.sub_batches)
    assert type(module.net[1]) is nn.BatchNorm3d
    assert list(module.state_dict()) == list(Module().state_dict())


# --- What it leaves behind ---


def test_everything_is_put_back_and_the_callback_can_be_used_again():
    callback, data, seen = staged(), loader(), []
    for _ in range(2):
        module = Module(steps_scheduler)
        host = fit(module, callback, train=data, val_check_interval=5, val=loader(shuffle=False, number=8))
        assert (host.max_epochs, host.max_steps, host.val_check_interval) == (4, -1, 5)
        assert host.reload_dataloaders_every_n_epochs == 0
        assert training_source(host).instance is data
        assert "lr_scheduler_step" not in vars(module)
        (group,) = host.optimizers[0].param_groups
        assert group["lr"] == pytest.approx(0.001)
        assert not [key for key in group if "multigrid" in key]
        seen.append(module.seen)
    assert seen[0] == seen[1]


class Failing(Module):
    def on_train_batch_start(self, batch, batch_idx):
        if self.current_epoch == 1:
            raise RuntimeError("on purpose")


def test_everything_is_put_back_after_an_exception_too():
    callback, module, data = staged(), Failing(steps_scheduler), loader()
    host = trainer(callback)
    before = list(host.callbacks)
    with pytest.raises(RuntimeError, match="on purpose"):
        host.fit(module, data)
    assert host.callbacks == before
    assert (host.max_epochs, host.reload_dataloaders_every_n_epochs) == (4, 0)
    assert training_source(host).instance is data
    assert type(module.net[1]) is nn.BatchNorm3d
    healthy = Module(steps_scheduler)
    fit(healthy, callback)
    assert healthy.shapes == planned()


def test_a_resumed_run_does_not_keep_the_checkpoint_in_memory(tmp_path):
    """It holds a model and an optimizer, for each process of a node."""
    alive = []

    class Look(L.Callback):
        def on_load_checkpoint(self, trainer, pl_module, checkpoint):
            self.state = weakref.ref(checkpoint["state_dict"])  # Lightning makes it an OrderedDict

        def on_train_epoch_start(self, trainer, pl_module):
            gc.collect()
            alive.append(self.state() is not None)

    saver = ModelCheckpoint(tmp_path, every_n_train_steps=14, filename="late")
    both = {"enable_checkpointing": True, "max_epochs": 3}
    fit(Module(), MultigridCallback(), saver, **both)
    fit(Module(), MultigridCallback(), saver, Look(), **both, ckpt_path=tmp_path / "late.ckpt")
    assert {*alive} == {False}


def test_validate_and_test_alone_do_nothing():
    class Tested(Module):
        def test_step(self, batch, batch_idx):
            assert type(self.net[1]) is nn.BatchNorm3d

    host = trainer(MultigridCallback())
    host.validate(Tested(), loader(shuffle=False), verbose=False)
    host.test(Tested(), loader(shuffle=False), verbose=False)


@pytest.mark.parametrize("first", sampled([True, False], False))
def test_tuners_work_on_the_baseline(first, tmp_path):
    class Sized(Module):
        def __init__(self):
            super().__init__(lambda optimizer, module: MultiStepLR(optimizer, [1]))
            self.batch_size, self.lr = 2, 0.1

        def train_dataloader(self):
            return loader(self.batch_size)

        def val_dataloader(self):
            return loader(self.batch_size, shuffle=False)

        def configure_optimizers(self):
            self.optimizer = lambda parameters: torch.optim.SGD(parameters, lr=self.lr)
            return super().configure_optimizers()

    sizes = BatchSizeFinder("power", steps_per_trial=1, init_val=1, max_trials=3)
    for tuner in (sizes, LearningRateFinder(num_training_steps=4)):
        module, callback = Sized(), MultigridCallback()
        callbacks = [tuner, callback] if first else [callback, tuner]
        folder = {"default_root_dir": tmp_path / type(tuner).__name__, "enable_checkpointing": True}
        host = trainer(*callbacks, max_epochs=2, **folder)
        host.fit(module)
        assert callback.run.plan.schedule.baseline.shape.clips == module.batch_size
        assert host.current_epoch == 2
        assert module.lrs[-1] == pytest.approx(module.lr * 0.1)


# --- What it says ---


def test_the_step_that_is_under_way_is_that_of_the_plan():
    callback, steps = staged(), []
    with pytest.raises(RuntimeError, match="plans the training when `fit` begins"):
        callback.step  # noqa: B018
    asks = LambdaCallback(on_before_backward=lambda *_: steps.append(callback.step))
    fit(Module(steps_scheduler), callback, asks)
    assert steps == [step for epoch in range(4) for step in callback.run.plan.epoch(epoch)]
    with pytest.raises(RuntimeError, match="No step is under way"):
        callback.step  # noqa: B018


def test_plan_phases_and_times_are_said(caplog):
    fit(module := Module(steps_scheduler), staged())
    text = caplog.text
    assert str(Plan(PLAN, CLIPS)) in text
    for index in {step.phase for step in STEPS}:
        phase = PLAN.phases[index]
        [lr] = re.findall(f"Phase {index + 1} of {len(PLAN.phases)}: {phase.shape}, .* LR from (.*), scale", text)
        first = [step.phase for step in STEPS].index(index)
        assert float(lr) == pytest.approx(module.lrs[first], rel=5e-3)
    assert "Time per shape of mini-batch" in text
    steps, seen = len(planned()), sum(clips for clips, *_ in planned())
    (total,) = [line for line in text.splitlines() if line.split()[:1] == ["all"]]
    assert total.split()[1:3] == [str(steps), str(seen)]


@pytest.mark.rehearsed
@pytest.mark.filterwarnings("ignore:.*configure_optimizers` returned `None`")
@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
def test_without_an_optimizer_the_plan_is_run_all_the_same(tmp_path):
    """As scripts do that measure their loader."""

    class Loading(Module):
        def training_step(self, batch, batch_idx):
            if isinstance(self._trainer, L.Trainer):
                self.seen.append((self.current_epoch, batch_idx, tuple(batch[0].shape), 0.0, 0.0))

        def configure_optimizers(self):
            return None

    module = Loading()
    fit(module, MultigridCallback(milestones=[2, 3]), logger=CSVLogger(tmp_path))
    assert module.shapes == planned()


@pytest.mark.rehearsed
def test_barebones():
    class Silent(Module):
        def log(self, *args, **kwargs):
            """Lightning warns of anything that is logged here."""

    module = Silent(steps_scheduler)
    L.Trainer(barebones=True, max_epochs=4, accelerator="cpu", callbacks=[staged()]).fit(module, loader())
    assert module.shapes == planned()


# --- Resume (the full proof is another test file's) ---


def test_a_run_resumed_in_mid_epoch_validates_where_the_whole_one_does(tmp_path):
    def run(**arguments):
        module = Validating(steps_scheduler)
        saver = ModelCheckpoint(tmp_path, every_n_train_steps=4, save_top_k=-1, filename="{step}")
        val = loader(shuffle=False, number=8)
        fit(module, staged(epoch_factor=2), saver, val=val, enable_checkpointing=True, **arguments)
        return module.validated

    whole = run()
    for done in (4, 12):
        resumed = run(ckpt_path=tmp_path / f"step={done}.ckpt")
        assert resumed == [(epoch, step) for epoch, step in whole if step > done]


# --- Refusals ---


class FromIterator(Module):
    def training_step(self, dataloader_iter):
        return None


@pytest.mark.parametrize("make", [MultigridCallback, MultigridCallback.baseline])
def test_batchnorm_is_torchs_but_for_a_step(make, monkeypatch):
    """Between steps, other models and evaluations have it as ever. No layer is touched: scripts tell them by class."""

    class Looking(Module):
        def look(self, *_):
            found.append((nn.functional.batch_norm is own, {type(layer) for layer in self.net.modules()} == kinds))

        on_train_epoch_start = on_validation_start = on_train_end = look

        def training_step(self, batch, batch_idx):
            if isinstance(self._trainer, L.Trainer):
                self.look()
                within.append(found.pop())
            return super().training_step(batch, batch_idx)

    found, within, own = [], [], nn.functional.batch_norm
    module = Looking()
    kinds = {type(layer) for layer in module.net.modules()}
    fit(module, make(), max_epochs=2, val=loader(shuffle=False))
    assert set(within) == {(False, True)}
    assert set(found) == {(True, True)}
    assert len(found) >= 6
    monkeypatch.setattr(module, "on_before_backward", lambda loss: {}["of a user"])
    with pytest.raises(KeyError, match="of a user"):
        fit(module, make(), max_epochs=2)
    assert nn.functional.batch_norm is own


class Lazy(Module):
    """A model that knows its sizes after the first forward. Its BatchNorm has no parameter that waits for one."""

    def make_net(self):
        net = super().make_net()
        net[1] = nn.LazyBatchNorm3d(affine=False, track_running_stats=False)
        net[6] = nn.LazyLinear(4)
        return net


class Scripted(Module):
    def __init__(self):
        super().__init__()
        self.scripted = torch.jit.script(nn.Sequential(nn.BatchNorm3d(3)))


def test_a_trainer_has_one_callback():
    """Lightning refuses two that save under the same name itself, so one is derived."""

    class Own(MultigridCallback):
        pass

    with pytest.raises(MisconfigurationException, match="has `Own` and `MultigridCallback`. Keep one of them"):
        fit(Module(), Own(), MultigridCallback.baseline())
    with pytest.raises(RuntimeError, match="more than one stateful callback of type `MultigridCallback`"):
        fit(Module(), MultigridCallback(), MultigridCallback.baseline())


@pytest.mark.filterwarnings("ignore:You are using the `dataloader_iter` step flavor", "ignore:.torch.jit.script. is")
@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        (
            Module,
            {"train": loader(number=15)},
            r"An epoch would have 1\.39 optimizer steps, as it makes 1\.5 passes over 15 clips, and a step has 16 of "
            r"them on average\. That is too few: rounding to 1 changes them by 28%, and 25% is the most\. "
            r"Make epochs of 2 times the clips, by `torch\..*ConcatDataset\(\[dataset\] \* 2",
        ),
        (
            Module,
            {"train": loader(number=45), "accumulate_grad_batches": 3},
            r"1\.39 optimizer steps, .* a step has 48 of .* Make epochs of 2 times",
        ),
        (Module, {"train": loader(number=3, drop_last=True)}, "has 3 clips for each device, fewer than `batch_size=4`"),
        (FromIterator, {}, r"FromIterator has `training_step\(dataloader_iter\)`"),
        (Lazy, {}, r"`net\.1` is a LazyBatchNorm3d, which takes its shape from its first input\. Run the model once b"),
        (Scripted, {}, "in `scripted.0`, .* Train the model without `torch.jit.script"),
        (Module, {"max_steps": 5}, r"`max_steps=5` is 0\.20 epochs of 25 steps. Raise `max_steps`"),
    ],
)
def test_refusals_say_what_is_given_required_and_how_to_go_on(module, arguments, message):
    with pytest.raises((TypeError, ValueError, Exception), match=message):
        fit(module(), MultigridCallback(), **arguments)


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"schedule": "x"}, r"MultigridSchedule \| None, got 'x'"),
        ({"long_cycle": [[0.5, 1]]}, r"LongCycle, got \[\[0.5, 1\]\]"),
        ({"short_cycle": None}, "ShortCycle, .*'auto'.*, got None"),
        ({"epoch_factor": "2"}, "float, got '2'"),
        ({"milestones": ["a"]}, r"Union\[list\[float\], Literal\['script'\], NoneType\], got \['a'\]"),
        ({"follow": ["a"]}, r"dict\[str \| int, str \| Callable.*\] \| None, got \['a'\]"),
        ({"lr_scaling": 2}, "Literal.* got 2"),
        ({"fine_tuning": "no"}, "bool, got 'no'"),
    ],
)
def test_arguments_of_another_kind_are_named(arguments, kind):
    with pytest.raises(TypeError, match=f"`{next(iter(arguments))}` of MultigridCallback must be .*{kind}"):
        MultigridCallback(**arguments)


def test_other_refusals():
    with pytest.raises(ValueError, match="must be a ShortCycle or 'auto', got 'off'. Without .*`{factors: .1.}`"):
        MultigridCallback(short_cycle="off")
    other = MultigridSchedule(Baseline(BatchShape(8, 8, 32), epochs=4))
    with pytest.raises(ValueError, match="for a baseline of 8 x 8 x 32 .* the script has one of 4 x 8 x 32"):
        fit(Module(), MultigridCallback(other))
    longer = MultigridSchedule(Baseline(BatchShape(4, 8, 32), epochs=8))
    with pytest.raises(ValueError, match="and 8 epochs, but the script has one of .* and 4 epochs. Make them equal"):
        fit(Module(), MultigridCallback(longer))
    for layer, said in (
        (nn.SyncBatchNorm(3), "the model has SyncBatchNorm layers, such as `layer`. Remove `sync_batchnorm=True`"),
        (type("NaiveSyncBatchNorm3d", (nn.BatchNorm3d,), {})(3), "the model has SyncBatchNorm layers"),
        (nn.BatchNorm3d(3, momentum=None), "`layer` has `momentum=None`, .* Give it a momentum"),
    ):
        module = Module()
        module.layer = layer
        with pytest.raises(Exception, match=said):
            fit(module, MultigridCallback())
    for name in ("clips_per_epoch", "precise_bn_batches"):
        with pytest.raises(ValueError, match=f"`{name}` must be at least 1, got 0. Leave it out for the default"):
            MultigridCallback(**{name: 0})
    with pytest.raises(ValueError, match="`epoch_factor` must be positive, got -1"):
        MultigridCallback(epoch_factor=-1)
    for argument in ({"epoch_factor": 2}, {"milestones": [1]}, {"long_cycle": LongCycle(((1, 1),))}):
        with pytest.raises(ValueError, match="arguments that shape an inferred schedule are also given. Give either"):
            MultigridCallback(PLAN, **argument)
