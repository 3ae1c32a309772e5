"""The command line: Lightning's subcommands, `plan`, `init`, `prepare`, `check` and `migrate`.

It ties the other sub-packages together; none of them imports it. Begin with `main.py`.
"""

from lightning_multigrid.cli.main import main

__all__ = ["main"]
