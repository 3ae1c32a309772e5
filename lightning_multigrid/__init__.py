"""Multigrid training of video models (Wu et al., CVPR 2020) for PyTorch Lightning."""

from lightning_multigrid.callback import MultigridCallback as MultigridCallback

__version__ = "0.1.0.dev0"
