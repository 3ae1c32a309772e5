"""The trial of the grids: what it refuses and what it lets pass, by name; and that it leaves no trace."""

import copy
import random
import re
from contextlib import nullcontext

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.nn.functional import cross_entropy, interpolate
from torch.utils.data import DataLoader, Dataset, default_collate
from torchmetrics import Accuracy

from lightning_multigrid import LongCycle, MultigridCallback, ShortCycle
from lightning_multigrid.training import run
from tests.helpers.sampling import sampled
from tests.helpers.tiny import CLASSES, Module, begin, clips, fit, loader

NET = nn.Sequential(nn.Conv3d(3, 6, 3, 2, 1), nn.BatchNorm3d(6), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(6, 4))


def resize(x, frames=8, size=32):
    return interpolate(x.float(), (frames, size, size))


def script(net=NET, **methods):
    """A module class with a net, and methods of its own."""

    class Script(Module):
        def make_net(self):
            return net

        def training_step(self, batch, batch_idx):
            return cross_entropy(self(batch[0]), batch[1])

        def forward(self, x):
            return self.net(x)

    for name, method in methods.items():
        setattr(Script, name, method)
    return Script()


def transfer(change):
    return lambda self, batch, index: [change(batch[0]), batch[1]]


def functional(self, x):
    return self.net[4](nn.functional.conv3d(resize(x), self.net[0].weight, stride=2).mean((2, 3, 4)))


# --- What grows back (B4) ---

HOOK = r"The dataset, its `collate_fn` or a hook of the mini-batch gets or makes clips with {} times the points"
STEP = "`training_step` or `forward` gets or makes clips with "
GROWN = {
    "collate": (
        lambda: script(),
        lambda: loader(collate_fn=lambda batch: [resize(default_collate(batch)[0]), default_collate(batch)[1]]),
        HOOK.format(16) + " of the plan on the grid of 2 x 16 x 16",
    ),
    "size only": (
        lambda: script(on_after_batch_transfer=transfer(lambda x: resize(x, x.shape[2]))),
        loader,
        HOOK.format(4),
    ),
    "frames only": (
        lambda: script(on_after_batch_transfer=transfer(lambda x: resize(x, 8, x.shape[-1]))),
        loader,
        HOOK.format(4) + ".* Resize and sample frames in the dataset's",
    ),
    "step": (
        lambda: script(training_step=lambda self, batch, index: cross_entropy(self.net(resize(batch[0])), batch[1])),
        loader,
        STEP,
    ),
    "functional": (lambda: script(forward=functional), loader, STEP),
}


@pytest.mark.parametrize("name", GROWN)
def test_clips_that_grow_back_are_refused(name):
    module, train, message = GROWN[name]
    with pytest.raises(ValueError, match=message):
        fit(module(), MultigridCallback(), train=train())


@pytest.mark.parametrize("size", [23, 32])
def test_too_little_memory_for_a_copy_is_no_fault_of_a_grid(size):
    """`size` is of the coarse grids, or of the baseline's."""

    def forward(self, x):
        if not isinstance(self._trainer, L.Trainer) and x.shape[-1] <= size:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return self.net(x)

    module = script(forward=forward)
    with pytest.warns(UserWarning, match="too small to rehearse the grids, .*`rehearse=False` leaves"):
        fit(module, MultigridCallback(), train=loader())


def crop(x):
    size = round(x.shape[-1] * random.uniform(0.9, 1))
    return x[..., :size, :size]


def halved(x):
    return resize(x, x.shape[2], x.shape[-1] // 2)


def padded(self, x):
    return self.net(nn.functional.pad(x, [0, -x.shape[-1] % 8, 0, -x.shape[-2] % 8]))


def folded(self, x):
    return self.net(x.transpose(1, 2).flatten(0, 1)).unflatten(0, (len(x), -1)).mean(1)


IMAGES = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
PASSING = {
    "padding": lambda: script(forward=padded),
    "random crops": lambda: script(on_after_batch_transfer=transfer(crop)),
    "half the size": lambda: script(on_after_batch_transfer=transfer(halved)),
    "a frame at a time": lambda: script(IMAGES, forward=lambda self, x: sum(map(self.net, x.unbind(2)))),
    "folded": lambda: script(IMAGES, forward=folded),
}


@pytest.mark.parametrize("name", sampled(PASSING, "padding", "random crops", "half the size", "folded"))
def test_what_scales_with_the_clips_passes(name):
    fit(PASSING[name](), MultigridCallback(), max_epochs=1)


# --- What fails, and the way out (B8) ---


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(1, 4, 8, 32, 32))

    def forward(self, x):
        return x[:, :1] + self.table


