"""`PredictionWriter`: predictions as a table, a row per video."""

import math
import os
from collections.abc import Sequence
from typing import Any

import torch
from typing_extensions import override

from lightning_multigrid.clips import VideoBatch
from lightning_multigrid.files import at_home, require, write_csv
from lightning_multigrid.host import BasePredictionWriter, LightningModule, MisconfigurationException, Trainer, tell

Row = list[str]


def _begin(path: str, stretch: tuple[float, float]) -> Row:
    return [path, *("" if math.isinf(moment) else str(moment) for moment in stretch)]


class PredictionWriter(BasePredictionWriter):
    """Writes the most probable classes of each video to a CSV file when `trainer.predict` ends.

    The rows are `path,class_1,probability_1,class_2,...` in the order of the list; a broken video's has the path alone.
    For a list of stretches they are `path,start,end,class_1,...`, in seconds; an empty end is that of the video. A
    class is its name if the data module knows it (`VideoDataModule` does if it is given `train`), else its id. The file
    appears as a whole or not at all; with several ranks the first one writes it.

    The module's `predict_step` must return a probability for each video and class, B x C, as `VideoClassifier` does.

    Args:
        path: The file; an existing one is replaced. None means `predictions.csv` in the folder of the Trainer's logger,
            or in the current folder without one.
        top_k: Classes per video; all, if there are fewer.

    Raises:
        ValueError: If `top_k` is below 1.
        MisconfigurationException: Before the first video, if the file's folder can't be written to; later, if the data
            do not come from a `VideoDataModule`, or the predictions are not probabilities.
    """

    def __init__(self, path: str | None = None, top_k: int = 5) -> None:
        super().__init__(write_interval="batch")
        require(top_k >= 1, "top_k", top_k, "at least 1")
        self.path, self.top_k = os.path.abspath(at_home(path or "predictions.csv")), top_k
        self._beside_logs = path is None
        self._rows: dict[int, Row] = {}

    @override
    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._rows = {}
        logs = trainer.log_dir if self._beside_logs and trainer.loggers else None  # all ranks must ask
        if logs is not None:
            os.makedirs(logs, exist_ok=True)
            self.path = os.path.abspath(os.path.join(logs, "predictions.csv"))
        if os.path.isdir(self.path) or not os.access(os.path.dirname(self.path), os.W_OK | os.X_OK):
            raise MisconfigurationException(
                f"{self.path} can't be written. Give `PredictionWriter` a `path` in a folder that may be written to."
            )

    @override
    def write_on_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        prediction: Any,
        batch_indices: Sequence[int] | None,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        if not isinstance(batch, VideoBatch):
            raise MisconfigurationException(
                f"PredictionWriter is for a VideoDataModule, and got a {type(batch).__name__}. Write a callback "
                "of your own."
            )
        if prediction.ndim != 2 or len(prediction) != len(batch.paths):
            raise MisconfigurationException(
                f"`predict_step` returned {tuple(prediction.shape)} for {len(batch.paths)} videos; PredictionWriter "
                "needs a probability for each video and class."
            )
        if batch.classes and prediction.shape[1] != len(batch.classes):
            raise MisconfigurationException(
                f"The model tells {prediction.shape[1]} classes apart, but `train` has {len(batch.classes)}, so their "
                "names are not known. Leave `train` out to get class ids, or give the data that the model is for."
            )
        best = prediction.float().topk(min(self.top_k, prediction.shape[1]))
        ids, probabilities = best.indices.tolist(), best.values.tolist()
        for index, path, stretch, classes, values in zip(
            batch.indices.tolist(), batch.paths, batch.stretches, ids, probabilities, strict=True
        ):
            row = _begin(path, stretch)
            for class_id, value in zip(classes, values, strict=True):
                row += [batch.classes[class_id] if batch.classes else str(class_id), f"{value:.6g}"]
            # A video that also takes the place of broken ones still has one row.
            self._rows[index] = row
        self._rows |= {index: _begin(path, stretch) for index, (path, stretch) in batch.left_out.items()}

    @override
    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        ranks: list[dict[int, Row]] = [self._rows]
        if trainer.world_size > 1:
            ranks = [{}] * trainer.world_size
            torch.distributed.all_gather_object(ranks, self._rows)
        if trainer.is_global_zero:
            rows = {index: row for of_rank in ranks for index, row in of_rank.items()}
            columns = (max(map(len, rows.values()), default=3) - 3) // 2
            names = (f"{name}_{place + 1}" for place in range(columns) for name in ("class", "probability"))
            filled = (row + [""] * (3 + 2 * columns - len(row)) for _, row in sorted(rows.items()))
            table = [["path", "start", "end", *names], *filled]
            if all(row[1:3] == ["0.0", ""] for row in table[1:]):  # no stretches
                table = [row[:1] + row[3:] for row in table]
            write_csv(self.path, table)

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "predict":  # now that the progress bar is gone
            tell(f"Predictions: {self.path}")
