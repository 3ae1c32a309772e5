"""Mistakes on the command line: which name was meant, and keys that a config says twice. jsonargparse says the rest."""

import os
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
    """Adds the names in a config, and those of its classes' arguments and of what their modules hold."""
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


def refuse_other_commands(word: str, commands: Iterable[str]) -> None:
    """Refuses a first word of the command line that is not a command, and says which is nearest."""
    names = list(commands)
    if word not in names:
        near = _meant(get_close_matches(word.lower(), names, n=1))
        raise ArgumentError(None, f"`{word}` is not a command. There are {', '.join(names)}.{near}")


def _meant(names: Iterable[str]) -> str:
    quoted = [f"`{name}`" for name in dict.fromkeys(names)]
    return f"\nDid you mean {' or '.join(quoted)}?" if quoted else ""
