"""One pass over each video of a dataset: is it damaged, what is its frame table, and how does it decode faster.

Begin with `prepare_videos.py` (`prepare` itself, and the list of what it writes), then `transcode.py` (one video) and
`output.py` (puts finished videos in place). `tables.py` makes the frame tables of videos that stay as they are,
`check_videos.py` only says what is damaged, and `processes.py` runs all three.
"""

from lightning_multigrid.prepare.check_videos import Finding, Look, check, look_at
from lightning_multigrid.prepare.index_before_fit import (
    index_in_subprocess,
    open_store,
    paths_without_own_table,
    tables_folder,
)
from lightning_multigrid.prepare.output import REPORT_NAME, write_report
from lightning_multigrid.prepare.prepare_videos import Summary, prepare
from lightning_multigrid.prepare.processes import TASK_SECONDS, usable_cores
from lightning_multigrid.prepare.progress import Progress, progress_bar
from lightning_multigrid.prepare.tables import Indexed, index_shown, index_videos
from lightning_multigrid.prepare.transcode import Encoding

__all__ = ["REPORT_NAME", "TASK_SECONDS", "Encoding", "Finding", "Indexed", "Look", "Progress", "Summary", "check"]
__all__ += ["index_in_subprocess", "index_shown", "index_videos", "look_at", "open_store", "paths_without_own_table"]
__all__ += ["prepare", "progress_bar", "tables_folder", "usable_cores", "write_report"]
