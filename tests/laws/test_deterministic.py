"""`Trainer(deterministic=True)` on CUDA refuses operations that add in no fixed order: no model of ours has one."""

from itertools import product

import pytest
import torch
from torch.nn.functional import cross_entropy

from lightning_multigrid import models, sub_batches
from tests.helpers.operations import Operations
from tests.helpers.sampling import sampled

# The operations that `torch.use_deterministic_algorithms(True)` refuses on CUDA, from its documentation (torch 2.6 to
# 2.15), by their names in autograd.
REFUSED = {
    *(f"{kind}_pool3d_backward" for kind in ("avg", "adaptive_avg", "adaptive_max", "fractional_max")),
    *(f"{kind}_pool2d_backward" for kind in ("adaptive_avg", "adaptive_max", "fractional_max")),
    *("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward", "max_pool3d_with_indices_backward"),
    *("max_unpool2d", "max_unpool3d"),
    *(f"upsample_{kind}_backward" for kind in ("linear1d", "bilinear2d", "bicubic2d", "trilinear3d")),
    *(f"{kind}_pad{n}d_backward" for kind in ("reflection", "replication") for n in (1, 2, 3)),
    *("nll_loss2d_forward", "nll_loss2d_backward", "_ctc_loss_backward", "_embedding_bag_dense_backward"),
    *("put_", "histc", "bincount", "kthvalue", "median", "cumsum", "scatter_reduce", "scatter_reduce_"),
    *("grid_sampler_2d_backward", "grid_sampler_3d_backward", "resize_"),
}
MODELS = ["small_cnn", "slow_r50", "i3d_r50", "i3d_nl_r50", "slowfast_r50", "slowfast_r101"]


def calls(model, clips):
    with sub_batches(2, of=len(clips)), Operations() as counted:
        labels = torch.zeros(len(clips), dtype=torch.long, device="meta")
        cross_entropy(model(clips), labels).backward()
    return set(counted.names)


@pytest.mark.parametrize(
    ("name", "memory_format"),
    sampled(
        list(product(MODELS, (torch.contiguous_format, torch.channels_last_3d))),
        *(("small_cnn", torch.channels_last_3d), ("i3d_nl_r50", torch.channels_last_3d)),
        ("slowfast_r50", torch.contiguous_format),
    ),
)
def test_a_step_of_a_model_has_no_operation_that_cuda_refuses(name, memory_format):
    with torch.device("meta"):
        model = getattr(models, name)(4)
        clips = torch.empty(4, 3, 4, 64, 64).contiguous(memory_format=memory_format)
    called = calls(model, clips)
    assert "convolution_backward" in called
    assert not called & REFUSED


def test_the_table_knows_3d_pooling():
    with torch.device("meta"):
        net = torch.nn.Sequential(torch.nn.MaxPool3d(2), torch.nn.AdaptiveAvgPool3d(2), torch.nn.Flatten())
        clips = torch.empty(2, 3, 8, 8, 8, requires_grad=True)
    assert calls(net, clips) & REFUSED == {"max_pool3d_with_indices_backward", "_adaptive_avg_pool3d_backward"}
