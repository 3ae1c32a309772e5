"""`torch.compile`: one graph for each grid, all made before the first step, none run eagerly in silence."""

import copy
import logging
from collections import Counter

import lightning as L
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import nn
from torch.testing import assert_close

from lightning_multigrid import CompileGrids, LongCycle, MultigridCallback, ShortCycle
from lightning_multigrid.training.torch_internals import count_graphs
from tests.helpers.sampling import sampled
from tests.helpers.tiny import Module, fit, loader

UNREHEARSED = pytest.mark.usefixtures("_unrehearsed")


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


@pytest.fixture(autouse=True)
def _nothing_compiled():
    torch.compiler.reset()
    yield
    torch.compiler.set_stance("default")
    torch.compiler.reset()


class Deterministic(Module):
    def make_net(self):
        net = super().make_net()
        net[5] = nn.Identity()  # dropout's noise is another one under some backends
        return net


LONG, SHORT = LongCycle(((0.5, 0.75), (1, 1))), ShortCycle((0.5, 1))
TWO_GRIDS = {"short_cycle": ShortCycle((1,))}


def multigrid(**arguments):
    return MultigridCallback(**{"seed": 0, "long_cycle": LONG, "short_cycle": SHORT, "milestones": [1]} | arguments)


def multigrid_sampler(host):
    [callback] = [callback for callback in host.callbacks if isinstance(callback, MultigridCallback)]
    return callback.fit.plan


def run(*callbacks, **arguments):
    module = Deterministic()
    given = {"max_epochs": 2, "train": loader(number=72, drop_last=True)} | arguments
    host = fit(module, *callbacks, **given)
    return module, host


def test_a_graph_for_each_grid_no_other_and_the_losses_of_eager():
    eager, _ = run(multigrid())
    backend = Counted()
    counted = count_graphs()
    compiled, host = run(multigrid(), CompileGrids("net", backend=backend))
    grids = multigrid_sampler(host).schedule.grids_of_statistics
    assert len(grids) > 3
    assert backend.graphs == count_graphs() - counted == len(grids)
    # One call a step, and one for each grid before: what ran eagerly would be missing. A step is in `seen` likewise.
    assert backend.calls == len(compiled.seen)
    steps = len(compiled.seen) - len(grids)
    assert compiled.shapes[len(grids) :] == eager.shapes
    assert_close([loss for *_, loss in compiled.seen[len(grids) :]], [loss for *_, loss in eager.seen])
    assert steps == len(eager.seen)
    assert_close(compiled.state_dict(), eager.state_dict())
    assert list(compiled.state_dict()) == list(eager.state_dict())


