"""The grids are tried on a script before its first step: is each one taken, and does it mean the same there?

Begin with `check_grids.py`, which has the order of things. `trial.py` notes what is seen of a dry step on a clone of
the module; `copies.py` makes the clone, also for `precise_bn_batches`. `rules.py` and `counted.py` judge. Each of these
imports only those that are named after it.
"""
