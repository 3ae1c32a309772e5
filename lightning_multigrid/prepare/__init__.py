"""One pass over each video of a dataset: is it damaged, what is its frame table, and how does it decode faster.

Begin with `prepare_videos.py` (`prepare`, and the list of what it writes), then `transcode.py` (one video). `tables.py`
makes frame tables of other videos, `check_videos.py` says by them what is damaged, and `processes.py` runs all three.
"""

from lightning_multigrid.prepare.check_videos import Look, bytes_of_planes, check, kind_of, look_at
from lightning_multigrid.prepare.prepare_videos import Prepared, prepare, write_report
from lightning_multigrid.prepare.processes import TASK_SECONDS, end_with_parent, usable_cores
from lightning_multigrid.prepare.tables import index, index_in_subprocess, missing_tables, originals, tables_folder
from lightning_multigrid.prepare.transcode import Encoding, Planes

__all__ = ["TASK_SECONDS", "Encoding", "Look", "Planes", "Prepared"]
__all__ += ["bytes_of_planes", "check", "end_with_parent", "index", "index_in_subprocess", "kind_of", "look_at"]
__all__ += ["missing_tables", "originals", "prepare", "tables_folder", "usable_cores", "write_report"]
