"""In channels-last memory a GPU gets a compiled function. A CPU computes the same by it; it copies instead."""

import itertools

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from lightning_multigrid.norm import channels_last
from lightning_multigrid.norm.channels_last import only_channels_last, takes_compiled
from tests.helpers import norms
from tests.helpers.norms import grouped, in_turn, loop_of_batchnorm
from tests.helpers.sampling import sampled
from tests.helpers.versions import not_torch_2_6

LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def make_clips(number, other=(2, 3, 2), dtype=torch.float32):
    return norms.make_clips(number, other, LAST[2 + len(other)], dtype)


@pytest.fixture
def _compiled(monkeypatch):
    """Layers take the function on a CPU, too, where no kernel is made of it."""
    torch.manual_seed(0)
    monkeypatch.setattr("lightning_multigrid.norm.operation.takes_compiled", only_channels_last)
    monkeypatch.setattr(channels_last, "_compiled", lambda: channels_last._normalized)


@pytest.mark.usefixtures("_compiled")
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(("rows", "clips", "together"), [(16, 16, 1), (32, 16, 2), (48, 16, 3), (8, 8, 1)])
@pytest.mark.parametrize(("kind", "other"), [(nn.BatchNorm2d, (3, 2)), (nn.BatchNorm3d, (2, 3, 2))])
def test_it_is_a_loop_of_batchnorm_over_the_same_groups(kind, other, rows, clips, together, affine):
    layer = kind(3, affine=affine).double()
    x = make_clips(rows, other, torch.float64).requires_grad_()
    for _ in range(2):
        expected, average = loop_of_batchnorm(layer, x, in_turn(rows, clips // 4, together))
        output = grouped(layer, x, 4, clips)
        assert_close(output, expected)
        inputs = [x, *layer.parameters()]
        found, wanted = (torch.autograd.grad((one**3).sum(), inputs) for one in (output, expected))
        assert_close(found, wanted)
        assert_close(dict(layer.named_buffers()), dict(average.named_buffers()))
        assert only_channels_last(output)


@pytest.mark.usefixtures("_compiled")
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03), (torch.float16, 4e-3)])
def test_in_low_precision_statistics_have_32_bits(dtype, bound):
    layer, x = nn.BatchNorm3d(3), make_clips(16, (2, 9, 9), dtype)
    expected, average = loop_of_batchnorm(layer, x.float(), in_turn(16, 2))
    output = grouped(layer, x, 8)
    assert (output.dtype, layer.running_var.dtype) == (dtype, torch.float32)
    assert_close(output.float(), expected, rtol=bound, atol=bound)
    assert_close(layer.running_var, average.running_var, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("clips", "size"), sampled(list(itertools.product([16, 24], [5, 6])), (24, 6)))
def test_compiled_for_all_shapes_at_once(clips, size, monkeypatch):
    """By `aot_eager`: inductor takes a minute."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    function = torch.compile(channels_last._normalized, dynamic=True, backend=backend)
    weight = torch.rand(3)
    for number in (clips, 2 * clips):
        x = make_clips(number, (2, size, size))
        found = function(x, weight, weight, number // 8, 1, 1e-5)
        assert_close(found, channels_last._normalized(x, weight, weight, number // 8, 1, 1e-5))
    assert len(graphs) == 1


@not_torch_2_6
@pytest.mark.parametrize(
    ("shape", "contiguous", "expected"),
    [
        ((4, 3, 2, 3, 2), False, True),
        ((4, 3, 3, 2), False, True),
        ((4, 3, 2, 3, 2), True, False),  # needs no copy
        ((4, 3, 1, 1), False, False),  # contiguous at the same time
        ((4, 3), True, False),
    ],
)
def test_it_is_for_channels_last_memory_of_a_gpu(shape, contiguous, expected, monkeypatch):
    monkeypatch.setattr(channels_last, "compiles", lambda *_: True)
    with FakeTensorMode():
        x = torch.empty(shape, device="cuda")
        x = x if contiguous else x.contiguous(memory_format=LAST[len(shape)])
        assert takes_compiled(x) is expected
    x = torch.empty(shape)
    assert not takes_compiled(x if contiguous else x.contiguous(memory_format=LAST[len(shape)]))


def test_where_compiling_fails_a_training_goes_on_with_copies_and_says_why(monkeypatch):
    def fail(*_):
        raise RuntimeError("Failed to find C compiler.\nPlease specify via CC")

    monkeypatch.setattr(channels_last, "_compiled", lambda: fail)
    channels_last.compiles.cache_clear()
    try:
        why = r"copies its input: `torch.compile` failed \(RuntimeError: Failed to find C compiler\.\)\.$"
        with pytest.warns(UserWarning, match=why):
            assert not channels_last.compiles(torch.device("cpu"), torch.float32)
        assert not channels_last.compiles(torch.device("cpu"), torch.float32)  # a second warning would be an error
    finally:
        channels_last.compiles.cache_clear()
