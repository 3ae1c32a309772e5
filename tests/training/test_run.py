"""A run: steps that train nothing, epochs that are left early, and what is there when it has ended."""

import copy
import gc
import pickle
import weakref

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from lightning_multigrid import MultigridCallback
from tests.helpers.sampling import sampled
from tests.helpers.tiny import ByHand, Module, clips, fit

pytestmark = pytest.mark.usefixtures("_unrehearsed")


class NoneAt:
    """A `collate_fn` that gives no mini-batch for some clips, as those do that drop broken samples."""

    def __init__(self):
        self.calls = 0

    def __call__(self, samples):
        self.calls += 1
        return None if self.calls % 3 == 0 else torch.utils.data.default_collate(samples)


@pytest.mark.filterwarnings("ignore:train_dataloader yielded None")
@pytest.mark.parametrize("manual", sampled([False, True], True))
def test_a_mini_batch_of_none_has_its_place_and_trains_nothing(manual):
    module, callback = type("Own", (ByHand, Module) if manual else (Module,), {})(), MultigridCallback()
    host = fit(module, callback, train=DataLoader(clips(100), 4, shuffle=True, collate_fn=NoneAt()))
    plan = callback.run.plan
    steps = [step for epoch in range(plan.epochs) for step in plan.epoch(epoch)]
    trained = [(epoch, batch) for epoch, batch, *_ in module.seen]
    assert 0.6 < len(trained) / len(steps) < 0.75
    shapes = {step.place: (step.shape.clips, step.shape.frames, step.shape.size) for step in steps}
    assert module.shapes == [shapes[place] for place in trained]
    assert module.lrs == pytest.approx([0.1 * step.lr_scale for step in steps if step.place in set(trained)])
    assert host.current_epoch == plan.epochs


def test_a_script_may_leave_epochs_early():
    class Leaves(Module):
        def on_train_batch_start(self, batch, batch_idx):
            return -1 if self.current_epoch in (1, 2) and batch_idx == 1 else None

    module = Leaves()
    fit(module, MultigridCallback())
    assert [batch for epoch, batch, *_ in module.seen if epoch == 1] == [0]
    assert len([batch for epoch, batch, *_ in module.seen if epoch == 3]) > 1


def test_a_callback_can_be_copied_and_pickled_after_a_fit_and_trains_again():
    callback = MultigridCallback(epoch_factor=2, sub_batch=4)
    fit(Module(), callback)
    for other in (copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))):
        assert (other.epoch_factor, other.sub_batch) == (2, 4)
        assert not {"log", "log_dict"} & vars(other).keys()
        with pytest.raises(RuntimeError, match="plans the training when `fit` begins, and no `fit` has begun"):
            other.run  # noqa: B018
        assert fit(Module(), other).current_epoch == callback.run.plan.epochs


def test_what_remains_of_a_fit_does_not_keep_its_trainer_and_module():
    callback, module = MultigridCallback(), Module()
    held = [weakref.ref(fit(module, callback)), weakref.ref(module)]
    run = callback.run
    del callback, module  # Lightning gives each callback the `log` of the module
    gc.collect()
    assert [reference() for reference in held] == [None, None]
    assert run.plan.epochs == 4
    assert run.report.times.all.steps
    with pytest.raises(RuntimeError, match="This `fit` of MultigridCallback has ended. Its `plan` and `report`"):
        run.trainer  # noqa: B018


@pytest.mark.parametrize("length", sampled([{"max_epochs": 3}, {"max_steps": 60}], {"max_steps": 60}))
def test_a_checkpoint_that_is_saved_after_a_fit_is_that_of_its_end(length, tmp_path, caplog):
    module = Module()
    host = fit(module, MultigridCallback(), **length)
    host.save_checkpoint(tmp_path / "end.ckpt")
    again = Module()
    resumed = fit(again, MultigridCallback(), **length, ckpt_path=tmp_path / "end.ckpt")
    assert (resumed.current_epoch, resumed.global_step) == (host.current_epoch, host.global_step)
    said = (
        "`fit` does no step. Without `ckpt_path` it trains anew; with a larger `max_epochs` or `max_steps` it goes on."
    )
    assert f"had ended at this checkpoint, so {said}" in caplog.text
    assert again.seen == []
    for name, value in module.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])


class Changing:
    """A dataset whose length changes with the epoch."""

    def __init__(self, lengths):
        self.data, self.lengths, self.epoch = clips(200), lengths, 0

    def __len__(self):
        return self.lengths[min(self.epoch, len(self.lengths) - 1)]

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError(index)
        return self.data[index]


@pytest.mark.parametrize("later", [60, 140])
def test_a_dataset_of_another_length_in_a_later_epoch_is_refused(later):
    class Moves(Module):
        def on_train_epoch_end(self):
            data.epoch += 1

    data = Changing([100, later])
    message = rf"Changing had 100 samples when the training was planned, and has {later} in epoch 1"
    with pytest.raises(ValueError, match=message):
        fit(Moves(), MultigridCallback(), train=DataLoader(data, 4, shuffle=True))


def test_a_limit_may_leave_fewer_clips_than_a_mini_batch_has(caplog):
    """Then several passes are in one, and every clip comes as often."""
    seen = []

    class Labelled(Module):
        def training_step(self, batch, batch_idx):
            if isinstance(self._trainer, L.Trainer):
                seen.extend(batch[1].tolist())
            return super().training_step((batch[0], torch.zeros_like(batch[1])), batch_idx)

    numbered = TensorDataset(clips(100).tensors[0], torch.arange(100))
    host = fit(Labelled(), MultigridCallback(), train=DataLoader(numbered, 4), limit_train_batches=3)
    assert "A step of the coarsest grid takes 64 clips, more than the 12 of a pass over the data: " in caplog.text
    assert host.global_step == 4  # the first of the coarse phases, as an epoch has one step
    assert seen == [index % 12 for index in range(len(seen))]


def test_arguments_that_would_have_no_effect_are_refused():
    with pytest.raises(ValueError, match="`clips_per_epoch` is for iterable datasets, but TensorDataset has a length"):
        fit(Module(), MultigridCallback(clips_per_epoch=50))
