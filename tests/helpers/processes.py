"""Waiting for other processes."""

import gc
import importlib
import os
import time

import torch


def wait_for(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def ddp_of_this_process():
    """Lightning's strategy with ranks that are forks, or new processes where autograd no longer works in forks."""
    return f"ddp_{start_method()}"


def start_method():
    """How to start ranks: forks spare imports, but for where autograd no longer works in them."""
    importlib.import_module("torch._dynamo")  # torch does in the first step of an optimizer; it takes seconds
    gc.collect()
    gc.freeze()  # else each fork would copy what its collector touches
    child = os.fork()
    if not child:
        try:
            (2 * torch.ones(1, requires_grad=True)).sum().backward()
        except RuntimeError:
            os._exit(1)
        os._exit(0)
    return "spawn" if os.waitpid(child, 0)[1] else "fork"
