"""`python -m lightning_multigrid.prepare FOLDER WORKERS`: makes the tables that the videos on its input lack."""

import os
import sys
from collections import defaultdict

from lightning_multigrid.files import OutputError
from lightning_multigrid.prepare.processes import end_with_parent
from lightning_multigrid.prepare.tables import index

if __name__ == "__main__":  # its workers import this file
    end_with_parent()
    folder, workers = sys.argv[1:]
    names = map(os.fsdecode, sys.stdin.buffer.read().split(b"\0")[:-1])
    videos = defaultdict[str, list[str]](list)
    for root, path in zip(names, names, strict=True):
        videos[root].append(path)
    try:
        done = index(videos.items(), folder, int(workers))
    except OutputError as error:
        sys.exit(str(error))
    print(f"Frame tables of {done}.")
