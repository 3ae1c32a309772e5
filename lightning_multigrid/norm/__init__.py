"""BatchNorm over sub-mini-batches (Sec. 3.2) of one or several ranks; running statistics are averaged or re-estimated.

It imports only torch, and on a GPU Triton. Begin with `sub_batchnorm.py`. `channels_last.py` copies no inputs of that
memory format; `across_ranks.py` shares statistics when devices have few clips; `population.py` re-estimates them over
many mini-batches.
"""

from lightning_multigrid.norm.across_ranks import make_groups, ranks_needed, world_size
from lightning_multigrid.norm.population import (
    BatchNorm,
    average_statistics,
    observed_moments,
    running_statistics,
    tracking_layers,
    write_statistics,
)
from lightning_multigrid.norm.sub_batchnorm import (
    ConvertedInSteps,
    SubBatchNorm1d,
    SubBatchNorm2d,
    SubBatchNorm3d,
    convert_sub_batchnorm,
    is_sharded,
    left_alone,
    restore_batchnorm,
    set_sub_batch,
    sub_batchnorm_layers,
)

__all__ = ["BatchNorm", "ConvertedInSteps", "SubBatchNorm1d", "SubBatchNorm2d", "SubBatchNorm3d"]
__all__ += ["average_statistics", "convert_sub_batchnorm", "is_sharded", "left_alone", "make_groups"]
__all__ += ["observed_moments", "ranks_needed", "restore_batchnorm", "running_statistics"]
__all__ += ["set_sub_batch", "sub_batchnorm_layers", "tracking_layers", "world_size", "write_statistics"]
