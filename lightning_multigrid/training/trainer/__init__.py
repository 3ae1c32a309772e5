"""What is done to the Trainer, and what is not public in Lightning and torch.

`changes.py` undoes what a run changes, `added.py` adds callbacks and logged values, and `trainer_view.py` answers as a
Trainer but for its overrides. Review `lightning_internals.py` and `torch_internals.py` whenever those libraries
publish a new version.
"""
