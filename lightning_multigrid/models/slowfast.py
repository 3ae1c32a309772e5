"""SlowFast: a wide pathway over few frames and a thin one over all of them (Feichtenhofer et al. 2019).

Legend: B clips, T frames, H W pixels.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lightning_multigrid.models.blocks import WIDTHS, Head, Pathways, bottlenecks, initialize, stem

_FUSION_RATIO = 2  # by which the fast pathway is widened on its way into the slow one
_FAST_STEM_KERNEL = 5


def slow_frames(frames: int, alpha: int, device: torch.device | None = None) -> Tensor:
    """Indices of the frames that the slow pathway sees: T / alpha of them, from the first to the last.

    They are not every alpha-th frame: the published code truncates `linspace(0, T - 1, T / alpha)`, and its weights
    expect that. This is integer arithmetic; beyond 156 frames the published floats are sometimes off by one.

    >>> slow_frames(frames=32, alpha=4).tolist()
    [0, 4, 8, 13, 17, 22, 26, 31]
    """
    if frames % alpha:
        raise ValueError(
            f"SlowFast got clips of {frames} frames, but alpha = {alpha} must divide them. Use a multiple of {alpha}"
            " frames on every grid (fewer long-cycle shapes, or longer clips), or a smaller `alpha`."
        )
    slow = frames // alpha
    return torch.arange(slow, device=device) * (frames - 1) // max(slow - 1, 1)


class Fusion(nn.Module):
    """Joins the fast pathway to the slow one: a convolution in time with stride alpha, BN, ReLU, concatenation."""

    def __init__(self, channels: int, kernel: int, alpha: int) -> None:
        super().__init__()
        fused = _FUSION_RATIO * channels
        self.conv_f2s = nn.Conv3d(channels, fused, (kernel, 1, 1), (alpha, 1, 1), (kernel // 2, 0, 0), bias=False)
        self.bn = nn.BatchNorm3d(fused)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, pathways: Sequence[Tensor]) -> list[Tensor]:
        slow, fast = pathways
        return [torch.cat([slow, self.relu(self.bn(self.conv_f2s(fast)))], 1), fast]


class SlowFast(nn.Module):
    """SlowFast over clips, which it splits into its pathways itself.

    H and W shrink to 1/32, rounded up. T must be a multiple of alpha, else `forward` raises ValueError.
    `temporal_kernels` are those of the slow and fast pathway, by block of res2 to res5; for others see `slowfast_r50`.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        temporal_kernels: tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]],
        alpha: int,
        beta: float,
        fusion_kernel: int,
        dropout: float,
    ) -> None:
        super().__init__()
        slow = WIDTHS
        if not 0 < beta <= 1 or slow[0] * beta != round(slow[0] * beta):
            raise ValueError(f"`beta` must be a multiple of 1/{slow[0]} up to 1, got {beta}: the stem has {slow[0]}.")
        self.alpha = alpha
        fast = tuple(round(channels * beta) for channels in slow)
        fusions = [Fusion(channels, fusion_kernel, alpha) for channels in fast[:-1]]
        stages = [
            Pathways(
                bottlenecks(slow[i] + _FUSION_RATIO * fast[i], slow[i + 1], slow_kernels, 1 if i == 0 else 2),
                bottlenecks(fast[i], fast[i + 1], fast_kernels, 1 if i == 0 else 2),
            )
            for i, (slow_kernels, fast_kernels) in enumerate(zip(*temporal_kernels, strict=True))
        ]
        self.s1 = Pathways({"stem": stem(slow[0], 1)}, {"stem": stem(fast[0], _FAST_STEM_KERNEL)})
        # PySlowFast's order, and so the order of parameters in an optimizer's state.
        self.s1_fuse, self.s2 = fusions[0], stages[0]
        self.s2_fuse, self.s3 = fusions[1], stages[1]
        self.s3_fuse, self.s4 = fusions[2], stages[2]
        self.s4_fuse, self.s5 = fusions[3], stages[3]
        self.head = Head(slow[-1] + fast[-1], num_classes, dropout)
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        """Takes clips B x 3 x T x H x W, returns logits B x `num_classes`."""
        slow = x.index_select(2, slow_frames(x.shape[2], self.alpha, x.device))
        pathways = self.s1_fuse(self.s1([slow, x]))
        pathways = self.s2_fuse(self.s2(pathways))
        pathways = self.s3_fuse(self.s3(pathways))
        pathways = self.s4_fuse(self.s4(pathways))
        return self.head(self.s5(pathways))  # type: ignore[no-any-return]


def slowfast_r50(
    num_classes: int = 400, *, alpha: int = 4, beta: float = 0.125, fusion_kernel: int = 7, dropout: float = 0.5
) -> SlowFast:
    """SlowFast R50, 34.6 M parameters. The paper uses alpha = 2 for T = 16, else 4.

    Args:
        num_classes: Width of the output.
        alpha: Frames of the fast pathway for each frame of the slow one; it must divide T on every grid.
        beta: Width of the fast pathway over that of the slow one.
        fusion_kernel: Temporal kernel of the fusion, odd; 5 in the published 4 x 16 weights.
        dropout: Probability of dropping an element of the pooled vector.
    """
    kernels = ((1,) * 3, (1,) * 4, (3,) * 6, (3,) * 3), ((3,) * 3, (3,) * 4, (3,) * 6, (3,) * 3)
    return SlowFast(
        num_classes, temporal_kernels=kernels, alpha=alpha, beta=beta, fusion_kernel=fusion_kernel, dropout=dropout
    )


def slowfast_r101(
    num_classes: int = 400,
    *,
    alpha: int = 4,
    beta: float = 0.125,
    fusion_kernel: int = 7,
    res4_temporal_blocks: int = 23,
    dropout: float = 0.5,
) -> SlowFast:
    """SlowFast R101. The paper does not say which of two variants it means.

    `res4_temporal_blocks` says how many of res4's 23 blocks have a kernel in time, in both pathways: 23 (62.9 M
    parameters, "101_101") or 6 (53.9 M, "50_50"). The other arguments are those of `slowfast_r50`; `fusion_kernel` is 5
    in all published R101 weights.

    Raises:
        ValueError: If there are not that many blocks in res4.
    """
    if not 0 <= res4_temporal_blocks <= 23:
        raise ValueError(f"`res4_temporal_blocks` must be between 0 and 23, got {res4_temporal_blocks}.")
    res4 = (3,) * res4_temporal_blocks + (1,) * (23 - res4_temporal_blocks)
    kernels = ((1,) * 3, (1,) * 4, res4, (3,) * 3), ((3,) * 3, (3,) * 4, res4, (3,) * 3)
    return SlowFast(
        num_classes, temporal_kernels=kernels, alpha=alpha, beta=beta, fusion_kernel=fusion_kernel, dropout=dropout
    )