class Shift(nn.Module):
    """The published temporal shift, with the frames of the baseline's clips as a constant."""

    def __init__(self, frames=8):
        super().__init__()
        self.frames = frames

    def forward(self, x):
        frames = x.transpose(1, 2).flatten(0, 1).unflatten(0, (-1, self.frames))
        shifted = torch.cat([frames[:, 1:, :1], frames[:, :1, :1] * 0], 1)
        return torch.cat([shifted, frames[:, :, 1:]], 2).flatten(0, 1).unflatten(0, (len(x), -1)).mean((1, 3, 4))


class Shifts(Shift):
    def set_grid(self, frames, size):
        self.frames = frames


def framewise(self, batch, index):
    """With labels for the frames of the baseline."""
    return cross_entropy(batch[0].mean((3, 4))[:, :3], torch.zeros(len(batch[0]), 8, dtype=torch.long))


HOOK_FAILS = "The dataset, its `collate_fn` or a hook of the mini-batch fails with RuntimeError"
FAILING = {
    "their resampling": (
        lambda: script(on_after_batch_transfer=transfer(lambda x: x.unfold(4, 32, 1)[..., 0])),
        loader,
        HOOK_FAILS,
    ),
    "positions": (
        lambda: script(nn.Sequential(Positions(), nn.AdaptiveAvgPool3d(1), nn.Flatten())),
        loader,
        r"`net.0` \(Positions\) fails with RuntimeError.*Resize positions in a method `set_grid",
    ),
    "flatten": (
        lambda: script(nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 32 * 32, 4))),
        loader,
        r"`net.1` \(Linear\) fails with RuntimeError: .*end with a global pool",
    ),
    "clips that mix": (  # two of 4 frames would be one of 8
        lambda: script(nn.Sequential(Shift(), nn.Linear(3, 4))),
        lambda: DataLoader(clips(frames=8), 4),
        r"`net.0` \(Shift\) fails with .*take frames and pixels from the shape",
    ),
    "labels per frame": (lambda: script(training_step=framewise), loader, r"a step fails with .*also for labels and m"),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_grid_that_fails_is_refused_by_the_layer(name):
    module, train, message = FAILING[name]
    with pytest.raises(ValueError, match=f"Script cannot take clips of .*: {message}") as refused:
        fit(module(), MultigridCallback(), train=train())
    assert name != "flatten" or "divisor" not in str(refused.value)  # each leaves the baseline's grid alone


def test_axes_that_are_misnamed_are_refused_by_the_layer():
    net = nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.AdaptiveAvgPool3d(1), nn.Flatten())
    module = script(net, forward=lambda self, x: self.net(x.movedim(-1, 1)))
    train = DataLoader([(clip[:2].movedim(0, -1), label) for clip, label in clips()], 4, shuffle=True)
    message = r"`net.0` \(Conv3d\) fails .*name them, for instance `MultigridCallback\(layout='THWC'\)`"
    with pytest.raises(ValueError, match=message):
        fit(module, MultigridCallback(layout="CTHW"), train=train)


def test_the_schedule_that_a_refusal_shows_keeps_all_frames():
    module, train, _ = FAILING["clips that mix"]
    with pytest.raises(ValueError, match=r"`long_cycle=LongCycle\(.*\)`") as refused:
        fit(module(), MultigridCallback(), train=train())
    cycle = eval(re.search(r"`long_cycle=(LongCycle\(.*?\))`", str(refused.value))[1])
    begin(module(), MultigridCallback(long_cycle=cycle), train=train())


class Levels(nn.Module):
    """A U-Net of two levels: makes clips four times smaller along some axes, and again as large."""

    def __init__(self, *strides):
        super().__init__()
        self.down = nn.Sequential(*(nn.Conv3d(3, 3, strides, strides) for _ in range(2)))
        self.up = nn.Sequential(*(nn.ConvTranspose3d(3, 3, strides, strides) for _ in range(2)))
        self.end = nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(3, CLASSES))

    def forward(self, x):
        return self.end(x + self.up(self.down(x)))


