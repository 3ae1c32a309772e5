"""Re-encodes a dataset so that it decodes several times faster, and checks that every video can be read.

Begin with `prepare_videos.py` (`prepare` itself, and the list of what it writes), then `transcode.py` (one video) and
`output.py` (puts finished videos in place, journal, lock). `index_videos.py` makes their packet indices.
"""

from lightning_multigrid.prepare.check_videos import Look, check, look_at
from lightning_multigrid.prepare.prepare_videos import REPORT_NAME, Progress, Summary, prepare, write_report
from lightning_multigrid.prepare.transcode import Encoding

__all__ = ["REPORT_NAME", "Encoding", "Look", "Progress", "Summary", "check", "look_at", "prepare", "write_report"]
