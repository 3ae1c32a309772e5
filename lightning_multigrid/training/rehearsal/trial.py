"""Steps of a module on mini-batches, before training and without a trace, and what is seen of them."""

import contextlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from traceback import clear_frames
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from lightning_multigrid.host import LightningModule, Trainer
from lightning_multigrid.loading import reseed
from lightning_multigrid.norm import BatchNorm
from lightning_multigrid.positions import Following
from lightning_multigrid.schedule import BatchShape
from lightning_multigrid.training.mini_batches import apart, error_text, run_forward, run_step, tensors_in
from lightning_multigrid.training.rehearsal.batches import TRIED_CLIPS
from lightning_multigrid.training.rehearsal.copies import Copies
from lightning_multigrid.training.rehearsal.counted import Encounter, TracedValues

_SEEN = 2**14  # numbers of a layer's output that are compared


@dataclass
class Trial:
    """What was seen of steps on a copy."""

    flops: float = 0.0  # multiply-adds of a clip, forward
    convolved: Sequence[int] = ()  # shape of what the first convolution got
    layer: str = ""  # the innermost one that did not return, if there was an error
    error: Exception | None = None
    copied: bool = False  # whether the module could be
    steps: int = 0  # that ended without an error
    encounters: Sequence[Encounter] = ()  # what met the clips without being made of them
    outputs: list[tuple[str, Tensor]] = field(default_factory=list)  # of layers, in the order of the step
    losses: list[float] = field(default_factory=list)


class Rehearsal:
    """Tries steps of a module.

    Each trial has a new copy of the module, so it begins with a first step, and there is only one copy at a time. With
    a Trainer the copy has the module's values and is on its device; BatchNorm uses its running statistics, so that a
    clip's output depends on no other clip, and nothing is dropped. Without a Trainer the copy has shapes only.
    """

    def __init__(self, module: LightningModule, trainer: Trainer | None, baseline: BatchShape) -> None:
        self._copies, self._trainer, self._baseline = Copies(module, trainer), trainer, baseline
        self._step = run_step
        self.failures: dict[str, str] = {}  # what did not run on the baseline's grid, and the error

    def begin(self, batch: Any) -> Trial | None:
        """Tries `training_step` on the baseline's grid, and `forward` if that fails; None if neither runs."""
        for name, self._step in (("`training_step`", run_step), ("`forward`", run_forward)):
            trial = self.run([(self._baseline, batch)], watched=True)
            if trial.error is None:
                return trial
            self.failures[name if trial.copied else "a copy of it"] = error_text(trial.error)
            if not trial.copied:
                break
        self._step = run_step
        return None

    def run(self, steps: Sequence[tuple[BatchShape, Any]], watched: bool = False) -> Trial:
        """Tries steps one after the other on one copy. `watched` notes each operation, of a single step."""
        trial, shapes_only = Trial(), self._trainer is None
        losses: list[Tensor] = []
        try:
            with contextlib.ExitStack() as stack:
                copied = stack.enter_context(self._copies.working(losses))
                trial.copied = True
                following = Following(copied, self._baseline.frames, self._baseline.size)
                _watch(copied, trial)
                stack.enter_context(apart(self._trainer, copied.device))
                stack.enter_context(self._as_in_training(copied))
                if watched:
                    stack.enter_context(self._watching(trial, steps[0][1]))
                for grid, batch in steps:
                    following.set_grid(grid.frames, grid.size)
                    # A step may write to it.
                    own = apply_to_collection(batch, Tensor, lambda t: t.to("meta") if shapes_only else t.clone())
                    # What is random differs between grids, so that it is not taken for the same table.
                    reseed(grid.frames * grid.size)
                    returned = self._step(copied, own, 1)  # many scripts write pictures at mini-batch 0
                    loss = returned.get("loss") if isinstance(returned, Mapping) else returned
                    if self._step is run_step and isinstance(loss, Tensor):
                        losses.append(loss.detach())
                    trial.steps += 1
            trial.losses = [] if shapes_only else [float(loss) for loss in losses if loss.numel() == 1]
        except Exception as error:  # whatever a user's model may raise
            trial.error = error
            clear_frames(error.__traceback__)  # they hold what the step had made
        return trial

    @contextlib.contextmanager
    def _watching(self, trial: Trial, batch: Any) -> Iterator[None]:
        with FlopCounterMode(display=False) as counter, _FirstConvolution() as first, contextlib.ExitStack() as stack:
            if self._trainer is not None:
                traced = stack.enter_context(TracedValues(tensors_in(batch), lambda: trial.layer))
                trial.encounters = traced.encounters
            yield
        trial.convolved = first.shape
        trial.flops = counter.get_total_flops() / 2 / TRIED_CLIPS  # a multiplication and an addition count as two

    @contextlib.contextmanager
    def _as_in_training(self, copied: LightningModule) -> Iterator[None]:
        """Gives steps the modes of training, but for what is random, and keeps what they print."""
        for layer in copied.modules():
            # What is dropped would change the loss with the number of clips. Layers of all libraries are named so.
            drops = "Drop" in type(layer).__name__ and not any(layer.children())
            if drops or isinstance(layer, BatchNorm):
                layer.eval()
        with contextlib.ExitStack() as stack:
            # To compile a graph for each grid would take minutes, and tell nothing.
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            if self._trainer is None:
                stack.enter_context(torch.no_grad())
            else:
                stack.enter_context(self._trainer.precision_plugin.train_step_context())
                stack.enter_context(sdpa_kernel(SDPBackend.MATH))  # others hide what meets the clips, and their FLOPs
                stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            yield


def _watch(module: nn.Module, trial: Trial) -> None:
    """Notes which layer runs, and some numbers of what each of them returns."""
    entered: list[str] = []

    def enter(name: str, layer: nn.Module, inputs: Any) -> None:
        entered.append(name)
        trial.layer = name

    def leave(layer: nn.Module, inputs: Any, output: Any) -> None:  # a value would replace the output
        name = entered.pop()
        trial.layer = entered[-1] if entered else ""
        for tensor in tensors_in(output):
            # A single number, as a loss is, is made of all clips.
            if tensor.is_floating_point() and not tensor.is_meta and tensor.numel() > 1:
                flat = tensor.detach().flatten()
                trial.outputs.append((name, flat[:: max(1, len(flat) // _SEEN) | 1].clone()))

    for name, layer in module.named_modules():
        if not type(layer).__module__.startswith("torchmetrics."):  # it counts, over all clips
            layer.register_forward_pre_hook(partial(enter, name))
            layer.register_forward_hook(leave)


class _FirstConvolution(TorchFunctionMode):
    """Notes the shape of what the first convolution gets."""

    shape: Sequence[int] = ()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.conv2d, torch.conv3d) and args:
            self.shape = self.shape or args[0].shape
        return func(*args, **(kwargs or {}))
