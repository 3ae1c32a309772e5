"""BatchNorm's running statistics for checkpoints that are written within an optimizer step."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lightning_multigrid.norm import BatchNorm, running_statistics, tracking_layers
from lightning_multigrid.schedule import Place, Step


class UpdateStart:
    """Keeps the running statistics from before each optimizer step.

    A checkpoint that is written within one, as after an error or between two of its mini-batches, has the statistics
    that were validated. But it continues with this step from its start, so without what the step's mini-batches have
    added already. They are kept in every run, as any hook of the script may write such a checkpoint: in one tensor of
    each kind, as hundreds of small copies would take a GPU's time.
    """

    def __init__(self) -> None:
        self._place: Place | None = None
        self._layers: dict[str, BatchNorm] = {}  # as they were when the epoch began: to list them takes long
        self._kept: list[tuple[dict[str, torch.Size], Tensor]] = []  # the shapes, and all values one behind another

    def keep(self, step: Step, module: nn.Module) -> None:
        """A step begins."""
        if not step.starts_update:
            return
        if self._place is None or self._place.epoch != step.place.epoch:
            self._layers = tracking_layers(module)
        self._place = step.place
        kinds: dict[tuple[torch.dtype, torch.device], dict[str, Tensor]] = {}
        for name, values in running_statistics(self._layers).items():
            kinds.setdefault((values.dtype, values.device), {})[name] = values
        self._kept = [
            (
                {name: values.shape for name, values in of_kind.items()},
                torch.cat([v.flatten() for v in of_kind.values()]),
            )
            for of_kind in kinds.values()
        ]

    def save(self, start: Place) -> dict[str, Tensor]:
        """Returns what a checkpoint needs that continues with the optimizer step at `start`."""
        kept: dict[str, Tensor] = {}
        for shapes, values in self._kept if start == self._place else ():
            parts = torch.split(values, [shape.numel() for shape in shapes.values()])
            kept |= {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        return kept

    def load(self, kept: Mapping[str, Tensor], module: nn.Module) -> None:
        """Gives a module, whose state is that of the checkpoint, the statistics from before the step."""
        for name, values in module.named_buffers():
            if name in kept:
                values.copy_(kept[name])
