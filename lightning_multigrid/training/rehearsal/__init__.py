"""The grids are tried on a script before its first step: is each one taken, and does it mean the same there?

Begin with `check_grids.py`, which has the order of things. `trial.py` runs a step on a copy of the module, by
`copies.py`, and notes what is seen; `batches.py` makes its mini-batch of a sample of the dataset. `rules.py` and
`counted.py` judge. Each of these imports only those that are named after it.
"""
