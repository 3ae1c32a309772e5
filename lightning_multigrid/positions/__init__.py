"""What a model knows of frames, rows and columns, told the grid of each mini-batch.

It imports only torch. Begin with `following.py`, which tells a module its grid and puts everything back. `adapters.py`
says what an adapter is; there is a module of adapters for each library, and none of them imports its library.
"""

from lightning_multigrid.positions.adapters import Adapter, Grid, Grids, Table
from lightning_multigrid.positions.following import Following, knows_grids
from lightning_multigrid.positions.known import patch_divisors
from lightning_multigrid.positions.torchvision import mvit_tables, mvit_tokens

__all__ = [
    "Adapter",
    "Following",
    "Grid",
    "Grids",
    "Table",
    "knows_grids",
    "mvit_tables",
    "mvit_tokens",
    "patch_divisors",
]
