"""Resuming: exactly, on another number of ranks, and without the callback. Real Trainers, no mocks."""

import csv
import json
import logging
import multiprocessing
import runpy
from fractions import Fraction
from functools import cache, partial
from itertools import product
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import LambdaCallback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.optim.lr_scheduler import CosineAnnealingLR, MultiStepLR, OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

from lightning_multigrid import MultigridCallback, NewestCheckpoint
from lightning_multigrid.loading import MultigridSampler, shuffled_order
from lightning_multigrid.schedule import Baseline, BatchShape, LongCycle, MultigridSchedule, Place, Plan, ShortCycle
from lightning_multigrid.training.checkpoints.continuation import _continues_at, describe_run
from lightning_multigrid.training.trainer.lightning_internals import LoopCounters
from tests.helpers.processes import start_method
from tests.helpers.sampling import sampled
from tests.helpers.tiny import CLIPS, ByHand, Module, fit, loader, stopping, tells, trainer

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "verify_resume.py"
PLAN_WITHOUT_STAGES = MultigridSchedule(Baseline(BatchShape(4, 8, 32), epochs=4, milestones=(2,)), stepwise=False)
OFF = {"long_cycle": LongCycle(((1, 1),)), "short_cycle": ShortCycle((1,)), "epoch_factor": 1}
IGNORED = ["Checkpoint directory", "The dirpath has changed", "This DataLoader will create 4 worker"]
IGNORED += [".*there is no last checkpoint available", ".*Please add the following callbacks. ..ModelCheckpoint{"]
ignored = pytest.mark.filterwarnings(*(f"ignore:{message}" for message in IGNORED))
pytestmark = [pytest.mark.usefixtures("_unrehearsed"), ignored]
SLOW = pytest.mark.slow  # whole trainings; samples of each kind run in the ordinary suite


def steps_scheduler(optimizer, module):
    return MultiStepLR(optimizer, [2, 3])


def one_cycle(optimizer, module):
    total = int(module.trainer.estimated_stepping_batches)
    return {"scheduler": OneCycleLR(optimizer, 0.1, total_steps=total), "interval": "step"}


def cosine(optimizer, module):
    return CosineAnnealingLR(optimizer, 4)


def saver(folder, **arguments):
    """Keeps each checkpoint, named by the number of optimizer steps before it."""
    kept = {"save_top_k": -1, "filename": "{step}", "auto_insert_metric_name": False}
    return ModelCheckpoint(folder, **kept | arguments)


def state_of(module, host):
    """Everything that a training leaves, as bytes."""
    momenta = [state[name] for state in host.optimizers[0].state.values() for name in sorted(state)]
    parts = {"weights": [*module.parameters(), *momenta], "buffers": module.buffers()}
    return {name: [tensor.detach().numpy().tobytes() for tensor in tensors] for name, tensors in parts.items()}


# --- Exactly ---


def verify(kills):
    workers = "1" if kills == 1 else "2"
    runpy.run_path(str(SCRIPT))["main"](["--kills", str(kills), "--workers", workers])


@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=SLOW)])
def test_a_process_that_is_killed_continues_exactly(kills, capfd):
    """Runs the script for some of its moments, in a process that it may fork and kill."""
    process = multiprocessing.get_context(start_method()).Process(target=verify, args=(kills,))
    process.start()
    process.join()
    printed = capfd.readouterr().out
    assert f"\n{kills}/{kills} identical: indices, shapes, LR and loss of 32 steps, and the final weights" in printed
    assert process.exitcode == 0


