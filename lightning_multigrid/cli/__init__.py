"""The command line: Lightning's subcommands, `plan`, `show`, `compare`, `init`, `prepare`, `check`, and more.

It ties the other sub-packages together; none of them imports it. Begin with `commands.py`, which has the subcommands;
what one does is in the file of its name, of `migrate` in `pyslowfast.py`, and of those on videos in `data_commands.py`.
"""

from lightning_multigrid.cli.main import main

__all__ = ["main"]
