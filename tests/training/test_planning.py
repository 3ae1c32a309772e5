"""The plan that follows from a script: its short cycle, one pass from coarse to fine, epochs of few steps."""

import math
import re
from types import SimpleNamespace

import pytest
from jsonargparse import ArgumentParser
from lightning.pytorch import Callback
from torch.optim.lr_scheduler import CosineAnnealingLR, MultiStepLR
from torch.utils.data import ConcatDataset, DataLoader

from lightning_multigrid import Baseline, BatchShape, LongCycle, MultigridCallback, MultigridSchedule, Plan, ShortCycle
from lightning_multigrid.training import check_steps
from tests.helpers.tiny import CLIPS, Module, begin, clips, fit, loader, trainer

pytestmark = pytest.mark.usefixtures("_unrehearsed")


@pytest.mark.smallest
@pytest.mark.parametrize(
    ("size", "given", "sizes"),
    [(62, {}, {44, 62}), (64, {}, {32, 45, 64}), (62, {"short_cycle": ShortCycle()}, {31, 44, 62})],
)
def test_small_clips_have_no_short_cycle_but_a_given_one_is_taken(size, given, sizes):
    plan = MultigridCallback(**given).plan(trainer(), Module(), DataLoader(clips(32, size=size), 2))
    assert {shape.size for shape in plan.schedule.grids} == sizes
    assert ("short cycle: off; 16x44 is 16 clips of 44 px" in str(plan)) == (len(sizes) == 2)


@pytest.mark.parametrize(
    "scheduler",
    [lambda optimizer, _: MultiStepLR(optimizer, [4, 6]), lambda optimizer, _: CosineAnnealingLR(optimizer, 8)],
    ids=["steps", "cosine"],
)
def test_one_pass_has_half_of_its_steps_on_the_baselines_grid_whatever_the_lr_does(scheduler):
    module, callback = Module(scheduler), MultigridCallback.progressive()
    host = fit(module, callback, train=loader(2), max_epochs=8)
    assert host.current_epoch == 8
    shapes, quarter = module.shapes, len(module.shapes) // 4
    grids = [{*shapes[:quarter]}, {*shapes[quarter : 2 * quarter]}, {*shapes[2 * quarter :]}]  # once, and never back
    assert grids == [{(8, 4, 23)}, {(4, 8, 23)}, {(2, 8, 32)}]
    assert sum(clips for clips, *_ in shapes) == 8 * CLIPS
    assert module.lrs[0] == pytest.approx(0.1 * 4)
    assert module.lrs[-1] < 0.1 / 20  # the schedule of the LR has come to its end


def test_the_papers_plan_has_a_long_cycle_for_each_lr_stage_and_sizes_from_a_half():
    def planned(callback, scheduler=lambda optimizer, _: MultiStepLR(optimizer, [4, 6])):
        return callback.plan(trainer(max_epochs=8), Module(scheduler), loader(2)).schedule

    schedule = planned(MultigridCallback.paper(epoch_factor=1))
    stages = schedule.baseline.milestones, [phase.stage for phase in schedule.phases]
    assert stages == ((4, 6), [0, 0, 0, 0, 1, 1, 1, 1, 2])
    assert (schedule.stepwise, schedule.epoch_factor, schedule.short_cycle) == (True, 1, ShortCycle())
    once = planned(MultigridCallback())
    assert (once.baseline.milestones, once.stepwise) == ((4,), False)
    assert [phase.stage for phase in once.phases] == [0, 0, 0, 0, 1]
    assert planned(MultigridCallback(milestones=[3])).baseline.milestones == (3,)
    cosine = planned(MultigridCallback.paper(), lambda optimizer, _: CosineAnnealingLR(optimizer, 8))
    assert cosine.phases == planned(MultigridCallback(short_cycle=ShortCycle())).phases
    with pytest.raises(ValueError, match="`milestones` must be a list of epochs or 'script', got 'stages'"):
        MultigridCallback(milestones="stages")