@pytest.mark.parametrize(
    ("strides", "divisors"),
    [
        ((1, 2, 2), {"size_divisor": 4}),
        ((2, 1, 1), {"frames_divisor": 4}),
        ((2, 2, 2), {"size_divisor": 4, "frames_divisor": 4}),
    ],
)
def test_divisors_that_a_refusal_names_train(strides, divisors):
    train = DataLoader(clips(frames=12, size=36), 4)
    named = ", ".join(f"{name}={divisor}" for name, divisor in divisors.items())
    said = rf"fails with .* It runs on all grids with `MultigridCallback\({named}\)`, which"
    with pytest.raises(ValueError, match=said):
        fit(script(Levels(*strides)), MultigridCallback(), train=train)
    begin(script(Levels(*strides)), MultigridCallback(**divisors), train=train)


HALF = LongCycle(((0.5, 1), (1, 1)))


@pytest.mark.parametrize("frames", [6, 8])
def test_clips_of_any_number_of_frames_that_mix_are_refused(frames):
    """A third of the frames, too: three clips of 2 are as long as one of 6."""
    callback = MultigridCallback(long_cycle=LongCycle(((2 / frames, 1), (0.5, 1), (1, 1))))
    module = script(nn.Sequential(Shift(frames), nn.Linear(3, 4)))
    with pytest.raises(ValueError, match="Script cannot take clips of .* x 16 x 16"):
        fit(module, callback, train=DataLoader(clips(frames=frames), 4))


def test_clips_that_mix_on_every_grid_or_on_none_pass():
    class BothClips(nn.Module):
        """Each clip takes something from its neighbour, on every grid: what the script means."""

        def forward(self, x):
            return x + x.roll(1, 0).mean()

    begin(script(nn.Sequential(Shifts(), nn.Linear(3, 4))), MultigridCallback(long_cycle=HALF))
    begin(script(nn.Sequential(BothClips(), *NET)), MultigridCallback())


# --- What is rehearsed ---


