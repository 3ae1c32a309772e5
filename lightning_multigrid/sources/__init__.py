"""Which videos there are and what they show: each dataset's official files, lists and folders, as a `Manifest`.

It opens no video. Begin with `official.py` (known datasets), or `video_list.py` (the user's own), then `manifest.py`.
"""

from lightning_multigrid.sources.manifest import Manifest, Source, VideoSource, class_sizes, shared_videos
from lightning_multigrid.sources.official import HMDB51, UCF101, Charades, Kinetics, SomethingSomething
from lightning_multigrid.sources.text import ManifestError
from lightning_multigrid.sources.video_list import VideoList, holds_frames, read_classes, save_list

__all__ = ["HMDB51", "UCF101", "Charades", "Kinetics", "Manifest", "ManifestError", "SomethingSomething", "Source"]
__all__ += ["VideoList", "VideoSource", "class_sizes", "holds_frames", "read_classes", "save_list", "shared_videos"]
