"""Position tables, against plain interpolation; adapters, against the libraries' own functions; patches of models."""

from importlib import import_module

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import interpolate
from torch.testing import assert_close

from lightning_multigrid import MultigridCallback, ResizedPositions
from lightning_multigrid.positions import Following, patch_divisors
from lightning_multigrid.positions.adapters import Grid, Grids, Table
from tests.helpers.attention import mvit, swin
from tests.helpers.tiny import CLASSES, Module, fit, loader

FRAMES, SIZE, TUBELET, PATCH = 8, 32, 2, 8
GRIDS = [(4, 16), (2, 24), (8, 16), (4, 32)]


def on_grid(model, frames, size):
    following = Following(model, FRAMES, SIZE)
    following.set_grid(frames, size)
    return following


# --- Tables and sizes ---


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


# --- Patches ---


@pytest.mark.parametrize(
    ("layers", "divisors"),
    [
        ([nn.Conv3d(3, 4, (2, 4, 6), stride=(2, 4, 6))], (2, 12)),
        ([nn.Conv2d(3, 4, 14, stride=14)], (1, 14)),
        ([nn.Conv3d(3, 4, 3, stride=2, padding=1), nn.Conv3d(4, 4, 2, stride=2)], (1, 1)),
        ([nn.Linear(3, 4)], (1, 1)),
    ],
)
def test_the_first_convolution_says_the_multiples_of_a_grid(layers, divisors):
    assert patch_divisors(nn.Sequential(nn.Identity(), nn.Sequential(*layers))) == divisors


class Patches(Module):
    def make_net(self):
        # Without the divisors a coarse grid's last frame and pixels would be lost in silence.
        patches = nn.Conv3d(3, 6, (4, 8, 8), stride=(4, 8, 8))
        return nn.Sequential(patches, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(6, CLASSES))


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [({}, {16, 24, 32}), ({"size_divisor": 2}, {16, 22, 32})],  # 32 / sqrt 2 = 22.6 pixels
)
def test_a_plan_keeps_the_multiples_of_the_models_patches(arguments, sizes):
    module = Patches()
    fit(module, MultigridCallback(milestones=[1], **arguments), max_epochs=2, train=loader(number=192))
    assert {shape[1] for shape in module.shapes} == {4, 8}  # 8 / 4 frames become one patch
    assert {shape[2] for shape in module.shapes} == sizes


# --- Pools ---

POOLS = [
    (nn.AvgPool3d((4, 6, 6)), (4, 6, 6), (2, 3, 3)),
    (nn.AvgPool3d((2, 6, 6), stride=1), (4, 6, 6), (2, 3, 3)),
    (nn.MaxPool3d(6), (6, 6, 6), (3, 2, 6)),
    (nn.AvgPool2d(6), (6, 6), (3, 3)),
    (nn.MaxPool2d((6, 2)), (6, 6), (3, 4)),
]


@pytest.mark.parametrize(("pool", "full", "coarse"), POOLS)
def test_a_pool_takes_what_is_there(pool, full, coarse):
    x, y = torch.randn(2, 3, *full), torch.randn(2, 3, *coarse)
    before = pool(x)
    with pytest.raises(RuntimeError, match="[kK]ernel|too small"):
        pool(y)
    following = on_grid(pool, 2, 16)
    assert following.names == []
    kernel = pool.kernel_size if isinstance(pool.kernel_size, tuple) else (pool.kernel_size,) * len(full)
    reduce = torch.mean if isinstance(pool, (nn.AvgPool2d, nn.AvgPool3d)) else torch.amax
    first = tuple(slice(k) for k in kernel)  # what the first place of the pool covers
    assert_close(pool(y)[(..., *(0,) * len(full))], reduce(y[(..., *first)], tuple(range(2, y.ndim))))
    assert torch.equal(pool(x), before)
    following.restore()
    assert "forward" not in vars(pool)


def test_padded_pools_and_those_of_ones_own_are_left_alone():
    class Own(nn.AvgPool2d):
        def forward(self, x):
            return x + 1

    net = nn.Sequential(Own(4), nn.MaxPool2d(3, 2, padding=1), nn.AvgPool2d(4, divisor_override=1))
    x = torch.randn(1, 1, 8, 8)
    before = [part(x) for part in net]
    on_grid(net, 2, 16)
    assert all(torch.equal(part(x), expected) for part, expected in zip(net, before, strict=True))


# --- torchvision ---


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
def test_equal_distances_of_swin_have_equal_biases_as_on_the_baselines_grid(grid):
    net = swin()
    attention = net.features[2][0].attn  # after the merging: 4 x 4 tokens of 32 pixels, 2 x 2 of 16
    full = biases(attention, (4, 4, 4))
    window = grid[0] // 2, -(-grid[1] // 8), -(-grid[1] // 8)
    alone = biases(attention, window)
    assert any((values != full[distance][0]).any() for distance, values in alone.items()), "torchvision alone errs"
    on_grid(net, *grid)
    for distance, values in biases(attention, window).items():
        assert (values == full[distance][0]).all()


