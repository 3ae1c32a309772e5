"""Random clips of videos for training, and fixed views of them for testing.

It brings the request of `loading` and the grid of `schedule` together with `sources`, `decode` and `pixels`; it does
not import Lightning. Begin with `sampling.py` (which frames and pixels a clip gets), then `video_dataset.py` and
`views.py`; `orders.py` is only for repeated augmentation and for classes of unequal size.
"""

from lightning_multigrid.clips.batch import BrokenVideo, Clip, ClipBatch, collate_clips
from lightning_multigrid.clips.orders import balance_sampler, repeat_sampler
from lightning_multigrid.clips.sampling import ClipSampling
from lightning_multigrid.clips.video_dataset import VideoDataset, ViewDataset
from lightning_multigrid.clips.views import CENTRE, VideoBatch, Views, collate_views, cut_out

__all__ = ["CENTRE", "BrokenVideo", "Clip", "ClipBatch", "ClipSampling", "VideoBatch", "VideoDataset"]
__all__ += ["ViewDataset", "Views", "balance_sampler", "collate_clips", "collate_views", "cut_out", "repeat_sampler"]
