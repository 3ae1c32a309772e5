"""The LR of a step: the script's schedulers at the baseline's epochs, times the scale. Begin with `baseline_lr.py`."""
