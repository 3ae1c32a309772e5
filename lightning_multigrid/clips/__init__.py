"""Random clips of videos for training, and fixed views of them for testing.

It brings the request of `loading` and the grid of `schedule` together with `sources`, `decode` and `pixels`; it does
not import Lightning. Begin with `sampling.py` (which frames and pixels a clip gets), then `video_dataset.py` and
`views.py`; `repeats.py` is only for repeated augmentation, `rounds.py` for evaluation on several devices.
"""

from lightning_multigrid.clips.batch import BrokenVideo, ClipBatch, PixelBatch, collate_clips
from lightning_multigrid.clips.repeats import RepeatedOrder, RepeatSampler
from lightning_multigrid.clips.rounds import Rounds
from lightning_multigrid.clips.sampling import ClipSampling
from lightning_multigrid.clips.video_dataset import VideoDataset, ViewDataset
from lightning_multigrid.clips.views import CENTRE, VideoBatch, ViewBatch, Views, collate_views

__all__ = ["CENTRE", "BrokenVideo", "ClipBatch", "ClipSampling", "PixelBatch", "RepeatSampler", "RepeatedOrder"]
__all__ += ["Rounds", "VideoBatch", "VideoDataset", "ViewBatch", "ViewDataset", "Views", "collate_clips"]
__all__ += ["collate_views"]
