"""The grids are tried on a script before its first step: is each one taken, and does it mean the same there?

Begin with `check_grids.py`, which has the order of things; then `trial.py`, `copies.py`, `rules.py` and `counted.py`.
"""
