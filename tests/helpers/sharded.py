"""Trains the same on ranks with whole and with sharded models."""

import os
import warnings

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

from lightning_multigrid import MultigridCallback
from tests.helpers.tiny import Module, loader, trainer


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


def strategy(kind):
    if kind == "ddp":
        return DDPStrategy(process_group_backend="gloo")
    if kind.startswith("fsdp"):
        return OfCPU(process_group_backend="gloo", state_dict_type="full" if "full" in kind else "sharded")
    return ModelParallelStrategy(
        data_parallel_size=2,
        tensor_parallel_size=1,
        save_distributed_checkpoint=kind == "folder",
        process_group_backend="gloo",
    )


def fit(folder, kind, ckpt_path=None):
    L.seed_everything(0, verbose=False)
    keep = ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=6, save_last=True)
    callbacks = [MultigridCallback(), keep]
    host = trainer(*callbacks, max_epochs=2, strategy=strategy(kind), devices=2, enable_checkpointing=True)
    module = Sharded()
    host.fit(module, loader(2), ckpt_path=ckpt_path)
    buffers = {name: buffer.tolist() for name, buffer in module.named_buffers()}
    return [(*entry[:2], tuple(entry[2]), *entry[3:]) for entry in module.seen], buffers, host


def train_on_rank(rank, folder, variables, kinds):
    """What one of the ranks does, whose environment has these variables; it writes its losses to a file."""
    os.environ.update(variables, RANK=str(rank), LOCAL_RANK=str(rank))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found = {"ddp": fit(f"{folder}/ddp", "ddp")[0]}
    for kind in kinds:
        found[kind], buffers, host = fit(f"{folder}/{kind}", kind)
        found[f"{kind}, resumed"] = fit(f"{folder}/{kind} resumed", kind, f"{folder}/{kind}/step=6.ckpt")[0]
        if kind == "full":
            found["buffers"] = buffers
    torch.save(found, f"{folder}/{host.global_rank}.pt")
