"""Real ranks, started by each of the launchers: they see what the plan says, and end when one of them dies."""

import os
import re
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import lightning as L
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.multiprocessing import ProcessRaisedException, start_processes
from torch.utils.data import DataLoader, Dataset, IterableDataset

from lightning_multigrid import Baseline, BatchShape, MultigridCallback, MultigridSchedule, Plan
from lightning_multigrid.training.script.refusals import refuse_unsupported
from tests.helpers.launchers import by_forks, by_lightning, by_slurm, by_torchrun, variables_of_torchrun
from tests.helpers.on_ranks import NUMBER
from tests.helpers.processes import ddp_of_this_process, start_method
from tests.helpers.tiny import Module, clips, loader, trainer
from tests.helpers.versions import not_torch_2_6

SCHEDULE = MultigridSchedule(Baseline(BatchShape(2, 8, 32), epochs=2, milestones=(1,)))


def check_ranks(folder, world):
    """All ranks have the grids, LR and steps of the plan, share the stream of clips, and have one model."""
    ranks = [torch.load(f"{folder}/{rank}.pt") for rank in range(world)]
    steps = [step for epoch in range(SCHEDULE.epochs) for step in Plan(SCHEDULE, NUMBER, world=world).epoch(epoch)]
    plan = [(*step.place, step.shape.clips, step.shape.frames, step.shape.size) for step in steps]
    for seen, _, _ in ranks:
        assert [(epoch, batch, shape[0], shape[2], shape[3]) for epoch, batch, shape, *_ in seen] == plan
        assert [entry[3] for entry in seen] == [entry[3] for entry in ranks[0][0]]  # LR
    stream = [index for place in range(len(plan)) for _, batches, _ in ranks for index in batches[place]]
    for start in range(0, len(stream) - NUMBER + 1, NUMBER):
        assert sorted(stream[start : start + NUMBER]) == list(range(NUMBER))  # each pass has every clip once
    for _, _, state in ranks[1:]:
        assert all(torch.equal(value, ranks[0][2][name]) for name, value in state.items())


@pytest.mark.parametrize(
    ("launch", "world", "options"),
    [
        (by_forks, 2, {"find_unused_parameters": True}),
        # The same with real launchers and other numbers of ranks, a minute each.
        pytest.param(by_lightning, 2, {"find_unused_parameters": True}, marks=pytest.mark.slow),
        pytest.param(by_torchrun, 2, {"static_graph": True}, marks=pytest.mark.slow),
        pytest.param(by_slurm, 2, {}, marks=pytest.mark.slow),
        pytest.param(by_torchrun, 3, {"find_unused_parameters": True}, marks=pytest.mark.slow),
        pytest.param(by_lightning, 3, {"gradient_as_bucket_view": True}, marks=pytest.mark.slow),
        pytest.param(by_lightning, 2, {"start_method": "spawn"}, marks=pytest.mark.slow),
        pytest.param(by_lightning, 2, {"start_method": "fork"}, marks=pytest.mark.slow),
    ],
)
def test_ranks_of_every_launcher(tmp_path, launch, world, options):
    launch(tmp_path, world, **options)
    check_ranks(tmp_path, world)


def rank_and_world():
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


class Share(IterableDataset):
    """A stream that is cut among the ranks; of 63 clips, the first rank has one more."""

    def __len__(self):
        return len(range(rank_and_world()[0], 63, rank_and_world()[1]))

    def __iter__(self):
        rank, world = rank_and_world()
        return iter([clips(63)[index] for index in range(rank, 63, world)])


class Fewer(Dataset):
    """A dataset of which the second rank misses some clips."""

    def __len__(self):
        return 64 - 16 * rank_and_world()[0]

    def __getitem__(self, index):
        return clips(64)[index]


