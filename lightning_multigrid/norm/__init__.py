"""BatchNorm over sub-mini-batches (Sec. 3.2) of one or several ranks; running statistics are averaged or re-estimated.

It imports only torch. Begin with `operation.py`. `across_ranks.py` shares statistics when devices have few clips, and
`population.py` re-estimates them over many mini-batches.
"""

from lightning_multigrid.norm.across_ranks import make_groups, ranks_needed, world_size
from lightning_multigrid.norm.operation import one_at_a_time, sub_batches
from lightning_multigrid.norm.population import (
    BatchNorm,
    average_statistics,
    observed_moments,
    tracking_layers,
    write_statistics,
)

__all__ = ["BatchNorm", "average_statistics", "make_groups", "observed_moments", "one_at_a_time", "ranks_needed"]
__all__ += ["sub_batches", "tracking_layers", "world_size", "write_statistics"]
