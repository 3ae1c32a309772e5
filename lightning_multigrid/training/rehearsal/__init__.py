"""The grids are tried on a script before its first step: is each one taken, and does it mean the same there?

Begin with `check_grids.py`, which has the order of things. `batches.py` makes mini-batches of a sample and its
variations; `copies.py` copies the module; `trial.py` runs its step and notes what is seen; `rules.py` and `counted.py`
judge that. Each of these imports only those that are named after it.
"""
