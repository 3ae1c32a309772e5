"""The LR of a step: the script's schedulers at the baseline's epochs, times the scale of the phase.

Begin with `baseline_lr.py`. `lr_in_step.py` applies the scale within `Optimizer.step`.
"""