def test_a_training_that_never_reaches_its_last_phase_is_warned_about():
    with pytest.warns(UserWarning, match="The last phase, on the baseline's shape, gets no step: .* Give more data"):
        begin(Module(), MultigridCallback(milestones=[0.9]), max_epochs=1, accumulate_grad_batches=7)


def test_a_warmup_that_is_longer_than_the_training_is_refused_by_its_name():
    with pytest.raises(ValueError, match="`warmup_epochs` must be .* end before .* at epoch 4; got 5"):
        MultigridCallback(warmup_epochs=5.0).plan(trainer(), Module(), loader())


def test_steps_of_more_clips_than_a_pass_are_named(caplog):
    begin(Module(), MultigridCallback(), accumulate_grad_batches=2)
    assert "A step of the coarsest grid takes 128 clips, more than the 100 of a pass over the data: " in caplog.text


@pytest.mark.parametrize(
    ("number", "said"),
    [(42, None), (41, "10.25"), (22, "5.50 optimizer steps, .* rounded to 6, by 9%"), (10, "2.50"), (9, "2.25")],
)
def test_a_rounding_of_an_epochs_steps_is_said_above_a_twentieth(number, said, caplog):
    """Half of the steps have 6 clips, half 2: 4 on average, and an epoch makes one pass."""
    coarse = {"long_cycle": LongCycle(((0.375, 1),)), "short_cycle": ShortCycle((1,)), "epoch_factor": 1}
    begin(Module(), MultigridCallback(**coarse), train=loader(2, number=number))
    found = re.search(r"An epoch would have .* they are rounded to .*", caplog.text)
    assert (found is None) == (said is None or number == 41)
    assert found is None or re.search(said, found.group())


def advised(error):
    """By how much a message says to repeat the data, and to divide the epochs."""
    numbers = {re.search(way, str(error))[1] for way in (r"\[dataset\] \* (\d+)", r"`max_epochs` by (\d+)")}
    [times] = map(int, numbers)
    return times


