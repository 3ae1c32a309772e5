"""The console script, also as `python -m lightning_multigrid`."""


def main() -> None:
    """Runs the command line. Worker processes import this module, too, and need nothing of it."""
    from lightning_multigrid.cli import main

    main()


if __name__ == "__main__":
    main()
