import importlib
import os

if "SHORT_CYCLE_OF_ANY_SIZE" in os.environ:
    # Ranks are spawned once autograd has run in threads, and do not inherit what `conftest.py` patches.
    importlib.import_module("lightning_multigrid.training.arguments").SMALLEST = 1
