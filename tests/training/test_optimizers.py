"""How the LR grows with the clips: chosen by the optimizer, and said."""

import math

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.optim import SGD

from lightning_multigrid import Baseline, BatchShape, LongCycle, MultigridCallback, MultigridSchedule, ShortCycle
from lightning_multigrid.training.script.optimizers import auto_lr_scaling, decays_apart
from tests.helpers.tiny import Module, begin, fit

pytestmark = [pytest.mark.usefixtures("_unrehearsed")]

# By the authors of each, or by the square root for all that divide their steps by the size of gradients.
LINEAR = ["SGD", "ASGD"]
SQRT = ["Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "SparseAdam", "Adafactor"]
OFF = {"long_cycle": LongCycle(((1, 1),)), "short_cycle": ShortCycle((1,)), "epoch_factor": 1}
MATRICES = nn.Parameter(torch.zeros(4, 4))


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1)


def named(name, kind=torch.optim.RMSprop):
    return type(name, (kind,), {})


@pytest.mark.parametrize(("names", "rule"), [(LINEAR, "linear"), (SQRT, "sqrt")])
def test_each_optimizer_of_torch_has_its_rule(names, rule):
    present = [getattr(torch.optim, name) for name in names if hasattr(torch.optim, name)]
    assert {auto_lr_scaling([kind([MATRICES], lr=0.1)]) for kind in present} == {rule}
    subclass = type("Mine", (present[0],), {})
    assert auto_lr_scaling([subclass([MATRICES], lr=0.1)]) == rule


def test_so_have_those_of_timm():
    optim = pytest.importorskip("timm.optim")
    linear, sqrt = ["sgdw", "sgdp", "lars", "nesterov"], ["lamb", "lion", "muon", "adafactorbv", "nadamw", "adan"]
    for names, rule in ((linear, "linear"), (sqrt, "sqrt")):
        for name in names:
            optimizer = optim.create_optimizer_v2([MATRICES], name, lr=0.1)
            assert auto_lr_scaling([optimizer]) == rule, name


@pytest.mark.parametrize(
    ("names", "apart"),
    [("adabelief adan laprop mars lambw novogradw rmsproptfw adamw", True), ("lamb rmsproptf adam", False)],
)
def test_which_of_timm_take_the_decay_from_the_weights(names, apart):
    """As a step with no gradient does; those that decay gradients divide the step by their size."""
    optim = pytest.importorskip("timm.optim")
    for name in names.split():
        weights = nn.Parameter(torch.tensor([[1.0], [4.0]]))
        optimizer = optim.create_optimizer_v2([weights], name, lr=0.01, weight_decay=0.1)
        assert decays_apart(optimizer, optimizer.param_groups[0]) == apart, name
        weights.grad = torch.zeros_like(weights)
        optimizer.step()
        in_proportion = torch.allclose(weights, torch.tensor([[0.999], [3.996]]), rtol=1e-5)
        assert in_proportion == apart, name


def test_an_unknown_optimizer_is_said_and_gets_the_square_root():
    with pytest.warns(UserWarning, match=r"doesn't know how the LR of Rprop grows .*Give `MultigridCallback\(lr_scal"):
        assert auto_lr_scaling([torch.optim.Rprop([MATRICES])]) == "sqrt"


def test_optimizers_of_both_kinds_are_refused():
    both = [SGD([MATRICES], 0.1), torch.optim.Adam([MATRICES])]
    with pytest.raises(MisconfigurationException, match="LR of SGD grows linearly .* the LR of Adam with the square"):
        auto_lr_scaling(both)


@pytest.mark.parametrize(
    ("optimizer", "callback", "most", "said"),
    [
        (None, {}, 8, "The LR grows with the clips of the base shape, the rule for SGD."),
        (adamw, {}, math.sqrt(8), "The LR grows with the square root of the clips of the base shape, the rule for Ada"),
        (adamw, {"lr_scaling": "none"}, 1, "The LR is not scaled with the clips of the base shape, as `lr_scaling='no"),
    ],
    ids=["SGD", "AdamW", "given"],
)
def test_a_run_scales_by_the_rule_and_says_it(optimizer, callback, most, said, caplog):
    module = Module(optimizer=optimizer)
    fit(module, MultigridCallback(**callback), max_epochs=1)
    assert max(module.lrs) / min(module.lrs) == pytest.approx(most)
    assert said in caplog.text


def test_a_linear_schedule_for_adam_is_warned_about():
    schedule = MultigridSchedule(Baseline(BatchShape(4, 8, 32), 4, (2, 3)))
    for callback in (MultigridCallback(schedule), MultigridCallback(lr_scaling="linear")):
        with pytest.warns(UserWarning, match="LR of AdamW will be multiplied by up to 8, .*or give `lr_scaling='sqrt'"):
            begin(Module(optimizer=adamw), callback)


