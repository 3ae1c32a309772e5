"""The loss, the metrics and the optimizer of a baseline recipe, for any model of video clips.

This module does not know multigrid training: the callback reads the recipe from the optimizer and the schedulers.

Legend: B clips or videos, V views of each video, C classes; clips are B x 3 x T x H x W of any T, H, W.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, MultiStepLR, SequentialLR
from torchmetrics import Metric, MetricCollection

from lightning_multigrid.clips import VideoBatch
from lightning_multigrid.files import require
from lightning_multigrid.host import LightningModule, MisconfigurationException, OptimizerLRScheduler, TrainerFn
from lightning_multigrid.video.metrics import MeanAveragePrecision, VideoAccuracy, VideoMean


class VideoClassifier(LightningModule):
    """Trains a video model, and measures top-1 and top-5 accuracy, or mAP for several labels per clip.

    Mini-batches are `(clips, labels)`: clips B x 3 x T x H x W of any length and size, and one class index per clip, or
    0/1 labels B x C with `loss="bce"`; in training, clips that were mixed have probabilities of classes, B x C. Logs
    `train/loss`, and `val/` or `test/` `loss` with `top1` and, with more than five classes, `top5`; or with `map`. No
    step waits for a GPU: there the progress bar shows the loss of the last step that is finished.
    Prediction returns probabilities, B x C.

    Evaluation on a `VideoDataModule` counts every video once, over any number of ranks: it fuses the probabilities of
    a video's views (Sec. 4: softmax scores are averaged), and averages their losses.

    Epochs are those of the baseline. Warm-up and cosine act per optimizer step, milestones at the starts of epochs
    unless they are fractional or follow a warm-up. Outside of `fit` all is scheduled in whole epochs.

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
        schedule: Learning rate after the warm-up: `steps` multiplies it by `gamma` at each milestone, `cosine` ends at
            0 with the training, `constant` keeps it.
        milestones: Starts of the learning-rate stages after the first, in epochs; only for `steps`.
        gamma: Factor of the learning rate at each milestone.
        warmup_epochs: Length of the linear warm-up, in epochs; may be fractional.
        warmup_start_factor: Learning rate at the first step of the warm-up, as a share of `lr`, in (0, 1].
        view_fusion: How the probabilities of a video's views are fused: their `mean`, or for each class their `max`
            (Charades).
        channels_last: Keep the convolutions in `torch.channels_last_3d`, the memory format in which half precision is
            fastest on a GPU. The model's layers must be 3D.
        fused_optimizer: Use the fused implementation of SGD: one kernel for many parameters.
        optimizer: Makes another optimizer than SGD out of groups of parameters. Its LR and other settings are its own:
            `lr`, `momentum`, `nesterov` and `fused_optimizer` are refused beside it, but the weight decays count. In
            YAML it is a `class_path` with `init_args`.
        layer_decay: Factor of the learning rate from each block of a transformer to the one before, in (0, 1], as in
            fine-tuning of BEiT and VideoMAE. The head learns with the whole, the embedding with the least.

    Raises:
        ValueError: If an argument is outside its range, or contradicts another one.

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
        view_fusion: Literal["mean", "max"] = "mean",
        channels_last: bool = False,
        fused_optimizer: bool = False,
        optimizer: Callable[[Iterable[Any]], Optimizer] | None = None,
        layer_decay: float = 1.0,
    ) -> None:
        super().__init__()
        require(num_classes >= 2, "num_classes", num_classes, "at least 2")
        require(loss in ("cross_entropy", "bce"), "loss", loss, "'cross_entropy' or 'bce'")
        require(0 <= label_smoothing < 1, "label_smoothing", label_smoothing, "in [0, 1)")
        require(lr > 0, "lr", lr, "above 0")
        require(0 <= momentum < 1, "momentum", momentum, "in [0, 1)")
        require(weight_decay >= 0, "weight_decay", weight_decay, "at least 0")
        require(norm_weight_decay >= 0, "norm_weight_decay", norm_weight_decay, "at least 0")
        require(0 < layer_decay <= 1, "layer_decay", layer_decay, "in (0, 1]")
        require(view_fusion in ("mean", "max"), "view_fusion", view_fusion, "'mean' or 'max'")
        require(loss != "bce" or not label_smoothing, "label_smoothing", label_smoothing, "0 with `loss='bce'`")
        if optimizer is not None and (lr, momentum, nesterov, fused_optimizer) != (0.1, 0.9, False, False):
            raise ValueError(
                "`lr`, `momentum`, `nesterov` and `fused_optimizer` are for SGD. Give them to the `optimizer` instead."
            )
        _check_schedule(schedule, milestones, gamma, warmup_epochs)
        # The weights are in the checkpoint already: `VideoClassifier.load_from_checkpoint(path, model=...)`.
        self.save_hyperparameters(ignore=["model", "optimizer"])
        if "_instantiator" in self.hparams:  # Lightning has made it from a config, which says in words what they are
            self.save_hyperparameters()
        # Copies, because in a subclass `hparams` holds its own arguments: `lr` may be another one there.
        self.num_classes, self.loss, self.label_smoothing = num_classes, loss, label_smoothing
        self.lr, self.momentum, self.nesterov, self.fused_optimizer = lr, momentum, nesterov, fused_optimizer
        self.weight_decay, self.norm_weight_decay = weight_decay, norm_weight_decay
        self.optimizer, self.layer_decay, self.view_fusion = optimizer, layer_decay, view_fusion
        self.schedule, self.milestones, self.gamma = schedule, tuple(milestones), gamma
        self.warmup_epochs, self.warmup_start_factor = warmup_epochs, warmup_start_factor
        # The first convolution brings clips of any memory format into that of its weight.
        self.model = model.to(memory_format=torch.channels_last_3d) if channels_last else model
        self._newest_loss: Tensor | None = None  # in memory that a GPU writes to on its own
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
                f"{type(self.model).__name__} returned {tuple(logits.shape)}, which must be clips x classes, "
                f"({len(clips)}, {self.num_classes}). Make the model's number of classes and `num_classes` equal."
            )
        return logits

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        clips, labels = self._unpack(batch)
        logits = self(clips)
        loss = self._compute_loss(logits, labels)
        self.log("train/loss", loss, batch_size=len(clips))
        # The bar shows the newest loss that the GPU has finished: for that of this step, Lightning would wait.
        if self._newest_loss is None:
            self._newest_loss = torch.full_like(loss.detach(), math.nan, device="cpu", pin_memory=loss.is_cuda)
        shown = self._newest_loss if loss.is_cuda else loss
        self.log("loss", shown, prog_bar=True, logger=False, batch_size=len(clips))
        self._newest_loss.copy_(loss.detach(), non_blocking=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._evaluate(batch, self.val_metrics)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self._evaluate(batch, self.test_metrics)

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Probabilities, B x C, of videos, or of clips with or without labels."""
        if isinstance(batch, VideoBatch):
            return self._fuse(self._view_logits(batch))
        return self._probabilities(self(batch if isinstance(batch, Tensor) else batch[0]))

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Returns SGD or the given optimizer, and the schedule as torch's own schedulers."""
        groups, fused = self._parameter_groups(), self.fused_optimizer or None
        sgd = partial(SGD, lr=self.lr, momentum=self.momentum, nesterov=self.nesterov, fused=fused)
        optimizer = (self.optimizer or sgd)(groups)
        for group in optimizer.param_groups:
            group["lr"] *= group.pop("lr_scale")
        if self.schedule == "constant" and not self.warmup_epochs:
            return optimizer
        # Milestones at the starts of epochs do not need the number of steps, which makes Lightning load the data early.
        whole = all(float(milestone).is_integer() for milestone in self.milestones)
        by_step = self._is_fitting() and not (self.schedule == "steps" and whole and not self.warmup_epochs)
        scheduler, interval = self._new_scheduler(optimizer, by_step), "step" if by_step else "epoch"
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": interval}}

    def _new_scheduler(self, optimizer: Optimizer, by_step: bool) -> LRScheduler:
        """Makes the schedule in ticks: optimizer steps, or else epochs, to which it is rounded."""
        ticks_per_epoch = self._steps_per_epoch() if by_step else 1
        warmup = max(1, round(self.warmup_epochs * ticks_per_epoch)) if self.warmup_epochs else 0
        schedulers: list[LRScheduler] = []
        if warmup:
            schedulers.append(LinearLR(optimizer, self.warmup_start_factor, total_iters=warmup))
        # In `SequentialLR` each scheduler counts ticks from its own start.
        if self.schedule == "steps":
            milestones = [round(milestone * ticks_per_epoch) - warmup for milestone in self.milestones]
            schedulers.append(MultiStepLR(optimizer, milestones, self.gamma))
        if self.schedule == "cosine":
            schedulers.append(CosineAnnealingLR(optimizer, max(1, self._total_ticks(by_step) - warmup)))
        return SequentialLR(optimizer, schedulers, [warmup]) if len(schedulers) == 2 else schedulers[0]

    def _parameter_groups(self) -> list[dict[str, Any]]:
        scales = layer_scales(self, self.layer_decay)
        groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
        for name, parameter in self.named_parameters():
            if parameter.requires_grad:
                groups.setdefault((scales[name], parameter.ndim > 1), []).append(parameter)
        decays = {True: self.weight_decay, False: self.norm_weight_decay}
        return [
            {"params": groups[scale, matrix], "weight_decay": decays[matrix], "lr_scale": scale}
            for scale, matrix in sorted(groups, reverse=True)
        ]

    def _is_fitting(self) -> bool:
        try:
            return self.trainer.state.fn == TrainerFn.FITTING
        except RuntimeError:  # Lightning's answer for a module without a trainer
            return False

    def _steps_per_epoch(self) -> int:
        # As Lightning's `estimated_stepping_batches` does, which needs a Trainer with `max_epochs`.
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
        if isinstance(batch, VideoBatch):
            logits, labels, videos = self._view_logits(batch), batch.labels, batch.indices
            assert labels is not None
        else:
            clips, labels = self._unpack(batch)
            logits, videos = self(clips).unsqueeze(1), None
        # The loss comes first, because it checks the labels.
        labels_of_views = labels.repeat_interleave(logits.shape[1], dim=0)
        losses = self._compute_loss(logits.flatten(0, 1), labels_of_views, reduction="none")
        values = losses.float().view(logits.shape[:2]).mean(dim=1)
        metrics.update(values=values, probabilities=self._fuse(logits), labels=labels, videos=videos)

    # The metrics are logged once an epoch: in each step, Lightning would walk through all the rows that they keep.
    def on_validation_epoch_start(self) -> None:
        self.val_metrics.reset()

    def on_validation_epoch_end(self) -> None:
        on_bar = "val/map" if self.loss == "bce" else "val/top1"
        metrics = dict(self.val_metrics.items(copy_state=False))
        self.log(on_bar, metrics.pop(on_bar), prog_bar=True)
        self.log_dict(metrics)

    def on_test_epoch_start(self) -> None:
        self.test_metrics.reset()

    def on_test_epoch_end(self) -> None:
        self.log_dict(self.test_metrics, prog_bar=True)

    def _view_logits(self, batch: VideoBatch) -> Tensor:
        """Logits of the views of videos, B x V x C."""
        logits = torch.cat([self(clips) for clips in batch.chunks()])
        return logits.view(-1, batch.per_video, self.num_classes)

    def _fuse(self, logits: Tensor) -> Tensor:
        """Probabilities of videos, B x C, from the logits of their views, B x V x C."""
        probabilities = self._probabilities(logits)
        return probabilities.mean(dim=1) if self.view_fusion == "mean" else probabilities.amax(dim=1)

    def _unpack(self, batch: Any) -> tuple[Tensor, Tensor]:
        if not isinstance(batch, Sequence) or len(batch) != 2:
            raise TypeError(f"A mini-batch must be a pair (clips, labels), got {type(batch).__name__}.")
        return batch[0], batch[1]

    def _compute_loss(self, logits: Tensor, labels: Tensor, reduction: Literal["mean", "none"] = "mean") -> Tensor:
        if self.loss == "bce":
            losses = F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction=reduction)
            return losses if reduction == "mean" else losses.mean(dim=1)
        if self.training and self._are_probabilities(labels, logits.shape):
            dtype = torch.promote_types(logits.dtype, labels.dtype)
            return F.cross_entropy(logits.to(dtype), labels.to(dtype), label_smoothing=self.label_smoothing)
        if labels.shape != logits.shape[:1] or labels.is_floating_point():
            raise ValueError(
                f"Labels of shape {tuple(labels.shape)} and {labels.dtype} must be {len(logits)} class indices for "
                "`loss='cross_entropy'`, or in training probabilities of the classes, which sum to 1. Use `loss='bce'` "
                "for several labels per clip."
            )
        # Unchecked, a wrong label would fail an assertion of CUDA, which names nothing and ends the process.
        if self._checks(labels) and ((labels < 0) | (labels >= self.num_classes)).any():
            raise ValueError(
                f"Labels from {int(labels.min())} to {int(labels.max())} must be in [0, {self.num_classes}) for "
                f"`num_classes={self.num_classes}`. Number the classes from 0, or raise `num_classes`."
            )
        return F.cross_entropy(logits, labels, label_smoothing=self.label_smoothing, reduction=reduction)

    def _are_probabilities(self, labels: Tensor, shape: torch.Size) -> bool:
        if not labels.is_floating_point() or labels.shape != shape:
            return False
        return not self._checks(labels) or bool(torch.isclose(labels.sum(dim=1), labels.new_ones(()), atol=1e-2).all())

    def _checks(self, labels: Tensor) -> bool:
        """Whether to look at the values of labels. This waits for a GPU, so training does it for its first step."""
        return not (labels.is_cuda and self.training and self.global_step)

    def _probabilities(self, logits: Tensor) -> Tensor:
        # In single precision: half precision rounds different scores to equal ones.
        logits = logits.float()
        return logits.sigmoid() if self.loss == "bce" else logits.softmax(dim=-1)

    def _new_metrics(self, prefix: str) -> MetricCollection:
        metrics: dict[str, Metric | MetricCollection] = {"loss": VideoMean()}
        if self.loss == "bce":
            metrics["map"] = MeanAveragePrecision()
        else:
            metrics["top1"] = VideoAccuracy()
            if self.num_classes > 5:
                metrics["top5"] = VideoAccuracy(top_k=5)
        # torchmetrics would take metrics whose first rows are equal for one.
        return MetricCollection(metrics, prefix=prefix, compute_groups=False)


