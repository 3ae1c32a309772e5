"""Swin3D's distances on grids whose map is smaller than its window. MViT is in `models/test_mvit.py`, too."""

import pytest
import torch
from torchvision.models.video.mvit import MSBlockConfig, MViT
from torchvision.models.video.swin_transformer import SwinTransformer3d

from lightning_multigrid.models.wrapped import ResizedPositions
from lightning_multigrid.positions import Following


def swin(window=4):
    torch.manual_seed(0)
    return SwinTransformer3d([2, 4, 4], 12, [1, 1], [1, 2], [window] * 3, num_classes=4)


def biases(attention, window):
    """Biases by distance: {(dt, dh, dw): the biases of all pairs that are so far apart}."""
    bias = attention.get_relative_position_bias(list(window))[0].permute(1, 2, 0)
    places = torch.cartesian_prod(*(torch.arange(n) for n in window))
    found = {}
    for i, query in enumerate(places):
        for j, key in enumerate(places):
            found.setdefault(tuple((query - key).tolist()), []).append(bias[i, j])
    return {distance: torch.stack(values) for distance, values in found.items()}


@pytest.mark.parametrize("grid", [(8, 16), (4, 16), (4, 24)])
def test_equal_distances_have_equal_biases_as_on_the_baselines_grid(grid):
    net = swin()
    attention = net.features[2][0].attn  # after the merging: 4 x 4 tokens of 32 pixels, 2 x 2 of 16
    full = biases(attention, (4, 4, 4))
    window = grid[0] // 2, -(-grid[1] // 8), -(-grid[1] // 8)
    alone = biases(attention, window)
    assert any((values != full[distance][0]).any() for distance, values in alone.items()), "torchvision alone errs"
    following = Following(net, 8, 32)
    following.set_grid(*grid)
    for distance, values in biases(attention, window).items():
        assert (values == full[distance][0]).all()


def test_a_window_that_is_cut_in_time_only_is_torchvisions():
    attention = swin().features[2][0].attn
    expected = attention.get_relative_position_bias([2, 4, 4])
    net = swin()
    following = Following(net, 8, 32)
    following.set_grid(4, 32)
    assert torch.equal(net.features[2][0].attn.get_relative_position_bias([2, 4, 4]), expected)


def test_where_the_baseline_is_cut_already_pairs_read_what_they_read_there():
    """The map of the baseline has 4 x 4 tokens for a window of 5: torchvision's numbers are kept, right or wrong."""
    net = swin(window=5)
    attention = net.features[2][0].attn
    full = attention.get_relative_position_bias([4, 4, 4])[0].unflatten(-1, (4, 4, 4)).unflatten(1, (4, 4, 4))
    following = Following(net, 8, 32)
    following.set_grid(4, 16)
    found = attention.get_relative_position_bias([2, 2, 2])[0].unflatten(-1, (2, 2, 2)).unflatten(1, (2, 2, 2))
    assert torch.equal(found, full[:, :2, :2, :2, :2, :2, :2])
    # The longer side of frames that are no squares is not known: there it is torchvision's.
    assert attention.get_relative_position_bias([2, 2, 5]).shape == (1, 2, 20, 20)


@pytest.mark.parametrize("relative", [False, True])
def test_mvit_without_a_wrapper_is_mvit_in_one(relative):
    torch.manual_seed(0)
    blocks = [MSBlockConfig(1, 8, 16, [3, 3, 3], [3, 3, 3], [1, 1, 1], [1, 2, 2])]
    settings = {"residual_pool": relative, "rel_pos_embed": relative, "proj_after_attn": relative}
    blocks.append(MSBlockConfig(2, 16, 16, [3, 3, 3], [3, 3, 3], [1, 2, 2], [1, 1, 1]))
    net = MViT((32, 32), 8, blocks, residual_with_cls_embed=not relative, num_classes=4, **settings).eval()
    wrapped, x = ResizedPositions(net), torch.randn(2, 3, 2, 23, 23)
    expected = wrapped(x)
    following = Following(wrapped, 8, 32)
    following.set_grid(2, 23)
    assert torch.equal(net(x), expected)
    assert torch.equal(wrapped(x), expected)
    following.restore()
    # For another baseline than it was built for, only the wrapper knows the way.
    following = Following(wrapped, 4, 32)
    following.set_grid(2, 23)
    assert torch.equal(wrapped(x), expected)