def test_where_the_baseline_of_swin_is_cut_already_pairs_read_what_they_read_there():
    """The map of the baseline has 4 x 4 tokens for a window of 5: torchvision's numbers are kept, right or wrong."""
    net = swin(window=5)
    attention = net.features[2][0].attn
    full = attention.get_relative_position_bias([4, 4, 4])[0].unflatten(-1, (4, 4, 4)).unflatten(1, (4, 4, 4))
    on_grid(net, 4, 16)
    found = attention.get_relative_position_bias([2, 2, 2])[0].unflatten(-1, (2, 2, 2)).unflatten(1, (2, 2, 2))
    assert torch.equal(found, full[:, :2, :2, :2, :2, :2, :2])
    # The longer side of frames that are no squares is not known: there it is torchvision's.
    assert attention.get_relative_position_bias([2, 2, 5]).shape == (1, 2, 20, 20)


@pytest.mark.parametrize("relative", [False, True])
def test_mvit_without_a_wrapper_is_mvit_in_one(relative):
    net = mvit(relative).eval()
    wrapped, x = ResizedPositions(net), torch.randn(2, 3, 2, 23, 23)
    expected = wrapped(x)
    following = on_grid(wrapped, 2, 23)
    assert torch.equal(net(x), expected)
    assert torch.equal(wrapped(x), expected)
    following.restore()
    # For another baseline than it was built for, only the wrapper knows the way.
    Following(wrapped, 4, 32).set_grid(2, 23)
    assert torch.equal(wrapped(x), expected)


# --- timm ---


def vit(name="vit_tiny_patch16_224", **settings):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    return timm, timm.create_model(name, num_classes=4, **{"img_size": SIZE, **settings})


SMALL = {"patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2}


@pytest.mark.parametrize(
    ("settings", "leading"),
    [({}, 1), ({"class_token": False, "global_pool": "avg"}, 0), ({"reg_tokens": 3, "no_embed_class": True}, 0)],
)
def test_tables_of_vit_are_those_of_timms_function(settings, leading):
    timm, net = vit(**SMALL, **settings)
    following = on_grid(net, 4, 16)
    expected = timm.layers.resample_abs_pos_embed(net._parameters["pos_embed"], (2, 2), (4, 4), leading)
    assert torch.equal(net.pos_embed, expected)
    net.pos_embed.square().sum().backward()
    assert net._parameters["pos_embed"].grad.any(dim=-1).all()
    following.restore()
    assert net.pos_embed is net._parameters["pos_embed"]


def test_tokens_of_vit_after_a_stem_of_convolutions_have_more_pixels_than_a_patch():
    _, net = vit("vit_tiny_r_s16_p8_224", img_size=64)
    following = Following(net, 4, 64)
    following.set_grid(2, 64)
    assert net.pos_embed is net._parameters["pos_embed"]  # other frames only
    following.set_grid(4, 32)
    assert net(torch.zeros(1, 3, 32, 32)).shape == (1, 4)


# --- transformers ---

COMMON = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "num_labels": 3}
IMAGES = {**COMMON, "num_frames": FRAMES, "image_size": SIZE, "intermediate_size": 16}
ARGUMENTS = {
    "VideoMAE": {**IMAGES, "patch_size": PATCH, "tubelet_size": TUBELET},
    "Timesformer": {**IMAGES, "patch_size": PATCH},
    "Vivit": {**IMAGES, "tubelet_size": [TUBELET, PATCH, PATCH]},
    "VJEPA2": {
        **COMMON, "frames_per_clip": FRAMES, "crop_size": SIZE, "patch_size": PATCH, "tubelet_size": TUBELET,
        "mlp_ratio": 1, "num_pooler_layers": 1, "pred_hidden_size": 24, "pred_num_hidden_layers": 1,
        "pred_num_attention_heads": 2,
    },
}  # fmt: skip


def make(name, kind="ForVideoClassification", **arguments):
    pytest.importorskip("transformers")
    library = import_module(f"transformers.models.{name.lower()}")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(library, f"{name}{kind}")(getattr(library, f"{name}Config")(**ARGUMENTS[name] | arguments))
        for parameter in model.parameters():  # tables and biases begin as zeros
            nn.init.normal_(parameter, std=0.1)
    return model.eval()


def part_of(model, name):
    return next(part for part in model.modules() if type(part).__name__ == name)


def clips(frames=FRAMES, size=SIZE, number=2):
    return torch.randn(number, frames, 3, size, size, generator=torch.Generator().manual_seed(1))


