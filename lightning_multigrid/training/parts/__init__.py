"""What acts on the steps of a run; `run.py` says when. Another such part, `BaselineLR`, is in `training/lr`."""
