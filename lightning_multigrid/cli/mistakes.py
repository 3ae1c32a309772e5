"""Mistakes on the command line: which name was meant, keys that a config says twice, files that are not checkpoints."""

import os
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from inspect import signature
from itertools import chain
from pathlib import Path
from pydoc import locate
from typing import Any

import yaml
from jsonargparse import ArgumentError, ArgumentParser
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_multigrid.cli.terminal import say
from lightning_multigrid.training import FROM_WEIGHTS, AtomicCheckpointIO

_OF_STRATEGIES = (".metadata", "meta.pt", "latest", "checkpoint")  # in the folders that FSDP and DeepSpeed write
TRAIN_FROM_IT = f"To train from its weights as far as they fit, leave `--ckpt_path` out and give {FROM_WEIGHTS}."


@contextmanager
def told(parser: ArgumentParser, words: Sequence[str]) -> Iterator[None]:
    """Makes the errors of a parser of command-line `words` end with the names that are nearest to unknown ones."""
    try:
        yield
    except ArgumentError as error:
        known = {"class_path", "init_args", "dict_kwargs", "config"}
        known.update(*(option.split(".") for option in parser.get_defaults().keys()))  # noqa: SIM118, a Namespace
        options = [word[2:].partition("=") for word in words if word.startswith("--")]
        typed = {part for name, _, _ in options for part in name.split(".")}
        for config in (value for name, _, value in options if name == "config"):
            with suppress(OSError, ValueError, yaml.YAMLError):
                _collect(yaml.safe_load(Path(config).read_text("utf-8")), typed, known)
        near = (get_close_matches(name, known, n=1) for name in sorted(typed - known))
        raise ArgumentError(None, f"{error}{_meant(chain.from_iterable(near))}") from error


def _collect(value: Any, typed: set[str], known: set[str]) -> None:
    for entry in value if isinstance(value, list) else [value]:
        if isinstance(entry, dict):
            typed.update(map(str, entry))
            module, _, name = str(entry.get("class_path", "")).rpartition(".")
            with suppress(Exception):  # it can't be imported, or has no signature, as jsonargparse says
                known.update(dir(locate(module)) if module else ())
                typed.update([name] if module else ())
                known.update(signature(locate(f"{module}.{name}")).parameters)  # type: ignore[arg-type]
            for held in entry.values():
                _collect(held, typed, known)


class _EachKeyOnce(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """Refuses a mapping that has a key twice: YAML readers take the last one, silently."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in lines and name != "<<":  # more than one of these may be merged
                raise ValueError(
                    f"has `{name}` twice, in lines {lines[name]} and {line}, and only the last would count. Put "
                    "both under one key."
                )
            lines[name] = line
        return node


def refuse_other_texts(config: str) -> None:
    """Refuses a config that is not YAML in UTF-8, or says a key twice."""
    if not os.path.isfile(config):  # jsonargparse says it, or reads it as the text of a config
        return
    try:
        yaml.compose(Path(config).read_text("utf-8"), Loader=_EachKeyOnce)
    except UnicodeDecodeError as error:
        what = f"{config} is not text in UTF-8: it has another byte at {error.start}. Save it as UTF-8."
        raise ArgumentError(None, what) from error
    except yaml.YAMLError as error:
        raise ArgumentError(None, f"{config} is not YAML: {' '.join(str(error).split())}") from error
    except ValueError as error:
        raise ArgumentError(None, f"{config} {error}") from error


def refuse_other_commands(word: str, names: Sequence[str]) -> None:
    """Refuses a first word of the command line that is not a command, and says which is nearest."""
    if word not in names:
        near = _meant(get_close_matches(word.lower(), names, n=1))
        raise ArgumentError(None, f"`{word}` is not a command. There are {', '.join(names)}.{near}")


def _meant(names: Iterable[str]) -> str:
    quoted = [f"`{name}`" for name in dict.fromkeys(names)]
    return f"\nDid you mean {' or '.join(quoted)}?" if quoted else ""


def refuse_other_files(given: str) -> None:
    """Refuses a `--ckpt_path` that is missing, or that no training has written, before Lightning reads it."""
    if re.fullmatch("last|hpc|(?i:registry)(:.*)?|.*://.*", given):  # words of Lightning, and URLs
        return
    path = Path(given).expanduser()  # as Lightning reads it
    if not given or not path.exists():
        where = f"{path.absolute()}; `best` is known only while it trains"
        raise ValueError(f"`--ckpt_path {given}` is not there ({where}). Give a checkpoint of `fit`, or `last`.")
    if path.is_dir():
        if any((path / name).exists() for name in _OF_STRATEGIES):
            return
        files = sorted(path.glob("*.ckpt"), key=lambda file: file.stat().st_mtime)
        newest = f", such as {files[-1]}" if files else ""
        raise ValueError(f"`--ckpt_path {given}` is a folder. Give a checkpoint of `fit`{newest}, or `last`.")
    found = None
    with suppress(RuntimeError):  # torch's, of other archives
        if zipfile.is_zipfile(path):  # torch writes archives, whose end says what is in them
            found = AtomicCheckpointIO().load_checkpoint(path, "meta")  # type: ignore[arg-type]
    if found is None:
        what = "is not a checkpoint, or only a part of one"
        raise ValueError(f"`--ckpt_path {given}` {what}. Give a checkpoint of `fit`, or `last`.")
    if missing := [name for name in ("state_dict", "pytorch-lightning_version") if name not in found]:
        what = f"is not a checkpoint of Lightning: it has no `{missing[0]}`"
        raise ValueError(f"`--ckpt_path {given}` {what}. {TRAIN_FROM_IT}")


class LoadedWeights(Callback):
    """Warns if no checkpoint gives weights to what is evaluated, and refuses `last` if there is none."""

    def __init__(self, ckpt_path: str | None) -> None:
        self.given = ckpt_path

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.ckpt_path is not None:
            return
        if self.given is not None:
            raise MisconfigurationException(
                f"`--ckpt_path {self.given}` finds no checkpoint of the config's callbacks. Train first, or give one."
            )
        if trainer.is_global_zero:
            say(
                "warning: There is no `--ckpt_path`, so the weights are the untrained ones of the config's model. "
                "`PretrainedWeights` is for `fit` alone. Give `--ckpt_path FILE`, or `last`, which is what "
                "`NewestCheckpoint` has written.",
                sys.stderr,
            )

    on_test_start = on_predict_start = on_validation_start
