"""BatchNorm's running statistics for checkpoints that are written within an optimizer step."""

from typing import Any

from torch import Tensor, nn

from lightning_multigrid.host import Trainer, is_a
from lightning_multigrid.norm import BatchNorm, tracking_layers
from lightning_multigrid.schedule import Place, Step
from lightning_multigrid.training.checkpoints.newest_checkpoint import NewestCheckpoint


class UpdateStart:
    """Keeps the running statistics from before each optimizer step.

    A checkpoint that is written within one, as after an error or between two of its mini-batches, continues with this
    step from its start. So it must not hold what the step's mini-batches have added already. They are kept only where
    such checkpoints may be written.
    """

    def __init__(self, trainer: Trainer) -> None:
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        self._needed = trainer.accumulate_grad_batches > 1 or any(
            isinstance(one, NewestCheckpoint)
            or getattr(one, "save_on_exception", False)
            or is_a(one, "callbacks.OnExceptionCheckpoint")
            for one in callbacks
        )
        self._place: Place | None = None
        self._layers: dict[str, BatchNorm] = {}  # as they were when the epoch began: to list them takes long
        self._kept: dict[str, Tensor] = {}

    def keep(self, step: Step, module: nn.Module) -> None:
        """A step begins."""
        if not (self._needed and step.starts_update):
            return
        if self._place is None or self._place.epoch != step.place.epoch:
            self._layers = tracking_layers(module)
        self._place = step.place
        self._kept = {
            f"{layer}.{name}": values.clone()
            for layer, of in self._layers.items()
            for name, values in of.named_buffers(recurse=False)
        }

    def put_back(self, checkpoint: dict[str, Any], start: Place) -> None:
        """Writes the kept statistics into a checkpoint that continues with the optimizer step at `start`."""
        if start == self._place:
            # `WeightAveraging` has put its average into `state_dict` if it comes before the multigrid callback.
            saved = checkpoint.get("current_model_state", checkpoint["state_dict"])
            saved.update({name: values for name, values in self._kept.items() if name in saved})