def test_epochs_of_few_steps_train_as_the_message_says():
    """30 clips: twice as many would be 1.39 steps, which are rounded by 28 %."""

    def train(clips, epochs):
        begin(Module(), MultigridCallback(), train=DataLoader(clips, 16, shuffle=True), max_epochs=epochs)

    data = clips(30)
    said = r"0\.70 optimizer steps, .* to 1 changes them by 44%, and 25% is the most\. Make"
    with pytest.raises(ValueError, match=said) as error:
        train(data, 9)
    times = advised(error.value)
    assert times == 3
    train(ConcatDataset([data] * times), 9 // times)


def test_a_data_module_that_repeats_its_clips_is_advised_to_repeat_more():
    plan = Plan(MultigridSchedule(Baseline(BatchShape(16, 8, 32), epochs=20)), 15)
    said = "Make epochs of 2 times the clips, by `repeats=4`, and divide `max_epochs` by 2"
    with pytest.raises(ValueError, match=said):
        check_steps(plan, SimpleNamespace(repeats=2))


@pytest.mark.parametrize("accumulate", [1, 3])
def test_as_many_times_the_clips_as_the_message_names_are_enough(accumulate):
    schedule = MultigridSchedule(Baseline(BatchShape(4, 8, 32), epochs=20))
    for number in range(1, 60):
        try:
            check_steps(Plan(schedule, number, accumulate=accumulate))
        except ValueError as error:
            check_steps(Plan(schedule, number * advised(error), accumulate=accumulate))


@pytest.mark.parametrize("warmup", [0, 2])
def test_a_schedule_without_stages_is_one_long_cycle_and_then_fine_tuning_for_as_many_steps(warmup):
    def schedule_of(**arguments):
        module = Module(lambda optimizer, _: CosineAnnealingLR(optimizer, 8))
        return MultigridCallback(**arguments).plan(trainer(max_epochs=8), module, loader()).schedule

    schedule = schedule_of(warmup_epochs=warmup)
    half = warmup + (8 - warmup) / 2
    assert [phase.stage for phase in schedule.phases] == [0, 0, 0, 0, 1]
    assert [float(phase.end_epoch) for phase in schedule.phases] == [half / 4, half / 2, half * 3 / 4, half, 8]
    assert all(schedule.baseline_epoch(epoch) == epoch for epoch in (0, 0.5, warmup / 2, half, 6.5))
    assert [float(phase.end_epoch) for phase in schedule_of(fine_tuning=False).phases] == [2, 4, 6, 8]


@pytest.mark.parametrize("stepwise", [True, False])
def test_that_a_given_schedule_holds_a_smooth_lr_is_said(stepwise, caplog):
    baseline = Baseline(BatchShape(4, 8, 32), epochs=6, milestones=(2,))
    module = Module(lambda optimizer, _: CosineAnnealingLR(optimizer, 6))
    callback = MultigridCallback(MultigridSchedule(baseline, lr_scaling="none", stepwise=stepwise))
    text = r"from epoch 2 to 4, .* training keeps the LR of the stage before.*`MultigridSchedule\(..., stepwise=F"
    fit(module, callback, max_epochs=6)
    assert bool(re.search(text, caplog.text)) == stepwise
    of_epoch = {epoch: lr for epoch, *_, lr, _ in module.seen}
    smooth = [0.05 * (1 + math.cos(math.pi * epoch / 6)) for epoch in range(6)]
    held = [smooth[1] if stepwise and epoch in (2, 3) else lr for epoch, lr in enumerate(smooth)]
    assert list(of_epoch.values()) == pytest.approx(held)


@pytest.mark.parametrize("scheduler", [None, lambda optimizer, _: MultiStepLR(optimizer, [2])], ids=["none", "steps"])
def test_for_stages_of_one_lr_there_is_no_such_warning(scheduler):
    baseline = Baseline(BatchShape(4, 8, 32), epochs=4, milestones=(2,))
    begin(Module(scheduler), MultigridCallback(MultigridSchedule(baseline)))


def test_progressive_takes_other_arguments_of_the_class():
    given, other = MultigridCallback.progressive(), MultigridCallback.progressive(epoch_factor=2, seed=1)
    assert (given.epoch_factor, given.seed) == (1, None)
    assert (other.epoch_factor, other.seed) == (2, 1)
    assert other.long_cycle == given.long_cycle
    assert other.short_cycle == given.short_cycle == ShortCycle((1,))

    parser = ArgumentParser()
    parser.add_argument("--callback", type=Callback)
    init_args = {"epoch_factor": 3, "long_cycle": {"factors": [[0.5, 1]]}}
    config = {"class_path": "lightning_multigrid.MultigridCallback.progressive", "init_args": init_args}
    in_config = parser.instantiate_classes(parser.parse_object({"callback": config})).callback
    assert in_config.epoch_factor == 3
    assert (in_config.long_cycle, in_config.short_cycle) == (LongCycle(((0.5, 1),)), given.short_cycle)


@pytest.mark.parametrize(("batch", "shared"), [(4, 8), (8, 8), (32, 32)])
def test_as_many_clips_share_statistics_as_the_scripts_mini_batch_has_but_at_least_eight(batch, shared, caplog):
    callback = MultigridCallback()
    begin(Module(), callback, train=loader(batch))
    assert callback.run.plan.schedule.sub_batch == shared
    beside = "" if batch == shared else f", the script's over {batch}"
    fewer = "" if batch == shared else " (all of a mini-batch that has fewer)"
    assert f"BatchNorm has statistics over {shared} clips{fewer}, in the short cycle over more{beside}." in caplog.text
    begin(Module(), MultigridCallback(short_cycle=ShortCycle((1,))), train=loader(batch))
    assert f"BatchNorm has statistics over {shared} clips{fewer}{beside}." in caplog.text
