"""Models of one pathway: Slow, I3D and I3D with non-local blocks, all 3D ResNets that differ in their kernels in time.

Legend: B clips, T frames, H W pixels.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from torch import Tensor, nn

from lightning_multigrid.models.blocks import WIDTHS, Head, MaxPool, NonLocal, Pathways, bottlenecks, initialize, stem

# Temporal kernels of res2 to res5, block by block.
_SLOW_R50 = ((1,) * 3, (1,) * 4, (3,) * 6, (3,) * 3)
_I3D_R50 = ((3, 3, 3), (3, 1, 3, 1), (3, 1, 3, 1, 3, 1), (1, 3, 1))


class VideoResNet(nn.Module):
    """A bottleneck ResNet over clips.

    H and W shrink to 1/32 (rounded up), T to 1 / `temporal_pool` (rounded down). A grid needs T >= `temporal_pool`, and
    with non-local blocks a size above 16 pixels.

    Args:
        num_classes: Width of the output.
        stem_kernel: Temporal kernel of the stem.
        temporal_kernels: Temporal kernels of the blocks of res2, res3, res4, res5; their numbers are the depth.
        temporal_pool: Temporal max-pool after res2; 1 for none.
        nonlocal_blocks: For each of the four stages, non-local blocks by the index of the bottleneck they follow.
        dropout: Probability of dropping an element of the pooled vector.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        stem_kernel: int,
        temporal_kernels: Sequence[Sequence[int]],
        temporal_pool: int = 1,
        nonlocal_blocks: Sequence[Mapping[int, NonLocal]] = ({}, {}, {}, {}),
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        self.s1 = Pathways({"stem": stem(WIDTHS[0], stem_kernel)})
        stages = [
            Pathways(bottlenecks(WIDTHS[stage], WIDTHS[stage + 1], kernels, 1 if stage == 0 else 2, nonlocals))
            for stage, (kernels, nonlocals) in enumerate(zip(temporal_kernels, nonlocal_blocks, strict=True))
        ]
        self.s2, self.s3, self.s4, self.s5 = stages
        self.pathway0_pool = MaxPool((temporal_pool, 1, 1))
        self.head = Head(WIDTHS[-1], num_classes, dropout)
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        """Takes clips B x 3 x T x H x W, returns logits B x `num_classes`."""
        [out] = self.s2(self.s1([x]))
        return self.head(self.s5(self.s4(self.s3([self.pathway0_pool(out)]))))  # type: ignore[no-any-return]


def slow_r50(num_classes: int = 400, *, dropout: float = 0.5) -> VideoResNet:
    """Slow R50: the slow pathway of SlowFast alone, with temporal kernels in res4 and res5 only. 32.5 M parameters.

    The arguments are those of `VideoResNet`.
    """
    return VideoResNet(num_classes, stem_kernel=1, temporal_kernels=_SLOW_R50, dropout=dropout)


def i3d_r50(num_classes: int = 400, *, dropout: float = 0.5) -> VideoResNet:
    """I3D R50 (Carreira and Zisserman 2017; Wang et al. 2018): T is halved after res2. 28.0 M parameters.

    The arguments are those of `VideoResNet`.
    """
    return VideoResNet(num_classes, stem_kernel=5, temporal_kernels=_I3D_R50, temporal_pool=2, dropout=dropout)


def i3d_nl_r50(
    num_classes: int = 400, *, instantiation: Literal["dot_product", "softmax"] = "dot_product", dropout: float = 0.5
) -> VideoResNet:
    """I3D-NL R50: I3D with non-local blocks after every other block of res3 and res4, five in all. 35.4 M parameters.

    `instantiation` says how the blocks weigh a pair of positions; the paper uses the dot product, and the published
    weights of PySlowFast are for "softmax". The other arguments are those of `VideoResNet`.
    """
    res3 = {block: NonLocal(512, instantiation) for block in (1, 3)}
    res4 = {block: NonLocal(1024, instantiation) for block in (1, 3, 5)}
    added: Sequence[Mapping[int, NonLocal]] = ({}, res3, res4, {})
    return VideoResNet(
        num_classes, stem_kernel=5, temporal_kernels=_I3D_R50, temporal_pool=2, nonlocal_blocks=added, dropout=dropout
    )
