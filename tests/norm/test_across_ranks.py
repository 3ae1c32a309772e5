"""Laws of BatchNorm across ranks. The reference is one process: plain BatchNorm over the clips of each group of ranks.

Every rank draws the clips of all ranks from the same seed, normalises its own, and computes the reference itself.
"""

import copy
import gc
import weakref
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing import spawn, start_processes
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from lightning_multigrid.norm import average_statistics, observed_moments, sub_batches, write_statistics
from lightning_multigrid.norm.across_ranks import _partition, make_groups, ranks_needed
from tests.helpers import norms
from tests.helpers.norms import CHANNELS, INPUTS, grouped
from tests.helpers.processes import start_method
from tests.helpers.versions import TORCH_2_6

# Ranks that share, by the number of ranks and the least number that makes a sub-mini-batch.
GROUPS = {
    (2, 2): [[0, 1]],
    (3, 2): [[0, 1, 2]],
    (3, 3): [[0, 1, 2]],
    (4, 2): [[0, 1], [2, 3]],
    (4, 3): [[0, 1, 2, 3]],
    (4, 4): [[0, 1, 2, 3]],
    (7, 2): [[0, 1], [2, 3], [4, 5, 6]],
    (7, 3): [[0, 1, 2], [3, 4, 5, 6]],
    (7, 4): [[0, 1, 2, 3, 4, 5, 6]],
    (7, 7): [[0, 1, 2, 3, 4, 5, 6]],
}
# Rows of ranks 0, 1, ..., sub-mini-batch, the ranks that make one, and the planned clips of each.
ROWS = [
    ([4] * 4, 8, 2, 4),
    ([3] * 4, 8, 3, 3),
    ([1] * 4, 8, 8, 1),
    ([4] * 4, 16, 4, 4),
    ([5, 7, 4, 6], 8, 2, 4),  # uneven, but planned alike
    ([12] * 4, 8, 2, 4),  # 4 clips of 3 frames each want a second rank, though they are 12 rows
]


def groups_of(world, least):
    return GROUPS[world, min(world, least)]


def make_layer(kind=nn.BatchNorm3d, **arguments):
    """The same on all ranks."""
    torch.manual_seed(1)
    return norms.make_layer(kind, **arguments)


