"""What a script says, and the plan that follows from it.

Begin with `recipe.py` (the baseline), then `planning.py`. `lr_stages.py` reads schedulers, `optimizers.py` optimizers;
`refusals.py` refuses what the method can't follow.
"""