def layer_scales(model: nn.Module, decay: float) -> dict[str, float]:
    """Returns the LR's factor of each parameter: `decay` to the power of the blocks after it, and the head is one.

    The blocks are those of the list, or `nn.Sequential`, that holds most parameters. What the model registers before
    them is the embedding; what it registers after them is the head.

    >>> layer_scales(nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)), decay=0.5)
    {'0.weight': 0.25, '1.weight': 0.5}
    """
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    if decay == 1:
        return dict.fromkeys(sizes, 1.0)
    held: Counter[str] = Counter()
    for name, size in sizes.items():
        held.update({name[: number.start()]: size for number in re.finditer(r"(?<![^.])\d+\.", name)})
    if not held:
        raise ValueError(
            f"`layer_decay={decay}` needs a list of blocks, and {type(model).__name__} has none. Leave it out."
        )
    blocks, depth, depths = re.escape(held.most_common(1)[0][0]), 0.0, dict[str, float]()
    for name in sizes:
        block = re.match(rf"{blocks}(\d+)\.", name)
        depths[name] = depth = int(block[1]) + 1 if block else math.inf if depth else 0
    last = 1 + max(depth for depth in depths.values() if depth < math.inf)
    return {name: decay ** max(0, last - depth) for name, depth in depths.items()}


def _check_schedule(schedule: str, milestones: Sequence[float], gamma: float, warmup_epochs: float) -> None:
    require(schedule in ("steps", "cosine", "constant"), "schedule", schedule, "'steps', 'cosine' or 'constant'")
    require(gamma > 0, "gamma", gamma, "above 0")
    require(warmup_epochs >= 0, "warmup_epochs", warmup_epochs, "at least 0")
    increasing = all(earlier < later for earlier, later in pairwise((0, *milestones)))
    require(increasing, "milestones", list(milestones), "above 0 and increasing")
    if (schedule == "steps") != bool(milestones):
        given = f"{schedule!r} and {list(milestones)}"
        raise ValueError(f"`schedule='steps'` and `milestones` belong together, got {given}. Give both, or neither.")
    if milestones and warmup_epochs >= milestones[0]:
        raise ValueError(
            f"`warmup_epochs={warmup_epochs}` must be below the first of `milestones={list(milestones)}`. "
            "Shorten the warm-up."
        )
