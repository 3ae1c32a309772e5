"""Laws of BatchNorm over sub-mini-batches. The reference is a Python loop of plain BatchNorm over groups of rows."""

import copy
import itertools
import threading

import pytest
import torch
from count_operations import CountedOperations
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.testing import assert_close

from lightning_multigrid import MultigridCallback, sub_batches
from lightning_multigrid.norm import operation
from lightning_multigrid.norm.operation import only_channels_last, takes_compiled
from tests.helpers.norms import CHANNELS, grouped, groups_of, in_turn, loop_of_batchnorm, make_clips, make_layer
from tests.helpers.norms import INPUTS as KINDS
from tests.helpers.sampling import sampled
from tests.helpers.tiny import Module, fit, loader, trainer
from tests.helpers.versions import not_torch_2_6

IN_ALL_FORMATS = pytest.mark.parametrize(
    ("kind", "other", "memory_format"), KINDS, ids=["NC", "NCL", "NCHW", "NHWC", "NCTHW", "NTHWC"]
)


def gradients(output, layer, x):
    inputs = [x] + [p for p in (layer.weight, layer.bias) if p is not None]
    target = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(output.shape)
    return torch.autograd.grad(((output - target) ** 3).sum(), inputs)


def check_step(layer, output, x, expected, average, memory_format=torch.contiguous_format):
    """A step of the layer: outputs and gradients as expected, running statistics those of `average`."""
    assert_close(output, expected, rtol=1e-9, atol=1e-9)
    assert_close(gradients(output, layer, x), gradients(expected, layer, x), rtol=1e-8, atol=1e-8)
    assert_close(dict(layer.named_buffers()), dict(average.named_buffers()), rtol=1e-10, atol=1e-10)
    assert output.is_contiguous(memory_format=memory_format)


