"""The grids are tried on a script before its first step: is each one taken, and does it mean the same there?

Begin with `check_grids.py`, which has the order of things. `trial.py` runs a step and notes what is seen: of
mini-batches that `batches.py` makes of a sample and its variations, on copies of the module by `copies.py`. `rules.py`
and `counted.py` judge what was seen. Each of these imports only those that are named after it.
"""
