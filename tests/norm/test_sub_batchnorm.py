"""Laws of sub-mini-batch BatchNorm. The reference is a Python loop of plain BatchNorm over the groups of clips.

Which clips form a group is not specified, so the tests find out (`groups_of`) and then state what follows.
"""

import copy
import pickle
from itertools import pairwise, product

import pytest
import torch
from count_operations import CountedOperations
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close
from torchvision.models.video import r3d_18
from torchvision.ops import FrozenBatchNorm2d

from lightning_multigrid import MultigridCallback
from lightning_multigrid.norm.sub_batchnorm import (
    ConvertedInSteps,
    SubBatchNorm1d,
    SubBatchNorm2d,
    SubBatchNorm3d,
    convert_sub_batchnorm,
    restore_batchnorm,
    set_sub_batch,
)
from tests.helpers.norms import groups_of, loop_of_batchnorm, plain_copy
from tests.helpers.sampling import sampled
from tests.helpers.tiny import Module, loader, trainer

CHANNELS = 3
PLAIN = {SubBatchNorm1d: nn.BatchNorm1d, SubBatchNorm2d: nn.BatchNorm2d, SubBatchNorm3d: nn.BatchNorm3d}
INPUTS = [
    pytest.param(SubBatchNorm1d, (), torch.contiguous_format, id="NC"),
    pytest.param(SubBatchNorm1d, (4,), torch.contiguous_format, id="NCL"),
    pytest.param(SubBatchNorm2d, (3, 2), torch.contiguous_format, id="NCHW"),
    pytest.param(SubBatchNorm2d, (3, 2), torch.channels_last, id="NHWC"),
    pytest.param(SubBatchNorm3d, (2, 3, 2), torch.contiguous_format, id="NCTHW"),
    pytest.param(SubBatchNorm3d, (2, 3, 2), torch.channels_last_3d, id="NTHWC"),
]


def make_clips(number, other=(2, 3, 2), memory_format=torch.contiguous_format, dtype=torch.float64):
    """Clips with a mean and a scale of their own, so that no two groups have equal statistics."""
    shape = (number, CHANNELS, *other)
    x = torch.randn(shape) * torch.rand(number, *[1] * (len(shape) - 1)) + torch.randn(number, *[1] * (len(shape) - 1))
    return x.to(dtype).contiguous(memory_format=memory_format)


def make_layer(kind, **arguments):
    layer = kind(CHANNELS, dtype=torch.float64, **arguments)
    if layer.weight is not None:
        nn.init.uniform_(layer.weight, 0.5, 2)
        nn.init.normal_(layer.bias)
    return layer


def gradients(output, layer, x):
    inputs = [x] + [p for p in (layer.weight, layer.bias) if p is not None]
    target = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(output.shape)
    return torch.autograd.grad(((output - target) ** 3).sum(), inputs)


def check_step(layer, x, expected, average, memory_format):
    """A step of the layer: outputs and gradients as expected, running statistics those of `average`."""
    output = layer(x)
    assert_close(output, expected, rtol=1e-9, atol=1e-9)
    assert_close(gradients(output, layer, x), gradients(expected, layer, x), rtol=1e-8, atol=1e-8)
    assert_close(dict(layer.named_buffers()), dict(average.named_buffers()), rtol=1e-10, atol=1e-10)
    assert output.is_contiguous(memory_format=memory_format)


@pytest.mark.parametrize(("kind", "other", "memory_format"), INPUTS)
@settings(max_examples=12, deadline=None)
@given(
    clips=st.integers(2, 19),
    sub_batch=st.integers(2, 6),
    momentum=st.sampled_from([0.1, 0.7, None]),
    affine=st.booleans(),
    track=st.booleans(),
)
def test_is_a_loop_of_batchnorm_over_the_groups(kind, other, memory_format, clips, sub_batch, momentum, affine, track):
    layer = make_layer(kind, sub_batch=sub_batch, momentum=momentum, affine=affine, track_running_stats=track)
    for _ in range(2):  # the second step starts from running statistics that are not 0 and 1
        x = make_clips(clips, other, memory_format).requires_grad_()
        groups = groups_of(layer, x)
        expected, average = loop_of_batchnorm(layer, x, groups)
        check_step(layer, x, expected, average, memory_format)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize("sub_batch", [1, 4, 8])
