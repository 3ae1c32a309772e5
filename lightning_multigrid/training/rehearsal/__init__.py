"""The grids are tried on a script before its first step. Begin with `check_grids.py`, which has the order of things."""
