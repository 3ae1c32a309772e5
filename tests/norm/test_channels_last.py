"""Laws of BatchNorm's kernels for channels-last memory, run by Triton's interpreter on a CPU.

The reference is plain BatchNorm of each group, at 64 bits. On a GPU, `laws/test_on_a_gpu.py` states that the kernels,
compiled, do the same.
"""

import copy
import os
from datetime import timedelta
from importlib.util import find_spec
from itertools import product

import pytest
import torch
from count_operations import CountedOperations
from torch import distributed as dist
from torch import library, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing import start_processes
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

from lightning_multigrid.norm import SubBatchNorm2d, SubBatchNorm3d, channels_last, set_sub_batch
from lightning_multigrid.norm.channels_last import RowGroups, grouped_batch_norm, has_kernels, only_channels_last
from tests.helpers.norms import groups_of, loop_of_batchnorm
from tests.helpers.processes import start_method
from tests.helpers.sampling import sampled
from tests.helpers.versions import not_torch_2_6

# Of the interpreter of Triton 3.2, in NumPy 1.26.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")

LAST = {2: torch.channels_last, 3: torch.channels_last_3d}  # by the axes after N x C
OTHER = {SubBatchNorm2d: (3, 2), SubBatchNorm3d: (2, 3, 2)}
BOUNDS = {torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@pytest.fixture
def _kernels(monkeypatch):
    """Layers take the kernels on a CPU, too. The values are always the same: how many bits are lost depends on them."""
    torch.manual_seed(0)
    if os.environ.get("TRITON_INTERPRET") != "1" or not find_spec("triton"):
        pytest.skip("needs Triton, in its interpreter")
    take_kernels(monkeypatch)


def take_kernels(patch):
    patch.setattr("lightning_multigrid.norm.sub_batchnorm.has_kernels", lambda x, *_: only_channels_last(x))


def make_clips(number, channels=3, other=(2, 3, 2), dtype=torch.float32, mean=0.0):
    """Clips with a mean and a scale of their own."""
    one = [number, *[1] * (len(other) + 1)]
    x = torch.randn(number, channels, *other) * (torch.rand(one) + 0.1) + torch.randn(one) + mean
    return x.to(dtype).contiguous(memory_format=LAST[len(other)])


def make_layer(kind=SubBatchNorm3d, channels=3, **arguments):
    layer = kind(channels, **arguments)
    if layer.weight is not None:
        nn.init.uniform_(layer.weight, 0.5, 2)
        nn.init.normal_(layer.bias)
    return layer


def parameters(layer):
    return [parameter for parameter in (layer.weight, layer.bias) if parameter is not None]


def errors(found, expected):
    """Relative errors of whole tensors."""
    pairs = [(a.detach().double(), b.detach().double()) for a, b in zip(found, expected, strict=True)]
    return [float((a - b).norm() / b.norm().clamp_min(1e-3)) for a, b in pairs]


def check_step(layer, x, groups):
    """A step by the kernels: outputs, gradients and running statistics are those of the groups at 64 bits."""
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    wide, clips = copy.deepcopy(layer).double(), x.detach().double().requires_grad_()
    expected, average = loop_of_batchnorm(wide, clips, groups)
    target = torch.randn(x.shape).to(x.dtype)
    output = layer(x)
    found = torch.autograd.grad(output, [x, *parameters(layer)], target)
    wanted = torch.autograd.grad(expected, [clips, *parameters(wide)], target.double())
    assert max(errors([output, *found], [expected, *wanted])) < BOUNDS[x.dtype]
    assert [one.dtype for one in found] == [x.dtype, *(one.dtype for one in parameters(layer))]
    assert only_channels_last(output)
    assert only_channels_last(found[0])
    assert max([0, *errors(layer.buffers(), average.buffers())]) < max(1e-4, torch.finfo(dtype_of(layer)).eps)


def dtype_of(layer):
    return torch.float32 if layer.running_mean is None else layer.running_mean.dtype


def neighbours(rows, number):
    """Groups of neighbouring rows of nearly one size, the larger ones first."""
    return [tuple(part.tolist()) for part in torch.arange(rows).tensor_split(number)]


ORDINARY = [
    (SubBatchNorm3d, 16, 4, 8, {}, torch.float32),
    (SubBatchNorm3d, 19, 4, 3, {"momentum": None}, torch.float32),
    (SubBatchNorm3d, 19, 6, 20, {"momentum": 0.7}, torch.bfloat16),
    (SubBatchNorm3d, 4, 1, 2, {"affine": False}, torch.float16),
    (SubBatchNorm2d, 8, 2, 3, {"track_running_stats": False}, torch.float32),
    (SubBatchNorm2d, 7, 3, 8, {"affine": False, "track_running_stats": False}, torch.bfloat16),
]
OPTIONS = [{}, {"momentum": None, "affine": False}, {"momentum": 0.7, "track_running_stats": False}]
CASES = [*product([SubBatchNorm2d, SubBatchNorm3d], [13, 24], [1, 3], [12], OPTIONS, BOUNDS)]


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize(
    ("kind", "clips", "sub_batch", "channels", "options", "dtype"), sampled([*ORDINARY, *CASES], *ORDINARY)
)
def test_is_plain_batchnorm_of_neighbouring_clips(kind, clips, sub_batch, channels, options, dtype):
    layer = make_layer(kind, channels, sub_batch=sub_batch, **options)
    for _ in range(2):  # the second step starts from running statistics that are not 0 and 1
        check_step(
            layer, make_clips(clips, channels, OTHER[kind], dtype), neighbours(clips, max(1, clips // sub_batch))
        )


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize(
    ("clips", "rows", "groups"),
    [
        (16, 64, neighbours(64, 2)),  # four frames of a clip
        (19, 38, [tuple(range(20)), tuple(range(20, 38))]),  # whole clips
        (32, 127, neighbours(127, 4)),  # a row was left out
        (64, 16, neighbours(16, 2)),  # rows were pooled
    ],
)
def test_rows_of_a_clip_stay_together(clips, rows, groups):
    layer = make_layer(SubBatchNorm2d)
    set_sub_batch(layer, 8, of=clips)
    check_step(layer, make_clips(rows, other=(3, 2)), groups)


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("channels", sampled([1, 8, 24, 130, 256], 8, 130))
@pytest.mark.parametrize("clips", [4, 5])
def test_groups_of_many_tiles(channels, clips):
    """Several tiles of rows and of channels, and groups that several programs read."""
    other = (2, 40, 40) if channels < 100 else (2, 12, 14)
    layer = make_layer(channels=channels, sub_batch=2)
    if channels == 1:  # is contiguous at the same time
        assert not only_channels_last(make_clips(clips, channels, other))
    else:
        check_step(layer, make_clips(clips, channels, other), neighbours(clips, 2))


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("mean", [100.0, 3000.0])
def test_a_large_mean_is_no_worse_than_in_torch(mean):
    """Where a variance as the difference of two sums would be lost. Black first points are far from the mean, too."""
    x = make_clips(8, 4, (2, 12, 12), mean=mean)
    x[::4] = 0
    x[::4, :, 1] = mean + torch.randn(())
    layer = make_layer(channels=4, sub_batch=4)
    wide = copy.deepcopy(layer).double()
    expected, average = loop_of_batchnorm(wide, x.double(), neighbours(8, 2))
    theirs, of_torch = loop_of_batchnorm(copy.deepcopy(layer), x, neighbours(8, 2))
    ours = errors([layer(x), *layer.buffers()], [expected, *average.buffers()])
    bounds = errors([theirs, *of_torch.buffers()], [expected, *average.buffers()])
    assert all(error < 4 * bound + 1e-6 for error, bound in zip(ours, bounds, strict=True))


@pytest.mark.usefixtures("_kernels")
def test_running_statistics_move_as_in_so_many_steps_of_the_baseline():
    layer, x = make_layer(sub_batch=4), make_clips(9)
    repeated = copy.deepcopy(layer)
    set_sub_batch(layer, 4, of=9, baseline_batches=8)
    layer(x)
    for _ in range(8):
        repeated(x)
    assert_close([layer.running_mean, layer.running_var], [repeated.running_mean, repeated.running_var])
    assert layer.num_batches_tracked == 1


@pytest.mark.usefixtures("_kernels")
def test_parameters_and_buffers_of_half_precision_keep_it():
    layer = make_layer(sub_batch=4).bfloat16()
    check_step(layer, make_clips(9, dtype=torch.bfloat16), neighbours(9, 2))


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("frozen", [("weight",), ("bias",), ("weight", "bias")])
def test_frozen_parameters_get_no_gradient_and_change_no_other(frozen):
    layer = make_layer(sub_batch=4)
    whole, x = copy.deepcopy(layer), make_clips(16).requires_grad_()
    for name in frozen:
        layer.get_parameter(name).requires_grad_(False)
    found = []
    for each in (layer, whole):
        (each(x) ** 3).sum().backward()
        found.append({name: parameter.grad for name, parameter in each.named_parameters()} | {"x": x.grad})
        x.grad = None
    for name, gradient in found[0].items():
        assert gradient is None if name in frozen else torch.equal(gradient, found[1][name])


@pytest.mark.usefixtures("_kernels")
def test_clips_that_need_no_gradient_get_none():
    layer, x = make_layer(sub_batch=4), make_clips(16)
    whole = copy.deepcopy(layer)
    layer(x).square().sum().backward()
    whole(x.clone().requires_grad_()).square().sum().backward()
    assert torch.equal(layer.weight.grad, whole.weight.grad)
    assert x.grad is None


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("clips", [4, 5])
def test_gradients_of_gradients(clips, affine):
    """As a gradient penalty needs them; torch's own BatchNorm computes them."""
    layer = make_layer(sub_batch=2, affine=affine)
    wide, found = copy.deepcopy(layer).double(), []
    x = make_clips(clips)
    clips_and_layers = ((x.clone().requires_grad_(), layer), (x.double().requires_grad_(), wide))
    for given_x, each in clips_and_layers:
        output = each(given_x) if each is layer else loop_of_batchnorm(each, given_x, neighbours(clips, 2))[0]
        inputs = (given_x, *parameters(each))
        first = torch.autograd.grad((output**3).mean(), inputs, create_graph=True)
        found.append([*first, *torch.autograd.grad(sum((one**2).sum() for one in first), inputs)])
    assert max(errors(*found)) < 1e-4


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("clips", [16, 19])
def test_backward_keeps_the_input_and_an_in_place_relu_copies_nothing(clips):
    layer, saved, results = make_layer(sub_batch=4), {}, []
    x = make_clips(clips, other=(4, 8, 8)).requires_grad_()

    def pack(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        layer(x)
    assert x.nbytes <= sum(saved.values()) < 1.02 * x.nbytes
    for inplace in (True, False):
        output = nn.functional.relu(layer(x), inplace)
        assert "CopySlices" not in str(output.grad_fn.next_functions)
        results.append([output, *torch.autograd.grad((output**3).sum(), x)])
    assert_close(*results, rtol=0, atol=0)


@pytest.mark.usefixtures("_kernels")
def test_gradients_of_another_memory_format_are_taken():
    """Those of a mean are expanded, those of `flatten` contiguous."""
    layer, x = make_layer(sub_batch=2), make_clips(4).requires_grad_()
    last = torch.randn_like(x)
    expected = torch.autograd.grad(layer(x), x, last)
    assert_close(torch.autograd.grad(layer(x), x, last.contiguous()), expected, rtol=0, atol=0)
    expanded = torch.ones(()).expand(x.shape)
    expected = torch.autograd.grad(layer(x), x, torch.ones_like(x))
    assert_close(torch.autograd.grad(layer(x), x, expanded), expected, rtol=0, atol=0)


@pytest.mark.usefixtures("_kernels")
def test_statistics_have_the_same_bits_each_time():
    layer = make_layer(channels=8, sub_batch=2)
    again, x = copy.deepcopy(layer), make_clips(5, 8, (2, 40, 40))
    assert torch.equal(layer(x), again(x))
    assert_close(layer.state_dict(), again.state_dict(), rtol=0, atol=0)


# --- The operations ---


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("affine", [True, False])
def test_tools_of_torch_see_what_the_operations_read_and_write(affine):
    """Schema, and the shapes that fake tensors get."""
    x, running = make_clips(6), torch.rand(2, 3).unbind()
    weight, bias = torch.rand(2, 3).unbind() if affine else (None, None)
    operations, groups = torch.ops.lightning_multigrid, RowGroups(2, 36, 0, 0)
    given = (x, weight, bias, *running, groups, 0.1, 1e-5)
    utils = ("test_schema", "test_faketensor")
    library.opcheck(operations.sub_batch_norm.default, given, test_utils=utils)
    _, mean, var = operations.sub_batch_norm(*given)
    given = (x, x, weight, mean, var, groups, 1e-5)
    library.opcheck(operations.sub_batch_norm_backward.default, given, test_utils=utils)


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("groups", [2, 8])
def test_operations_of_a_step(groups):
    """Normalise and count; one backward. Fake tensors of a CPU stand for those of a GPU: nothing is launched."""
    with FakeTensorMode():
        layer = SubBatchNorm3d(4, sub_batch=2)
        x = torch.empty(2 * groups, 4, 2, 3, 2).contiguous(memory_format=torch.channels_last_3d).requires_grad_()
        with CountedOperations() as counted:
            output = layer(x)
        assert counted.launches == 2
        gradient = torch.empty_like(output)
        with CountedOperations() as counted:
            output.backward(gradient)
        assert counted.launches == 1


# --- Who takes them ---


def test_a_cpu_goes_todays_way(monkeypatch):
    """It has no kernels, and BatchNorm there gives the same with and without Triton."""

    def fail(*args):
        raise AssertionError("not on a CPU")

    monkeypatch.setattr("lightning_multigrid.norm.sub_batchnorm.grouped_batch_norm", fail)
    layer, x = make_layer(sub_batch=2), make_clips(6)
    assert not has_kernels(x, *parameters(layer))
    assert groups_of(layer, x) == [(0, 3), (1, 4), (2, 5)]
    assert only_channels_last(layer(x))


@pytest.fixture
def _asked_anew():
    channels_last._kernels_run.cache_clear()
    yield
    channels_last._kernels_run.cache_clear()


@pytest.fixture
def _triton_runs(monkeypatch):
    monkeypatch.setattr(channels_last, "_kernels_run", lambda *_: True)


@pytest.mark.usefixtures("_triton_runs")
@not_torch_2_6
@pytest.mark.parametrize(
    ("shape", "dtype", "contiguous", "expected"),
    [
        ((4, 3, 2, 3, 2), torch.float32, False, True),
        ((4, 3, 3, 2), torch.bfloat16, False, True),
        ((4, 3, 3, 2), torch.float16, False, True),
        ((4, 3, 2, 3, 2), torch.float64, False, False),  # sums of the kernels are float32
        ((4, 3, 2, 3, 2), torch.float32, True, False),  # needs no copy
        ((4, 3, 1, 1), torch.float32, False, False),  # contiguous at the same time
        ((4, 3), torch.float32, True, False),
    ],
)
def test_kernels_are_for_channels_last_memory_of_a_gpu(shape, dtype, contiguous, expected):
    with FakeTensorMode():
        x = torch.empty(shape, dtype=dtype, device="cuda")
        if not contiguous:
            x = x.contiguous(memory_format=LAST[len(shape) - 2])
        assert has_kernels(x, None, torch.empty(3, device="cuda")) is expected
        assert not has_kernels(x, torch.empty(3, device="cuda", dtype=torch.complex64))


@pytest.mark.usefixtures("_asked_anew")
@not_torch_2_6
def test_the_switch_turns_them_off_and_says_so_once(monkeypatch):
    monkeypatch.setenv("LIGHTNING_MULTIGRID_TRITON", "0")
    with FakeTensorMode():
        x = torch.empty(4, 3, 2, 2, device="cuda").contiguous(memory_format=torch.channels_last)
        with pytest.warns(UserWarning, match="sub-mini-batches copies its input: LIGHTNING_MULTIGRID_TRITON=0"):
            assert not has_kernels(x)
        assert not has_kernels(x)  # a second warning would be an error
        channels_last._kernels_run.cache_clear()
        monkeypatch.setenv("LIGHTNING_MULTIGRID_TRITON", "off")
        with pytest.raises(ValueError, match="TRITON must be 0 .without Triton. or 1 .with it., got 'off'"):
            has_kernels(x)


@pytest.mark.usefixtures("_asked_anew", "_kernels")
def test_where_triton_fails_a_training_goes_on_without_and_says_why(monkeypatch):
    device = torch.device("cpu")  # on which the interpreter runs
    assert channels_last._kernels_run(device, torch.float32)

    def fail(*args):
        raise RuntimeError("Failed to find C compiler.\nPlease specify via CC")

    monkeypatch.setattr("lightning_multigrid.norm.triton_kernels.backward", fail)
    why = r"Triton failed \(RuntimeError: Failed to find C compiler\.\)\. LIGHTNING_MULTIGRID_TRITON=0 does not try"
    with pytest.warns(UserWarning, match=why):
        assert not channels_last._kernels_run(device, torch.bfloat16)
    assert not channels_last._kernels_run(device, torch.bfloat16)  # a second warning would be an error


@pytest.mark.usefixtures("_asked_anew", "_kernels")
@pytest.mark.parametrize(("name", "place"), [("forward", "output"), ("backward", "gradient")])
def test_kernels_that_give_other_numbers_are_not_used(name, place, monkeypatch):
    from lightning_multigrid.norm import triton_kernels

    own = getattr(triton_kernels, name)

    def wrong(*args):
        first, *rest = own(*args)
        return (first * 1.01, *rest)

    monkeypatch.setattr(triton_kernels, name, wrong)
    with pytest.warns(UserWarning, match=rf"kernels give other numbers than torch here \({place}, by 0\.01\)"):
        assert not channels_last._kernels_run(torch.device("cpu"), torch.float32)


# --- With others ---


def one_of_two_ranks(rank, store):
    torch.set_num_threads(1)
    os.environ["TRITON_INTERPRET"] = "1"
    patch = pytest.MonkeyPatch()
    take_kernels(patch)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    torch.manual_seed(0)
    layer = make_layer(sub_batch=2)
    replica, x = DistributedDataParallel(copy.deepcopy(layer)), make_clips(10)
    wide = copy.deepcopy(layer).double()
    expected, _ = loop_of_batchnorm(wide, x.double(), [(0, 1, 2), (3, 4), (5, 6, 7), (8, 9)])
    wanted = torch.autograd.grad((expected**3).mean(), parameters(wide))
    (replica(x[5 * rank : 5 * rank + 5]) ** 3).mean().backward()
    found = [parameter.grad for parameter in parameters(replica.module)]
    assert max(errors(found, wanted)) < 1e-5
    dist.destroy_process_group()
    patch.undo()


@pytest.mark.usefixtures("_kernels")
def test_gradients_of_replicas_are_those_of_one_process(tmp_path):
    start_processes(one_of_two_ranks, args=(str(tmp_path / "store"),), nprocs=2, start_method=start_method())


@pytest.mark.cuda
@pytest.mark.parametrize(("dtype", "clips"), list(product(BOUNDS, [16, 19, 64])))
def test_compiled_kernels_do_what_todays_way_does(dtype, clips):
    """Today's way of a remainder: torch's BatchNorm of each group."""
    layer = make_layer(channels=24, sub_batch=8).cuda()
    x = make_clips(clips, 24, (4, 14, 14), dtype).cuda().requires_grad_()
    sizes = [len(group) for group in neighbours(clips, clips // 8)]
    assert has_kernels(x, *parameters(layer))
    other, found = copy.deepcopy(layer), []
    ways = (
        lambda: layer(x),
        lambda: other._normalize_apart(x, sizes, other.running_mean, other.running_var, other._count()),
    )
    for way, each in zip(ways, (layer, other), strict=True):
        output = way()
        gradients = torch.autograd.grad((output.float() ** 3).mean(), [x, *parameters(each)])
        found.append([output, *gradients, *each.buffers()])
    assert max(errors(*found)) < BOUNDS[dtype]


@pytest.mark.usefixtures("_kernels")
def test_the_function_by_itself():
    x = make_clips(4)
    output = grouped_batch_norm(x, None, None, (None, None), RowGroups(2, 2, 0, 0), 0.0, 1e-5)
    assert_close(output, torch.cat([nn.functional.batch_norm(part, None, None, training=True) for part in x.chunk(2)]))