class FirstRows(nn.Module):
    """Reads as many rows of its table as there are frames."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Parameter(torch.randn(8, 3)), nn.Linear(3, CLASSES)

    def forward(self, x):
        frames = x.mean((3, 4)).transpose(1, 2)
        return self.head((frames + self.table[: frames.shape[1]]).mean(1))


@pytest.mark.parametrize("start", [torch.ones, torch.zeros])
def test_tables_that_begin_with_one_number_are_seen(start):
    net = FirstRows()
    net.table = nn.Parameter(start(8, 3))
    with pytest.raises(ValueError, match=r"counts places from the first: .* `net` \(FirstRows\)"):
        begin(script(net), MultigridCallback())


@pytest.mark.parametrize("told", [False, True])
def test_windows_of_video_swin_as_its_authors_wrote_it_are_refused(told):
    """But where they are told the grid."""

    class WindowAttention3D(nn.Identity):
        pass

    if told:
        WindowAttention3D.set_grid = lambda self, frames, size: None
    module = script(nn.Sequential(WindowAttention3D(), *NET))
    said = r"`net.0` \(WindowAttention3D\) reads the biases of other distances"
    with nullcontext() if told else pytest.raises(ValueError, match=said):
        begin(module, MultigridCallback())
    if not told:
        begin(module, MultigridCallback(long_cycle=HALF, short_cycle=ShortCycle((1,))))


def reading(self, batch, batch_idx):
    loss = cross_entropy(self.net(batch[0]), batch[1])
    assert loss.item() > 0
    assert not torch.isnan(loss)
    return loss


def with_metric(self, batch, batch_idx):
    logits = self.net(batch[0])
    self.log("accuracy", Accuracy("multiclass", num_classes=CLASSES)(logits, batch[1]))
    return cross_entropy(logits, batch[1])


def with_trainer(self, batch, batch_idx):
    weight = 1 / (1 + self.trainer.global_step) if self.trainer.training and self.current_epoch == 0 else 0
    self.print("a step")
    self.logger.log_metrics({"weight": weight}, self.global_step)
    return cross_entropy(self.net(batch[0]), batch[1]) * weight


def manual(self, batch, batch_idx):
    optimizer = self.optimizers()
    self.toggle_optimizer(optimizer)
    optimizer.zero_grad()
    loss = cross_entropy(self.net(batch[0]), batch[1])
    self.manual_backward(loss)
    self.clip_gradients(optimizer, 1.0, "norm")
    optimizer.step()
    self.untoggle_optimizer(optimizer)


def halves(self, batch, batch_idx):
    """The first half of the clips beside the second."""
    scores = self.net(sum(batch[0].unflatten(0, (2, len(batch[0]) // 2))))
    return cross_entropy(scores, batch[1][: len(scores)])


STEPS = {
    "a value": reading,
    "a metric": with_metric,
    "the Trainer": with_trainer,
    "manual optimization": manual,
    "halves": halves,
    "no index": lambda self, batch: reading(self, batch, 0),
    "any arguments": lambda self, *arguments: reading(self, *arguments),
}


@pytest.mark.parametrize("name", STEPS)
def test_whatever_a_step_does_counted_places_are_refused(name, tmp_path):
    module = script(FirstRows(), training_step=STEPS[name], forward=L.LightningModule.forward)
    module.automatic_optimization = name != "manual optimization"
    with pytest.raises(ValueError, match=r"counts places from the first: .* `net` \(FirstRows\) gives its points"):
        fit(module, MultigridCallback(), logger=CSVLogger(tmp_path))


@pytest.mark.parametrize("name", sampled(STEPS, "the Trainer"))
def test_whatever_a_step_does_the_training_is_the_one_without_a_rehearsal(name, tmp_path, monkeypatch):
    """To the bit; and neither loggers nor the terminal hear of it."""

    def train():
        net = copy.deepcopy(NET).insert(2, nn.Dropout())
        module = script(net, training_step=STEPS[name], forward=L.LightningModule.forward)
        module.automatic_optimization = name != "manual optimization"
        logger, logged = CSVLogger(tmp_path), []
        logger.log_metrics = lambda metrics, step: logged.append(metrics)
        fit(module, MultigridCallback(seed=0), max_epochs=1, logger=logger)
        told = [{name: value for name, value in metrics.items() if "multigrid" not in name} for metrics in logged]
        return [*module.state_dict().values()], told

    rehearsed, logged = train()
    monkeypatch.setattr("lightning_multigrid.training.run.check_grids", lambda *_: None)
    plain, logged_plain = train()
    assert all(torch.equal(one, other) for one, other in zip(rehearsed, plain, strict=True))
    assert logged == logged_plain


def only_in_training(self, batch, batch_idx):
    assert self.trainer.num_training_batches > 0
    assert self.trainer.train_dataloader is not None
    return cross_entropy(self.net(batch[0]), batch[1])


def test_what_cannot_be_rehearsed_is_said():
    module = script(training_step=only_in_training)
    with pytest.warns(UserWarning, match=r"not be rehearsed with Script: .* AssertionError"):
        fit(module, MultigridCallback(), max_epochs=1)
    module = script()
    module.stuck = (number for number in range(3))
    with pytest.warns(UserWarning, match=r"not be rehearsed with Script: .* TypeError: cannot"):
        begin(module, MultigridCallback())


def taking(allowed):
    """A step that takes some numbers of clips alone."""

    def step(self, batch, _):
        assert allowed(len(batch[0]))
        return cross_entropy(self(batch[0]), batch[1])

    return step


def test_a_step_that_takes_no_more_clips_than_the_baseline_has_is_refused():
    """As of a queue of so many; on the baseline's grid, it trains."""
    step = taking(lambda number: number <= 4)
    said = r"A step of Script takes 2 clips of the grid of .*, but not 8 \(AssertionError: .* as `clips.shape\[0\]`"
    with pytest.raises(ValueError, match=said):
        fit(script(training_step=step), MultigridCallback(), max_epochs=1)
    fit(script(training_step=step), MultigridCallback.baseline(), max_epochs=1)


def test_a_step_that_takes_powers_of_two_alone_is_refused_where_the_plan_has_other_numbers():
    """As of MoCo's queue, whose length is a multiple of the clips. The short cycle makes 3 times as many of 0.6."""
    step = taking(lambda number: 64 % number == 0)
    factors = {"long_cycle": LongCycle(((0.25, 1), (1, 1))), "short_cycle": ShortCycle((0.6, 1))}
    with pytest.raises(ValueError, match="takes 2 clips of the grid of .*, but not 12 "):
        begin(script(training_step=step), MultigridCallback(**factors))
    begin(script(training_step=step), MultigridCallback(**{**factors, "short_cycle": ShortCycle((0.5, 1))}))