@IN_ALL_FORMATS
@settings(max_examples=12, deadline=None)
@given(
    clips=st.integers(2, 19),
    sub_batch=st.integers(2, 6),
    momentum=st.sampled_from([0.1, 0.7, None]),
    affine=st.booleans(),
    track=st.booleans(),
)
def test_is_a_loop_of_batchnorm_over_the_groups(kind, other, memory_format, clips, sub_batch, momentum, affine, track):
    layer = make_layer(kind, momentum=momentum, affine=affine, track_running_stats=track)
    for _ in range(2):  # the second step starts from running statistics that are not 0 and 1
        x = make_clips(clips, other, memory_format).requires_grad_()
        expected, average = loop_of_batchnorm(layer, x, in_turn(clips, max(1, clips // sub_batch)))
        check_step(layer, grouped(layer, x, sub_batch), x, expected, average, memory_format)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@IN_ALL_FORMATS
def test_one_group_is_plain_batchnorm_to_the_bit(kind, other, memory_format, dtype):
    layer = make_layer(kind).to(dtype)
    plain = copy.deepcopy(layer)
    for clips in (2, 8, 15):
        x = make_clips(clips, other, memory_format, dtype).requires_grad_()
        output, expected = grouped(layer, x, 8), plain(x)
        assert torch.equal(output, expected)
        assert output.stride() == expected.stride()
        for ours, theirs in zip(gradients(output, layer, x), gradients(expected, plain, x), strict=True):
            assert torch.equal(ours, theirs)
    for ours, theirs in zip(layer.buffers(), plain.buffers(), strict=True):
        assert torch.equal(ours, theirs)


def test_evaluation_is_plain_batchnorm():
    layer = make_layer()
    grouped(layer, make_clips(8), 2)
    layer.eval()
    x, state = make_clips(8), copy.deepcopy(layer.state_dict())
    assert torch.equal(grouped(layer, x, 2), layer(x))
    assert_close(layer.state_dict(), state, rtol=0, atol=0)


@pytest.mark.parametrize("clips", [8, 11])
def test_frozen_running_statistics_stay(clips):
    """`track_running_stats = False` on a finished layer is how training scripts hold BatchNorm's buffers."""
    layer, x = make_layer(), make_clips(clips)
    tracking = copy.deepcopy(layer)
    layer.track_running_stats = False
    state = copy.deepcopy(layer.state_dict())
    assert torch.equal(grouped(layer, x, 2), grouped(tracking, x, 2))
    assert_close(layer.state_dict(), state, rtol=0, atol=0)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize("clips", [16, 19])
def test_backward_keeps_the_input_and_nothing_else_of_its_size(memory_format, clips):
    layer, saved = make_layer(), {}
    x = make_clips(clips, (4, 8, 8), memory_format).requires_grad_()

    def pack(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = grouped(layer, x, 4)
    assert x.nbytes <= sum(saved.values()) < 1.02 * x.nbytes  # or its contiguous copy; statistics, weights
    assert output.shape == x.shape


@pytest.mark.parametrize(
    ("memory_format", "groups", "forward", "backward"),
    [
        (torch.contiguous_format, 2, 8, 3),  # four repeats, normalise, two averages, count; backward and two sums
        (torch.contiguous_format, 8, 8, 3),
        (torch.channels_last_3d, 2, 8 + 2, 3 + 2),  # as contiguous, and a copy there and back
        (torch.channels_last_3d, 8, 8 + 2, 3 + 2),
    ],
)
def test_operations_of_a_step(memory_format, groups, forward, backward):
    """Each is launched by the host; those of plain BatchNorm are normalise, count, and one backward.

    Meta tensors stand for those of a GPU.
    """
    layer = nn.BatchNorm3d(CHANNELS, device="meta")
    x = torch.empty(8 * groups, CHANNELS, 2, 3, 2, device="meta").contiguous(memory_format=memory_format)
    x.requires_grad_()
    with CountedOperations() as counted:
        output = grouped(layer, x, 8)
    assert counted.launches == forward
    gradient = torch.empty_like(output)
    with CountedOperations() as counted:
        output.backward(gradient)
    assert counted.launches == backward


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize(("clips", "of"), [(16, 16), (19, 19), (32, 16)])
def test_an_in_place_relu_copies_nothing_in_the_backward(memory_format, clips, of):
    """Autograd writes into a view by `CopySlices`, which copies all activations behind the view."""
    results, layer = [], make_layer()
    x = make_clips(clips, memory_format=memory_format).requires_grad_()
    for inplace in (True, False):
        output = F.relu(grouped(layer, x, 4, of), inplace)
        assert "CopySlices" not in nodes_before(output)
        results.append([output, *torch.autograd.grad((output**3).sum(), x)])
    assert_close(*results, rtol=0, atol=0)


def nodes_before(tensor):
    """The names of the nodes of autograd's graph."""
    names, waiting = set(), [tensor.grad_fn]
    while waiting:
        node = waiting.pop()
        names.add(type(node).__name__)
        waiting += [former for former, _ in node.next_functions if former is not None]
    return names


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("clips", [16, 19])
def test_half_precision_inputs_have_float32_statistics(memory_format, dtype, clips):
    layer = make_layer().float()
    exact = copy.deepcopy(layer)
    x = make_clips(clips, memory_format=memory_format, dtype=dtype).requires_grad_()
    output, expected = grouped(layer, x, 4), grouped(exact, x.float(), 4)
    assert output.dtype == dtype
    assert_close(output.float(), expected, rtol=0.02, atol=0.05)
    assert layer.running_var.dtype == torch.float32
    assert_close(dict(layer.named_buffers()), dict(exact.named_buffers()), rtol=1e-5, atol=1e-5)
    output.float().sum().backward()
    assert x.grad.dtype == dtype
    assert layer.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize(("clips", "of"), sampled([(6, 6), (8, 8), (11, 11), (16, 8)], (11, 11)))
def test_compiled_it_is_the_same(memory_format, clips, of):
    torch.compiler.reset()
    layer = make_layer()
    eager = copy.deepcopy(layer)
    x = make_clips(clips, memory_format=memory_format).requires_grad_()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    output, expected = grouped(compiled, x, 4, of), grouped(eager, x, 4, of)
    assert_close(output, expected)
    assert output.is_contiguous(memory_format=memory_format)
    assert_close(gradients(output, layer, x), gradients(expected, eager, x))
    assert_close(layer.state_dict(), eager.state_dict())
    assert_close(compiled(x), eager(x))  # outside, it is torch's own


# --- Rows and clips ---


@IN_ALL_FORMATS
@pytest.mark.parametrize(
    ("clips", "rows", "together", "groups"),
    [
        (8, 40, 5, 1),  # the fine-tuning phase
        (16, 64, 4, 2),
        (32, 96, 3, 4),
        (19, 38, 2, 2),  # groups of 10 and 9 clips
        (5, 20, 4, 1),
        (16, 30, 2, 2),  # a clip of two rows was left out
        (16, 31, 2, 2),  # a row was left out
        (32, 127, 4, 4),
        (16, 17, 1, 2),  # a row more
        (64, 16, 1, 2),  # rows were pooled: each counts as a clip
        (64, 15, 1, 1),
        (64, 63, 1, 7),
    ],
)
def test_rows_are_dealt_out_to_the_groups_in_turn(kind, other, memory_format, clips, rows, together, groups):
    layer = make_layer(kind)
    for _ in range(2):
        x = make_clips(rows, other, memory_format).requires_grad_()
        expected, average = loop_of_batchnorm(layer, x, in_turn(rows, groups, together))
        check_step(layer, grouped(layer, x, 8, clips), x, expected, average, memory_format)


@given(clips=st.integers(2, 64), rows=st.integers(1, 5), sub_batch=st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_all_rows_of_a_clip_are_in_one_group_and_of_views_each_has_its_share(clips, rows, sub_batch):
    """Row b * m + t is of clip b, or row v * B + b is: nothing tells the two apart, and one rule is right for both."""
    layer, x = make_layer(nn.BatchNorm1d), make_clips(clips * rows, (2,))
    groups = groups_of(layer, x, sub_batch, clips)
    assert len(groups) == max(1, clips // sub_batch)
    group_of = {row: index for index, group in enumerate(groups) for row in group}
    for clip in range(clips):  # neighbours
        assert len({group_of[clip * rows + time] for time in range(rows)}) == 1
    for group in groups:  # one view after another, as `cat([real, fake])` makes them
        shares = [sum(row // clips == view for row in group) for view in range(rows)]
        assert max(shares) - min(shares) <= 2 * rows
        if clips >= len(groups) * rows:
            assert min(shares) > 0
    if clips % (len(groups) * rows) == 0:
        for clip in range(clips):
            assert len({group_of[view * clips + clip] for view in range(rows)}) == 1


def test_a_network_that_sees_real_and_fake_together_tells_them_apart_on_every_grid():
    """Each group of neighbouring rows would be all real or all fake, and its mean would be taken away."""
    layer, differences = nn.BatchNorm1d(CHANNELS), []
    for clips in (8, 16, 64):
        real, fake = torch.randn(clips, CHANNELS) + 5, torch.randn(clips, CHANNELS) - 5
        for_real, for_fake = grouped(layer, torch.cat([real, fake]), 8, clips).chunk(2)
        differences.append((for_real - for_fake).mean().item())
    assert all(1.9 < difference < 2 for difference in differences)  # 2 deviations, less the noise within each


class Folded(nn.Module):
    """The backbone of TSN: each frame is an image."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.last = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 4))

    def forward(self, x):
        rows = self.net(x.transpose(1, 2).flatten(0, 1)).flatten(1)
        return self.last(rows.unflatten(0, (len(x), -1)).mean(dim=1))


def test_a_script_whose_model_folds_frames_has_statistics_of_clips():
    """On every grid, as a loop of plain BatchNorm over the clips that share statistics."""
    checked, clips = [], []

    def check(layer, inputs, output):
        if layer.training and not inputs[0].is_meta:
            (x,) = inputs
            step, frames = callback.step, len(x) // clips[-1]
            groups = in_turn(len(x), max(1, clips[-1] // step.sub_batch), frames)
            weight, bias = layer.weight.view(1, -1, 1, 1), layer.bias.view(1, -1, 1, 1)
            for rows in map(list, groups):
                part = x[rows]
                normal = (part - part.mean((0, 2, 3), True)) / (part.var((0, 2, 3), False, keepdim=True) + 1e-5).sqrt()
                assert_close(output[rows], normal * weight + bias, rtol=1e-4, atol=1e-4)
            checked.append((clips[-1], frames, step.sub_batch))

    class Frames(Module):
        def make_net(self):
            return Folded()

        def training_step(self, batch, batch_idx):
            clips.append(len(batch[0]))
            return F.cross_entropy(self.net(batch[0]), batch[1])

    module, callback = Frames(), MultigridCallback(seed=0)
    module.net.net[1].register_forward_hook(check)
    trainer(callback, max_epochs=4).fit(module, loader(8, number=256, drop_last=True))
    # 8 clips x 8 frames: T/4, T/2, T; and the number of groups is that of the sub-mini-batches.
    assert {(frames, sub_batch) for _, frames, sub_batch in checked} >= {(2, 8), (4, 8), (8, 8), (8, 32)}


# --- The function of torch ---


class Derived(nn.BatchNorm2d):
    """Torch's own but for its name."""


class Functional(nn.Module):
    """Calls the function itself."""

    def __init__(self, channels):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(channels) + 0.5), nn.Parameter(torch.randn(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x):
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, self.training)


def timms(channels):
    return pytest.importorskip("timm.layers").BatchNormAct2d(channels)


@pytest.mark.parametrize(
    ("kind", "axes", "after"),
    [
        (nn.BatchNorm1d, 1, None),
        (nn.BatchNorm2d, 2, None),
        (nn.BatchNorm3d, 3, None),
        (nn.LazyBatchNorm2d, 2, None),
        (Derived, 2, None),
        (Functional, 2, None),
        (timms, 2, F.relu),
    ],
)
def test_all_layers_call_the_function_that_is_replaced(kind, axes, after):
    """If a release of torch calls another one, BatchNorm would silently have the statistics of whole mini-batches."""
    layer = kind() if kind is nn.LazyBatchNorm2d else kind(CHANNELS)
    x = make_clips(16, (4,) * axes, dtype=torch.float32)
    groups = in_turn(16, 2)
    normal = torch.empty_like(x)
    for group in map(list, groups):
        part = x[group].transpose(0, 1).flatten(1)
        shape = (1, CHANNELS, *[1] * axes)
        var, mean = (value.view(shape) for value in torch.var_mean(part, dim=1, correction=0))
        normal[group] = (x[group] - mean) / (var + 1e-5).sqrt()
    output = grouped(layer, x, 8)
    weight, bias = (value.view(1, CHANNELS, *[1] * axes) for value in (layer.weight, layer.bias))
    expected = normal * weight + bias
    assert_close(output, expected if after is None else after(expected), rtol=1e-4, atol=1e-4)
    assert F.batch_norm.__module__ == "torch.nn.functional"


def test_within_another_it_holds_until_that_ends():
    layer, x = make_layer(), make_clips(16)
    own, inner, outer = F.batch_norm, grouped(layer, x, 4), grouped(layer, x, 8)
    with sub_batches(8, of=16):
        with sub_batches(4, of=16):
            assert torch.equal(layer(x), inner)
        assert torch.equal(layer(x), outer)
        with pytest.raises(KeyError, match="of a user"), sub_batches(4, of=16):
            raise KeyError("of a user")
        assert torch.equal(layer(x), outer)
    assert F.batch_norm is own


def test_another_thread_is_refused_by_name():
    errors = []

    def enter():
        try:
            with sub_batches(8, of=16):
                pass
        except RuntimeError as error:
            errors.append(str(error))

    def in_a_thread():
        thread = threading.Thread(target=enter, name="second")
        thread.start()
        thread.join()

    with sub_batches(8, of=16):
        in_a_thread()
    in_a_thread()  # afterwards it may
    [refused] = errors
    first = threading.current_thread().name
    assert f"The thread '{first}' already trains with one of them, so 'second' can't" in refused
    assert "Train one after the other, or in processes of their own" in refused


def test_a_second_fit_in_a_thread_is_refused_before_it_changes_anything():
    errors = []

    class Starts(Module):
        def on_train_epoch_end(self):
            thread = threading.Thread(target=second)
            thread.start()
            thread.join()

    def second():
        for callback in (MultigridCallback(), MultigridCallback.baseline()):
            try:
                trainer(callback, max_epochs=1).fit(Module(), loader())
            except RuntimeError as error:
                errors.append(str(error))

    fit(Starts(), MultigridCallback(rehearse=False), max_epochs=1)
    assert ["already trains" in error for error in errors] == [True, True]
    fit(Module(), MultigridCallback(rehearse=False), max_epochs=1)


@pytest.mark.parametrize("hook", ["on_train_batch_start", "on_train_batch_end", "training_step"])
def test_a_training_in_a_hook_of_another_leaves_it_as_it_was(hook):
    """Each with a callback of its own."""
    alone, nested, inner = Module(), type("Nesting", (Module,), {})(), []

    def train_another(self, *arguments):
        if self.global_step == 1 and not inner:
            inner.append(Module())
            with torch.random.fork_rng(), torch.enable_grad():
                trainer(MultigridCallback(seed=1, rehearse=False), max_epochs=1).fit(inner[0], loader())
        return getattr(Module, hook)(self, *arguments)

    setattr(type(nested), hook, train_another)
    for module in (alone, nested):
        fit(module, MultigridCallback(seed=0, rehearse=False), max_epochs=1)
    assert inner[0].seen
    assert alone.seen == nested.seen
    assert_close(alone.state_dict(), nested.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("clips", [4, 5])
def test_one_value_per_channel_is_refused_as_by_batchnorm(clips):
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        grouped(nn.BatchNorm1d(CHANNELS), torch.randn(clips, CHANNELS), 1)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        grouped(nn.BatchNorm1d(CHANNELS), torch.randn(1, CHANNELS), 8)


@pytest.mark.parametrize("clips", [0, 8.0])
def test_clips_are_checked(clips):
    with pytest.raises(ValueError, match="`clips` must be an integer of at least 1, got .* leave `sub_batches` out"):
        sub_batches(clips, of=8).__enter__()
    with pytest.raises(ValueError, match="`of` must be an integer"):
        sub_batches(8, of=clips).__enter__()


@pytest.mark.parametrize("clips", [4, 16, 19])  # plain BatchNorm; groups as a view; groups of different sizes
@pytest.mark.parametrize("momentum", [0.1, 0.3])
def test_running_statistics_move_as_in_so_many_steps_of_the_baseline(clips, momentum):
    layer = nn.BatchNorm3d(3, momentum=momentum)
    repeated, x = copy.deepcopy(layer), torch.randn(clips, 3, 2, 4, 4) * 3 + 1
    grouped(layer, x, 8, baseline_batches=8)
    for _ in range(8):
        grouped(repeated, x, 8)
    assert_close(layer.running_mean, repeated.running_mean)
    assert_close(layer.running_var, repeated.running_var)
    assert layer.num_batches_tracked == 1


# --- In channels-last memory a GPU gets a compiled function. A CPU computes the same by it; it copies instead ---


LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def last_clips(number, other=(2, 3, 2), dtype=torch.float32):
    return make_clips(number, other, LAST[2 + len(other)], dtype)


@pytest.fixture
def _compiled(monkeypatch):
    """Layers take the function on a CPU, too, where no kernel is made of it."""
    torch.manual_seed(0)
    monkeypatch.setattr(operation, "takes_compiled", only_channels_last)
    monkeypatch.setattr(operation, "_compiled", lambda: operation._normalized)


@pytest.mark.usefixtures("_compiled")
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(("rows", "clips", "together"), [(16, 16, 1), (32, 16, 2), (48, 16, 3), (8, 8, 1)])
@pytest.mark.parametrize(("kind", "other"), [(nn.BatchNorm2d, (3, 2)), (nn.BatchNorm3d, (2, 3, 2))])
def test_it_is_a_loop_of_batchnorm_over_the_same_groups(kind, other, rows, clips, together, affine):
    layer = kind(3, affine=affine).double()
    x = last_clips(rows, other, torch.float64).requires_grad_()
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
    layer, x = nn.BatchNorm3d(3), last_clips(16, (2, 9, 9), dtype)
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
    function = torch.compile(operation._normalized, dynamic=True, backend=backend)
    weight = torch.rand(3)
    for number in (clips, 2 * clips):
        x = last_clips(number, (2, size, size))
        found = function(x, weight, weight, number // 8, 1, 1e-5)
        assert_close(found, operation._normalized(x, weight, weight, number // 8, 1, 1e-5))
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
    monkeypatch.setattr(operation, "compiles", lambda *_: True)
    with FakeTensorMode():
        x = torch.empty(shape, device="cuda")
        x = x if contiguous else x.contiguous(memory_format=LAST[len(shape)])
        assert takes_compiled(x) is expected
    x = torch.empty(shape)
    assert not takes_compiled(x if contiguous else x.contiguous(memory_format=LAST[len(shape)]))


def test_where_compiling_fails_a_training_goes_on_with_copies_and_says_why(monkeypatch):
    def fail(*_):
        raise RuntimeError("Failed to find C compiler.\nPlease specify via CC")

    monkeypatch.setattr(operation, "_compiled", lambda: fail)
    operation.compiles.cache_clear()
    try:
        why = r"copies its input: `torch.compile` failed \(RuntimeError: Failed to find C compiler\.\)\.$"
        with pytest.warns(UserWarning, match=why):
            assert not operation.compiles(torch.device("cpu"), torch.float32)
        assert not operation.compiles(torch.device("cpu"), torch.float32)  # a second warning would be an error
    finally:
        operation.compiles.cache_clear()
