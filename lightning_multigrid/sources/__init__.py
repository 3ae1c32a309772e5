"""Which videos there are and what they show: each dataset's official files, lists and folders, as a `Manifest`.

It opens no video. Begin with `official.py` (known datasets), or `video_list.py` (the user's own), then `manifest.py`.
`manifest_file.py` is what `prepare` writes.
"""

from lightning_multigrid.sources.builder import renamed
from lightning_multigrid.sources.manifest import Manifest, Source, VideoSource
from lightning_multigrid.sources.manifest_file import MANIFEST_NAME, prepared_manifest, save_manifest
from lightning_multigrid.sources.official import HMDB51, UCF101, Charades, Kinetics, SomethingSomething
from lightning_multigrid.sources.text import ManifestError
from lightning_multigrid.sources.told import class_sizes, shared_videos
from lightning_multigrid.sources.video_list import VideoList, holds_frames, read_classes

__all__ = ["HMDB51", "MANIFEST_NAME", "UCF101", "Charades", "Kinetics", "Manifest", "ManifestError"]
__all__ += ["SomethingSomething", "Source", "VideoList", "VideoSource"]
__all__ += ["class_sizes", "holds_frames", "prepared_manifest", "read_classes", "renamed", "save_manifest"]
__all__ += ["shared_videos"]
