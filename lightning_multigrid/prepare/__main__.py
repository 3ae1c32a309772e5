"""`python -m lightning_multigrid.prepare FOLDER WORKERS`: makes the tables of the videos on its input."""

import os
import sys

from lightning_multigrid.prepare.tables import index
from lightning_multigrid.sources import TableStore

if __name__ == "__main__":  # its workers import this file
    folder, workers = sys.argv[1:]
    paths = [os.fsdecode(path) for path in sys.stdin.buffer.read().split(b"\0")[:-1]]
    index(paths, TableStore(folder), int(workers))