def make_clips(number, other=(2, 3, 2), memory_format=torch.contiguous_format, seed=0):
    """Clips with a mean and a scale of their own, so that no two ranks have equal statistics."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (number, CHANNELS, *other), *[(number, *[1] * (1 + len(other)))] * 2
    x, scale, mean = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return (x * scale + mean).contiguous(memory_format=memory_format)


def part(x, counts, ranks):
    """The clips of some neighbouring ranks."""
    start = sum(counts[: ranks[0]])
    return x[start : start + sum(counts[ranks[0] : ranks[-1] + 1])]


def loss_of(output, weights):
    return (output**3 * weights).sum()


def one_process(layer, x, weights, counts, groups):
    """Outputs, gradients of the sum of all losses (clips, weight and bias), and a plain layer for each group."""
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    plains = [copy.deepcopy(layer) for _ in groups]
    for plain in plains:
        plain.weight, plain.bias = layer.weight, layer.bias
    output = torch.cat([plain(part(x, counts, group)) for plain, group in zip(plains, groups, strict=True)])
    inputs = [x] + [p for p in (layer.weight, layer.bias) if p is not None]
    return output, torch.autograd.grad(loss_of(output, weights), inputs), plains


@contextmanager
def collectives():
    """The calls of `all_reduce` and `new_group`, by name."""
    calls = []
    with ExitStack() as patches:
        for name in ("all_reduce", "new_group"):
            patches.enter_context(mock.patch.object(dist, name, partial(counted, calls, name, getattr(dist, name))))
        yield calls


def counted(calls, name, function, *args, **kwargs):
    calls.append(name)
    return function(*args, **kwargs)


def ranks_are_one_process(rank, world):
    for kind, other, memory_format in INPUTS:
        for counts, sub_batch, least, clips in ROWS:
            for arguments in ({}, {"momentum": None, "affine": False}, {"track_running_stats": False}):
                layer = make_layer(kind, **arguments)
                groups = groups_of(world, least)
                mine = next(index for index, group in enumerate(groups) if rank in group)
                for seed in range(2):  # the second step starts from running statistics that are not 0 and 1
                    number = sum(counts[:world])
                    x, weights = (make_clips(number, other, memory_format, seed=s) for s in (seed, 10 + seed))
                    expected, gradients, plains = one_process(layer, x, weights, counts, groups)
                    own = part(x, counts, [rank]).clone(memory_format=torch.preserve_format).requires_grad_()
                    output = grouped(layer, own, sub_batch, clips)
                    assert output.is_contiguous(memory_format=memory_format)
                    parameters = list(layer.parameters())
                    loss = loss_of(output, part(weights, counts, [rank]))
                    grad_x, *grads = torch.autograd.grad(loss, [own, *parameters])
                    for grad in grads:
                        dist.all_reduce(grad)  # each rank has its part of the sum
                    assert_close(output, part(expected, counts, [rank]), rtol=1e-10, atol=1e-10)
                    assert_close(grad_x, part(gradients[0], counts, [rank]), rtol=1e-10, atol=1e-10)
                    assert_close(grads, list(gradients[1:]), rtol=1e-10, atol=1e-10)
                    tracked = dict(plains[mine].named_buffers())
                    assert_close(dict(layer.named_buffers()), tracked, rtol=1e-12, atol=1e-12)


def running_statistics_are_the_same_bits(rank, world):
    layer = make_layer().float()
    for seed in range(3):
        grouped(layer, part(make_clips(3 * world, seed=seed), [3] * world, [rank]).float(), 3 * world)
    everyone = [torch.empty(2, CHANNELS) for _ in range(world)]
    dist.all_gather(everyone, torch.stack([layer.running_mean, layer.running_var]))
    assert all(torch.equal(everyone[0], other) for other in everyone)


def a_small_variance_beside_a_large_mean_is_exact(rank, world):
    """In float32, a mean of squares less the square of the mean would be off by several times this variance."""
    x = (make_clips(4 * world) / 4 + 10_000).float()
    layer = make_layer().float()
    exact = copy.deepcopy(layer).double()
    expected = exact(x.double())
    output = grouped(layer, part(x, [4] * world, [rank]), 4 * world)
    assert_close(output.double(), part(expected, [4] * world, [rank]), rtol=0, atol=0.02)
    assert_close(layer.running_var.double(), exact.running_var, rtol=1e-4, atol=0)


def half_precision_has_float32_statistics(rank, world):
    counts = [4] * world
    for dtype in (torch.bfloat16, torch.float16):
        for memory_format in (torch.contiguous_format, torch.channels_last_3d):
            layer = make_layer().float()
            x, weights = (make_clips(4 * world, memory_format=memory_format, seed=s).to(dtype) for s in (0, 1))
            exact, everyone = copy.deepcopy(layer).double(), [[*range(world)]]
            expected, (grad_x, *_), [plain] = one_process(exact, x.double(), weights.double(), counts, everyone)
            own = part(x, counts, [rank]).clone(memory_format=torch.preserve_format).requires_grad_()
            output = grouped(layer, own, 4 * world)
            assert output.dtype == dtype
            assert_close(output.double(), part(expected, counts, [rank]), rtol=0.01, atol=0.02)
            assert_close(layer.running_var.double(), plain.running_var, rtol=1e-5, atol=0)
            loss_of(output, part(weights, counts, [rank])).backward()
            assert own.grad.dtype == dtype
            assert layer.weight.grad.dtype == torch.float32
            scale = grad_x.abs().max().item()
            assert_close(own.grad.double(), part(grad_x, counts, [rank]), rtol=0, atol=0.02 * scale)
    model = nn.Sequential(nn.Conv3d(CHANNELS, CHANNELS, 1), nn.BatchNorm3d(CHANNELS))
    with torch.autocast("cpu", torch.bfloat16):
        assert grouped(model, part(x, counts, [rank]).float(), 4 * world).dtype == torch.bfloat16
    layer = make_layer().bfloat16()
    grouped(layer, make_clips(4).bfloat16(), 4 * world).sum().backward()
    assert {tensor.dtype for tensor in (layer.weight.grad, layer.running_var)} == {torch.bfloat16}


def one_all_reduce_forward_and_one_backward(rank, world):
    layer, x = make_layer(), make_clips(4).requires_grad_()
    grouped(layer, x, 8)  # makes the group
    with collectives() as calls:
        output = grouped(layer, x, 8)
        assert calls == ["all_reduce"]
        output.sum().backward()  # a gradient without memory of its own
        assert calls == ["all_reduce"] * 2
    with collectives() as calls, torch.no_grad():
        grouped(layer, x, 8)
    assert calls == ["all_reduce"]
    with collectives() as calls:
        grouped(layer, x.detach(), 8).sum().backward()  # as in a first layer: only parameters have gradients
    assert calls == ["all_reduce"]


def nothing_is_sent_where_nothing_is_shared(rank, world):
    with collectives() as calls:
        for clips in (8, 15, 16, 19) if rank else (8, 9, 10, 11):  # and ranks need not agree
            x = make_clips(clips).requires_grad_()
            layer = make_layer()
            grouped(layer, x, 8).sum().backward()
        layer.eval()
        grouped(layer, make_clips(2), 8)
        layer(make_clips(2).requires_grad_()).sum().backward()
        grouped(make_layer().to("meta"), make_clips(2).to("meta"), 8)
        with pytest.raises(ValueError, match=r"expected 5D input \(got 4D input\)"):
            grouped(make_layer(), torch.randn(2, CHANNELS, 2, 2), 8)
    assert calls == []


def the_planned_number_of_clips_decides_on_all_ranks_alike(rank, world):
    """Whatever reaches a layer on one of them: `collate_fn`s drop samples, and heads of regions find few."""
    layer, rows = make_layer(), 7 if rank else 8
    with collectives() as calls:
        grouped(layer, make_clips(rows).requires_grad_(), 8, of=8).sum().backward()
    assert calls == []
    for counts in ([4] * (world - 1) + [3], [4] * (world - 1) + [0]):
        layer = make_layer()
        x, weights = (make_clips(sum(counts), seed=seed) for seed in (0, 1))
        expected, gradients, [plain] = one_process(layer, x, weights, counts, [list(range(world))])
        own = part(x, counts, [rank]).clone().requires_grad_()
        output = grouped(layer, own, 4 * world, of=4)
        (grad,) = torch.autograd.grad(loss_of(output, part(weights, counts, [rank])), [own])
        assert_close(output, part(expected, counts, [rank]), rtol=1e-10, atol=1e-10)
        assert_close(grad, part(gradients[0], counts, [rank]), rtol=1e-10, atol=1e-10)
        assert_close(dict(layer.named_buffers()), dict(plain.named_buffers()), rtol=1e-12, atol=1e-12)


def a_rank_that_trains_alone_shares_with_nobody(rank, world):
    """As the trials of a sweep within one group of processes."""
    layer = make_layer()
    before = [buffer.clone() for buffer in layer.buffers()]
    with collectives() as calls:
        grouped(layer, make_clips(2, seed=rank).requires_grad_(), 8, world=1).sum().backward()
        average_statistics({"": layer}, world=1)
        with observed_moments({"": layer}) as moments:
            grouped(layer, make_clips(2, seed=rank), 8, world=1)
        write_statistics({"": layer}, moments, world=1)
    assert calls == []
    assert not torch.equal(layer.running_mean, before[0])


def checkpointed_activations_are_freed_and_give_the_same_gradients(rank, world):
    layer, made = make_layer(), []

    def forward(x):
        activations = x + 1
        made.append(weakref.ref(activations))
        return layer(activations)

    x = part(make_clips(4 * world), [4] * world, [rank]).clone().requires_grad_()
    with sub_batches(8, of=4):
        outputs = forward(x), checkpoint(forward, x, use_reentrant=False)
        assert made[0]() is not None
        assert made[1]() is None
        found = [torch.autograd.grad((y**3).sum(), [x, layer.weight, layer.bias]) for y in outputs]
    assert_close(*found, rtol=0, atol=0)


def groups_are_made_once_and_released(rank, world):
    start_again(rank, world)  # forgets the groups of other tests
    made, original = [], dist.new_group

    def new_group(ranks):
        group = original(ranks)
        made.append((ranks, weakref.ref(group) if rank in ranks else None))
        return group

    dist.new_group = new_group
    try:
        for _ in range(2):
            for clips in (4, 3, 4, 2, 4):
                grouped(make_layer(), make_clips(clips).requires_grad_(), 8).sum().backward()
            # All ranks together are the default group; no new one is made.
            assert [ranks for ranks, _ in made] == [
                ranks for least in (2, 3, 4) if len(groups_of(world, least)) > 1 for ranks in groups_of(world, least)
            ]
            mine = [reference for ranks, reference in made if rank in ranks]
            assert all(reference() is not None for reference in mine)
            made.clear()
            start_again(rank, world)
            gc.collect()
            assert all(reference() is None for reference in mine)
    finally:
        dist.new_group = original


class GroupedBatchNorm(nn.BatchNorm3d):
    """One process: plain BatchNorm over each of `groups` (clips of each), running statistics of the first."""

    groups: list

    def forward(self, x):
        first, *others = x.split(self.groups)
        without = (
            nn.functional.batch_norm(other, None, None, self.weight, self.bias, training=True, eps=self.eps)
            for other in others
        )
        return torch.cat([super().forward(first), *without])


def training_is_that_of_one_process(rank, world):
    """SGD under DDP while shapes, sub-mini-batch and the ranks that share change, with evaluations in between."""
    torch.manual_seed(2)
    first, second = (nn.Conv3d(channels, 4, 3, padding=1, bias=False) for channels in (CHANNELS, 4))
    body = first, GroupedBatchNorm(4), nn.ReLU(inplace=True), second, GroupedBatchNorm(4)
    alone = nn.Sequential(*body, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4, 5)).double()
    model = copy.deepcopy(alone)
    for layer in model.modules():
        if isinstance(layer, GroupedBatchNorm):
            layer.__class__ = nn.BatchNorm3d
    replica = DistributedDataParallel(model)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.3, momentum=0.9) for m in (alone, replica)]
    each = [[index] for index in range(world)]
    steps = [  # clips of a rank, frames, size, sub-mini-batch, groups
        (4, 2, 4, 8, groups_of(world, 2)),
        (8, 2, 3, 16, groups_of(world, 2)),
        (16, 1, 3, 32, groups_of(world, 2)),
        (8, 3, 4, 8, each),
        (2, 3, 4, 8, groups_of(world, 4)),
        (11, 1, 2, 8, each),
        (1, 2, 4, 32, groups_of(world, 32)),  # the tail of an epoch
        (3, 2, 4, 8, groups_of(world, 3)),
        (4, 2, 4, 8, groups_of(world, 2)),
    ]
    for seed, (clips, frames, size, sub_batch, groups) in enumerate(steps):
        x = make_clips(clips * world, (frames, size, size), seed=seed)
        y = torch.arange(clips * world) * 7 % 5
        for layer in (alone[1], alone[4]):
            layer.groups = [clips * len(group) for group in groups]
        own = slice(rank * clips, (rank + 1) * clips)
        scores = (alone(x), y), (grouped(replica, x[own], sub_batch), y[own])
        for optimizer, of_each in zip(optimizers, scores, strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(*of_each).backward()
            optimizer.step()
        assert_close(dict(model.named_parameters()), dict(alone.named_parameters()), rtol=1e-9, atol=1e-9)
        if rank in groups[0]:
            assert_close(dict(model.named_buffers()), dict(alone.named_buffers()), rtol=1e-9, atol=1e-9)
        if rank == 0:  # only this one, and of a size that would be shared
            model.eval()(x[:1])
            model.train()


def sharded_by_fsdp2_it_is_that_of_one_process(rank, world):
    """Whether `fully_shard` was called on a block or on the BatchNorm layer itself."""
    torch.manual_seed(3)
    first, second = (nn.Conv3d(channels, 4, 3, bias=False, padding=1) for channels in (CHANNELS, 4))
    alone = nn.Sequential(nn.Sequential(first, nn.BatchNorm3d(4), nn.ReLU()), second, nn.BatchNorm3d(4))
    model, mesh = copy.deepcopy(alone), init_device_mesh("cpu", (world,))
    for part_of_it in (model[0], model[2], model):
        fully_shard(part_of_it, mesh=mesh)
    x, weights = (make_clips(4 * world, seed=seed).float() for seed in (0, 1))
    weights = weights.repeat(1, 2, 1, 1, 1)[:, :4]
    loss_of(alone(x), weights).backward()
    counts = [4] * world
    with sub_batches(4 * world, of=4):
        loss_of(model(part(x, counts, [rank])), part(weights, counts, [rank])).backward()
    for name, parameter in model.named_parameters():
        # Its gradient is an average over the ranks.
        found, wanted = world * parameter.grad.full_tensor(), alone.get_parameter(name).grad
        assert_close(found, wanted, rtol=1e-3, atol=1e-4 * wanted.abs().max().item())
    assert_close(dict(model.named_buffers()), dict(alone.named_buffers()))


def devices_agree(rank, world):
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    counts, everyone = [4] * world, [list(range(world))]
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-4), (torch.bfloat16, 0.03)):
        for memory_format in (torch.contiguous_format, torch.channels_last_3d):
            layer = make_layer()
            x, weights = (make_clips(4 * world, memory_format=memory_format, seed=s).to(dtype) for s in (0, 1))
            expected, gradients, [plain] = one_process(layer, x.double(), weights.double(), counts, everyone)
            layer = layer.to(device, dtype if dtype == torch.float64 else torch.float32)
            own = part(x, counts, [rank]).to(device, memory_format=torch.preserve_format).requires_grad_()
            output = grouped(layer, own, 4 * world)
            assert output.is_contiguous(memory_format=memory_format)
            loss_of(output, part(weights, counts, [rank]).to(device)).backward()
            for parameter in layer.parameters():
                dist.all_reduce(parameter.grad)
            results = [output, own.grad, layer.weight.grad, layer.bias.grad]
            wanted = [part(tensor.detach(), counts, [rank]) for tensor in (expected, gradients[0])] + [*gradients[1:]]
            for ours, theirs in zip(results, wanted, strict=True):
                scale = theirs.abs().max().item()
                assert_close(ours.double().cpu(), theirs, rtol=0, atol=tolerance * scale)
            assert_close(layer.running_var.double().cpu(), plain.running_var, rtol=1e-5, atol=0)


def groups_can_be_made_before(rank, world):
    start_again(rank, world)
    steps = [(clips, sub_batch) for clips in (1, 2, 4, 16) for sub_batch in (2, 4, 8)]
    make_groups(steps)
    with mock.patch.object(dist, "new_group", side_effect=AssertionError("made in a forward")):
        for clips, sub_batch in steps:
            grouped(make_layer(), make_clips(clips), sub_batch)


LAWS = [
    groups_can_be_made_before,
    ranks_are_one_process,
    running_statistics_are_the_same_bits,
    a_small_variance_beside_a_large_mean_is_exact,
    half_precision_has_float32_statistics,
    one_all_reduce_forward_and_one_backward,
    nothing_is_sent_where_nothing_is_shared,
    the_planned_number_of_clips_decides_on_all_ranks_alike,
    a_rank_that_trains_alone_shares_with_nobody,
    groups_are_made_once_and_released,
    training_is_that_of_one_process,
    *([] if TORCH_2_6 else [sharded_by_fsdp2_it_is_that_of_one_process]),  # 2.6 has no FSDP2 for CPUs
    # The last: with torch 2.6, no group can be made after it.
    checkpointed_activations_are_freed_and_give_the_same_gradients,
]


def start(rank, world, store, backend="gloo"):
    group = {"rank": rank, "world_size": world, "timeout": timedelta(seconds=60)}
    dist.init_process_group(backend, init_method=f"file://{store}", **group)


def start_again(rank, world):
    """Another process group in the life of the processes."""
    dist.barrier()
    dist.destroy_process_group()
    start_again.times += 1
    start(rank, world, f"{start_again.store}-{start_again.times}")


def run_laws(rank, world, store, laws, backend="gloo"):
    torch.set_num_threads(1)
    start_again.store, start_again.times = store, 0
    start(rank, world, store, backend)
    for law in laws:
        law(rank, world)
    dist.destroy_process_group()


def test_ranks_that_share_statistics():
    assert [ranks_needed(clips, 8, world=4) for clips in (1, 2, 3, 4, 7, 8, 64)] == [4, 4, 3, 2, 2, 1, 1]


@pytest.mark.parametrize("world", [2, *(pytest.param(world, marks=pytest.mark.slow) for world in (3, 4))])
def test_laws_across_ranks(world, tmp_path):
    args = (world, str(tmp_path / "store"), LAWS)
    start_processes(run_laws, args=args, nprocs=world, start_method=start_method())


@pytest.mark.slow  # seven processes
def test_groups_of_two_sizes_and_with_remainders(tmp_path):
    laws = [groups_are_made_once_and_released, training_is_that_of_one_process]
    spawn(run_laws, args=(7, str(tmp_path / "store"), laws), nprocs=7)


def on_devices(number):
    return pytest.mark.skipif(torch.cuda.device_count() < number, reason=f"needs {number} CUDA device(s)")


@pytest.mark.cuda
@pytest.mark.parametrize(
    "backend", [pytest.param("gloo", marks=on_devices(1)), pytest.param("nccl", marks=on_devices(2))]
)
def test_cuda_across_ranks(backend, tmp_path):
    spawn(run_laws, args=(2, str(tmp_path / "store"), [devices_agree], backend), nprocs=2)


def test_without_process_groups(monkeypatch):
    """As with a torch built without `torch.distributed`."""
    monkeypatch.setattr(dist, "is_available", lambda: False)
    monkeypatch.delattr(dist, "is_initialized")
    layer = make_layer()
    assert torch.equal(grouped(layer, make_clips(2), 8), layer(make_clips(2)))


@given(world=st.integers(1, 128), data=st.data())
def test_groups_are_neighbours_and_all_ranks_have_one(world, data):
    least = data.draw(st.integers(1, world))
    groups = _partition(world, least)
    assert [rank for group in groups for rank in group] == list(range(world))
    assert {len(group) for group in groups[:-1]} <= {least}
    assert least <= len(groups[-1]) < 2 * least
