"""Ready-made Lightning modules for video: the data module, the classifier, its metrics and predictions.

They work with and without multigrid, and import all the other video sub-packages. Begin with `datamodule.py`;
`video_clips.py` is the dataset for a script's own loader.
"""

from lightning_multigrid.video.classifier import VideoClassifier
from lightning_multigrid.video.datamodule import VideoDataModule
from lightning_multigrid.video.moving_shapes import MovingShapesDataModule
from lightning_multigrid.video.prediction_writer import PredictionWriter
from lightning_multigrid.video.pretrained_weights import PretrainedWeights
from lightning_multigrid.video.video_clips import VideoClips

__all__ = ["MovingShapesDataModule", "PredictionWriter", "PretrainedWeights", "VideoClassifier", "VideoClips"]
__all__ += ["VideoDataModule"]
