"""The public names, their arguments and the options of the command line, as text.

`python -m tests.helpers.surface > tests/repository/surface.txt` after a change that a line of the changelog tells.
"""

import inspect
from collections.abc import Iterator
from importlib import import_module

import lightning_multigrid
from lightning_multigrid.cli.commands import _OURS

# Sub-packages whose public names are named in configs and on the pages.
PACKAGES = ("models", "sources")
NAMES = {"decode": ["read_frames"], "clips": ["ClipSampling"]}


def arguments(call: object) -> str:
    """The names of arguments, those with defaults as `name=`, and keywords after a star, as in Python."""
    shown, starred = [], False
    for argument in inspect.signature(call).parameters.values():
        if argument.name in ("self", "cls"):
            continue
        if argument.kind == argument.KEYWORD_ONLY and not starred:
            starred = True
            shown.append("*")
        starred = starred or argument.kind == argument.VAR_POSITIONAL
        stars = {argument.VAR_POSITIONAL: "*", argument.VAR_KEYWORD: "**"}.get(argument.kind, "")
        shown.append(stars + argument.name + ("" if argument.default is argument.empty else f"={argument.default!r}"))
    return f"({', '.join(shown)})"


def lines_of(name: str, thing: object) -> Iterator[str]:
    """A function, or a class with the methods and properties that it defines itself, one on each line."""
    if not callable(thing) or (inspect.isclass(thing) and issubclass(thing, Exception)):
        yield name
        return
    yield name + arguments(thing)
    for attribute, value in vars(thing).items() if inspect.isclass(thing) else ():
        inner = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        if attribute.startswith("_") or getattr(inner, "__override__", False):  # hooks of Lightning and torch
            continue
        if isinstance(inner, property):
            yield f"{name}.{attribute}"
        elif inspect.isfunction(inner):
            yield f"{name}.{attribute}{arguments(inner)}"


def surface() -> str:
    """All lines, sorted within a module."""
    lines = []
    for name in lightning_multigrid.__all__:
        lines += lines_of(name, getattr(lightning_multigrid, name))
    for package in (*PACKAGES, *NAMES):
        module = import_module(f"lightning_multigrid.{package}")
        for name in NAMES.get(package, module.__all__):
            lines += lines_of(f"{package}.{name}", getattr(module, name))
    for command, function in _OURS.items():
        options = [f"--{name}" for name in inspect.signature(function).parameters if name not in ("cli", "datamodule")]
        lines.append(f"lightning-multigrid {' '.join([command, *options])}")
    return "\n".join(sorted(lines)) + "\n"


if __name__ == "__main__":
    print(surface(), end="")
