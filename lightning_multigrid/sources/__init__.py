"""Which videos there are and what they show: each dataset's official files, lists and folders, as a `Manifest`.

It opens no video. Begin with the file of a dataset, or `video_list.py` for the user's own videos, then `manifest.py`.
`index_column.py` and `packed_file.py` hold the packet indices of prepared videos.
"""

from lightning_multigrid.sources.builder import renamed
from lightning_multigrid.sources.charades import Charades, FrameList
from lightning_multigrid.sources.index_column import IndexColumn
from lightning_multigrid.sources.kinetics import Kinetics
from lightning_multigrid.sources.manifest import Manifest
from lightning_multigrid.sources.packed_file import INDEX_NAME_0_2_0, MANIFEST_NAME, packed_manifest, save_manifest
from lightning_multigrid.sources.something_something import SomethingSomething
from lightning_multigrid.sources.source import Source, VideoSource
from lightning_multigrid.sources.text import ManifestError
from lightning_multigrid.sources.ucf_hmdb import HMDB51, UCF101
from lightning_multigrid.sources.video_list import VideoList, read_manifest

__all__ = ["HMDB51", "INDEX_NAME_0_2_0", "MANIFEST_NAME", "UCF101", "Charades", "FrameList", "IndexColumn", "Kinetics"]
__all__ += ["Manifest", "ManifestError", "SomethingSomething", "Source", "VideoList", "VideoSource"]
__all__ += ["packed_manifest", "read_manifest", "renamed", "save_manifest"]