@pytest.fixture
def _ranks_end():
    """No process group, and nothing of it in the environment, is left to other tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE"):
            patch.setenv(name, "")
            patch.delenv(name)
        yield
    torch.distributed.destroy_process_group()


@pytest.mark.slow  # the law of the test above, with one rank
@pytest.mark.usefixtures("_ranks_end")
def test_ddp_makes_no_graph_more():
    backend = Counted()
    compiled, host = run(multigrid(), CompileGrids("net", backend=backend), strategy="ddp", devices=1)
    assert backend.graphs == len(multigrid_sampler(host).schedule.grids_of_statistics)
    assert backend.calls == len(compiled.seen)


@UNREHEARSED
def test_precise_batchnorm_and_validation_make_a_graph_each_and_training_none():
    """A graph that a training step makes would be warned of, and a warning fails."""

    class Note(L.Callback):
        def __init__(self):
            self.graphs = []

        def on_validation_end(self, host, module):
            self.graphs.append(backend.graphs)

    backend, note = Counted(), Note()
    _, host = run(
        multigrid(precise_bn_batches=1),
        CompileGrids("net", backend=backend),
        note,
        max_epochs=3,
        val=loader(number=24, shuffle=False),
    )
    grids = len(multigrid_sampler(host).schedule.grids_of_statistics)
    assert note.graphs[-1] == note.graphs[-2] == backend.graphs == grids + 2


@UNREHEARSED
def test_a_resumed_run_makes_its_graphs_before_its_first_step(tmp_path):
    class Save(L.Callback):
        def on_train_batch_end(self, host, module, outputs, batch, batch_idx):
            if host.global_step == 5 and not file.exists():
                host.save_checkpoint(file)

    def counted(**arguments):
        torch.compiler.reset()
        backend = Counted()
        compiled, host = run(multigrid(), CompileGrids("net", backend=backend), Save(), **arguments)
        assert backend.graphs == len(multigrid_sampler(host).schedule.grids_of_statistics)
        return [loss for *_, loss in compiled.seen[backend.graphs :]]

    file = tmp_path / "five.ckpt"
    whole = counted()
    assert_close(counted(ckpt_path=file), whole[5:])


@UNREHEARSED
@pytest.mark.parametrize("accumulate", sampled([1, 2], 2))
def test_the_mode_reaches_the_backend_and_cuda_graphs_know_where_steps_begin(accumulate, monkeypatch):
    """CUDA graphs may reuse the memory of gradients only after the optimizer's step."""
    modes, begun = [], []

    def backend(graph, inputs, mode):
        modes.append(mode)
        return graph.forward

    class Note(L.Callback):
        def on_before_optimizer_step(self, host, module, optimizer):
            steps.append(len(begun))

    steps = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: begun.append(None))
    compiling = CompileGrids("net", backend=backend, mode="reduce-overhead")
    _, host = run(multigrid(**TWO_GRIDS), compiling, Note(), accumulate_grad_batches=accumulate)
    assert modes == ["reduce-overhead"] * len(multigrid_sampler(host).schedule.grids_of_statistics)
    assert steps == list(range(1, host.global_step + 1))


def test_a_mode_of_nothing_is_refused():
    with pytest.raises(
        MisconfigurationException, match=r"CompileGrids\(None, mode='reduce-overhead'\) compiles nothing"
    ):
        CompileGrids(None, mode="reduce-overhead")


@UNREHEARSED
def test_more_grids_than_torch_allows_graphs_by_itself():
    """8 graphs of a function; what comes after them would run eagerly."""
    backend = Counted()
    cycle = LongCycle(((0.25, 0.5), (0.25, 0.75), (0.5, 0.5), (0.5, 0.75), (0.5, 1), (1, 1)))
    compiled, host = run(multigrid(long_cycle=cycle), CompileGrids("net", backend=backend))
    grids = multigrid_sampler(host).schedule.grids_of_statistics
    assert backend.graphs == len(grids) > 8
    assert backend.calls == len(compiled.seen)


@UNREHEARSED
def test_the_tail_of_an_epoch_runs_eagerly_and_makes_no_graph():
    backend = Counted()
    compiled, host = run(multigrid(**TWO_GRIDS), CompileGrids("net", backend=backend), train=loader(number=73))
    sampler = multigrid_sampler(host)
    grids = sampler.schedule.grids_of_statistics
    tails = [
        step
        for epoch in range(sampler.schedule.epochs)
        for step in sampler.steps(epoch)
        if (step.shape, step.sub_batch) not in grids
    ]
    assert tails
    assert backend.graphs == len(grids)
    assert backend.calls == len(compiled.seen) - len(tails)


def test_the_hooks_of_the_data_run_once_for_each_mini_batch():
    class Hooked(Deterministic):
        def on_before_batch_transfer(self, batch, dataloader_idx):
            self.passed["before"] += 1
            return batch

        def on_after_batch_transfer(self, batch, dataloader_idx):
            self.passed["after"] += 1
            return batch

    class StartCounting(L.Callback):
        def on_train_start(self, host, module):
            module.passed.clear()

    module = Hooked()
    module.passed = Counter()
    fit(module, multigrid(**TWO_GRIDS), StartCounting(), CompileGrids("net", backend=Counted()), max_epochs=2)
    assert module.passed == {"before": len(module.seen), "after": len(module.seen)}


