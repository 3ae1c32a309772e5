"""What the CPU shows also holds on a GPU: the same statistics, gradients and steps, also replayed as a CUDA graph."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from lightning_multigrid import sub_batches
from lightning_multigrid.models import i3d_nl_r50, slowfast_r50, small_cnn
from lightning_multigrid.norm.operation import compiles
from tests.helpers.norms import grouped, groups_of, loop_of_batchnorm

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
FORMATS = [torch.contiguous_format, torch.channels_last_3d]


@pytest.fixture(autouse=True)
def _full_precision():
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def close(actual, expected, bound):
    """Relative error of a whole tensor."""
    actual, expected = actual.detach().double().cpu(), expected.detach().double().cpu()
    error = (actual - expected).norm() / expected.norm().clamp_min(1e-12)
    assert error < bound, error


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("clips", [8, 16, 19])
def test_statistics_are_those_of_the_cpu_at_64_bits(device, memory_format, dtype, bound, clips):
    generator = torch.Generator().manual_seed(0)
    layer = nn.BatchNorm3d(6)
    nn.init.uniform_(layer.weight, 0.5, 2)
    x = torch.randn(clips, 6, 2, 5, 5, generator=generator).to(dtype).contiguous(memory_format=memory_format)
    gradient = torch.randn(x.shape, generator=generator).to(dtype).contiguous(memory_format=memory_format)
    norm, there = copy.deepcopy(layer).to(device), x.clone().to(device).requires_grad_()
    groups = groups_of(norm, there.detach(), 8)
    grouped(norm, there, 8).relu().backward(gradient.to(device))
    wide, exact = copy.deepcopy(layer).double(), x.double().requires_grad_()
    output, average = loop_of_batchnorm(wide, exact, groups)
    output.relu().backward(gradient.double())
    close(there.grad, exact.grad, bound)
    for name, parameter in wide.named_parameters():
        close(norm.get_parameter(name).grad, parameter.grad, bound)
    for name in ("running_mean", "running_var"):
        close(norm.get_buffer(name), average.get_buffer(name), bound)


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("make", "memory_format"),
    [*((make, form) for make in (small_cnn, slowfast_r50) for form in FORMATS), (i3d_nl_r50, FORMATS[0])],
)
def test_gradients_of_models_are_those_of_the_cpu_in_contiguous_memory(make, memory_format):
    """Both at 32 bits: at 64 bits the CPU gives gradients that differ by 1e-6 to 4e-3 for these models."""
    torch.manual_seed(0)
    model = make(10).eval()  # without dropout
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm3d):
            layer.train()
    clips, labels = torch.randn(4, 3, 8, 64, 64), torch.tensor([0, 3, 5, 9])
    found = []
    for device, format in (("cpu", FORMATS[0]), ("cuda", memory_format)):
        there = copy.deepcopy(model).to(device, memory_format=format)
        clips_there = clips.to(device, memory_format=format)
        with sub_batches(2, of=4):
            cross_entropy(there(clips_there), labels.to(device)).backward()
        found.append(torch.cat([p.grad.flatten().cpu() for p in there.parameters() if p.grad is not None]))
    close(found[1], found[0], 2e-2)


@pytest.mark.cuda
def test_a_replayed_step_is_the_step():
    """The graph holds the layers' groups, their running statistics and the optimizer."""
    torch.manual_seed(0)
    model = small_cnn(10).cuda()
    clips, labels = torch.randn(16, 3, 8, 32, 32, device="cuda"), torch.zeros(16, dtype=torch.long, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step():
        optimizer.zero_grad()
        with sub_batches(8, of=16):
            loss = cross_entropy(model(clips), labels)
            loss.backward()
        optimizer.step()

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        step()
        step()
    torch.cuda.current_stream().wait_stream(aside)
    optimizer.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    before, momenta = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    graph.replay()
    replayed = copy.deepcopy(model.state_dict())
    model.load_state_dict(before)
    optimizer.load_state_dict(momenta)
    step()
    assert_close(replayed, model.state_dict(), rtol=1e-4, atol=1e-5)
    assert any(not torch.equal(replayed[name], before[name]) for name in replayed)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_channels_last_memory_nothing_is_copied(dtype):
    assert compiles(torch.device("cuda", 0), dtype)
