"""The command line: Lightning's subcommands, `plan`, `init`, `prepare`, `check` and `migrate`.

It ties the other sub-packages together; none of them imports it. Begin with `commands.py`, which has the subcommands.
"""

from lightning_multigrid.cli.main import main

__all__ = ["main"]
