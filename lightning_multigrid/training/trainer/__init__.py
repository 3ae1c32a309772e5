"""What is done to the Trainer: `changes.py`. What is not public: `lightning_internals.py` and `torch_internals.py`."""
