"""The commands that need no Trainer: their parsers, from the options in `own_commands.yaml`."""

import os
from argparse import RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser, DefaultHelpFormatter

from lightning_multigrid.prepare import Encoding
from lightning_multigrid.sources import Source

OWN_COMMANDS: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
_TYPES = {"str": str, "str or none": str | None, "int": int, "float": float, "source": Source | None}


class _Help(RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """Keeps the lines of a description."""


def own_parser(command: str) -> ArgumentParser:
    """Returns the parser of one of `OWN_COMMANDS`."""
    words, prog = OWN_COMMANDS[command], f"lightning-multigrid {command}"
    parser = ArgumentParser(prog=prog, description=words["description"], exit_on_error=False, formatter_class=_Help)
    for name, option in words["options"].items():
        kind = {"type": _TYPES[option["type"]]} if "type" in option else {}
        parser.add_argument(name, **option | kind)
    if command == "prepare":
        parser.add_class_arguments(Encoding, instantiate=False)
    if "--workers" in words["options"]:
        parser.set_defaults(workers=count_cores())
    return parser


def count_cores() -> int:
    """Returns the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
