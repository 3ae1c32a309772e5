"""A step of a module on a mini-batch of a grid, before training and without a trace, and what was seen of it."""

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from traceback import clear_frames
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from lightning_multigrid.host import LightningModule, Trainer
from lightning_multigrid.loading import seeded
from lightning_multigrid.positions import Encounter, Following, TracedValues
from lightning_multigrid.schedule import BatchShape
from lightning_multigrid.training.mini_batches import TRIED_CLIPS, first_clips, has_pixels, run_step, tensors_in
from lightning_multigrid.training.probes import let_go, meta_copy, working_copy
from lightning_multigrid.training.trainer.lightning_internals import stage_of_training

_SEEN = 2**14  # numbers of a layer's output that are compared
_NOISE = 1e-5  # relative: of operations whose order of summation differs from call to call


@dataclass
class Trial:
    """What was seen of a step on one grid."""

    flops: float = 0.0  # multiply-adds of a clip, forward
    convolved: Sequence[int] = ()  # shape of what the first convolution got
    layer: str = ""  # the innermost one that did not return, if there was an error
    error: Exception | None = None
    encounters: Sequence[Encounter] = ()  # what met the clips without being made of them
    compared: Sequence[str] = ()  # layers whose outputs were compared for other clips
    mixing: Sequence[str] = ()  # layers with outputs that depend on several clips, in the order of the step


class Rehearsal:
    """Tries the step of a module on grids, with mini-batches of `TRIED_CLIPS` clips.

    Each trial has a new copy of the module, so it is a first step. With a Trainer the copy has the module's values and
    is on its device; BatchNorm uses its running statistics, so that a clip's output depends on no other clip. Without a
    Trainer the copy has shapes only, and neither encounters nor mixing are seen.
    """

    def __init__(self, module: LightningModule, trainer: Trainer | None, baseline: BatchShape) -> None:
        self._module, self._trainer, self._baseline = module, trainer, baseline
        self._step: Callable[[LightningModule, Any], Any] = _run_step
        self.failures: dict[str, str] = {}  # what did not run on the baseline's grid, and the error

    def begin(self, batch: Any) -> Trial | None:
        """Tries `training_step` on the baseline's grid, and `forward` if that fails; None if neither runs on a copy."""
        try:
            copied = self._copy()
        except Exception as error:  # modules may hold anything, also what cannot be copied
            self.failures["a copy of it"] = said(error)
            return None
        if self._trainer is not None:
            let_go(copied)
        for name, self._step in (("`training_step`", _run_step), ("`forward`", _run_forward)):
            trial = self.run(self._baseline, batch)
            if trial.error is None:
                return trial
            self.failures[name] = said(trial.error)
        return None

    def _copy(self) -> LightningModule:
        return meta_copy(self._module) if self._trainer is None else working_copy(self._module, self._trainer)

    def run(self, grid: BatchShape, batch: Any) -> Trial:
        trial, seen = Trial(), _Seen()
        counter, first = FlopCounterMode(display=False), _FirstConvolution()
        try:
            if self._trainer is None:
                batch = apply_to_collection(batch, Tensor, lambda tensor: tensor.to("meta"))
                with counter, first:
                    self._run(grid, batch, seen)
            else:
                with counter, first, TracedValues(tensors_in(batch), lambda: seen.layer) as values:
                    self._run(grid, batch, seen)
                trial.encounters = values.encounters
                self._change_clips(trial, grid, batch, seen)
        except Exception as error:  # whatever a user's model may raise
            trial.layer, trial.error = seen.layer, error
            clear_frames(error.__traceback__)  # they hold what the step had made
        trial.convolved = first.shape
        trial.flops = counter.get_total_flops() / 2 / TRIED_CLIPS  # a multiplication and an addition count as two
        return trial

    def _change_clips(self, trial: Trial, grid: BatchShape, batch: Any, seen: "_Seen") -> None:
        """Notes what changes if one clip does, and if the other does."""
        others = [_Seen() for _ in range(TRIED_CLIPS)]
        with contextlib.suppress(Exception):  # a script may refuse noise
            for clip, other in enumerate(others):
                self._run(grid, _with_another_clip(batch, clip), other)
            outputs = [*_changed(seen.outputs, *(other.outputs for other in others))]
            trial.compared = [name for name, _ in outputs]
            trial.mixing = [name for name, changed in outputs if torch.stack(changed).all(dim=0).any()]

    def _run(self, grid: BatchShape, batch: Any, seen: "_Seen") -> None:
        trainer, copied = self._trainer, self._copy()
        Following(copied, self._baseline.frames, self._baseline.size).set_grid(grid.frames, grid.size)
        seen.watch(copied)
        with contextlib.ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            # To compile a graph for each grid would take minutes, and tell nothing.
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            # What is random differs between grids, so that it is not taken for the same table.
            seed = grid.frames * grid.size
            stack.enter_context(seeded(seed))
            if trainer is None:
                stack.enter_context(torch.no_grad())
            else:
                for layer in copied.modules():
                    if isinstance(layer, _BatchNorm):
                        layer.eval()
                stack.callback(let_go, copied)
                devices = [copied.device] if copied.device.type == "cuda" else []
                stack.enter_context(torch.random.fork_rng(devices))
                if devices:
                    torch.cuda.manual_seed(seed)
                stack.enter_context(stage_of_training(trainer))
                stack.enter_context(trainer.precision_plugin.train_step_context())
                stack.enter_context(sdpa_kernel(SDPBackend.MATH))  # others hide what meets the clips, and their FLOPs
                stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
                # A step may write to it.
                batch = apply_to_collection(batch, Tensor, lambda tensor: tensor.detach().clone())
            self._step(copied, batch)


