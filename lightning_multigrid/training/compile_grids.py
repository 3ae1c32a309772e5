"""`torch.compile` with one graph for each grid, all of them made before training starts."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
from rich.progress import track
from torch import Tensor
from typing_extensions import override

from lightning_multigrid.host import Callback, LightningModule, MisconfigurationException, Trainer
from lightning_multigrid.loading import MultigridLoader, ScriptLoader, seeded
from lightning_multigrid.norm import set_sub_batch, sub_batchnorm_layers
from lightning_multigrid.schedule import BatchShape, Step
from lightning_multigrid.training.mini_batches import on_device, read_on_grid
from lightning_multigrid.training.run import Run
from lightning_multigrid.training.torch_internals import count_graphs, raised_limits


class CompileGrids(Callback):
    """Compiles a model for every grid of a multigrid training, before it starts.

    Give it to the Trainer after `MultigridCallback`: `Trainer(callbacks=[MultigridCallback(), CompileGrids()])`. By
    itself, `torch.compile` compiles amid the training, and after 8 of about 10 shapes it runs the model uncompiled.

    On each grid, `training_step` runs once, forward and backward, on a mini-batch that repeats one clip. Meanwhile
    `log` does nothing. Buffers, gradients and random state are put back, but other effects of `training_step` remain.
    The number of graphs is printed; a model with graph breaks has more than one for each grid.

    Mini-batches that match no grid (the tail of an epoch, unless the script's loader has `drop_last`) run uncompiled.
    Validation makes its own graphs when it starts. Any other graph that is made while training causes a warning, and
    reaching the limit of `torch.compile` is an error, so nothing becomes slow unnoticed.

    Args:
        module: Name of the part of the LightningModule to compile; it is compiled in place (`torch.nn.Module.compile`)
            and stays compiled. None if the script compiles something itself, with `dynamic=False`.
        backend: The backend of `torch.compile`.
        mode: Its mode. `"reduce-overhead"` records CUDA graphs, one for each grid, for steps that are bound by the
            host. The next step overwrites what they made: clone what a module shall keep of a step's outputs.

    Raises:
        MisconfigurationException: If there is no MultigridCallback before this callback, or no module of that name; or
            if there is a `mode`, but nothing to compile.
    """

    def __init__(self, module: str | None = "model", *, backend: str = "inductor", mode: str | None = None) -> None:
        if module is None and mode is not None:
            raise MisconfigurationException(
                f"CompileGrids(None, mode={mode!r}) compiles nothing, so it has no use for a mode. Give the mode to "
                "`torch.compile` where the script calls it, or name the module to compile."
            )
        self.module, self.backend, self.mode = module, backend, mode
        self._undo = ExitStack()
        self._grids: frozenset[tuple[BatchShape, int]] = frozenset()
        self._graphs = 0
        self._eager = False

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not isinstance(trainer.train_dataloader, ScriptLoader):
            raise MisconfigurationException(
                "CompileGrids compiles the grids of a multigrid training, but the Trainer has no MultigridCallback. "
                "Add one before it, or use `torch.compile` alone."
            )
        loader = trainer.train_dataloader.multigrid
        grids = loader.sampler.plan.schedule.grids_of_statistics
        # For training, for validation, and for what else a script may do with the model.
        graphs = 2 * len(grids) + 8
        if trainer.world_size > 1 and any(shape.clips < sub_batch for shape, sub_batch in grids):
            # Where ranks share statistics, a graph ends before each BatchNorm layer and another begins after it.
            graphs *= 1 + len(sub_batchnorm_layers(pl_module))
        self._undo.enter_context(raised_limits(graphs))
        self._compile(pl_module)
        before, began = count_graphs(), time.perf_counter()
        self._try_all(trainer, pl_module, loader, grids)
        self._grids, self._graphs = frozenset(grids), count_graphs()
        rank_zero_info(
            f"Compiled {self._graphs - before} graphs for {len(grids)} grids in {time.perf_counter() - began:.0f} s."
        )

    def _compile(self, pl_module: LightningModule) -> None:
        if self.module is None:
            return
        try:
            module = pl_module.get_submodule(self.module)
        except AttributeError as error:
            names = ", ".join(f"`{name}`" for name, _ in pl_module.named_children())
            raise MisconfigurationException(
                f"{type(pl_module).__name__} has no module `{self.module}` to compile; it has {names or 'none'}. Name "
                "one of them: `CompileGrids(module=...)`."
            ) from error
        # One graph for each shape: graphs for any shape are slower, and the number of shapes is known.
        module.compile(dynamic=False, backend=self.backend, mode=self.mode)

    def _try_all(
        self, trainer: Trainer, pl_module: LightningModule, loader: MultigridLoader, grids: list[tuple[BatchShape, int]]
    ) -> None:
        following = cast("Run", loader.loop).following
        devices = [pl_module.device] if pl_module.device.type == "cuda" else []
        quiet = trainer.progress_bar_callback is None or not trainer.is_global_zero
        with torch.random.fork_rng(devices), seeded(0), _without_traces(pl_module):
            for shape, sub_batch in track(grids, "Compiling the grids", disable=quiet):
                count = loader.sampler.plan.schedule.baseline_batches_of(shape, sub_batch)
                set_sub_batch(pl_module, sub_batch, of=shape.clips, baseline_batches=count)
                following.set_grid(shape.frames, shape.size)
                with seeded(0):
                    batch = on_device(trainer, pl_module, read_on_grid(loader, shape, shape.clips))
                # As in training, through DDP: it cuts the graphs where a bucket of gradients can be sent.
                output = trainer.strategy.training_step(batch, 0)
                loss = output["loss"] if isinstance(output, dict) else output
                if isinstance(loss, Tensor):  # a step may be skipped
                    loss.backward()  # type: ignore[no-untyped-call]
                for parameter in pl_module.parameters():
                    parameter.grad = None
            following.restore()

    def _step(self, trainer: Trainer, batch_idx: int) -> Step:
        step: Step = trainer.train_dataloader.multigrid.sampler.plan.steps(trainer.current_epoch)[batch_idx]  # type: ignore[union-attr]
        return step

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        step = self._step(trainer, batch_idx)
        self._run_eagerly((step.shape, step.sub_batch) not in self._grids)
        if batch_idx % trainer.accumulate_grad_batches == 0:  # CUDA graphs hold gradients until the optimizer's step
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        self._graphs = count_graphs()

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._run_eagerly(False)
        more = count_graphs() - self._graphs
        if more:
            rank_zero_warn(
                f"`torch.compile` made {more} more graph(s) in batch {batch_idx} of epoch {trainer.current_epoch}, on "
                f"{self._step(trainer, batch_idx).shape} (clips x frames x size), which took the time of many steps. "
                "`TORCH_LOGS=recompiles` tells why."
            )

    def _run_eagerly(self, eager: bool) -> None:
        if eager != self._eager:
            torch.compiler.set_stance("force_eager" if eager else "default")
            self._eager = eager

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._run_eagerly(False)
        self._undo.close()

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.teardown(trainer, pl_module, "fit")  # Lightning does not call `teardown` then


@contextmanager
def _without_traces(module: LightningModule) -> Iterator[None]:
    """Puts the values of all buffers back at its end. Within it, the module logs nothing."""
    kept = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    for name in ("log", "log_dict"):  # Lightning would take the values for those of a hook
        setattr(module, name, lambda *args, **kwargs: None)
    try:
        yield
    finally:
        del module.log, module.log_dict
        with torch.no_grad():
            for buffer, value in kept:
                buffer.copy_(value)
