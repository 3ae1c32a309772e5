"""The paper's models: their size, their cost, the grids they take, and what they are made of."""

import hashlib
import itertools
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lightning_multigrid.models import i3d_nl_r50, i3d_r50, slow_r50, slowfast_r50, slowfast_r101, small_cnn
from lightning_multigrid.models.blocks import Head, MaxPool, NonLocal
from lightning_multigrid.models.slowfast import slow_frames
from tests.helpers.sampling import sampled

# Every (T, S) that the default schedule makes of a baseline of 32 x 224.
GRIDS_32 = [(8, 112), (8, 158), (16, 112), (16, 158), (16, 224), (32, 112), (32, 158), (32, 224)]


def on_meta(factory, **arguments):
    """The model without memory or arithmetic: shapes only."""
    with torch.device("meta"):
        return factory(**arguments)


# Counted on PySlowFast's models (and on pytorchvideo's where it has them). The digest is of the sorted lines
# "name shape" of the whole state dict of PySlowFast's model.
@pytest.mark.parametrize(
    ("factory", "arguments", "parameters", "tensors", "digest"),
    [
        (slowfast_r50, {}, 34_566_488, 662, "d9653fafacc7ebbb"),
        (slowfast_r50, {"alpha": 8, "fusion_kernel": 5}, 34_480_216, 662, "1b5c48f9b8cbb147"),
        (slowfast_r101, {}, 62_913_240, 1274, "3ed8b6d06311a062"),
        pytest.param(
            slowfast_r101, {"res4_temporal_blocks": 6}, 53_861_080, 1274, "3dc75fbf6ee7ee87", marks=pytest.mark.slow
        ),
        (i3d_r50, {}, 28_043_472, 320, "feadc02df66011f4"),
        (i3d_nl_r50, {}, 35_401_936, 385, "ca3d7e4dfd22d2a8"),
        (slow_r50, {}, 32_454_096, 320, "873a4f1904b94a7b"),
    ],
)
def test_parameters_are_those_of_pyslowfast(factory, arguments, parameters, tensors, digest):
    model = on_meta(factory, **arguments)
    state = model.state_dict()
    lines = "\n".join(sorted(f"{name} {tuple(tensor.shape)}" for name, tensor in state.items()))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert len(state) == tensors
    assert hashlib.sha256(lines.encode()).hexdigest()[:16] == digest


slow = partial(pytest.param, marks=pytest.mark.slow)


# GMAC of a forward pass of one clip, counted on PySlowFast's models and confirmed by fvcore; 50.31 is the model zoo's
# 65.7 at 256 pixels.
@pytest.mark.parametrize(
    ("factory", "arguments", "costs"),
    [
        slow(slowfast_r50, {}, dict(zip(GRIDS_32, [3.30, 6.41, 6.59, 12.81, 25.16, 13.19, 25.63, 50.31], strict=True))),
        slow(slowfast_r50, {}, {(32, 320): 102.67, (16, 226): 28.43}),
        (slowfast_r50, {"alpha": 2}, {(4, 158): 6.07, (16, 224): 47.67}),
        slow(slowfast_r101, {}, {(32, 224): 96.71}),
        slow(i3d_r50, {}, {(2, 112): 1.84, (16, 158): 28.87}),
        (i3d_nl_r50, {}, {(4, 158): 8.72, (16, 224): 79.05}),
        slow(slow_r50, {}, {(8, 224): 41.74}),
    ],
)
def test_one_model_takes_every_grid_at_the_published_cost(factory, arguments, costs):
    model, counted = on_meta(factory, **arguments), {}
    for frames, size in costs:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            logits = model(torch.empty(1, 3, frames, size, size, device="meta"))
        counted[frames, size] = counter.get_total_flops() / 2e9
        assert logits.shape == (1, 400)
    assert counted == pytest.approx(costs, abs=0.006)


@pytest.mark.parametrize("factory", sampled([slowfast_r50, i3d_r50, i3d_nl_r50, slow_r50], i3d_nl_r50))
def test_a_training_step_on_an_odd_grid_gives_finite_gradients(factory):
    """To every parameter, too."""
    model = factory(num_classes=3)
    loss = nn.functional.cross_entropy(model(torch.randn(2, 3, 4, 45, 45)), torch.tensor([0, 2]))
    loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert model.get_parameter("s1.pathway0_stem.conv.weight").grad.abs().max() > 0