def resized(table, before, after):
    """A table of tokens (T x H x W) x C on other tokens: each image by bicubic interpolation, then linear in time."""
    images = table.unflatten(0, before).permute(0, 3, 1, 2)
    if before[1:] != after[1:]:
        images = interpolate(images, size=after[1:], mode="bicubic")
    # Centre k + 1/2 of n is at (k + 1/2) N / n of N.
    places = (np.arange(after[0]) + 0.5) * before[0] / after[0] - 0.5
    values = images.permute(0, 2, 3, 1).flatten(1).detach().numpy()
    tracks = [np.interp(places, np.arange(before[0]), track) for track in values.T]
    return torch.tensor(np.stack(tracks, 1), dtype=table.dtype).reshape(-1, table.shape[1])


@pytest.mark.parametrize(("frames", "size"), GRIDS)
def test_sinusoids_of_videomae_are_resized(frames, size):
    model = make("VideoMAE", "ForPreTraining", decoder_hidden_size=24, decoder_num_hidden_layers=1,
                 decoder_num_attention_heads=2, decoder_intermediate_size=8)  # fmt: skip
    grids = (4, 4, 4), (frames // TUBELET, size // PATCH, size // PATCH)
    parts = model, part_of(model, "VideoMAEEmbeddings")
    expected = [resized(part.position_embeddings[0], *grids) for part in parts]
    on_grid(model, frames, size)
    for part, table in zip(parts, expected, strict=True):
        assert_close(part.position_embeddings[0], table)
    masked = torch.zeros(2, len(table), dtype=torch.bool)
    masked[:, ::2] = True
    assert model(clips(frames, size), bool_masked_pos=masked).loss.isfinite()


@pytest.mark.parametrize(("frames", "size"), GRIDS)
def test_the_table_of_vivit_is_resized_and_the_whole_one_learns(frames, size):
    model = make("Vivit")
    embeddings = part_of(model, "VivitEmbeddings")
    whole = embeddings.position_embeddings
    table = resized(whole[0, 1:], (4, 4, 4), (frames // TUBELET, size // PATCH, size // PATCH))
    for part in (embeddings.patch_embeddings.projection.weight, embeddings.patch_embeddings.projection.bias):
        nn.init.zeros_(part)
    following = on_grid(model, frames, size)
    out = embeddings(clips(frames, size))
    assert_close(out[0, 1:], table)
    assert_close(out[0, :1], embeddings.cls_token[0] + whole[0, :1])  # the class token has no place
    assert_close(embeddings(clips(frames, size), interpolate_pos_encoding=True), out)  # does not resize twice
    (out**2).sum().backward()
    learns = whole.grad[0, 1:].unflatten(0, (4, -1)).abs().amin(-1).all(1)
    assert learns.tolist() == [frames > 2, True, True, frames > 2]  # a single tube is between the two in the middle
    following.restore()
    assert embeddings.position_embeddings is whole


def test_timesformer_is_as_one_that_was_built_for_the_grid():
    model, small = make("Timesformer"), make("Timesformer", num_frames=4, image_size=16)
    state = model.state_dict()
    for name, value in state.items():  # the library resizes its tables to the nearest row
        if name.endswith("position_embeddings"):
            images = value[0, 1:].unflatten(0, (4, 4))
            state[name] = torch.cat((value[:, :1], images[::2, ::2].flatten(0, 1)[None]), 1)
        elif name.endswith("time_embeddings"):
            state[name] = value[:, ::2]
    small.load_state_dict(state)
    on_grid(model, 4, 16)
    assert torch.equal(model(clips(4, 16)).logits, small(clips(4, 16)).logits)
    assert model.config.num_frames == FRAMES  # what a script may save meanwhile


@pytest.mark.parametrize(("frames", "size"), [*GRIDS, (8, 32)])
def test_tokens_of_vjepa2_have_the_places_of_the_full_grid(frames, size):
    model, seen = make("VJEPA2").bfloat16(), []
    attention = part_of(model, "VJEPA2RopeAttention")
    own = attention.apply_rotary_embeddings
    attention.apply_rotary_embeddings = lambda qk, pos_ids: seen.append(pos_ids) or own(qk, pos_ids)
    on_grid(model, frames, size)
    assert model(clips(frames, size).bfloat16()).logits.dtype == torch.bfloat16
    # Token k of n is at k N / n of the N = 4 tokens of the full grid.
    t, h = frames // TUBELET, size // PATCH
    every = torch.cartesian_prod(torch.arange(t) * 4 / t, torch.arange(h) * 4 / h, torch.arange(h) * 4 / h)
    assert_close(torch.stack([ids.float() for ids in seen[0]], 1), every, rtol=0.01, atol=0)