def said(error: Exception) -> str:
    """What an error says, in a line."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0].rstrip('.')}"


def _run_step(module: LightningModule, batch: Any) -> Any:
    return run_step(module, batch, 1)  # many scripts write pictures at mini-batch 0


def _run_forward(module: LightningModule, batch: Any) -> Any:
    return module(first_clips(batch))


def _with_another_clip(batch: Any, number: int) -> Any:
    """The mini-batch with noise, of the values that it has, as one of its clips."""

    def change(tensor: Tensor) -> Tensor:
        if tensor.ndim not in (4, 5) or len(tensor) != TRIED_CLIPS or not has_pixels(tensor):
            return tensor
        values, changed = tensor.flatten(), tensor.clone()
        drawn = torch.randint(len(values), changed[number].shape, generator=torch.Generator().manual_seed(number))
        changed[number] = values[drawn.to(tensor.device)]
        return changed

    return apply_to_collection(batch, Tensor, change)


class _Seen:
    """Which layer runs, and what layers have returned: some numbers of each output, in the order of the step."""

    def __init__(self) -> None:
        self._entered: list[str] = []
        self.outputs: list[tuple[str, Tensor]] = []

    @property
    def layer(self) -> str:
        """The innermost layer that runs, or did not return."""
        return self._entered[-1] if self._entered else ""

    def watch(self, module: nn.Module) -> None:
        for name, layer in module.named_modules():
            if type(layer).__module__.startswith("torchmetrics."):  # it counts, over all clips
                continue
            layer.register_forward_pre_hook(partial(self._enter, name))
            layer.register_forward_hook(self._leave)

    def _enter(self, name: str, layer: nn.Module, inputs: Any) -> None:
        self._entered.append(name)

    def _leave(self, layer: nn.Module, inputs: Any, output: Any) -> None:  # a value would replace the output
        name = self._entered.pop()
        for tensor in tensors_in(output):
            # A single number, as a loss is, is made of all clips.
            if tensor.is_floating_point() and not tensor.is_meta and tensor.numel() > 1:
                flat = tensor.detach().flatten()
                self.outputs.append((name, flat[:: max(1, len(flat) // _SEEN) | 1].clone()))


def _changed(
    noted: Sequence[tuple[str, Tensor]], *others: Sequence[tuple[str, Tensor]]
) -> Iterator[tuple[str, list[Tensor]]]:
    """Of each layer, which of its numbers are others in each of several runs of a step."""
    for (name, numbers), *alike in zip(noted, *others, strict=False):
        if any(other != name or values.shape != numbers.shape for other, values in alike):
            return  # the clips' values decide which layers run
        noise = max(_NOISE, 4 * torch.finfo(numbers.dtype).eps) * numbers.abs().max() if len(numbers) else 0
        yield name, [(values - numbers).abs() > noise for _, values in alike]


class _FirstConvolution(TorchFunctionMode):
    """Notes the shape of what the first convolution gets."""

    shape: Sequence[int] = ()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.conv2d, torch.conv3d) and args:
            self.shape = self.shape or args[0].shape
        return func(*args, **(kwargs or {}))
