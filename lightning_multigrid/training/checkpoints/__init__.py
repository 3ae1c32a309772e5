"""Checkpoints: where a run continues one, the newest one for `ckpt_path="last"`, and files that are whole or absent.

Begin with `continuation.py`.
"""
