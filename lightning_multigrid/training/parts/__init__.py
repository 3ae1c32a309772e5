"""What acts on the steps of a run; `run.py` says when.

`lightning_loop.py` makes Lightning follow the plan, `on_grid.py` makes a model fit the grid of a step, `patience.py`
lets `EarlyStopping` wait for the last phase, `evaluation_statistics.py` gives BatchNorm its statistics for validations,
and `reporting.py` tells of it all. `BaselineLR` is in `training/lr`.
"""
