"""Checkpoints: where a run continues one (begin with `continuation.py`), the newest one, and files that are whole."""
