"""What a script says, and the plan that follows from it. Begin with `recipe.py` (the baseline), then `planning.py`."""
