"""Mistakes on the command line, in a sentence that says what was meant."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from inspect import signature
from pkgutil import resolve_name

from jsonargparse import ArgumentError, ArgumentParser

from lightning_multigrid.cli.own_commands import OWN_COMMANDS


@contextmanager
def explained(*parsers: ArgumentParser) -> Iterator[None]:
    """Within it, an error in the name of a command, an option or an argument says which one comes close."""
    try:
        yield
    except ArgumentError as error:
        raise ArgumentError(None, _explanation(str(error), parsers)) from error


def _explanation(error: str, parsers: Sequence[ArgumentParser]) -> str:
    if found := re.search(r"class_path '([\w.]+)':\s+Option '(\w+)' is not accepted", error):
        owner, word = found.groups()
        error, known = f"{owner} has no argument `{word}`.", list(signature(resolve_name(owner)).parameters)
    elif found := re.search(r"nrecognized arguments: --([\w.]+)", error):
        word, known = found[1], re.findall(r"--([\w.]+)", " ".join(parser.format_help() for parser in parsers))
        error = f"There is no option `--{word}`."
    elif found := re.search(r"invalid choice: '(\w+)' \(choose from '?fit", error):
        word, known = found[1], ["fit", "validate", "test", "predict", "plan", *OWN_COMMANDS]
        error = f"There is no command `{word}`. Commands are {', '.join(known)}."
    else:
        return error
    close = get_close_matches(word, known, 1)
    return f"{error} Did you mean `{close[0]}`?" if close else error
