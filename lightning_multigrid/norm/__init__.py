"""BatchNorm over sub-mini-batches (Sec. 3.2, Batch Normalization), across ranks, and its statistics as a population's.

It knows torch only. Begin with `sub_batchnorm.py`. `across_ranks.py` is for devices with few clips, `population.py` for
precise BatchNorm.
"""

from lightning_multigrid.norm.population import (
    BatchNorm,
    average_statistics,
    observed_moments,
    tracking_layers,
    write_statistics,
)
from lightning_multigrid.norm.sub_batchnorm import (
    SubBatchNorm1d,
    SubBatchNorm2d,
    SubBatchNorm3d,
    convert_sub_batchnorm,
    restore_batchnorm,
    set_sub_batch,
    sub_batchnorm_layers,
)

__all__ = [
    "BatchNorm",
    "SubBatchNorm1d",
    "SubBatchNorm2d",
    "SubBatchNorm3d",
    "average_statistics",
    "convert_sub_batchnorm",
    "observed_moments",
    "restore_batchnorm",
    "set_sub_batch",
    "sub_batchnorm_layers",
    "tracking_layers",
    "write_statistics",
]