@pytest.mark.parametrize(
    ("name", "given", "kept"),
    [("warmup_steps", 50, 18), ("warmup", 25, 9), ("num_warmup_steps", 2, 1), ("warmup", 0.1, None), ("wd", 50, None)],
)
def test_an_optimizers_own_warmup_is_named_with_its_share_of_this_run(name, given, kept, caplog):
    def warming_up(parameters):
        optimizer = adamw(parameters)
        optimizer.param_groups[0][name] = given
        return optimizer

    begin(Module(optimizer=warming_up), MultigridCallback())
    begin(Module(optimizer=warming_up), MultigridCallback(**OFF))  # which has all steps of the script
    said = (
        f"`{name}={given}` of AdamW counts the 36 steps of this run. If it means the 100 of the script, give "
        f"{kept} for the same share of the training."
    )
    assert [record.message for record in caplog.records if "counts the" in record.message] == [said] * bool(kept)


def test_so_is_a_checkpoint_by_a_count_of_steps(caplog):
    """By the count of the script, the last one would be far from the end, or there would be none."""
    begin(Module(), ModelCheckpoint(every_n_train_steps=50), MultigridCallback(), enable_checkpointing=True)
    assert "`every_n_train_steps=50` of ModelCheckpoint counts the 36 steps of this run." in caplog.text
    assert "give 18 for the same share" in caplog.text


def test_so_is_that_of_schedule_free_optimizers(caplog):
    schedulefree = pytest.importorskip("schedulefree")

    def warming_up(parameters):
        optimizer = schedulefree.AdamWScheduleFree(parameters, lr=1e-3, warmup_steps=50)
        optimizer.train()
        return optimizer

    begin(Module(optimizer=warming_up), MultigridCallback())
    assert "`warmup_steps=50` of AdamWScheduleFree counts the 36 steps of this run." in caplog.text


def test_an_optimizer_that_the_trainer_does_not_know_is_refused():
    class Holds(Module):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.held = SGD(self.parameters(), lr=0.1)

        def configure_optimizers(self):
            return None

        def training_step(self, batch, batch_idx):
            self.manual_backward(super().training_step(batch, batch_idx))
            self.held.step()

    alone = r"holds a SGD that it .* Return it; .* by `self.optimizers\(\)`"
    without = pytest.warns(UserWarning, match="will run with no optimizer")
    with without, pytest.raises(MisconfigurationException, match=alone):
        fit(Holds(), MultigridCallback())
    with pytest.warns(UserWarning, match="will run with no optimizer"):
        begin(Holds(), MultigridCallback(lr_scaling="none"))


def saying_so(name, **settings):
    """Makes an optimizer of another name, whose groups have these settings, too."""
    return lambda parameters: named(name)([{"params": [*parameters], **settings}], 1e-3, weight_decay=0.1)


@pytest.mark.parametrize(
    ("make", "decay", "betas"),
    [
        (adamw, True, True),
        (lambda parameters: torch.optim.AdamW(parameters, 1e-3, weight_decay=0), False, True),
        (lambda parameters: torch.optim.Adam(parameters, 1e-3, weight_decay=0.1), False, True),
        (lambda parameters: torch.optim.NAdam(parameters, weight_decay=0.1, decoupled_weight_decay=True), True, True),
        (lambda parameters: torch.optim.RMSprop(parameters, 1e-3, weight_decay=0.1), False, False),
        (saying_so("Prodigy", decouple=True), True, False),
        (saying_so("Prodigy", decouple=False), False, False),
        # The groups of the first say that the decay is in the gradient; those of the others don't say it.
        (lambda parameters: named("MyNAdamW", torch.optim.NAdam)(parameters, 1e-3, weight_decay=0.1), False, True),
        (lambda parameters: named("RMSpropWrapper")(parameters, 1e-3, weight_decay=0.1), False, False),
        (lambda parameters: named("RMSpropWithWarmup")(parameters, 1e-3, weight_decay=0.1), False, False),
        (lambda parameters: named("RMSpropW8bit")(parameters, 1e-3, weight_decay=0.1), True, False),
        (lambda parameters: SGD(parameters, 0.1, weight_decay=0.1), False, False),
        (lambda parameters: type("Lion", (SGD,), {})(parameters, 0.1, weight_decay=0.1), False, False),  # linear
    ],
)
def test_what_grows_with_the_lr_is_said(make, decay, betas, caplog):
    used = set()

    class Made(Module):
        def configure_optimizers(self):
            optimizer = make(self.parameters())
            self.given = optimizer.param_groups[0].copy()
            optimizer.register_step_pre_hook(self.look)
            return optimizer

        def look(self, optimizer, *_):
            [now] = optimizer.param_groups
            scale = now["lr"] / self.given["lr"]
            used.add(scale)
            assert now["weight_decay"] == self.given["weight_decay"] * (scale if decay else 1)

    fit(Made(), MultigridCallback(), max_epochs=1)
    assert len(used) > 1
    [said] = [message for message in caplog.messages if message.startswith("The LR grows")]
    assert ("So does the weight decay." in said, "The betas are those of a step." in said) == (decay, betas)