def test_slow_frames_are_the_truncated_linspace_of_the_published_code():
    for frames, alpha in itertools.product(range(1, 157), (1, 2, 4, 8)):
        if frames % alpha == 0:
            published = torch.linspace(0, frames - 1, frames // alpha).long()
            assert slow_frames(frames, alpha).tolist() == published.tolist()


def test_slow_frames_are_exact_where_floats_are_not():
    assert slow_frames(160, 4)[13] == 13 * 159 / 39 == 53
    assert torch.linspace(0, 159, 40).long()[13] == 52  # the published float is a little below


def test_frames_that_alpha_does_not_divide_are_refused():
    message = r"clips of 6 frames, but alpha = 4 must divide them\. Use a multiple of 4 frames on every grid"
    with pytest.raises(ValueError, match=message):
        on_meta(slowfast_r50)(torch.empty(1, 3, 6, 32, 32, device="meta"))


@pytest.mark.parametrize(
    ("factory", "arguments", "message"),
    [
        (slowfast_r50, {"beta": 0.1}, r"`beta` must be a multiple of 1/64 up to 1, got 0\.1"),
        (slowfast_r50, {"beta": 0.0}, r"`beta` must be a multiple of 1/64 up to 1, got 0\.0"),
        (slowfast_r101, {"res4_temporal_blocks": 24}, r"`res4_temporal_blocks` must be between 0 and 23, got 24\."),
        (i3d_nl_r50, {"instantiation": "gaussian"}, r"must be 'dot_product' or 'softmax', got 'gaussian'\."),
    ],
)
def test_arguments_out_of_range_are_refused(factory, arguments, message):
    with pytest.raises(ValueError, match=message):
        on_meta(factory, **arguments)


def test_only_the_last_bn_of_each_block_starts_at_zero():
    model = i3d_nl_r50()
    zero = [name for name, parameter in model.named_parameters() if "bn.weight" in name and not parameter.any()]
    # 3 + 4 + 6 + 3 bottlenecks, 5 non-local blocks
    assert len([name for name in zero if name.endswith("branch2.c_bn.weight")]) == 16
    assert len([name for name in zero if ".pathway0_nonlocal" in name]) == 5
    assert len(zero) == 21


def test_convolutions_start_with_the_deviation_of_fan_out():
    # He et al.: sqrt(2 / (out channels x kernel)), here of 3 x 1 x 1 kernels to 256 channels
    weight = slow_r50().get_parameter("s4.pathway0_res0.branch2.a.weight")
    assert weight.std().item() == pytest.approx((2 / (256 * 3)) ** 0.5, rel=0.02)


def test_dropout_is_on_the_pooled_vector():
    head = Head(channels=1000, num_classes=1000, dropout=0.5)
    with torch.no_grad():
        head.projection.weight.copy_(torch.eye(1000))
        head.projection.bias.zero_()
    pooled = head([torch.ones(1, 600, 2, 3, 3), torch.ones(1, 400, 4, 3, 3)])
    # Kept elements are doubled and dropped ones are 0; dropping positions would give values in between.
    assert set(pooled.unique().tolist()) == {0.0, 2.0}
    assert 400 < pooled.count_nonzero() < 600


@pytest.mark.parametrize("instantiation", ["dot_product", "softmax"])
def test_non_local_block_against_a_loop_over_positions(instantiation):
    block = NonLocal(8, instantiation).double().eval()
    x = torch.randn(2, 8, 2, 4, 6, dtype=torch.float64)
    expected = x.clone()
    for clip, (t, h, w) in itertools.product(range(2), itertools.product(range(2), range(4), range(6))):
        keys = nn.functional.max_pool3d(x[clip], (1, 2, 2)).flatten(1)
        theta = block.conv_theta.weight.flatten(1) @ x[clip, :, t, h, w] + block.conv_theta.bias
        phi = block.conv_phi.weight.flatten(1) @ keys + block.conv_phi.bias[:, None]
        g = block.conv_g.weight.flatten(1) @ keys + block.conv_g.bias[:, None]
        pairs = theta @ phi
        # 2 x 2 x 3 keys; inner width 4
        weights = pairs / 12 if instantiation == "dot_product" else (pairs / 4**0.5).softmax(0)
        out = block.conv_out.weight.flatten(1) @ (g @ weights) + block.conv_out.bias
        expected[clip, :, t, h, w] += out / (1 + 1e-5) ** 0.5
    torch.testing.assert_close(block(x), expected)


def test_non_local_products_fit_in_half_precision():
    block = NonLocal(8, "dot_product").half().eval()
    with torch.no_grad():
        for conv, weight in ((block.conv_theta, 1.0), (block.conv_phi, 1.0), (block.conv_g, 2.0**-10)):
            conv.weight.fill_(weight)
            conv.bias.zero_()
        block.conv_out.weight.fill_(0.0)
    # A pair is 4 inner channels x (8 x 20) x (8 x 20) = 102400, above float16's 65504. The mean over the keys of
    # pair x g is 102400 x 8 x 20 / 1024 = 16000, and fits.
    assert block(torch.full((1, 8, 1, 32, 32), 20.0, dtype=torch.float16)).isfinite().all()


@pytest.mark.parametrize(("clips", "frames", "size"), [(1, 2, 16), (3, 3, 17), (2, 16, 64), (2, 5, 80)])
def test_small_cnn_takes_any_grid(clips, frames, size):
    model = small_cnn(num_classes=6)
    logits = model(torch.randn(clips, 3, frames, size, size))
    assert logits.shape == (clips, 6)
    logits.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize("instantiation", ["softmax", "dot_product"])
def test_non_local_keeps_to_the_memory_format(instantiation, memory_format):
    block, seen = NonLocal(8, instantiation).to(memory_format=memory_format), []
    block.conv_out.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    out = block(torch.randn(2, 8, 3, 4, 4).contiguous(memory_format=memory_format))
    assert [x.is_contiguous(memory_format=memory_format) for x in (*seen, out)] == [True, True]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize("arguments", [((1, 3, 3), (1, 2, 2), (0, 1, 1)), ((1, 2, 2),), ((2, 1, 1),), ((1, 1, 1),)])
def test_pools_are_3d_pools_to_the_bit(arguments, memory_format):
    results = []
    for pool in (MaxPool(*arguments), nn.MaxPool3d(*arguments)):
        torch.manual_seed(0)
        x = torch.randint(3, (2, 3, 5, 7, 6)).float()  # with ties
        x = x.contiguous(memory_format=memory_format).requires_grad_()
        pooled = pool(x)
        results.append([pooled, *torch.autograd.grad((pooled * torch.rand_like(pooled)).sum(), x)])
        assert pooled.is_contiguous(memory_format=memory_format)
    torch.testing.assert_close(*results, rtol=0, atol=0)
