"""The loss, the metrics and the optimizer of a baseline recipe, for any model of video clips.

Nothing here knows of multigrid training: the callback reads the recipe from the optimizer and the scheduler objects.

Legend: B clips, C classes; clips are B x 3 x T x H x W of any T, H, W.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import lightning as L
import torch
import torch.nn.functional as F
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, MultiStepLR, SequentialLR
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy
from torchmetrics.functional.classification import binary_average_precision
from torchmetrics.utilities import dim_zero_cat

__all__ = ["MeanAveragePrecision", "VideoClassifier"]


class MeanAveragePrecision(Metric):
    """Average precision of each class that has positives, averaged over those classes (the metric of Charades).

    A class without a positive has no average precision. It is left out, where torchmetrics' macro average counts it as
    0. Without any positive the result is NaN. Over several ranks it is that of all their clips together.

    >>> metric = MeanAveragePrecision()
    >>> metric.update(torch.tensor([[0.9, 0.5], [0.2, 0.4]]), torch.tensor([[1, 0], [0, 0]]))
    >>> metric.compute()
    tensor(1.)
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    probabilities: list[Tensor]
    labels: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("probabilities", default=[], dist_reduce_fx="cat")
        self.add_state("labels", default=[], dist_reduce_fx="cat")

    def update(self, probabilities: Tensor, labels: Tensor) -> None:
        """Takes a mini-batch: probabilities and 0/1 labels, both B x C."""
        self.probabilities.append(probabilities)
        self.labels.append(labels)

    def compute(self) -> Tensor:
        """The mean over the classes that have positives, in [0, 1]."""
        probabilities, labels = dim_zero_cat(self.probabilities), dim_zero_cat(self.labels).int()
        precisions = [
            binary_average_precision(probabilities[:, index], labels[:, index], validate_args=False)
            for index in labels.any(dim=0).nonzero().flatten().tolist()
        ]
        return torch.stack(precisions).mean() if precisions else torch.tensor(math.nan, device=probabilities.device)


