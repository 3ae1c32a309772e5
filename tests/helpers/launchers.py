"""Start `tests.helpers.on_ranks` on several ranks of this machine, by each of the launchers.

A function `by_...(folder, world, **options)` waits until all ranks have ended, and fails with their output if one of
them failed. `options` are those of `on_ranks`.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from torch.multiprocessing import start_processes

from tests.helpers.on_ranks import main
from tests.helpers.processes import start_method

ROOT = Path(__file__).parents[2]


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def shell_environment(**variables):
    """The environment of a user's shell, without another launcher's variables."""
    foreign = ("SLURM_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "MASTER_", "PL_", "TORCHELASTIC")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    paths = os.pathsep.join([str(ROOT), *filter(None, [clean.get("PYTHONPATH")])])
    return {**clean, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", **variables}


def variables_of_torchrun(world):
    """What torchrun tells all ranks; each of them also has its `RANK` and `LOCAL_RANK`."""
    return {"WORLD_SIZE": str(world), "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}


def by_forks(folder, world, **options):
    """With torchrun's variables, in forks of this process where they can train: no launcher has to import torch."""
    arguments = variables_of_torchrun(world), {"folder": str(folder), "devices": world, **options}
    start_processes(_rank, arguments, nprocs=world, start_method=start_method())


def _rank(rank, variables, options):
    os.environ.update(variables, RANK=str(rank), LOCAL_RANK=str(rank))
    main(**options)


def by_lightning(folder, world, **options):
    _finish(_start([sys.executable, *_script(folder, devices=world, **options)]))


def by_torchrun(folder, world, **options):
    launch = ["-m", "torch.distributed.run", f"--nproc_per_node={world}", f"--master_port={free_port()}"]
    _finish(_start([sys.executable, *launch, *_script(folder, devices=world, **options)]))


def by_slurm(folder, world, **options):
    """As `srun` does: one task per rank, each on a node of its own."""
    job = {"NTASKS_PER_NODE": "1", "JOB_NAME": "train", "JOB_ID": "17", "NODELIST": "127.0.0.1", "LOCALID": "0"}
    shared = {f"SLURM_{name}": value for name, value in (job | {"NTASKS": str(world)}).items()}
    shared["MASTER_PORT"] = free_port()
    command = [sys.executable, *_script(folder, devices=1, num_nodes=world, **options)]
    tasks = [{"SLURM_PROCID": str(rank), "SLURM_NODEID": str(rank)} for rank in range(world)]
    _finish(*[_start(command, **shared, **task) for task in tasks])


def _script(folder, **options):
    return ["-m", "tests.helpers.on_ranks", str(folder), json.dumps(options)]


def _start(command, **variables):
    variables = {"MASTER_PORT": free_port(), **variables}
    return subprocess.Popen(
        command, env=shell_environment(**variables), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _finish(*processes):
    try:
        for process in processes:
            output, _ = process.communicate(timeout=280)
            assert process.returncode == 0, output
    finally:
        for process in processes:
            process.kill()
            process.communicate()
