"""What is done to the Trainer (`changes.py`), and what is not public in Lightning and torch (the other two)."""
