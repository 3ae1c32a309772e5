"""What a model knows of frames, rows and columns, told the grid of each mini-batch.

It imports only torch. Begin with `following.py`, which tells a module its grid and puts everything back. `adapters.py`
has the adapters of libraries, none of which it imports.
"""

from lightning_multigrid.positions.adapters import Grid, mvit_tables, mvit_tokens, patch_divisors
from lightning_multigrid.positions.following import Following, knows_grids

__all__ = ["Following", "Grid", "knows_grids", "mvit_tables", "mvit_tokens", "patch_divisors"]
