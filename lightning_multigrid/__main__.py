"""The console script, also as `python -m lightning_multigrid`."""

import sys

from lightning_multigrid import __version__


def main() -> None:
    """Runs the command line. Worker processes import this module, too, and need nothing of it."""
    if sys.argv[1:] == ["--version"]:  # at once: the rest imports torch
        print(f"lightning-multigrid {__version__}")
        return
    from lightning_multigrid.cli import main

    main()


if __name__ == "__main__":
    main()
