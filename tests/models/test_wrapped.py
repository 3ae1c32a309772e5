"""MViT on grids that it was not built for, alone and through the callback."""

import re

import pytest
import torch
from torchvision.models.video import MViT, mvit_v1_b, mvit_v2_s
from torchvision.models.video.mvit import MSBlockConfig

from lightning_multigrid.models.wrapped import ResizedPositions
from lightning_multigrid.positions import mvit_tables

BUILT = (8, 32, 32)
TABLES = ("spatial_pos", "temporal_pos", "rel_pos_h", "rel_pos_w", "rel_pos_t")


def tiny_mvit(relative, size=BUILT):
    """Three blocks of MViT, v2 with relative positions and v1 without, for 4 x 8 x 8 tokens."""
    torch.manual_seed(0)
    blocks = [
        MSBlockConfig(1, 16, 32, [3, 3, 3], [3, 3, 3], [1, 1, 1], [1, 2, 2]),
        MSBlockConfig(2, 32, 32, [3, 3, 3], [3, 3, 3], [1, 2, 2], [1, 1, 1]),
        MSBlockConfig(2, 32, 32, [3, 3, 3], [3, 3, 3], [1, 1, 1], [1, 1, 1]),
    ]
    of_v2 = dict.fromkeys(("residual_pool", "rel_pos_embed", "proj_after_attn"), relative)
    return MViT(size[1:], size[0], blocks, residual_with_cls_embed=not relative, num_classes=4, **of_v2).eval()


def tables(model):
    """All that are of consequence: of the last block only the class token is used, which has no place."""
    found = {name: p for name, p in model.named_parameters() if name.rpartition(".")[2] in TABLES}
    return {name: table for name, table in found.items() if "blocks.2." not in name}


@pytest.mark.parametrize("relative", [False, True])
def test_nothing_changes_on_the_grid_it_was_built_for(relative):
    model, x = tiny_mvit(relative), torch.randn(2, 3, *BUILT)
    expected = model(x)
    resized = ResizedPositions(model)
    assert torch.equal(resized(x), expected)
    resized(torch.randn(1, 3, 4, 23, 23))
    assert torch.equal(model(x), expected)  # a call on another grid leaves nothing behind


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("grid", [(2, 16, 16), (4, 23, 23), (8, 16, 32), (6, 40, 40), (16, 64, 64)])
def test_every_grid_reaches_every_table(relative, grid):
    model = ResizedPositions(tiny_mvit(relative))
    model(torch.randn(2, 3, *grid)).square().sum().backward()
    found = tables(model)
    assert len(found) == (6 if relative else 2)
    for name, table in found.items():
        # With one token in time there is one distance in time, to which a softmax is indifferent.
        assert table.grad.abs().sum() > 0 or (grid[0] == 2 and name.endswith("rel_pos_t")), name


def test_the_embedding_of_a_point_is_that_of_its_place_in_the_span():
    """A table that is linear in the place stays so: at half the points their places are 0.5, 2.5, 4.5 ... points."""
    model = tiny_mvit(relative=False)
    encoding, seen = model.pos_encoding, []
    with torch.no_grad():
        rows, columns = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij")
        encoding.spatial_pos.copy_((10 * rows + columns).flatten()[:, None].expand(-1, 16))
        encoding.temporal_pos.copy_(1000 * torch.arange(4.0)[:, None].expand(-1, 16))
        encoding.register_forward_hook(lambda _, inputs, output: seen.append(output[0, 1:, 0] - inputs[0][0, :, 0]))
        ResizedPositions(model)(torch.zeros(1, 3, 4, 16, 16))
    t, h, w = torch.meshgrid(torch.arange(2), torch.arange(4), torch.arange(4), indexing="ij")
    expected = 1000 * (2 * t + 0.5) + 10 * (2 * h + 0.5) + 2 * w + 0.5
    torch.testing.assert_close(seen[0], expected.flatten())


# --- Other people's models through the callback ---


@pytest.mark.parametrize(
    ("builder", "names"),
    [(mvit_v1_b, ["spatial_pos", "temporal_pos"]), pytest.param(mvit_v2_s, [], marks=pytest.mark.slow)],
)
def test_the_builders_of_torchvision(builder, names):
    model = ResizedPositions(builder(num_classes=4)).eval()
    found = mvit_tables(model.model, model.built_grid, (4, 12, 12))
    assert [re.sub("pos_encoding.", "", name) for name in found] == names
    with torch.no_grad():
        assert model(torch.randn(1, 3, 8, 48, 48)).shape == (1, 4)
