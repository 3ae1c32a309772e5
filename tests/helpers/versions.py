"""Tests of what the lowest versions of torch and Lightning can't."""

import lightning as L
import pytest
import torch

TORCH_2_6 = torch.__version__.startswith("2.6.")
not_torch_2_6 = pytest.mark.skipif(TORCH_2_6, reason="a fault of torch 2.6 itself")
from_lightning_2_6 = pytest.mark.skipif(L.__version__ < "2.6", reason="needs the defaults of Lightning 2.6")
