"""The command line: Lightning's subcommands, `plan`, `prepare`, `check` and `migrate`.

It knows everything, and nothing knows it. Begin with `main.py`.
"""

from lightning_multigrid.cli.main import main

__all__ = ["main"]
