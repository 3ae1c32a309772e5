"""`python -m lightning_multigrid.cli`: a command that ends with the program that has started it, as `compare`."""

from lightning_multigrid.cli.main import main
from lightning_multigrid.prepare import end_with_parent

if __name__ == "__main__":  # worker processes import this file
    end_with_parent()
    main()