OF_EPOCHS = {"every_n_epochs": 1}
VARIANTS = {
    "2 workers": {"workers": 2},
    "4 persistent workers": {"workers": 4},
    "accumulation": {"accumulate_grad_batches": 2},
    "uneven accumulation": {"accumulate_grad_batches": 3},
    "OneCycle": {"scheduler": one_cycle},
    "max_steps": {"max_steps": 90, "max_epochs": -1},
    "bf16": {"precision": "bf16-mixed"},
    "validation in mid-epoch": {"val_check_interval": 0.5},
    "validation by total batches": {"val_check_interval": 10, "check_val_every_n_epoch": None},
    "limited": {"limit_train_batches": 20},
    "drop_last": {"drop_last": True},
    "saved at an epoch's end, after its validation": {"save": {**OF_EPOCHS, "save_on_train_epoch_end": True}},
    "saved with a validation": {"save": {**OF_EPOCHS, "save_on_train_epoch_end": False}},
    "precise statistics for validations": {"make": partial(MultigridCallback, precise_bn_batches=3)},
    "baseline": {"make": MultigridCallback.baseline},
}
ORDINARY = "2 workers", "OneCycle", "saved with a validation", "precise statistics for validations", "baseline"


@pytest.mark.parametrize("variant", sampled(VARIANTS, *ORDINARY))
def test_a_resumed_run_equals_the_whole_one(variant, tmp_path):
    arguments = dict(VARIANTS[variant])
    scheduler, number = arguments.pop("scheduler", steps_scheduler), arguments.pop("workers", 0)
    drop_last, save = arguments.pop("drop_last", False), arguments.pop("save", {"every_n_train_steps": 2})
    make = arguments.pop("make", partial(MultigridCallback, milestones="script"))

    def run(folder, **more):
        module = Module(scheduler)
        both = {
            "train": loader(num_workers=number, persistent_workers=number > 2, drop_last=drop_last),
            "val": loader(shuffle=False, number=8) if "val" in variant else None,
        }
        host = fit(module, make(), saver(folder, **save), enable_checkpointing=True, **both, **arguments, **more)
        return module.seen, state_of(module, host)

    whole, end = run(tmp_path)
    paths = sorted(tmp_path.glob("*.ckpt"), key=lambda path: int(path.stem))
    assert len(paths) >= 4
    for path in paths[1 : len(paths) - 1 : len(paths) // 3]:
        counters = LoopCounters(torch.load(path, weights_only=True))
        after = [step for step in whole if step[:2] >= counters.place]
        resumed, its_end = run(tmp_path / "again", ckpt_path=path, seed=123)
        assert resumed == after
        assert its_end == end


def test_another_seed_is_refused(tmp_path):
    """The rest of the pass would be of another order: some clips would come twice, others never."""
    fit(Module(), MultigridCallback(), saver(tmp_path, every_n_train_steps=1), enable_checkpointing=True)
    end = Plan(PLAN_WITHOUT_STAGES, CLIPS).steps_per_epoch
    for done in (2, end):  # an epoch ends within a pass, too
        with pytest.raises(MisconfigurationException, match="has the seed 0, and this run's has 5: .*Multi.*seed=0"):
            fit(Module(), MultigridCallback(seed=5), ckpt_path=tmp_path / f"{done}.ckpt")
    module = Module()
    fit(module, MultigridCallback(), ckpt_path=tmp_path / f"{end}.ckpt", seed=9)  # of `seed_everything`
    assert module.seen[0][:2] == (1, 0)


NUMPYS = {"seed": np.int64(3), "sub_batch": np.int64(8), "epoch_factor": np.float32(1.1)}
NUMPYS["milestones"] = np.array([2.0, 3.0])
OF_NUMPY = MultigridSchedule(Baseline(BatchShape(4, 8, 32), np.int64(4), (2,)), sub_batch=np.int64(8))


@pytest.mark.parametrize("numbers", [NUMPYS, {"schedule": OF_NUMPY}], ids=["arguments", "schedule"])
def test_numbers_of_numpy_train_as_pythons_and_continue(numbers, tmp_path):
    """Checkpoints are loaded as plain values, which NumPy's are not."""
    fit(Module(), MultigridCallback(**numbers), saver(tmp_path, every_n_train_steps=5), enable_checkpointing=True)
    module = Module()
    fit(module, MultigridCallback(**numbers), ckpt_path=tmp_path / "5.ckpt")
    assert module.seen[0][:2] == (0, 5)


class SavesWithinSteps(Module):
    def __init__(self, folder):
        super().__init__(steps_scheduler)
        self.folder = folder

    def on_after_backward(self):
        if len(self.seen) == 3 and self.folder:
            self.trainer.save_checkpoint(self.folder / "on_after_backward.ckpt")
            raise RuntimeError("on purpose")


def test_a_checkpoint_that_a_script_writes_within_a_step_continues_with_it_and_says_so(tmp_path, caplog):
    """In any hook. BatchNorm's running statistics have the step's mini-batch twice."""
    caplog.set_level("INFO")

    def run(folder=None, **arguments):
        module = SavesWithinSteps(folder)
        saves = LambdaCallback(on_exception=lambda host, *_: host.save_checkpoint(folder / "on_exception.ckpt"))
        host = fit(module, MultigridCallback(), saves, max_epochs=1, **arguments)
        return module.seen, state_of(module, host)

    whole, end = run()
    with pytest.raises(RuntimeError, match="on purpose"):
        run(tmp_path)
    for name in ("on_after_backward", "on_exception"):
        caplog.clear()
        seen, its_end = run(ckpt_path=tmp_path / f"{name}.ckpt")
        assert (seen, its_end["weights"]) == (whole[2:], end["weights"])
        assert its_end["buffers"] != end["buffers"]
        assert "written within an optimizer step, which is trained again. So what the step had changed" in caplog.text


def stop():
    """Within the second epoch, as `max_time`, `Timer` and scripts do."""
    return stopping(lambda host, batch: (host.current_epoch, batch) == (1, 4))


class StepsByHand(ByHand, Module):
    def on_train_epoch_end(self):
        self.lr_schedulers().step()


STOPPED = {
    "": {},
    "accumulation": {"accumulate_grad_batches": 2},
    "validation there": {"val_check_interval": 5},
    "manual": {"kind": StepsByHand},
}


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
@pytest.mark.parametrize("variant", sampled(STOPPED, "accumulation", "manual"))
def test_a_run_that_is_stopped_within_an_epoch_continues_there(variant, tmp_path):
    """Whatever wrote the checkpoint: Lightning counts the epoch as whole."""
    variant = dict(STOPPED[variant])
    kind = variant.pop("kind", Module)

    def run(folder, *saving, **arguments):
        module, logger = kind(schedulers=steps_scheduler), CSVLogger(tmp_path, folder, "")
        arguments |= {"val": loader(shuffle=False, number=8), "enable_checkpointing": True, "logger": logger}
        host = fit(module, *saving, MultigridCallback(), log_every_n_steps=1, max_epochs=3, **arguments, **variant)
        rows = csv.DictReader((tmp_path / folder / "metrics.csv").read_text().splitlines())
        logged = {row["step"]: row["loss"] for row in rows if row["loss"]}
        return module.seen, logged, state_of(module, host), host

    whole, logged, end, _ = run("whole")
    epoch_end = saver(tmp_path, filename="epoch end", save_on_train_epoch_end=True)
    *_, host = run("stopped", epoch_end, NewestCheckpoint(tmp_path), stop())
    host.save_checkpoint(tmp_path / "after.ckpt")
    for name in ("epoch end", "last", "after"):
        resumed, its_log, its_end, _ = run(name, ckpt_path=tmp_path / f"{name}.ckpt")
        first = Place(1, 5 - 5 % variant.get("accumulate_grad_batches", 1))
        assert resumed[0][:2] == (first.epoch, first.batch)
        assert resumed == [step for step in whole if step[:2] >= resumed[0][:2]]
        assert its_log.items() <= logged.items()
        assert its_end["weights"] == end["weights"]
        assert its_end == end or "accumulate_grad_batches" in variant  # stopped within a step, which it trains again


def test_an_epoch_that_the_script_leaves_as_it_stops_is_over(tmp_path):
    class Leaves(Module):
        def on_train_batch_start(self, batch, batch_idx):
            self.trainer.should_stop = leaves = (self.current_epoch, batch_idx) == (1, 3)
            return -1 if leaves else None

    fit(Leaves(), MultigridCallback(), NewestCheckpoint(tmp_path), enable_checkpointing=True)
    resumed = Module()
    fit(resumed, MultigridCallback(), NewestCheckpoint(tmp_path), enable_checkpointing=True, ckpt_path="last")
    assert resumed.seen[0][:2] == (2, 0)


def test_a_second_fit_of_a_trainer_that_was_stopped_goes_on_as_without_the_callback():
    def places(*multigrid):
        host, module = trainer(*multigrid, stop()), Module()
        for _ in range(2):
            host.fit(module, loader())
        return [step[0] for step in module.seen if step[1] == 0]

    assert places() == places(MultigridCallback()) == [0, 1, 2, 3]


@tells
class Failing(Module):
    """Fails once, at the place that a test chooses."""

    def __init__(self, where="nowhere", at=0):
        super().__init__(steps_scheduler)
        self.where, self.at, self.calls = where, at, 0
        self.validated = []  # (epoch, loss)

    def told(self, where, *_):
        if not isinstance(self._trainer, L.Trainer) or self.trainer.sanity_checking:
            return
        if where == "on_validation_epoch_end":
            self.validated.append((self.current_epoch, self.trainer.callback_metrics["val"].item()))
        before_last = self.current_epoch, self.trainer.num_training_batches - 2
        if where == "on_before_batch_transfer" and self.trainer.training and self.seen:
            where = "last transfer" if self.seen[-1][:2] == before_last else "a transfer"
        if where == self.where:
            self.calls += 1
            if self.calls == self.at:
                raise RuntimeError("on purpose")


def run_failing(module, folder, accumulate=1, **arguments):
    last = ModelCheckpoint(folder, save_last=True, save_on_exception=True, every_n_train_steps=10**6)
    arguments |= {"accumulate_grad_batches": accumulate, "enable_checkpointing": True}
    host = fit(module, MultigridCallback(), last, val=loader(shuffle=False, number=8), **arguments)
    return state_of(module, host)


@pytest.fixture(scope="module")
def unfailed(tmp_path_factory):
    """The whole training, for a number of micro-batches, and what it leaves."""

    @cache
    def of(accumulate):
        module = Failing()
        return module, run_failing(module, tmp_path_factory.mktemp("whole"), accumulate)

    return of


STEP, VALIDATION = "after training_step", "on_validation_start"
START, END = "on_train_epoch_start", "on_train_batch_end"
ONCE = [(STEP, 8), (VALIDATION, 2), (START, 2), ("last transfer", 2)]
RARELY = [(STEP, 1), (STEP, 2), ("on_before_optimizer_step", 6), (END, 7)]
# Lightning's counters differ after a resume from the middle of a step.
TWICE = [((STEP, 5), again) for again in ((STEP, 3), (END, 2), (VALIDATION, 1), (START, 1))]
FAILURES = [*product((1, 2), ((one,) for one in (*ONCE, *RARELY))), *((1, both) for both in TWICE)]
FAILURES_SAMPLE = [*((2, (one,)) for one in ONCE), *((1, both) for both in TWICE)]


@pytest.mark.parametrize(("accumulate", "failures"), sampled(FAILURES, *FAILURES_SAMPLE))
def test_a_run_that_fails_continues_where_it_failed(accumulate, failures, unfailed, tmp_path):
    whole, end = unfailed(accumulate)
    for number, (where, at) in enumerate(failures):
        failed = Failing(where, at)
        with pytest.raises(RuntimeError, match="on purpose"):
            run_failing(failed, tmp_path, accumulate, ckpt_path="last" if number else None)
    resumed = Failing()
    its_end = run_failing(resumed, tmp_path, accumulate, ckpt_path="last")
    # An optimizer step that was under way starts anew, with all its micro-batches.
    assert resumed.seen == whole.seen[-len(resumed.seen) :]
    if len(failures) == 1:
        assert len(failed.seen) - accumulate <= len(whole.seen) - len(resumed.seen) <= len(failed.seen)
    assert its_end["weights"] == end["weights"]


@pytest.mark.parametrize("at", [(VALIDATION, 2), ("on_validation_batch_start", 4), ("on_validation_batch_end", 3)])
def test_a_validation_that_was_stopped_begins_anew(at, unfailed, tmp_path):
    """Two mini-batches in each; the resumed run has the metrics of all of them."""
    failed, resumed = Failing(*at), Failing()
    with pytest.raises(RuntimeError, match="on purpose"):
        run_failing(failed, tmp_path)
    run_failing(resumed, tmp_path, ckpt_path="last")
    assert failed.validated + resumed.validated == unfailed(1)[0].validated


def adamw(parameters):
    return torch.optim.AdamW(parameters, 0.01, weight_decay=0.05)


@pytest.mark.parametrize(("at", "optimizer"), [(1, None), (4, None), (1, adamw)])
def test_a_checkpoint_that_a_signal_writes_within_an_update_has_the_baselines_settings(at, optimizer, tmp_path):
    """As Lightning does when SLURM requeues a job."""
    path = tmp_path / "signal.ckpt"

    class Signalled(Module):
        def configure_optimizers(self):
            configured = super().configure_optimizers()
            configured["optimizer"].register_step_pre_hook(self.save)
            return configured

        def save(self, *_):
            if len(self.seen) == at and not path.exists():
                self.trainer.save_checkpoint(path)

    whole, resumed = Signalled(steps_scheduler, optimizer), Signalled(steps_scheduler, optimizer)
    end = state_of(whole, fit(whole, MultigridCallback(), enable_checkpointing=True, default_root_dir=tmp_path))
    again = fit(resumed, MultigridCallback(), enable_checkpointing=True, default_root_dir=tmp_path, ckpt_path=path)
    [saved] = torch.load(path, weights_only=True)["optimizer_states"][0]["param_groups"]
    assert (saved["lr"], saved["weight_decay"]) == ((0.01, 0.05) if optimizer else (0.1, 0))
    assert resumed.seen == whole.seen[at:]
    assert state_of(resumed, again)["weights"] == end["weights"]


# --- On other numbers of ranks ---


def global_batches(plan, clips, world, accumulate=1, epochs=2):
    """The clips of each optimizer step over all ranks, for a plan with so many clips per baseline step."""
    schedule = MultigridSchedule(
        Baseline(BatchShape(plan.baseline.shape.clips // world // accumulate, 8, 32), 4, (2, 3)), plan.long_cycle
    )
    own = Plan(schedule, clips, seed=7, world=world, accumulate=accumulate)
    samplers = [
        MultigridSampler(own, lambda number: shuffled_order(7, number, clips), rank=rank) for rank in range(world)
    ]
    for epoch in range(epochs):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        micro = list(zip(*samplers, strict=True))
        for start in range(0, len(micro), accumulate):
            requests = [r for ranks in micro[start : start + accumulate] for of_rank in ranks for r in of_rank]
            yield epoch, sorted((r.index, r.frames, r.size, r.seed) for r in requests)


@settings(max_examples=30, deadline=None)
@given(clips=st.integers(450, 900), world=st.sampled_from([2, 3, 4, 6]), accumulate=st.sampled_from([1, 2]))
def test_the_same_global_mini_batches_on_any_number_of_ranks(clips, world, accumulate):
    plan = MultigridSchedule(Baseline(BatchShape(24, 8, 32), 4, (2, 3)))
    one, many = (list(global_batches(plan, clips, *split)) for split in ((1, 1), (world, accumulate)))
    assert one == many


@settings(max_examples=100, deadline=None)
@given(
    number=st.integers(64, 900),
    old=st.tuples(st.integers(1, 12), st.integers(1, 4), st.integers(1, 3)),
    new=st.tuples(st.integers(1, 12), st.integers(1, 4), st.integers(1, 3)),
    place=st.tuples(st.integers(0, 3), st.integers(0, 10**4)),
    shift=st.integers(0, 2000),
)
def test_continues_at_the_next_clip_is_the_next_and_the_epoch_goes_on_where_it_was(number, old, new, place, shift):
    def plan(clips, world, accumulate):
        schedule = MultigridSchedule(Baseline(BatchShape(clips, 8, 32), 4, (2, 3)))
        return Plan(schedule, number, 7, world, accumulate)

    def read(plan, place):
        return {**describe_run(plan), "clips_seen": plan.step(place).offset}

    before, now = plan(*old), plan(*new)
    at = before.start_of_update(Place(place[0], place[1] % before.batches_per_epoch))
    state = read(before, at)
    state |= {"clips_seen": state["clips_seen"] + shift, "shift": shift}
    found, its_shift = _continues_at(state, describe_run(now), at, now)
    # The first step there that does not begin before: less than a step of the new run is left out of the epoch.
    assert 0 <= now.position(found) - before.position(at) < Fraction(1, now.steps_per_epoch)
    assert now.start_of_update(found) == found
    assert now.step(found).offset + its_shift == before.step(at).offset + shift
    there = read(now, found)
    there["clips_seen"] += its_shift
    back, and_back = _continues_at(there, describe_run(before), found, before)
    assert before.step(back).offset + and_back == before.step(at).offset + shift
    ahead = before.position(back) - before.position(at)
    assert 0 <= ahead < Fraction(1, now.steps_per_epoch) + Fraction(1, before.steps_per_epoch)


class Noting(Module):
    """Writes which clips it sees, each rank to a file of its own."""

    def __init__(self, folder):
        super().__init__(steps_scheduler)
        self.folder = folder

    def training_step(self, batch, batch_idx):
        *batch, index = batch
        self.step = [self.current_epoch, batch_idx, index.tolist()]
        return super().training_step(batch, batch_idx)

    def note_lr(self, optimizer, *_):
        super().note_lr(optimizer)
        with open(self.folder / f"rank{self.global_rank}.jsonl", "a") as file:
            file.write(json.dumps([*self.step, optimizer.param_groups[0]["lr"]]) + "\n")


def numbered(number, batch_size):
    clips = loader(number=number).dataset
    return DataLoader(TensorDataset(*clips.tensors, torch.arange(number)), batch_size, shuffle=True)


def run_up_to(folder, step, batch_size, ckpt_path=None):
    """Trains up to a step; returns (epoch, batch, clips, LR) of its steps."""
    folder.mkdir(exist_ok=True)
    L.seed_everything(3, verbose=False)
    kept, ends = saver(folder, every_n_train_steps=1), stopping(lambda host, _: host.global_step >= step)
    host = trainer(MultigridCallback(milestones="script"), ends, kept, enable_checkpointing=True)
    host.fit(Noting(folder), numbered(396, batch_size), ckpt_path=ckpt_path)
    return [json.loads(line) for line in (folder / "rank0.jsonl").read_text().splitlines()]


def test_another_global_batch_goes_on_with_the_next_clip_at_the_same_point_of_the_epoch(tmp_path, caplog):
    small = run_up_to(tmp_path / "small", 37, 4)
    with caplog.at_level(logging.INFO, logger="lightning.pytorch.utilities.rank_zero"):
        large = run_up_to(tmp_path / "large", 100, 8, tmp_path / "small" / "37.ckpt")
    stream = [clip for run in (small, large) for _, _, clips, _ in run for clip in clips]
    order = [index for number in range(len(stream) // 396 + 1) for index in shuffled_order(3, number, 396)]
    assert stream == order[: len(stream)]
    schedules = [MultigridSchedule(Baseline(BatchShape(clips, 8, 32), 4, (2, 3))) for clips in (8, 4)]
    plan, before = (Plan(schedule, 396) for schedule in schedules)
    epoch, batch, _, lr = large[0]
    assert Fraction(37, before.steps_per_epoch) <= epoch + Fraction(batch, plan.steps_per_epoch)
    assert epoch + Fraction(batch - 1, plan.steps_per_epoch) < Fraction(37, before.steps_per_epoch)
    assert lr == pytest.approx(0.1 * plan.step(Place(epoch, batch)).lr_scale)
    seen = sum(len(clips) for _, _, clips, _ in small)
    where = f"epoch {epoch}, batch {batch}, and clip {seen % 396} of pass {seen // 396} over the data (all from 0)."
    assert where in caplog.text
    assert "had ended" not in caplog.text


# --- Without the callback ---


def train_for(folder, callback, scheduler, ckpt_path=None):
    """Trains four epochs of the baseline with a checkpoint at the end of each one."""
    module = Module(scheduler)
    both = [] if callback is None else [callback]
    ends = saver(folder, every_n_epochs=1, filename="{epoch}")
    fit(module, *both, ends, enable_checkpointing=True, ckpt_path=ckpt_path, max_epochs=4)
    return module


@pytest.mark.parametrize("scheduler", sampled([one_cycle, steps_scheduler, cosine], one_cycle))
def test_an_epochs_end_goes_on_without_the_callback(scheduler, tmp_path):
    baseline = train_for(tmp_path / "baseline", None, scheduler)
    train_for(tmp_path / "off", MultigridCallback(**OFF), scheduler)
    with pytest.warns(UserWarning, match=r"callbacks used to create the .*: \['MultigridCallback'\]"):
        plain = train_for(tmp_path / "plain", None, scheduler, ckpt_path=tmp_path / "off" / "1.ckpt")
    rest = baseline.seen[len(baseline.seen) - len(plain.seen) :]
    assert plain.seen[0][:2] == (2, 0)
    assert [step[:3] for step in plain.seen] == [step[:3] for step in rest]
    assert plain.lrs == pytest.approx([lr for *_, lr, _ in rest])


def test_the_end_of_a_coarse_epoch_goes_on_without_the_callback(tmp_path):
    """Epochs count on; the mini-batches and the LR are the script's."""
    train_for(tmp_path / "multigrid", MultigridCallback(milestones="script"), steps_scheduler)
    path = tmp_path / "multigrid" / "2.ckpt"
    [group] = torch.load(path, weights_only=True)["optimizer_states"][0]["param_groups"]
    with pytest.warns(UserWarning, match=r"callbacks used to create the .*: \['MultigridCallback'\]"):
        plain = train_for(tmp_path / "plain", None, steps_scheduler, ckpt_path=path)
    assert [step[:2] for step in plain.seen] == [(3, batch) for batch in range(25)]
    assert (set(plain.shapes), set(plain.lrs)) == ({(4, 8, 32)}, {group["lr"]})


def test_what_means_nothing_here_is_refused(tmp_path):
    callback, keep = MultigridCallback(milestones="script"), saver(tmp_path / "multigrid", every_n_train_steps=2)
    fit(Module(steps_scheduler), callback, keep, enable_checkpointing=True)
    for epoch in (0, 1):  # at an epoch's end, and in its middle
        keep = saver(tmp_path / f"plain {epoch}", every_n_train_steps=25 + 5 * epoch)
        fit(Module(steps_scheduler), keep, enable_checkpointing=True, max_epochs=epoch + 1)

    def resume(path, callback):
        fit(Module(steps_scheduler), callback, ckpt_path=tmp_path / path)

    said = "run with 8 mini-batches in an epoch, and this run has (.|\n)*Pretrained"
    for other in ({"epoch_factor": 2}, OFF):  # of other steps
        with pytest.raises(MisconfigurationException, match=said):
            resume("multigrid/4.ckpt", MultigridCallback(milestones="script", **other))
    said = (
        "of a training without MultigridCallback, so its place means nothing here. Continue it without it, or start a "
        "new training from its weights, without `ckpt_path`: `module.load_state_dict"
    )
    for path in ("plain 0/25.ckpt", "plain 1/30.ckpt"):
        with pytest.raises(MisconfigurationException, match=said):
            resume(path, MultigridCallback())
    warned = pytest.warns(UserWarning, match="Please add the following callbacks: .*'MultigridCallback'")
    with warned, pytest.raises(RuntimeError, match="0 stateful loaders, but found 1 states"):
        fit(Module(steps_scheduler), max_epochs=9, ckpt_path=tmp_path / "multigrid" / "4.ckpt")


@pytest.mark.parametrize("ended", [True, pytest.param(False, marks=SLOW)])
def test_a_run_continues_to_more_epochs(ended, tmp_path, caplog):
    """With the steps of an epoch as they were, at the same place; the next clip is the next one of the stream."""
    plans = []

    def run(epochs, **arguments):
        module, callback = Noting(tmp_path), MultigridCallback()
        kept = [saver(tmp_path / "kept", every_n_train_steps=1)] * (epochs == 8)
        host = trainer(callback, *kept, max_epochs=epochs, enable_checkpointing=bool(kept))
        L.seed_everything(3, verbose=False)
        host.fit(module, numbered(CLIPS, 4), **arguments)
        plans.append(callback.run.plan)
        return module, host

    run(8)
    steps = plans[0].batches_per_epoch
    done = 8 * steps if ended else 5 * steps + 3
    path = tmp_path / "kept" / f"{done}.ckpt"
    (tmp_path / "rank0.jsonl").rename(tmp_path / "before.jsonl")
    with caplog.at_level(logging.INFO, logger="lightning.pytorch.utilities.rank_zero"):
        module, host = run(12, ckpt_path=path)
    assert host.current_epoch == 12
    assert module.seen[0][0] == done // steps
    if ended or plans[1].batches_per_epoch == steps:
        assert module.seen[0][1] == done % steps
    assert "The plan differs from the checkpoint's. From epoch" in caplog.text
    seen = [json.loads(line)[2] for line in (tmp_path / "before.jsonl").read_text().splitlines()][:done]
    seen += [json.loads(line)[2] for line in (tmp_path / "rank0.jsonl").read_text().splitlines()]
    stream = [clip for clips in seen for clip in clips]
    order = [index for number in range(len(stream) // CLIPS + 1) for index in shuffled_order(3, number, CLIPS)]
    assert stream == order[: len(stream)]


@pytest.mark.parametrize("version", [None, 4])  # the first state said none
def test_a_checkpoint_of_another_version_is_refused_before_anything_is_planned(version, tmp_path):
    keep = saver(tmp_path, every_n_train_steps=11)
    fit(Module(steps_scheduler), MultigridCallback(), keep, enable_checkpointing=True)
    checkpoint = torch.load(tmp_path / "11.ckpt", weights_only=True)
    state = checkpoint["callbacks"]["MultigridCallback"]
    del state["version"]
    state.update({} if version is None else {"version": version})
    torch.save(checkpoint, tmp_path / "old.ckpt")
    callback, module = MultigridCallback(), Module(steps_scheduler)
    said = (
        rf"of another version of lightning-multigrid \(its state has version {version or 1}, not 7\), so its place "
        "means nothing here. Continue it with that version, or start a new training from its weights"
    )
    with pytest.raises(MisconfigurationException, match=said):
        fit(module, callback, ckpt_path=tmp_path / "old.ckpt")
    module.load_state_dict(torch.load(tmp_path / "old.ckpt")["state_dict"])  # as the message says