@pytest.mark.parametrize("reset", [False, True])
def test_a_hidden_state_that_is_kept_from_step_to_step_is_refused(reset):
    """Each step alone succeeds; on the baseline's grid, or with the way out that the refusal names, it trains."""

    class Recurrent(Module):
        def make_net(self):
            return nn.ModuleDict({"cell": nn.GRU(3, 8, batch_first=True), "head": nn.Linear(8, CLASSES)})

        def training_step(self, batch, batch_idx):
            kept = None if reset else getattr(self, "kept", None)
            states, hidden = self.net["cell"](batch[0].mean(dim=(3, 4)).transpose(1, 2), kept)
            self.kept = hidden.detach()
            return cross_entropy(self.net["head"](states[:, -1]), batch[1])

    fit(Recurrent(), MultigridCallback.baseline(), max_epochs=1)
    said = r"Recurrent keeps something .* 4 clips .* other clips `net.cell` \(GRU\) fails with .* hidden size .* Reset"
    with nullcontext() if reset else pytest.raises(ValueError, match=said):
        fit(Recurrent(), MultigridCallback(), max_epochs=1)


def test_a_step_that_takes_the_baselines_number_of_clips_alone_is_refused_where_others_come():

    def step(self, batch, _):
        return cross_entropy(self(batch[0]) + torch.zeros(4, CLASSES), batch[1])

    said = r"takes 4 clips of the grid of .*, but not 8 \(RuntimeError: The size of tensor a"
    with pytest.raises(ValueError, match=said):
        begin(script(training_step=step), MultigridCallback())


def test_a_collate_function_that_drops_the_first_sample_is_let_through():
    """There is nothing to try, as Lightning skips such a mini-batch."""

    def dropping(samples):
        kept = [sample for sample in samples if not torch.equal(sample[0], FIRST)]
        return default_collate(kept) if kept else None

    FIRST = clips()[0][0]
    begin(script(), MultigridCallback(), train=loader(collate_fn=dropping))


def test_a_step_that_takes_multiples_of_the_baselines_clips_is_rehearsed_with_them():
    def step(self, batch, _):
        assert len(batch[0]) % 4 == 0
        return cross_entropy(self(batch[0]), batch[1], reduction="sum")

    with pytest.raises(ValueError, match=r"a sum over the clips, or has one: 4 equal clips have"):
        begin(script(training_step=step), MultigridCallback())


def test_a_step_that_takes_as_many_clips_as_any_mini_batch_has_is_let_through():
    """The rehearsal tries more of them, for the sum of the losses."""
    cycles = {"long_cycle": LongCycle(((1, 1),)), "short_cycle": ShortCycle((0.5**0.5, 1))}
    fit(script(training_step=taking(lambda number: number <= 8)), MultigridCallback(**cycles), max_epochs=1)


def test_a_model_that_was_built_for_another_grid_fails_on_that_of_the_baseline():
    module = script(nn.Sequential(nn.Conv3d(3, 4, 1), nn.Flatten(), nn.Linear(4 * 16 * 32 * 32, CLASSES)))
    said = r"`net.2` \(Linear\) fails on the baseline's own grid, with 4 clips, with .* build the model for"
    with pytest.warns(UserWarning, match=said), pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        fit(module, MultigridCallback(), max_epochs=1)


def test_a_module_that_holds_its_callback_is_rehearsed():
    """As by the config that the command line keeps."""
    module, callback = script(), MultigridCallback()
    module.config = {"trainer": {"callbacks": [callback]}}
    begin(module, callback)


def test_the_mode_of_a_compiled_module_and_its_statistics_stay():
    """The copy must not run the original, which has the compiled steps."""
    module = script(forward=lambda self, x: self.net(x), make_net=lambda self: copy.deepcopy(NET))
    before = copy.deepcopy(module.net.state_dict())
    compiled, seen = torch.compile(module, backend="eager"), []
    look = LambdaCallback(on_train_start=lambda _, fitted: seen.append(copy.deepcopy(fitted.net.state_dict())))
    few = {"long_cycle": LongCycle(((1, 1),)), "short_cycle": ShortCycle((0.5,))}  # each grid is a graph
    fit(compiled, MultigridCallback(**few), look, max_epochs=1)
    assert all(torch.equal(value, before[name]) for name, value in seen[0].items())


# --- No trace (B10) ---