class Noting(Module):
    """Notes the clips of a pass, and the shapes of all steps, in a file for each rank."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def on_train_end(self):
        [callback] = [one for one in self.trainer.callbacks if isinstance(one, MultigridCallback)]
        Path(self.folder, str(self.global_rank)).write_text(f"{callback.run.plan.clips}: {self.shapes}")


def fit_two_ranks(folder, dataset, module=None):
    host = trainer(MultigridCallback(), max_epochs=1, strategy=ddp_of_this_process(), devices=2)
    host.fit(module or Noting(folder), DataLoader(dataset, 2))


def test_shares_of_a_stream_may_differ_by_a_clip(tmp_path):
    fit_two_ranks(tmp_path, Share())
    first, second = ((tmp_path / str(rank)).read_text() for rank in range(2))
    assert first == second
    assert first.startswith("63: [")


def test_ranks_that_plan_other_trainings_are_refused(tmp_path):
    with pytest.raises(ProcessRaisedException, match="one plan on all devices, but rank 0 has 64 clips, and rank 1"):
        fit_two_ranks(tmp_path, Fewer())


class Draws(Noting):
    """Draws in each step, and seeds each rank as the script says."""

    def __init__(self, folder, of_ranks):
        super().__init__(folder)
        self.of_ranks, self.drawn = of_ranks, []

    def setup(self, stage):
        L.seed_everything(self.of_ranks[self.global_rank], verbose=False)

    def training_step(self, batch, batch_idx):
        self.drawn.append(torch.rand(()).item())
        return super().training_step(batch, batch_idx)

    def on_train_end(self):
        torch.save(self.drawn, f"{self.folder}/{self.global_rank}.pt")


def test_noise_of_steps_differs_on_ranks_whose_own_seeds_differ(tmp_path):
    def drawn(*of_ranks):
        fit_two_ranks(tmp_path, clips(64), Draws(tmp_path, of_ranks))
        return [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]

    same, differing = drawn(42, 42), drawn(42, 43)
    assert same[0] == same[1] == differing[0]
    assert not {*differing[0]} & {*differing[1]}


@pytest.mark.slow  # a launch each, half a minute
@pytest.mark.parametrize("launch", [by_torchrun, by_lightning])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("how", "said"),
    # torchrun may end the rank before torch says that a worker was killed.
    [("kill", ""), ("worker", "DataLoader worker|Root Cause"), ("raise", "ValueError: the third clip is odd")],
)
def test_30_seconds_after_a_rank_died_no_process_is_left_and_it_is_named(tmp_path, launch, rank, how, said):
    """As the guide to clusters says."""
    with pytest.raises(AssertionError) as failure:
        launch(tmp_path, 2, die={"rank": rank, "how": how}, workers=int(how == "worker"))
    # The launcher has waited until all processes have closed their output.
    assert time.time() - (tmp_path / "died").stat().st_mtime < 30
    if (how, rank) == ("kill", 1):
        said = r"\[rank: 1\] Child process with PID|by peer"
        if launch is by_torchrun:
            said = r"Root Cause \(first observed failure\):\n\[0\]:\n.*\n.*\n  rank      : 1 "
    assert re.search(said, str(failure.value)), failure.value


@pytest.mark.slow  # compiles 20 layers for each grid, on each rank
def test_many_layers_that_share_statistics_are_compiled(tmp_path):
    """Each layer ends a graph, so there are more graphs of one function than grids."""
    losses = {}
    for compiled in (False, True):
        (folder := tmp_path / str(compiled)).mkdir()
        by_lightning(folder, 2, layers=20, compiled=compiled)
        seen, *_ = torch.load(f"{folder}/0.pt")
        losses[compiled] = [loss for *_, loss in seen]
    assert losses[True] == pytest.approx(losses[False], rel=1e-3)


class OfCPU(FSDPStrategy):
    """FSDP without a GPU, which only torch allows."""

    def _setup_model(self, model):
        return FullyShardedDataParallel(
            model,
            device_id=torch.device("cpu"),
            use_orig_params=True,
            auto_wrap_policy=lambda module, recurse, nonwrapped_numel: recurse or isinstance(module, nn.Sequential),
        )


class Sharded(Module):
    def configure_model(self):
        if isinstance(self.trainer.strategy, ModelParallelStrategy):
            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])


def strategy_of(kind):
    if kind == "ddp":
        return DDPStrategy(process_group_backend="gloo")
    if kind.startswith("fsdp"):
        return OfCPU(process_group_backend="gloo", state_dict_type="full" if "full" in kind else "sharded")
    sizes = {"data_parallel_size": 2, "tensor_parallel_size": 1, "process_group_backend": "gloo"}
    return ModelParallelStrategy(save_distributed_checkpoint=kind == "folder", **sizes)


def fit_sharded(folder, kind, ckpt_path=None):
    L.seed_everything(0, verbose=False)
    keep = ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=6, save_last=True)
    callbacks = [MultigridCallback(), keep]
    host = trainer(*callbacks, max_epochs=2, strategy=strategy_of(kind), devices=2, enable_checkpointing=True)
    module = Sharded()
    host.fit(module, loader(2), ckpt_path=ckpt_path)
    buffers = {name: buffer.tolist() for name, buffer in module.named_buffers()}
    return [(*entry[:2], tuple(entry[2]), *entry[3:]) for entry in module.seen], buffers, host


def train_on_rank(rank, folder, variables, kinds):
    """What one of the ranks does, whose environment has these variables; it writes its losses to a file."""
    os.environ.update(variables, RANK=str(rank), LOCAL_RANK=str(rank))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found = {"ddp": fit_sharded(f"{folder}/ddp", "ddp")[0]}
    for kind in kinds:
        found[kind], buffers, host = fit_sharded(f"{folder}/{kind}", kind)
        found[f"{kind}, resumed"] = fit_sharded(f"{folder}/{kind} resumed", kind, f"{folder}/{kind}/step=6.ckpt")[0]
        if kind == "full":
            found["buffers"] = buffers
    torch.save(found, f"{folder}/{host.global_rank}.pt")


@not_torch_2_6
@pytest.mark.parametrize(
    "kinds", [["full"], pytest.param(["full", "folder", "fsdp full", "fsdp folder"], marks=pytest.mark.slow)]
)
def test_sharded_models_train_as_whole_ones(tmp_path, kinds):
    """FSDP has DDP's shapes, LR and losses, also with few clips that share statistics, and resumes to the bit."""
    arguments = str(tmp_path), variables_of_torchrun(2), kinds
    start_processes(train_on_rank, arguments, nprocs=2, start_method=start_method())
    for rank in range(2):
        losses = torch.load(tmp_path / f"{rank}.pt")
        for kind in kinds:
            whole, resumed = losses[kind], losses[f"{kind}, resumed"]
            assert whole == losses["ddp"]
            assert 0 < len(resumed) < len(whole)
            assert resumed == whole[-len(resumed) :]
    # The training ends with the statistics that were averaged over the ranks.
    averaged = [torch.load(tmp_path / f"{rank}.pt")["buffers"] for rank in range(2)]
    assert averaged[0] == averaged[1]


def test_strategies_that_cannot_be_followed_are_refused():
    def refuse(strategy):
        host = SimpleNamespace(strategy=strategy, callbacks=[], reload_dataloaders_every_n_epochs=0)
        refuse_unsupported(host, Module())

    # DeepSpeed's own constructor asks for its package.
    with pytest.raises(MisconfigurationException, match="DeepSpeed steps in an engine of its own. Use `strategy="):
        refuse(DeepSpeedStrategy.__new__(DeepSpeedStrategy))
    strategy = ModelParallelStrategy()
    strategy._device_mesh = {"tensor_parallel": SimpleNamespace(size=lambda: 2)}
    with pytest.raises(MisconfigurationException, match="with `tensor_parallel_size=2` several ranks work on the"):
        refuse(strategy)
    refuse(DDPStrategy())
