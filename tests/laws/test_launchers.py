"""Real ranks, started by each of the launchers: what they see is the plan's, and none waits for another for ever."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy

from lightning_multigrid.schedule.cycles import Baseline
from lightning_multigrid.schedule.grid import BatchShape
from lightning_multigrid.schedule.schedule import MultigridSchedule
from lightning_multigrid.training.refusals import refuse_split_models
from tests.helpers.on_ranks import NUMBER

ROOT = Path(__file__).parents[2]
SCHEDULE = MultigridSchedule(Baseline(BatchShape(2, 8, 32), epochs=2, milestones=(1,)))


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def environment(**variables):
    """That of a user's shell: nothing of another launcher."""
    foreign = ("SLURM_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "MASTER_", "PL_", "TORCHELASTIC")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    paths = os.pathsep.join([str(ROOT), *filter(None, [clean.get("PYTHONPATH")])])
    return {**clean, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", **variables}


def script(folder, **options):
    return ["-m", "tests.helpers.on_ranks", str(folder), json.dumps(options)]


def finish(*processes):
    for process in processes:
        output, _ = process.communicate(timeout=280)
        assert process.returncode == 0, output


def start(command, **variables):
    return subprocess.Popen(
        command,
        env=environment(MASTER_PORT=free_port(), **variables)
        if "MASTER_PORT" not in variables
        else environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def by_lightning(folder, world, **ddp):
    finish(start([sys.executable, *script(folder, devices=world, **ddp)]))


def by_torchrun(folder, world, **ddp):
    launch = ["-m", "torch.distributed.run", f"--nproc_per_node={world}", f"--master_port={free_port()}"]
    finish(start([sys.executable, *launch, *script(folder, devices=world, **ddp)]))


def by_slurm(folder, world, **ddp):
    """As `srun` starts a task per rank, here one on each of the nodes."""
    shared = {
        "SLURM_NTASKS": str(world),
        "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_JOB_NAME": "train",
        "SLURM_JOB_ID": "17",
        "SLURM_NODELIST": "127.0.0.1",
        "SLURM_LOCALID": "0",
        "MASTER_PORT": free_port(),
    }
    command = [sys.executable, *script(folder, devices=1, num_nodes=world, **ddp)]
    tasks = [{"SLURM_PROCID": str(rank), "SLURM_NODEID": str(rank)} for rank in range(world)]
    finish(*[start(command, **shared, **task) for task in tasks])


def check_ranks(folder, world):
    """Same grids, LR and steps as in the plan on all ranks, disjoint clips, one model."""
    ranks = [torch.load(f"{folder}/{rank}.pt") for rank in range(world)]
    plan = [
        (epoch, batch, step.shape.clips, step.shape.frames, step.shape.size)
        for epoch in range(SCHEDULE.epochs)
        for batch, step in enumerate(SCHEDULE.steps(epoch, NUMBER // world))
    ]
    for seen, _, _ in ranks:
        assert [(epoch, batch, shape[0], shape[2], shape[3]) for epoch, batch, shape, *_ in seen] == plan
        assert [entry[3] for entry in seen] == [entry[3] for entry in ranks[0][0]]  # LR
    for epoch in range(SCHEDULE.epochs):
        here = [place for place, entry in enumerate(plan) if entry[0] == epoch]
        indices = [index for _, batches, _ in ranks for place in here for index in batches[place]]
        assert len(set(indices)) == len(indices) == NUMBER - NUMBER % world
    for _, _, state in ranks[1:]:
        assert all(torch.equal(value, ranks[0][2][name]) for name, value in state.items())


@pytest.mark.parametrize(
    ("launch", "world", "ddp"),
    [
        (by_lightning, 2, {"find_unused_parameters": True}),
        (by_torchrun, 2, {"static_graph": True}),
        # The same on other launchers and ranks, a minute each.
        pytest.param(by_slurm, 2, {}, marks=pytest.mark.slow),
        pytest.param(by_torchrun, 3, {"find_unused_parameters": True}, marks=pytest.mark.slow),
        pytest.param(by_lightning, 3, {"gradient_as_bucket_view": True}, marks=pytest.mark.slow),
        pytest.param(by_lightning, 2, {"start_method": "spawn"}, marks=pytest.mark.slow),
        pytest.param(by_lightning, 2, {"start_method": "fork"}, marks=pytest.mark.slow),
    ],
)
def test_ranks_of_every_launcher(tmp_path, launch, world, ddp):
    launch(tmp_path, world, **ddp)
    check_ranks(tmp_path, world)


@pytest.mark.slow  # compiles 20 layers for each grid, on each rank
def test_many_layers_that_share_statistics_are_compiled(tmp_path):
    """Each of them ends a graph, and so makes more graphs of one function than there are grids."""
    losses = {}
    for compiled in (False, True):
        folder = tmp_path / str(compiled)
        folder.mkdir()
        by_lightning(folder, 2, layers=20, compiled=compiled)
        seen, *_ = torch.load(f"{folder}/0.pt")
        losses[compiled] = [loss for *_, loss in seen]
    eager = losses[False]
    assert len(losses[True]) > len(eager)  # those of trying each grid come first
    assert losses[True][-len(eager) :] == pytest.approx(eager, rel=1e-3)


@pytest.mark.parametrize("kind", [DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy])
def test_strategies_that_split_the_model_are_refused(kind):
    # DeepSpeed's own constructor asks for its package.
    with pytest.raises(MisconfigurationException, match=f"but {kind.__name__} splits the model or its optimizer. Use"):
        refuse_split_models(kind.__new__(kind))
    refuse_split_models(DDPStrategy())