class VideoClassifier(L.LightningModule):
    """Trains a video model with SGD, and measures top-1 and top-5 accuracy, or mAP for several labels per clip.

    Mini-batches are `(clips, labels)`: clips B x 3 x T x H x W of any length and size, and one class index per clip, or
    0/1 labels B x C with `loss="bce"`. Logs `train/loss`, and `val/` or `test/` `loss` with `top1` and, with more than
    five classes, `top5`; or with `map`. Prediction returns probabilities, B x C.

    Epochs are those of the baseline. Warm-up and cosine act per optimizer step, milestones at the starts of epochs
    unless they are fractional or follow a warm-up. When no fit is under way, all is scheduled in whole epochs, so that
    a recipe can be read without its data.

    Args:
        model: Takes clips and returns logits, B x C.
        num_classes: Number of classes (C).
        loss: `cross_entropy` for one label per clip, `bce` (binary cross-entropy) for several.
        label_smoothing: Probability that cross-entropy spreads evenly over all classes, in [0, 1).
        lr: Learning rate of the baseline's mini-batch size, after the warm-up.
        momentum: Momentum of SGD, in [0, 1).
        nesterov: Whether the momentum is Nesterov's.
        weight_decay: Weight decay of convolutions and linear layers.
        norm_weight_decay: Weight decay of norm layers and biases (all parameters of at most one dimension).
        schedule: Learning rate after the warm-up: `steps` multiplies it by `gamma` at each milestone, `cosine` lets it
            fall to 0 at the end of training, `constant` keeps it.
        milestones: Starts of the learning-rate stages after the first, in epochs; only for `steps`.
        gamma: Factor of the learning rate at each milestone.
        warmup_epochs: Length of the linear warm-up, in epochs; may be fractional.
        warmup_start_factor: Learning rate at the first step of the warm-up, as a share of `lr`, in (0, 1].

    Raises:
        ValueError: If an argument is outside its range, or does not go with the others.

    Example:
        >>> model = nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(3, 10))
        >>> VideoClassifier(model, num_classes=10)(torch.zeros(2, 3, 8, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        model: nn.Module,
        num_classes: int,
        *,
        loss: Literal["cross_entropy", "bce"] = "cross_entropy",
        label_smoothing: float = 0.0,
        lr: float = 0.1,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 1e-4,
        norm_weight_decay: float = 0.0,
        schedule: Literal["steps", "cosine", "constant"] = "cosine",
        milestones: Sequence[float] = (),
        gamma: float = 0.1,
        warmup_epochs: float = 0.0,
        warmup_start_factor: float = 0.01,
    ) -> None:
        super().__init__()
        _require(num_classes >= 2, "num_classes", num_classes, "at least 2")
        _require(loss in ("cross_entropy", "bce"), "loss", loss, "'cross_entropy' or 'bce'")
        _require(0 <= label_smoothing < 1, "label_smoothing", label_smoothing, "in [0, 1)")
        _require(lr > 0, "lr", lr, "above 0")
        _require(0 <= momentum < 1, "momentum", momentum, "in [0, 1)")
        _require(weight_decay >= 0, "weight_decay", weight_decay, "at least 0")
        _require(norm_weight_decay >= 0, "norm_weight_decay", norm_weight_decay, "at least 0")
        _require(schedule in ("steps", "cosine", "constant"), "schedule", schedule, "'steps', 'cosine' or 'constant'")
        _require(gamma > 0, "gamma", gamma, "above 0")
        _require(warmup_epochs >= 0, "warmup_epochs", warmup_epochs, "at least 0")
        _require(0 < warmup_start_factor <= 1, "warmup_start_factor", warmup_start_factor, "in (0, 1]")
        increasing = all(earlier < later for earlier, later in pairwise((0, *milestones)))
        _require(increasing, "milestones", list(milestones), "above 0 and increasing")
        if loss == "bce" and label_smoothing:
            raise ValueError(f"`label_smoothing` must be 0 with `loss='bce'`, got {label_smoothing}.")
        if nesterov and not momentum:
            raise ValueError("`nesterov=True` needs a momentum, got `momentum=0`. Set one of them otherwise.")
        if (schedule == "steps") != bool(milestones):
            raise ValueError(
                f"`schedule='steps'` and `milestones` belong together, got `schedule={schedule!r}` and "
                f"`milestones={list(milestones)}`. Give both, or neither."
            )
        if milestones and warmup_epochs >= milestones[0]:
            raise ValueError(
                f"`warmup_epochs={warmup_epochs}` must end before the first of `milestones={list(milestones)}`. "
                "Shorten the warm-up."
            )
        # The weights are in the checkpoint already: `VideoClassifier.load_from_checkpoint(path, model=...)`.
        self.save_hyperparameters(ignore=["model"])
        self.model = model
        self.num_classes = num_classes
        self.loss = loss
        self.label_smoothing = label_smoothing
        self.lr = lr
        self.momentum = momentum
        self.nesterov = nesterov
        self.weight_decay = weight_decay
        self.norm_weight_decay = norm_weight_decay
        self.schedule = schedule
        self.milestones = tuple(milestones)
        self.gamma = gamma
        self.warmup_epochs = warmup_epochs
        self.warmup_start_factor = warmup_start_factor
        self.val_metrics = self._new_metrics("val/")
        self.test_metrics = self._new_metrics("test/")

    def forward(self, clips: Tensor) -> Tensor:
        """Logits, B x C.

        Raises:
            ValueError: If the model returns another shape.
        """
        logits: Tensor = self.model(clips)
        if logits.shape != (len(clips), self.num_classes):
            raise ValueError(
                f"{type(self.model).__name__} returned {tuple(logits.shape)} for {len(clips)} clips, which must be "
                f"({len(clips)}, {self.num_classes}): logits of `num_classes={self.num_classes}` classes. "
                "Make the model's number of classes and `num_classes` equal, and let it average over frames and pixels."
            )
        return logits

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of a mini-batch, logged as `train/loss`."""
        clips, labels = self._unpack(batch)
        loss = self._compute_loss(self(clips), labels)
        self.log("train/loss", loss, prog_bar=True, batch_size=len(clips))
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Logs `val/loss` and the metrics."""
        self._evaluate(batch, self.val_metrics)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Logs `test/loss` and the metrics."""
        self._evaluate(batch, self.test_metrics)

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Probabilities, B x C, of clips with or without labels."""
        return self._probabilities(self(batch if isinstance(batch, Tensor) else batch[0]))

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """SGD, and the schedule as torch's own schedulers."""
        optimizer = SGD(self._parameter_groups(), lr=self.lr, momentum=self.momentum, nesterov=self.nesterov)
        if self.schedule == "constant" and not self.warmup_epochs:
            return optimizer
        # Milestones at the starts of epochs need no number of steps, for which Lightning would load the data early.
        whole = all(float(milestone).is_integer() for milestone in self.milestones)
        by_step = self._is_fitting() and not (self.schedule == "steps" and whole and not self.warmup_epochs)
        scheduler = self._new_scheduler(optimizer, by_step)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step" if by_step else "epoch"},
        }

    def _new_scheduler(self, optimizer: Optimizer, by_step: bool) -> LRScheduler:
        """The schedule in ticks: optimizer steps, or epochs, to which it is then rounded."""
        ticks_per_epoch = self._steps_per_epoch() if by_step else 1
        warmup = max(1, round(self.warmup_epochs * ticks_per_epoch)) if self.warmup_epochs else 0
        schedulers: list[LRScheduler] = []
        if warmup:
            schedulers.append(LinearLR(optimizer, self.warmup_start_factor, total_iters=warmup))
        # `SequentialLR` counts the ticks of each of its schedulers from the start of that one.
        if self.schedule == "steps":
            milestones = [round(milestone * ticks_per_epoch) - warmup for milestone in self.milestones]
            schedulers.append(MultiStepLR(optimizer, milestones, self.gamma))
        if self.schedule == "cosine":
            schedulers.append(CosineAnnealingLR(optimizer, max(1, self._total_ticks(by_step) - warmup)))
        return SequentialLR(optimizer, schedulers, [warmup]) if len(schedulers) == 2 else schedulers[0]

    def _parameter_groups(self) -> list[dict[str, Any]]:
        parameters = [parameter for parameter in self.parameters() if parameter.requires_grad]
        groups = [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": self.weight_decay},
            {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": self.norm_weight_decay},
        ]
        return [group for group in groups if group["params"]]

    def _is_fitting(self) -> bool:
        try:
            return self.trainer.state.fn is TrainerFn.FITTING
        except RuntimeError:  # Lightning's answer for a module without a trainer
            return False

    def _steps_per_epoch(self) -> int:
        # What Lightning's own `estimated_stepping_batches` does, but only for a Trainer with `max_epochs`.
        self.trainer.fit_loop.setup_data()
        batches = self.trainer.num_training_batches
        if not math.isfinite(batches):
            raise MisconfigurationException(
                "The schedule is given in epochs, but the training data have no length. Set `limit_train_batches` in "
                "the Trainer, or use `schedule='constant'` without a warm-up."
            )
        return max(1, math.ceil(batches / self.trainer.accumulate_grad_batches))

    def _total_ticks(self, by_step: bool) -> int:
        total = self.trainer.estimated_stepping_batches if by_step else self.trainer.max_epochs
        if total is None or not 0 < total < math.inf:
            raise MisconfigurationException(
                f"`schedule='cosine'` ends with the training, but `max_epochs={self.trainer.max_epochs}`. "
                "Set `max_epochs` in the Trainer, or use another `schedule`."
            )
        return int(total)

    def _evaluate(self, batch: Any, metrics: MetricCollection) -> None:
        clips, labels = self._unpack(batch)
        logits = self(clips)
        # Before the metrics: it checks the labels.
        loss = self._compute_loss(logits, labels)
        metrics.update(self._probabilities(logits), labels)
        self.log(f"{metrics.prefix}loss", loss, batch_size=len(clips), sync_dist=True)
        self.log_dict(metrics, prog_bar=True, batch_size=len(clips))

    def _unpack(self, batch: Any) -> tuple[Tensor, Tensor]:
        if not isinstance(batch, Sequence) or len(batch) != 2:
            raise TypeError(
                f"A mini-batch must be a pair (clips, labels), got {type(batch).__name__}. Return the pair from the "
                "dataset, or make it in the data module's `on_after_batch_transfer`."
            )
        return batch[0], batch[1]

    def _compute_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.loss == "bce":
            if labels.shape != logits.shape:
                raise ValueError(
                    f"Labels of shape {tuple(labels.shape)} must be {tuple(logits.shape)} for `loss='bce'`: 0 or 1 for "
                    "each clip and class. Use `loss='cross_entropy'` for one class index per clip."
                )
            return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))
        if labels.shape != logits.shape[:1] or labels.is_floating_point():
            raise ValueError(
                f"Labels of shape {tuple(labels.shape)} and {labels.dtype} must be {len(logits)} class indices for "
                "`loss='cross_entropy'`. Use `loss='bce'` for several labels per clip."
            )
        # One synchronisation with the device per mini-batch, which is cheap next to a video model; without it, a wrong
        # label is an assertion of CUDA that names nothing and ends the process.
        if ((labels < 0) | (labels >= self.num_classes)).any():
            raise ValueError(
                f"Labels from {int(labels.min())} to {int(labels.max())} must be in [0, {self.num_classes}) for "
                f"`num_classes={self.num_classes}`. Number the classes from 0, or raise `num_classes`."
            )
        return F.cross_entropy(logits, labels, label_smoothing=self.label_smoothing)

    def _probabilities(self, logits: Tensor) -> Tensor:
        # In single precision: half precision rounds different scores to equal ones.
        logits = logits.float()
        return logits.sigmoid() if self.loss == "bce" else logits.softmax(dim=1)

    def _new_metrics(self, prefix: str) -> MetricCollection:
        metrics: dict[str, Metric | MetricCollection] = {}
        if self.loss == "bce":
            metrics["map"] = MeanAveragePrecision()
        else:
            metrics["top1"] = MulticlassAccuracy(self.num_classes, average="micro")
            if self.num_classes > 5:
                metrics["top5"] = MulticlassAccuracy(self.num_classes, top_k=5, average="micro")
        return MetricCollection(metrics, prefix=prefix)


def _require(fulfilled: bool, name: str, value: object, requirement: str) -> None:
    if not fulfilled:
        raise ValueError(f"`{name}` must be {requirement}, got {value!r}.")