def test_any_number_of_clips_makes_groups_of_nearly_one_size(memory_format, sub_batch):
    for clips in range(1, 41):
        layer = make_layer(SubBatchNorm3d, sub_batch=sub_batch)
        x = make_clips(clips, memory_format=memory_format)
        sizes = [len(group) for group in groups_of(layer, x)]
        assert sum(sizes) == clips
        assert len(sizes) == max(1, clips // sub_batch)
        assert max(sizes) - min(sizes) <= 1
        assert layer(x).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("kind", "other", "memory_format"), INPUTS)
def test_one_group_is_plain_batchnorm_to_the_bit(kind, other, memory_format, dtype):
    layer = make_layer(kind, sub_batch=8).to(dtype)
    plain = plain_copy(layer)
    for clips in (2, 8, 15):
        x = make_clips(clips, other, memory_format, dtype).requires_grad_()
        output, expected = layer(x), plain(x)
        assert torch.equal(output, expected)
        assert output.stride() == expected.stride()
        for ours, theirs in zip(gradients(output, layer, x), gradients(expected, plain, x), strict=True):
            assert torch.equal(ours, theirs)
    for ours, theirs in zip(layer.buffers(), plain.buffers(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("track", [True, False])
def test_evaluation_is_plain_batchnorm(track):
    layer = make_layer(SubBatchNorm3d, sub_batch=2, track_running_stats=track)
    layer(make_clips(8))
    layer.eval()
    x = make_clips(8)
    assert torch.equal(layer(x), plain_copy(layer)(x))
    state = copy.deepcopy(layer.state_dict())
    layer(x)
    assert_close(layer.state_dict(), state, rtol=0, atol=0)


@pytest.mark.parametrize("clips", [8, 11])
def test_frozen_running_statistics_stay(clips):
    """`track_running_stats = False` on a finished layer is how training scripts hold BatchNorm's buffers."""
    layer = make_layer(SubBatchNorm3d, sub_batch=2)
    tracking = copy.deepcopy(layer)
    layer.track_running_stats = False
    state = copy.deepcopy(layer.state_dict())
    x = make_clips(clips)
    assert torch.equal(layer(x), tracking(x))
    assert_close(layer.state_dict(), state, rtol=0, atol=0)


@pytest.mark.parametrize("clips", [4, 5])
def test_gradients_of_gradients(clips):
    """As a gradient penalty needs them."""
    layer = make_layer(SubBatchNorm3d, sub_batch=2)
    x = make_clips(clips).requires_grad_()
    expected, _ = loop_of_batchnorm(layer, x, groups_of(layer, x))
    found, inputs = [], (x, layer.weight, layer.bias)
    for output in (layer(x), expected):
        first = torch.autograd.grad((output**3).sum(), inputs, create_graph=True)
        found.append(torch.autograd.grad(sum((one**2).sum() for one in first), inputs))
    assert_close(*found, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize("clips", [16, 19])
def test_backward_keeps_the_input_and_nothing_else_of_its_size(memory_format, clips):
    layer = make_layer(SubBatchNorm3d, sub_batch=4)
    x = make_clips(clips, (4, 8, 8), memory_format).requires_grad_()
    saved = {}

    def pack(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = layer(x)
    assert x.nbytes <= sum(saved.values()) < 1.02 * x.nbytes  # or its contiguous copy; statistics, weights
    assert output.shape == x.shape


@pytest.mark.parametrize(
    ("memory_format", "groups", "forward", "backward"),
    [
        (torch.contiguous_format, 2, 5, 3),  # repeat, normalise, move two averages, count; backward and two sums
        (torch.contiguous_format, 8, 5, 3),
        (torch.channels_last_3d, 2, 5 + 2, 3 + 2),  # as contiguous, and a copy there and back
        (torch.channels_last_3d, 8, 5 + 2, 3 + 2),
    ],
)
def test_operations_of_a_step(memory_format, groups, forward, backward):
    """Each is launched by the host; those of plain BatchNorm are normalise, count, and one backward.

    Meta tensors stand for those of a GPU.
    """
    layer = SubBatchNorm3d(CHANNELS, device="meta")
    x = torch.empty(8 * groups, CHANNELS, 2, 3, 2, device="meta").contiguous(memory_format=memory_format)
    x.requires_grad_()
    with CountedOperations() as counted:
        output = layer(x)
    assert counted.launches == forward
    gradient = torch.empty_like(output)
    with CountedOperations() as counted:
        output.backward(gradient)
    assert counted.launches == backward


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_a_frozen_parameter_gets_no_gradient_and_changes_no_other(memory_format, frozen):
    layer = make_layer(SubBatchNorm3d, sub_batch=4)
    whole, x = copy.deepcopy(layer), make_clips(16, memory_format=memory_format)
    layer.get_parameter(frozen).requires_grad_(False)
    for each in (layer, whole):
        (each(x) ** 3).sum().backward()
    assert layer.get_parameter(frozen).grad is None
    other = {"weight": "bias", "bias": "weight"}[frozen]
    assert torch.equal(layer.get_parameter(other).grad, whole.get_parameter(other).grad)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize("clips", [16, 19])
def test_an_in_place_relu_copies_nothing_in_the_backward(memory_format, clips):
    """Autograd writes into a view by `CopySlices`, which copies all activations behind the view."""
    results, layer = [], make_layer(SubBatchNorm3d, sub_batch=4)
    x = make_clips(clips, memory_format=memory_format).requires_grad_()
    for inplace in (True, False):
        output = nn.functional.relu(layer(x), inplace)
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
    layer = make_layer(SubBatchNorm3d, sub_batch=4).float()
    exact = copy.deepcopy(layer)
    x = make_clips(clips, memory_format=memory_format, dtype=dtype).requires_grad_()
    output, expected = layer(x), exact(x.float())
    assert output.dtype == dtype
    assert_close(output.float(), expected, rtol=0.02, atol=0.05)
    assert layer.running_var.dtype == torch.float32
    assert_close(dict(layer.named_buffers()), dict(exact.named_buffers()), rtol=1e-5, atol=1e-5)
    output.float().sum().backward()
    assert x.grad.dtype == dtype
    assert layer.weight.grad.dtype == torch.float32


@pytest.mark.parametrize(("dynamic", "told"), sampled(list(product([None, True], [False, True])), (None, True)))
def test_one_compiled_graph_serves_all_numbers_of_groups_clips_and_sizes(dynamic, told):
    torch.compiler.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    layer = make_layer(SubBatchNorm3d, sub_batch=4)
    eager = copy.deepcopy(layer)
    compiled = torch.compile(layer, backend=backend, dynamic=dynamic, fullgraph=True)
    for clips, size in ((8, 5), (12, 6), (16, 7), (32, 5), (64, 4)):
        set_sub_batch(layer, 4, of=clips if told else None)
        x = make_clips(clips, (2, size, size)).requires_grad_()
        output, expected = compiled(x), eager(x)
        assert_close(output, expected)
        assert_close(gradients(output, layer, x), gradients(expected, eager, x))
    assert_close(layer.state_dict(), eager.state_dict())
    assert len(graphs) <= 2  # by default the first sizes are taken as constants


@pytest.mark.parametrize("clips", sampled([6, 8, 11], 11))
def test_compiled_channels_last_remainders_and_single_groups(clips):
    torch.compiler.reset()
    layer = make_layer(SubBatchNorm3d, sub_batch=4)
    eager = copy.deepcopy(layer)
    x = make_clips(clips, memory_format=torch.channels_last_3d).requires_grad_()
    output, expected = torch.compile(layer, backend="aot_eager", fullgraph=True)(x), eager(x)
    assert_close(output, expected)
    assert output.is_contiguous(memory_format=torch.channels_last_3d)
    assert_close(gradients(output, layer, x), gradients(expected, eager, x))
    assert_close(layer.state_dict(), eager.state_dict())


# --- Rows and clips ---


def by_rows(layer, x, groups):
    """Plain BatchNorm on each group of neighbouring rows; the groups' rows are given."""
    ends = [sum(groups[:n]) for n in range(len(groups) + 1)]
    return loop_of_batchnorm(layer, x, [tuple(range(*pair)) for pair in pairwise(ends)])


@pytest.mark.parametrize(("kind", "other", "memory_format"), INPUTS)
@pytest.mark.parametrize(
    ("clips", "frames", "groups"),
    [
        (8, 5, [40]),  # the fine-tuning phase
        (15, 2, [30]),
        (16, 4, [32, 32]),
        (32, 3, [24, 24, 24, 24]),
        (19, 2, [20, 18]),  # whole clips
        (5, 4, [20]),  # the tail of an epoch
    ],
)
def test_folded_frames_have_the_statistics_of_eight_clips(kind, other, memory_format, clips, frames, groups):
    layer = make_layer(kind)
    set_sub_batch(layer, 8, of=clips)
    for _ in range(2):
        x = make_clips(clips * frames, other, memory_format).requires_grad_()
        expected, average = by_rows(layer, x, groups)
        check_step(layer, x, expected, average, memory_format)


@pytest.mark.parametrize(
    ("clips", "rows", "groups"),
    [
        (16, 30, [15, 15]),  # a clip of two views was left out
        (16, 31, [16, 15]),
        (32, 127, [32, 32, 32, 31]),
        (64, 16, 2),  # views were pooled: rows count as clips
        (64, 15, 1),
        (64, 63, 7),
        (None, 32, 4),
    ],
)
def test_other_rows_make_no_more_groups_than_the_clips(clips, rows, groups):
    layer = make_layer(SubBatchNorm2d)
    set_sub_batch(layer, 8, of=clips)
    x = make_clips(rows, (2, 2))
    found = groups_of(layer, x)
    if isinstance(groups, int):
        assert len(found) == groups
        assert min(map(len, found)) >= 8
    else:
        assert [len(group) for group in found] == groups
        assert sum(found, ()) == tuple(range(rows))
    assert_close(layer(x), loop_of_batchnorm(layer, x, found)[0])


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
    checked = []

    def check(layer, inputs, output):
        if layer.training and not inputs[0].is_meta:
            (x,) = inputs
            groups = max(1, clips[-1] // layer.sub_batch)
            if clips[-1] % groups == 0:  # otherwise some groups have a clip more
                normal = [nn.functional.batch_norm(part, None, None, training=True) for part in x.chunk(groups)]
                shape = (1, -1, 1, 1)
                assert_close(output, torch.cat(normal) * layer.weight.view(shape) + layer.bias.view(shape))
            checked.append((clips[-1], len(x) // clips[-1], layer.sub_batch, groups))

    clips = []

    class Frames(Module):
        def make_net(self):
            return Folded()

        def training_step(self, batch, batch_idx):
            clips.append(len(batch[0]))
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    module = Frames()
    module.net.net[1].register_forward_hook(check)
    trainer(MultigridCallback(seed=0), max_epochs=4).fit(module, loader(8, number=256, drop_last=True))
    # 8 clips x 8 frames: T/4, T/2, T; and the number of groups is that of the sub-mini-batches.
    assert {(frames, sub_batch) for _, frames, sub_batch, _ in checked} >= {(2, 8), (4, 8), (8, 8), (8, 32)}
    assert all(groups == number // sub_batch for number, _, sub_batch, groups in checked)


# --- Conversion ---


def test_conversion_of_a_model_changes_classes_only():
    model = r3d_18(num_classes=4)
    keys = list(model.state_dict())
    tensors = {name: id(tensor) for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    attributes = {name: set(vars(layer)) for name, layer in model.named_modules()}
    checkpoint = copy.deepcopy(model.state_dict())

    assert convert_sub_batchnorm(model, clips=2) is model
    assert sum(isinstance(layer, SubBatchNorm3d) for layer in model.modules()) == 20
    assert not any(type(layer) is nn.BatchNorm3d for layer in model.modules())
    assert list(model.state_dict()) == keys
    assert {n: id(t) for n, t in (*model.named_parameters(), *model.named_buffers())} == tensors
    model(torch.randn(4, 3, 4, 16, 16)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())

    plain = r3d_18(num_classes=4)
    plain.load_state_dict(model.state_dict(), strict=True)
    model.load_state_dict(checkpoint, strict=True)

    assert restore_batchnorm(model) is model
    assert sum(type(layer) is nn.BatchNorm3d for layer in model.modules()) == 20
    assert {name: set(vars(layer)) for name, layer in model.named_modules()} == attributes
    assert {n: id(t) for n, t in (*model.named_parameters(), *model.named_buffers())} == tensors


def test_every_kind_is_converted_and_converting_again_changes_nothing_but_clips():
    model = nn.ModuleList([nn.BatchNorm1d(2), nn.BatchNorm2d(2), nn.Sequential(nn.BatchNorm3d(2))]).eval()
    layers = [*model[:2], model[2][0]]
    assert [layer.sub_batch for layer in layers if convert_sub_batchnorm(layer) is layer] == [8] * 3
    convert_sub_batchnorm(model, clips=16)
    assert [layer.sub_batch for layer in layers] == [16] * 3
    set_sub_batch(model, 32)
    assert [layer.sub_batch for layer in layers] == [32] * 3
    assert [type(layer) for layer in layers] == list(PLAIN)
    assert not any(layer.training for layer in model.modules())


def test_layers_that_are_no_batchnorm_are_left_alone():
    model = nn.ModuleList(
        [
            nn.SyncBatchNorm(4),
            nn.LazyBatchNorm3d(),
            nn.InstanceNorm3d(4, track_running_stats=True),
            nn.GroupNorm(2, 4),
            nn.LayerNorm(4),
            FrozenBatchNorm2d(4),
        ]
    )
    kinds = [type(layer) for layer in model]
    convert_sub_batchnorm(model)
    assert [type(layer) for layer in model] == kinds
    set_sub_batch(model, 4)
    assert not any("sub_batch" in vars(layer) for layer in model)


def test_layers_are_converted_while_a_step_runs():
    model = nn.Sequential(nn.Conv3d(3, CHANNELS, 1), nn.BatchNorm3d(CHANNELS))
    mine = convert_sub_batchnorm(nn.BatchNorm3d(CHANNELS), clips=4)
    attributes, layers = set(vars(model[1])), ConvertedInSteps(nn.ModuleList([model, mine]))
    for clips in (2, 8):
        layers.set(clips, of=16)
        assert (type(model[1]), model[1].sub_batch, mine.sub_batch) == (SubBatchNorm3d, clips, clips)
        layers.restore()
        assert type(model[1]) is nn.BatchNorm3d
        assert set(vars(model[1])) == attributes
        assert isinstance(mine, SubBatchNorm3d), "the user's own conversion stays"


def test_copies_that_a_step_makes_are_the_scripts_layers():
    class Teacher(Module):
        """Makes its teacher from the student in a step."""

        def __init__(self):
            super().__init__()
            self.teacher = None

        def training_step(self, batch, batch_idx):
            if self.teacher is None and self.trainer.global_step == 1:
                assert isinstance(self.net[1], SubBatchNorm3d)
                self.teacher = copy.deepcopy(self.net)
                self.pickled = pickle.loads(pickle.dumps(self.net))
            return super().training_step(batch, batch_idx)

        def make_net(self):
            net = super().make_net()
            return net.append(convert_sub_batchnorm(nn.BatchNorm1d(4)))  # by the user

    module = Teacher()
    plain = {name: (type(layer), vars(layer).keys()) for name, layer in module.net.named_modules() if name != "7"}
    trainer(MultigridCallback(rehearse=False), max_epochs=2).fit(module, loader())
    for copied in (module.teacher, module.pickled):
        found = {name: (type(layer), vars(layer).keys()) for name, layer in copied.named_modules() if name != "7"}
        assert found == plain
        assert type(copied[7]) is SubBatchNorm1d
        copied(torch.randn(2, 3, 4, 8, 8))


@pytest.mark.parametrize("clips", [4, 5])
def test_one_value_per_channel_is_refused_as_by_batchnorm(clips):
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        SubBatchNorm1d(CHANNELS, sub_batch=1)(torch.randn(clips, CHANNELS))


@pytest.mark.parametrize(
    ("kind", "shape", "expected"),
    [
        (SubBatchNorm1d, (16, CHANNELS, 2, 2), r"expected 2D or 3D input \(got 4D input\)"),
        (SubBatchNorm2d, (16, CHANNELS, 2), r"expected 4D input \(got 3D input\)"),
        (SubBatchNorm3d, (16, CHANNELS, 2, 2), r"expected 5D input \(got 4D input\)"),
    ],
)
def test_inputs_of_another_rank_are_refused_as_by_batchnorm(kind, shape, expected):
    with pytest.raises(ValueError, match=expected):
        kind(CHANNELS, sub_batch=2)(torch.randn(shape))


@pytest.mark.parametrize("clips", [0, 8.0])
def test_clips_are_checked(clips):
    model = nn.BatchNorm3d(2)
    with pytest.raises(ValueError, match="`clips` must be an integer of at least 1, got .* keep plain BatchNorm"):
        convert_sub_batchnorm(model, clips=clips)
    assert type(model) is nn.BatchNorm3d
    with pytest.raises(ValueError, match="`of` must be an integer"):
        set_sub_batch(model, 8, of=clips)
    with pytest.raises(ValueError, match="`sub_batch` must be an integer"):
        SubBatchNorm3d(2, sub_batch=clips)


# --- A mini-batch in place of several of the baseline's ---


@pytest.mark.parametrize("clips", [4, 16, 19])  # plain BatchNorm; groups as a view; groups of different sizes
@pytest.mark.parametrize("momentum", [0.1, 0.3])
def test_running_statistics_move_as_in_so_many_steps_of_the_baseline(clips, momentum):
    layer = convert_sub_batchnorm(nn.BatchNorm3d(3, momentum=momentum))
    repeated, x = copy.deepcopy(layer), torch.randn(clips, 3, 2, 4, 4) * 3 + 1
    set_sub_batch(layer, 8, of=clips, baseline_batches=8)
    layer(x)
    for _ in range(8):
        repeated(x)
    torch.testing.assert_close(layer.running_mean, repeated.running_mean)
    torch.testing.assert_close(layer.running_var, repeated.running_var)
    assert layer.num_batches_tracked == 1


@pytest.mark.parametrize("clips", [8, 16])  # one group, and two
def test_the_momentum_of_a_script_stays_its_own(clips):
    layer = convert_sub_batchnorm(nn.BatchNorm3d(3))
    set_sub_batch(layer, 8, of=clips, baseline_batches=2)
    for _ in range(3):  # what Sharpness-Aware Minimization does in each step, so that one of its forwards is not noted
        before, layer.momentum = layer.momentum, 0
        layer(torch.randn(clips, 3, 2, 4, 4) + 9)
        assert not layer.running_mean.any()
        layer.momentum = before
    assert layer.momentum == 0.1
    layer.momentum = 0.5  # as a schedule of BatchNorm's momentum does
    layer(torch.ones(clips, 3, 2, 4, 4))
    assert layer.momentum == 0.5
    torch.testing.assert_close(layer.running_mean, torch.full((3,), 1 - 0.5**2))
    plain = pickle.loads(pickle.dumps(restore_batchnorm(copy.deepcopy(layer))))
    assert (type(plain), plain.momentum) == (nn.BatchNorm3d, 0.5)
    layer.momentum = None  # a cumulative average counts mini-batches
    layer(torch.randn(8, 3, 2, 4, 4))
    assert layer.momentum is None
    assert restore_batchnorm(layer).momentum is None


def test_gradients_of_functions_go_through_several_groups():
    """`torch.func`, which meta-learning uses, takes no running statistics."""
    layer = convert_sub_batchnorm(nn.BatchNorm3d(3, track_running_stats=False), clips=2)
    x, weights = torch.randn(4, 3, 2, 2, 2), {name: value.detach() for name, value in layer.named_parameters()}

    def loss(weights):
        return (torch.func.functional_call(layer, weights, x) ** 3).sum()

    gradients = torch.func.grad(loss)(weights)
    (layer(x) ** 3).sum().backward()
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad)