def test_trying_leaves_no_trace(caplog):
    """Training starts from the state it has without compiling, and nothing was logged."""

    class Start(L.Callback):
        def on_train_batch_start(self, host, module, batch, batch_idx):
            if batch_idx == 0 and host.current_epoch == 0:
                self.state = copy.deepcopy(module.state_dict())
                self.gradients = [parameter.grad for parameter in module.parameters()]
                self.logged = dict(host.callback_metrics)
                self.rng = torch.get_rng_state()

    plain, compiling = Start(), Start()
    run(multigrid(), plain)
    with caplog.at_level(logging.INFO, logger="lightning.pytorch.utilities.rank_zero"):
        run(multigrid(), CompileGrids("net", backend="eager"), compiling)
    assert_close(compiling.state, plain.state, rtol=0, atol=0)
    assert torch.equal(compiling.rng, plain.rng)
    assert all(gradient is None for gradient in compiling.gradients)
    assert compiling.logged.keys() == plain.logged.keys()
    assert "Compiled 4 graphs for 4 grids" in caplog.text


@UNREHEARSED
def test_a_later_graph_is_warned_of():
    class Other(Deterministic):
        def training_step(self, batch, batch_idx):
            clips, labels = batch
            if isinstance(self._trainer, L.Trainer) and self.trainer.current_epoch == 1 and batch_idx == 0:
                clips = clips[:, :, :, 1:]
            return super().training_step((clips, labels), batch_idx)

    with pytest.warns(UserWarning, match=r"made 1 more graph\(s\) in batch 0 of epoch 1, on .* \(clips x frames x"):
        fit(
            Other(),
            multigrid(**TWO_GRIDS),
            CompileGrids("net", backend="eager"),
            max_epochs=2,
            train=loader(number=72, drop_last=True),
        )


def test_a_script_that_compiles_itself():
    backend = Counted()
    module = Deterministic()
    module.net.compile(dynamic=False, backend=backend)
    host = fit(
        module, multigrid(**TWO_GRIDS), CompileGrids(None), max_epochs=2, train=loader(number=72, drop_last=True)
    )
    assert backend.graphs == len(multigrid_sampler(host).schedule.grids_of_statistics)


@UNREHEARSED
@pytest.mark.parametrize("fails", sampled([False, True], True))
def test_everything_is_put_back(fails):
    class Fails(L.Callback):
        def on_train_batch_start(self, host, module, batch, batch_idx):
            if fails and host.current_epoch == 1:
                raise KeyError("of a user")

    before = torch._dynamo.config.cache_size_limit
    module = Deterministic()
    arguments = {"max_epochs": 2, "train": loader(number=73)}
    if fails:
        with pytest.raises(KeyError):
            fit(module, multigrid(**TWO_GRIDS), CompileGrids("net", backend="eager"), Fails(), **arguments)
    else:
        fit(module, multigrid(**TWO_GRIDS), CompileGrids("net", backend="eager"), Fails(), **arguments)
    assert torch._dynamo.config.cache_size_limit == before
    assert "log" not in vars(module)
    backend = Counted()
    torch.compile(nn.Identity(), backend=backend)(torch.ones(1))  # not in the eager stance
    assert module.training or not fails


def test_needs_the_multigrid_callback():
    with pytest.raises(MisconfigurationException, match="the Trainer has no MultigridCallback. Add one before it"):
        fit(Deterministic(), CompileGrids("net"))


def test_names_the_modules_there_are():
    with pytest.raises(
        MisconfigurationException, match=r"Deterministic has no module `model` to compile; it has `net`"
    ):
        run(multigrid(), CompileGrids())


@pytest.mark.slow  # a C++ compiler makes about ten kernels for each graph
def test_inductor():
    eager, _ = run(multigrid())
    before = count_graphs()
    compiled, _ = run(multigrid(), CompileGrids("net"))
    assert count_graphs() - before == 4
    losses = [loss for *_, loss in compiled.seen[4:]]
    assert_close(losses, [loss for *_, loss in eager.seen], rtol=1e-4, atol=1e-4)
