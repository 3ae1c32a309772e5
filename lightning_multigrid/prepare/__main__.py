"""`python -m lightning_multigrid.prepare FOLDER WORKERS READ_TIMEOUT`: makes the tables of the videos on its input."""

import os
import sys

from lightning_multigrid.files import OutputError
from lightning_multigrid.prepare.tables import index_shown
from lightning_multigrid.sources import TableStore


def main() -> None:
    """Reads paths that end with a zero byte each; ends with 1 if tables can't be written, and 130 after Ctrl-C."""
    folder, workers, read_timeout = sys.argv[1:]
    paths = [os.fsdecode(path) for path in sys.stdin.buffer.read().split(b"\0")[:-1]]
    try:
        index_shown(paths, TableStore(folder), int(workers), read_timeout=float(read_timeout))
    except OutputError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
