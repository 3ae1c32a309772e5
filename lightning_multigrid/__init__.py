"""Multigrid training of video models (Wu et al., CVPR 2020) for PyTorch Lightning."""

__version__ = "0.1.0.dev0"
