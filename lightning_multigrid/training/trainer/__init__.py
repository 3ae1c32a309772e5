"""What is done to the Trainer, and what is not public in Lightning and torch.

`changes.py` undoes what a run changes. Review `lightning_internals.py` and `torch_internals.py` whenever those
libraries publish a new version.
"""
