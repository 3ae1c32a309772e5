"""What knows places follows the grid of each step, and is given back: between steps, afterwards, after an error."""

import lightning as L
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy
from torch import nn
from torch.testing import assert_close

from lightning_multigrid import LongCycle, MultigridCallback, ShortCycle
from lightning_multigrid.positions import Following, adapters
from lightning_multigrid.positions.adapters import Table
from lightning_multigrid.training.script.refusals import refuse_tables_in_shards
from tests.helpers.tiny import CLASSES, FRAMES, SIZE, Module, fit, loader

LONG, SHORT = LongCycle(((0.5, 0.75), (1, 1))), ShortCycle((0.5, 1))


def multigrid(**arguments):
    return MultigridCallback(**{"seed": 0, "long_cycle": LONG, "short_cycle": SHORT, "milestones": [1]} | arguments)


class Places(nn.Module):
    """Patches with a learned table of places, a table in a buffer, and a number of tokens that it compares."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv3d(3, 6, (2, 8, 8), stride=(2, 8, 8))
        self.table = nn.Parameter(torch.randn(4 * 4 * 4, 6))
        self.register_buffer("fixed", torch.randn(4, 6))
        self.tokens = 64

    def forward(self, clips):
        x = self.patches(clips)
        assert x[0, 0].numel() == self.tokens
        fixed = self.fixed.repeat_interleave(self.tokens // len(self.fixed), dim=0)
        return (x.flatten(2).mT + self.table + fixed).relu().mean(1)


def tokens(grids):
    return grids.frames(FRAMES) // 2, grids.size(SIZE) // 8, grids.size(SIZE) // 8


@pytest.fixture(autouse=True)
def _adapter(monkeypatch):
    def adapter(part, grids):
        table, fixed = tokens(grids), (tokens(grids)[0], 1, 1)
        tables = {"table": Table((4, 4, 4), table, mode="bilinear"), "fixed": Table((4, 1, 1), fixed)}
        return {"tokens": torch.Size(table).numel(), **tables}

    monkeypatch.setitem(adapters.ADAPTERS, "tests.Places", adapter)


class Script(Module):
    def make_net(self):
        return nn.Sequential(Places(), nn.Linear(6, CLASSES))

    @property
    def plain(self):
        places = self.net[0]
        same = type(places) is Places and places.tokens == 64
        return same and places.table is dict(places.named_parameters())["table"] and len(places.fixed) == 4

    def validation_step(self, batch, batch_idx):
        assert self.plain
        super().validation_step(batch, batch_idx)


def test_a_subclass_of_a_known_class_follows_and_is_as_it_was_on_the_baselines_grid():
    class Own(Places):
        pass

    module = nn.ModuleList([Own(), nn.Linear(1, 1)])
    following, [part, _] = Following(module, FRAMES, SIZE), module
    before, keys = part(torch.ones(1, 3, FRAMES, SIZE, SIZE)), list(module.state_dict())
    assert following.names == ["Own"]
    following.set_grid(4, 16)
    assert (part.table.shape, part.fixed.shape) == ((2 * 2 * 2, 6), (2, 6))
    assert list(module.state_dict()) == keys
    assert len(part.state_dict()["table"]) == len(dict(part.named_parameters())["table"]) == 64
    assert isinstance(part, Own)
    part(torch.ones(1, 3, 4, 16, 16)).sum().backward()
    following.restore()
    assert part.table.grad.any(dim=1).all()
    assert type(part) is Own
    assert torch.equal(part(torch.ones(1, 3, FRAMES, SIZE, SIZE)), before)


def test_a_script_trains_validates_and_resumes_with_places_that_follow(tmp_path):
    whole, resumed = Script(), Script()
    arguments = {"val": loader(shuffle=False), "max_epochs": 2}
    saver = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=3, save_top_k=-1)
    fit(whole, multigrid(), saver, enable_checkpointing=True, **arguments)
    assert len({shape[1:] for shape in whole.shapes}) > 2
    assert whole.plain
    fit(resumed, multigrid(), ckpt_path=tmp_path / "step=3.ckpt", **arguments)
    assert resumed.seen == whole.seen[3:]
    assert_close(resumed.state_dict(), whole.state_dict(), rtol=0, atol=0)


def test_tables_that_fsdp_takes_out_of_their_modules_are_refused(monkeypatch):
    refuse_tables_in_shards(DDPStrategy(), ["Places"])
    refuse_tables_in_shards(FSDPStrategy(), [])
    says = "positions of Places follow .* Use `ModelParallelStrategy`"
    with pytest.raises(MisconfigurationException, match=says):
        refuse_tables_in_shards(FSDPStrategy(), ["Places"])
    # Lightning's needs a GPU.
    monkeypatch.setattr("lightning_multigrid.training.script.refusals.is_a", lambda _, name: "FSDP" in name)
    with pytest.raises(MisconfigurationException, match=says):
        fit(Script(), multigrid())


def test_all_is_put_back_after_an_error():
    class Failing(Script):
        def training_step(self, batch, batch_idx):
            if isinstance(self._trainer, L.Trainer):
                assert not self.plain
                raise KeyError("lost")
            return super().training_step(batch, batch_idx)

    module = Failing()
    with pytest.raises(KeyError, match="lost"):
        fit(module, multigrid())
    assert module.plain


def test_all_is_put_back_when_a_script_skips_the_rest_of_an_epoch():
    class Skipping(Script):
        def on_train_batch_start(self, batch, batch_idx):
            return -1 if batch_idx else None

        def on_train_epoch_end(self):
            assert self.plain

    module = Skipping()
    fit(module, multigrid(), val=loader(shuffle=False, number=8))
    assert [batch for _, batch, *_ in module.seen] == [0] * 4  # the first step of each epoch


def test_compiled_there_is_a_graph_for_each_grid():
    module, eager, made = Script(), Script(), []

    def backend(graph, inputs):
        made.append(graph)
        return graph.forward

    torch.compiler.reset()
    arguments = {"max_epochs": 2}
    module.net.compile(backend=backend, dynamic=False)
    fit(module, multigrid(), **arguments)
    torch.compiler.reset()
    fit(eager, multigrid(), **arguments)
    assert len(made) == len(set(module.shapes))
    assert_close(module.seen, eager.seen)


class Told(Module):
    """Knows its places itself: rows of a table for each frame."""

    def __init__(self):
        super().__init__()
        self.told, self.grid = [], (FRAMES, SIZE)
        self.rows = nn.Parameter(torch.zeros(FRAMES))

    def set_grid(self, frames, size):
        self.grid = frames, size
        self.told.append(self.grid)

    def training_step(self, batch, batch_idx):
        assert tuple(batch[0].shape[2:4]) == self.grid
        return super().training_step(batch, batch_idx) + self.rows[: self.grid[0]].mean()

    def validation_step(self, batch, batch_idx):
        assert self.grid == (FRAMES, SIZE)


def test_a_method_of_the_users_own_is_told_the_grid(caplog):
    module = Told()
    fit(module, multigrid(), val=loader(shuffle=False, number=8), max_epochs=2)
    coarse = [grid for _, *grid in module.shapes if grid != [FRAMES, SIZE]]
    assert module.told == [told for grid in coarse for told in (tuple(grid), (FRAMES, SIZE))]
    assert "Positions follow the grid: Told." in caplog.text


def test_a_method_that_fails_on_a_grid_is_named_before_training():
    class Refusing(Told):
        def set_grid(self, frames, size):
            raise ValueError("no places for so few pixels")

    with pytest.raises(ValueError, match="Refusing cannot take clips of .* fails with ValueError: no places"):
        fit(Refusing(), multigrid())


def test_other_methods_of_that_name_are_left_alone():
    class Drawing(nn.Linear):
        def set_grid(self, visible):
            raise AssertionError

    following = Following(Drawing(1, 1), FRAMES, SIZE)
    following.set_grid(2, 8)
    assert following.names == []
