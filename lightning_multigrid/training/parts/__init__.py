"""The parts of a run: what each does as its steps begin and end.

Begin with `part.py`. `lightning_loop.py` makes Lightning follow the plan; `on_grid.py` makes a step fit its grid;
`validations.py` says when to validate, and `evaluation_statistics.py` with which statistics; `reporting.py` tells of it
all. `BaselineLR` is in `training/lr`.
"""
