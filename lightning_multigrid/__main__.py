"""`python -m lightning_multigrid` is the console script."""

from lightning_multigrid.cli import main

if __name__ == "__main__":
    main()
