"""`torch.compile`: a static graph for each grid, however many, and the compiler's settings are put back."""

import shutil

import lightning as L
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from lightning_multigrid import LongCycle, MultigridCallback, ShortCycle
from tests.helpers.tiny import Module, fit, loader
from tests.helpers.versions import not_torch_2_6

CYCLE = LongCycle(((0.25, 0.5), (0.25, 0.75), (0.5, 0.5), (0.5, 0.75), (0.5, 1), (1, 1)))


class Counted:
    """A backend that keeps count of its graphs and of their calls."""

    def __init__(self):
        self.graphs = self.calls = 0

    def __call__(self, graph, inputs):
        self.graphs += 1

        def run(*arguments):
            self.calls += 1
            return graph.forward(*arguments)

        return run


class Deterministic(Module):
    def make_net(self):
        net = super().make_net()
        net[5] = nn.Identity()  # dropout's noise is another one under some backends
        return net


@pytest.fixture(autouse=True)
def _nothing_compiled():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def train(backend=None, callbacks=(), **arguments):
    """Returns the module, the plan, and the pair of shape and sub-mini-batch of each step."""
    callback = MultigridCallback(seed=0, long_cycle=CYCLE, short_cycle=ShortCycle((0.5, 1)), milestones=[1])
    module = Deterministic()
    if backend is not None:
        module.net.compile(backend=backend)
    fit(module, callback, *callbacks, max_epochs=2, train=loader(number=73), **arguments)
    plan = callback.run.plan
    steps = [(step.shape, step.sub_batch) for epoch in range(plan.epochs) for step in plan.epoch(epoch)]
    return module, plan, steps


@not_torch_2_6
def test_a_graph_for_each_grid_no_other_and_the_losses_of_eager():
    """torch allows 8 graphs of a function by itself, here 2; what comes after them would run eagerly."""
    backend = Counted()
    eager, *_ = train()
    with torch._dynamo.config.patch(cache_size_limit=2):
        compiled, _, steps = train(backend)
    assert backend.graphs == len(set(steps)) > 4
    assert backend.calls == len(compiled.seen) == len(steps)
    assert compiled.shapes == eager.shapes
    assert_close([loss for *_, loss in compiled.seen], [loss for *_, loss in eager.seen])
    assert_close(compiled.state_dict(), eager.state_dict())


@pytest.mark.usefixtures("_unrehearsed")
def test_the_limit_of_graphs_is_put_back_after_an_error():
    class Fails(L.Callback):
        def on_train_batch_start(self, host, module, batch, batch_idx):
            assert torch._dynamo.config.cache_size_limit > 2
            assert not torch._dynamo.config.automatic_dynamic_shapes
            raise KeyError("of a user")

    with torch._dynamo.config.patch(cache_size_limit=2):
        with pytest.raises(KeyError, match="of a user"):
            train(Counted(), [Fails()])
        assert torch._dynamo.config.cache_size_limit == 2
        assert torch._dynamo.config.automatic_dynamic_shapes


@pytest.mark.slow  # inductor itself; that each grid is a static graph is above
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler on a CPU")
@pytest.mark.usefixtures("_unrehearsed")
@pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated")
def test_inductor_compiles_each_grid_in_time_with_validations_between():
    """With shapes that are not static it did not end the third step: symbolic sizes of 3D convolutions."""

    class Compiled(Deterministic):
        def __init__(self):
            super().__init__()
            self.net = torch.compile(self.net)

    found = []
    for kind in (Deterministic, Compiled):
        callback = MultigridCallback(seed=0, long_cycle=LongCycle(((0.5, 0.5), (1, 1))), short_cycle=ShortCycle((1,)))
        module = kind()
        fit(module, callback, max_epochs=2, train=loader(number=64), val=loader(shuffle=False, number=8))
        assert len({*module.shapes}) == 2
        found.append([loss for *_, loss in module.seen])
    assert_close(*found, rtol=1e-3, atol=1e-3)
