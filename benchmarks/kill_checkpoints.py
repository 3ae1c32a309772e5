"""Kills processes while they write a checkpoint over an older one, and counts what is left.

    python benchmarks/kill_checkpoints.py --folder /scratch/checkpoints --temporary /dev/shm

Lightning writes to a temporary file and moves it into place. Where the folder for temporary files (`TMPDIR`) is on
another file system than the checkpoints, as on most clusters, to move is to copy, and a kill leaves a part of the new
checkpoint in place of the old one. `AtomicCheckpointIO` writes beside the checkpoint.
"""

import argparse
import os
import random
import signal
import tempfile
import time
from pathlib import Path

import torch
from lightning.pytorch.plugins import TorchCheckpointIO

from lightning_multigrid import AtomicCheckpointIO

WAYS = {"Lightning": TorchCheckpointIO, "AtomicCheckpointIO": AtomicCheckpointIO}


def killed(way: str, path: Path, megabytes: int, delay: float | None) -> float:
    """Writes a checkpoint of twos in a fork, and kills that after a delay; returns how long it ran."""
    checkpoint, io, start = {"weights": torch.full((megabytes * 2**18,), 2.0)}, WAYS[way](), time.perf_counter()
    process = os.fork()
    if process == 0:
        io.save_checkpoint(checkpoint, path)
        os._exit(0)
    if delay is not None:
        time.sleep(delay)
        os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return time.perf_counter() - start


def left(path: Path) -> str:
    """Whether the older checkpoint (ones) or the newer (twos) is there, or none that can be read."""
    try:
        weights = torch.load(path, weights_only=True)["weights"]
    except Exception:  # whatever is wrong with the file
        return "broken"
    return {1.0: "older", 2.0: "newer"}[float(weights.mean())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="of the checkpoints")
    parser.add_argument("--temporary", default="/dev/shm", help="for temporary files, on another file system")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--megabytes", type=int, default=200)
    options = parser.parse_args()
    random.seed(0)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "last.ckpt"
        for way, temporary in (
            ("Lightning", folder),
            ("Lightning", options.temporary),
            ("AtomicCheckpointIO", options.temporary),
        ):
            tempfile.tempdir = temporary  # as `TMPDIR` sets it
            whole = killed(way, path, options.megabytes, None)
            found = []
            for _ in range(options.kills):
                torch.save({"weights": torch.ones(options.megabytes * 2**18)}, path)
                killed(way, path, options.megabytes, random.uniform(0.2, 1.1) * whole)
                found.append(left(path))
                for rest in [*Path(folder).glob("*"), *Path(options.temporary).glob("tmp*")]:
                    if rest != path and rest.is_file():
                        rest.unlink()
            where = "the same" if temporary == folder else "another"
            counts = ", ".join(f"{found.count(what)} {what}" for what in ("older", "newer", "broken"))
            print(f"{way}, temporary files on {where} file system: of {options.kills} kills {counts}", flush=True)


if __name__ == "__main__":
    main()
