"""The LR of a step: the script's schedulers on the baseline's clock, times the scale of the phase.

Begin with `baseline_lr.py`. `lr_in_step.py` applies the scale within `Optimizer.step`; `scheduler_calls.py` is for
manual optimization.
"""
