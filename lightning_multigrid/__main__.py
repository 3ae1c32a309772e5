"""The console script, also as `python -m lightning_multigrid`."""

from lightning_multigrid.cli import main

if __name__ == "__main__":  # worker processes import this file
    main()
