"""What holds in pytest and in every process that a test starts, forked or not."""

import gc
import importlib
import os

# Two test processes on two cores: more threads would only wait for each other. Processes that tests start inherit it.
# And a child that is forked after its parent computed with several threads hangs in its first such operation.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def import_lightning():
    """Also makes the default short cycle the paper's for the small clips of tests, but for the mark `smallest`."""
    gc.disable()  # it would look through all that is imported, again and again
    importlib.import_module("lightning.pytorch")  # before ours, which takes the Lightning that is there
    gc.enable()
    importlib.import_module("lightning_multigrid.training.arguments").SMALLEST = 1


if {"PYTEST_VERSION", "PYTEST_CURRENT_TEST"} <= os.environ.keys():  # a process that a test has started
    import_lightning()
