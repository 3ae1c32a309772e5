"""A dataset made anew so that it decodes several times faster, and a check that every video can be read.

It knows `sources`, `decode` and `files`; neither grids nor Lightning. Begin with `dataset.py` (`prepare` itself), then
`transcode.py` (one video) and `output.py` (the folder that is written).
"""

from lightning_multigrid.prepare.check_videos import check
from lightning_multigrid.prepare.dataset import REPORT_NAME, Progress, Summary, prepare, write_report
from lightning_multigrid.prepare.transcode import Encoding

__all__ = ["REPORT_NAME", "Encoding", "Progress", "Summary", "check", "prepare", "write_report"]
