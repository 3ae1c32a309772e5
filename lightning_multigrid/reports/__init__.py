"""What a run reports: the time left, the speed-up, the time of each grid, whether the loader is too slow.

It only watches: it imports `schedule` and `loading`, and changes nothing in the training. Begin with `run_report.py`,
where each step is noted. `step_count.py` counts what a step asks of a device.
"""

from lightning_multigrid.reports.changed_meaning import tell_changed_meaning, tell_few_steps
from lightning_multigrid.reports.figures import LRCurve, LRPoint, plan_figure, save
from lightning_multigrid.reports.run_report import ClosingWords, RunReport, step_values, ways_out
from lightning_multigrid.reports.step_count import CountedOperations, StepCount, count_step, count_training_step
from lightning_multigrid.reports.step_times import Clock

__all__ = ["Clock", "ClosingWords", "CountedOperations", "LRCurve", "LRPoint", "RunReport", "StepCount"]
__all__ += ["count_step", "count_training_step", "plan_figure", "save", "step_values", "tell_changed_meaning"]
__all__ += ["tell_few_steps", "ways_out"]
