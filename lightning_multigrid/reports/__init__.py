"""What a run reports: the time left, the speed-up, the time of each grid, whether the loader is too slow.

It only watches, and changes nothing in the training. Begin with `run_report.py`, where each step is noted.
`step_times.py` measures steps, and `loader_watch.py` says what a slow loader makes of a run. `account.py` sums the
seconds of `fit`, and `comparison.py` compares whole runs.
"""

from lightning_multigrid.reports.account import CHECKPOINTS, REHEARSAL, REST, START, STATISTICS, VALIDATION, Account
from lightning_multigrid.reports.comparison import (
    BASELINE,
    MULTIGRID,
    SHORTENED,
    Comparison,
    Recorder,
    RunRecord,
    cpu_seconds,
    shorter,
)
from lightning_multigrid.reports.figures import LRPoint, comparison_figure, new_figure, plan_figure
from lightning_multigrid.reports.loader_watch import Loading, Verdict
from lightning_multigrid.reports.run_report import RunReport
from lightning_multigrid.reports.sheet import write_sheet
from lightning_multigrid.reports.step_times import Clock

__all__ = ["BASELINE", "CHECKPOINTS", "MULTIGRID", "REHEARSAL", "REST", "SHORTENED", "START", "STATISTICS"]
__all__ += ["VALIDATION", "Account", "Clock", "Comparison", "LRPoint", "Loading", "Recorder", "RunRecord"]
__all__ += ["RunReport", "Verdict"]
__all__ += ["comparison_figure", "cpu_seconds", "new_figure", "plan_figure", "shorter", "write_sheet"]
