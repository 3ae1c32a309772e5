"""What acts on the steps of a run; `run.py` says when.

`lightning_loop.py` makes Lightning follow the plan, `on_grid.py` makes a model fit the grid of a step,
`evaluation_statistics.py` gives BatchNorm its statistics for validations, and `reporting.py` tells and logs it all.
`BaselineLR` is in `training/lr`.
"""
