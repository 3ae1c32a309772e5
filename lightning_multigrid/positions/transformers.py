"""Adapters for the video models of `transformers`."""

from __future__ import annotations

from lightning_multigrid.positions.adapters import Adapter

ADAPTERS: dict[str, Adapter] = {}
