"""Tables of timm's models on a coarse grid, compared with timm's own functions."""

import pytest
import torch
from torch import nn

from lightning_multigrid.positions import Following

timm = pytest.importorskip("timm")
SIZE, COARSE = 64, 32


def model(name, **settings):
    torch.manual_seed(0)
    settings = {"patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2} | settings
    return timm.create_model(name, num_classes=4, img_size=SIZE, **settings)


@pytest.mark.parametrize(
    ("name", "settings", "leading"),
    [
        ("vit_tiny_patch16_224", {}, 1),
        ("vit_tiny_patch16_224", {"class_token": False, "global_pool": "avg"}, 0),
        ("vit_tiny_patch16_224", {"reg_tokens": 3, "no_embed_class": True}, 0),
    ],
)
def test_tables_are_those_of_timms_function(name, settings, leading):
    net = model(name, **settings)
    following = Following(net, 4, SIZE)
    following.set_grid(4, COARSE)
    expected = timm.layers.resample_abs_pos_embed(net._parameters["pos_embed"], (4, 4), (8, 8), leading)
    assert torch.equal(net.pos_embed, expected)
    net.pos_embed.square().sum().backward()
    assert net._parameters["pos_embed"].grad.any(dim=-1).all()
    following.restore()
    assert net.pos_embed is net._parameters["pos_embed"]


def test_tokens_after_a_stem_of_convolutions_have_more_pixels_than_a_patch():
    torch.manual_seed(0)
    net = timm.create_model("vit_tiny_r_s16_p8_224", num_classes=4, img_size=SIZE)
    shape = net.pos_embed.shape
    following = Following(net, 4, SIZE)
    following.set_grid(2, SIZE)
    assert net.pos_embed.shape == shape  # other frames only
    following.set_grid(4, COARSE)
    tokens = (COARSE // 32) ** 2
    assert net.pos_embed.shape[1] == 1 + tokens
    assert net(torch.zeros(1, 3, COARSE, COARSE)).shape == (1, 4)


def test_a_coarse_grid_is_what_timm_makes_of_the_model_for_that_size():
    """`set_input_size` is timm's own way to another size, for good."""
    net, other = model("vit_tiny_patch16_224").eval(), model("vit_tiny_patch16_224").eval()
    other.load_state_dict(net.state_dict())
    other.set_input_size((COARSE, COARSE))
    following = Following(net, 4, SIZE)
    following.set_grid(4, COARSE)
    x = torch.randn(2, 3, COARSE, COARSE)
    with torch.no_grad():
        nn.init.normal_(net.head.weight)
        other.head.load_state_dict(net.head.state_dict())
        torch.testing.assert_close(net(x), other(x))
        torch.testing.assert_close(net.forward_features(x), other.forward_features(x))
