"""`python -m lightning_multigrid.prepare FOLDER WORKERS`: makes the tables that the videos on its input lack.

It writes how many of these have a table now, and how many are broken.
"""

import os
import sys

from lightning_multigrid.files import OutputError
from lightning_multigrid.prepare.processes import end_with_parent
from lightning_multigrid.prepare.tables import index, without_table
from lightning_multigrid.sources import TableStore

if __name__ == "__main__":  # its workers import this file
    end_with_parent()
    folder, workers = sys.argv[1:]
    paths = [os.fsdecode(path) for path in sys.stdin.buffer.read().split(b"\0")[:-1]]
    store = TableStore(folder)
    try:
        done = index(without_table(paths, store), store, int(workers))
    except OutputError as error:
        sys.exit(str(error))
    print(done.made + done.kept, len(done.broken))