class Counting(Dataset):
    def __init__(self):
        self.log = []

    def __getitem__(self, index):
        self.log.append(index)
        return index


class Metric(nn.Module):
    """A metric whose state is no buffer."""

    def __init__(self):
        super().__init__()
        self.total, self.values = torch.zeros(()), []


class Writing(Module):
    """Its step writes to whatever a module may hold."""

    def __init__(self):
        super().__init__()
        self.data, self.metric, self.counts = Counting(), Metric(), {"steps": {"a": [0]}, "set": {1}}
        self.register_buffer("queue", torch.zeros(3))
        self.many, self.mixed = list(range(5000)), (Counting(), [torch.ones(2)], torch.zeros(3))
        self.generator, self.heard = torch.Generator(), []
        self.net[0].register_forward_hook(lambda *_: self.heard.append(1))

    def training_step(self, batch, batch_idx):
        loss = self.net(batch[0]).mean()
        if isinstance(self.trainer, L.Trainer):
            return loss
        self.data[1], self.mixed[0][2]
        self.metric.total += loss.detach()
        self.metric.values.append(loss)
        self.counts["steps"]["a"][0] += 1
        self.counts["set"].add(2)
        self.queue += 1
        self.many.append(0)
        self.mixed[1][0] += 1
        self.mixed[2].mul_(2).add_(1)
        self.ran = True
        self.train(False)
        self.log("random", random.random() + np.random.rand() + torch.rand(1, generator=self.generator).item())
        return loss

    def held(self):
        data = self.data.log, self.mixed[0].log, self.metric.total.item(), self.metric.values, self.counts, self.heard
        tensors = self.queue.tolist(), self.mixed[1][0].tolist(), self.mixed[2].tolist()
        names = sorted(vars(self).keys() - {"lr_scheduler_step", "on_save_checkpoint"})
        return f"{data, tensors, len(self.many), names, self.training, self.generator.get_state().tolist()}"


def test_a_trial_leaves_no_trace_in_the_module():
    seen, ran = [], []

    class Look(L.Callback):
        def on_fit_start(self, trainer, pl_module):
            generators = torch.random.get_rng_state(), random.getstate(), repr(np.random.get_state())
            state = {name: value.clone() for name, value in pl_module.state_dict().items()}
            seen.append((pl_module.held(), generators, state))

    class Tried(Writing):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            ran.append(not isinstance(self.trainer, L.Trainer))
            return loss

    fit(Tried(), Look(), MultigridCallback(seed=0), Look(), max_steps=1, fast_dev_run=True)
    (before, generators, state), (after, generators_after, state_after) = seen
    assert any(ran)
    assert after == before
    assert all(torch.equal(state[name], state_after[name]) for name in state)
    assert torch.equal(generators[0], generators_after[0])
    assert generators[1:] == generators_after[1:]


# --- When grids are tried ---


@pytest.fixture
def rehearsals(monkeypatch):
    """Counts them."""
    calls, own = [], run.check_grids
    monkeypatch.setattr(run, "check_grids", lambda *given: calls.append(1) or own(*given))
    return calls


class Refused(Module):
    """Sums over clips."""

    def training_step(self, batch, batch_idx):
        return cross_entropy(self.net(batch[0]), batch[1], reduction="sum")


def test_a_run_that_continues_is_rehearsed_like_any_other(rehearsals, tmp_path):
    keep = ModelCheckpoint(tmp_path, filename="kept", every_n_train_steps=5)
    fit(Module(), MultigridCallback(), keep, enable_checkpointing=True, max_epochs=1)
    fit(Module(), MultigridCallback(), ckpt_path=tmp_path / "kept.ckpt", max_epochs=1)
    assert len(rehearsals) == 2
    with pytest.raises(ValueError, match="The loss of Refused is a sum over the clips"):
        fit(Refused(), MultigridCallback(), ckpt_path=tmp_path / "kept.ckpt", max_epochs=1)


def test_without_it_nothing_is_tried(rehearsals):
    module = Module()
    fit(module, MultigridCallback(rehearse=False), max_epochs=1)
    assert rehearsals == []
    assert torch.isfinite(torch.tensor(module.seen[-1][-1]))
    with pytest.raises(ValueError, match="Refused"):
        fit(Refused(), MultigridCallback(), max_epochs=1)
    fit(Refused(), MultigridCallback(rehearse=False), max_epochs=1)
