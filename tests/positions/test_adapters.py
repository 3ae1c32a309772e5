"""Position tables on other grids, against interpolation that is written out here."""

import pytest
import torch
from torch.nn.functional import interpolate
from torch.testing import assert_close

from lightning_multigrid.positions.adapters import Grid, Grids, Table


def table(*tokens, leading=0, channels=3):
    rows = leading + torch.Size(tokens).numel()
    return torch.randn(1, rows, channels, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("leading", [0, 2])
@pytest.mark.parametrize(
    ("full", "now"), [((4, 6, 5), (2, 3, 4)), ((4, 6, 5), (4, 3, 3)), ((4, 6, 5), (3, 6, 5)), ((2, 3, 3), (3, 4, 5))]
)
def test_bilinear_then_linear_is_trilinear(full, now, leading):
    values = table(*full, leading=leading)
    volume = values[:, leading:].unflatten(1, full).movedim(-1, 1)
    expected = interpolate(volume, size=now, mode="trilinear").flatten(2).mT
    result = Table(full, now, leading, "bilinear").resized(values)
    assert_close(result[:, leading:], expected)
    assert torch.equal(result[:, :leading], values[:, :leading])


@pytest.mark.parametrize(("mode", "antialias"), [("bicubic", False), ("bicubic", True), ("bilinear", True)])
def test_tables_of_space_alone_also_without_the_axis_of_one(mode, antialias):
    values = table(6, 5)
    expected = interpolate(values.mT.unflatten(2, (6, 5)), size=(3, 4), mode=mode, antialias=antialias).flatten(2).mT
    resizing = Table((1, 6, 5), (1, 3, 4), mode=mode, antialias=antialias)
    assert_close(resizing.resized(values), expected)
    assert_close(resizing.resized(values[0]), expected[0])


def test_tables_of_time_alone():
    expected = torch.tensor([[0.5], [2.5], [4.5]])  # the centres of pairs
    assert_close(Table((6, 1, 1), (3, 1, 1)).resized(torch.arange(6.0)[:, None]), expected)


def test_on_the_full_grid_a_table_is_the_same_object():
    values = table(4, 3, 3)
    assert Table((4, 3, 3), (4, 3, 3)).resized(values) is values


def test_sizes_are_those_that_the_dataset_makes():
    # 240 x 320 with the short side reduced to 113: 320 * 113 / 240 = 150.67.
    grids = Grids(Grid(16, 240), Grid(6, 113))
    assert (grids.frames(16), grids.size(240), grids.size(320)) == (6, 113, 151)
    assert grids.frames(1) == 1
