"""Mistakes on the command line, in a sentence that says what was meant.

The messages are those of jsonargparse 4.52 to 4.53 and of argparse in Python 3.10 to 3.14, which have no other way to
say which name was wrong. Where they change, errors stay as they come, and `tests/cli/test_explain.py` fails.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from inspect import signature
from pkgutil import resolve_name

from jsonargparse import ArgumentError, ArgumentParser


@contextmanager
def explained(commands: Sequence[str], parsers: Sequence[ArgumentParser]) -> Iterator[None]:
    """Within it, an error in the name of a command, an option or an argument says which one comes close."""
    try:
        yield
    except ArgumentError as error:
        raise ArgumentError(None, _explanation(str(error), commands, parsers)) from error


_NO_CONFIG = (
    "A config has to say what the model and the data are: give `--config CONFIG`. `lightning-multigrid init FOLDER` "
    "writes one for a folder of videos."
)


def _explanation(error: str, commands: Sequence[str], parsers: Sequence[ArgumentParser]) -> str:
    known: Sequence[str]
    if re.search(r"arguments are required: .*\.(model|data)\b|class_path 'lightning\.Lightning(Data)?Module'", error):
        return _NO_CONFIG
    if found := re.search(r"class_path '([\w.]+)':\s+Option '(\w+)' is not accepted", error):  # jsonargparse
        owner, word = found.groups()
        error, known = f"{owner} has no argument `{word}`.", list(signature(resolve_name(owner)).parameters)
    elif found := re.search(r"nrecognized arguments: --([\w.]+)", error):  # both
        word, known = found[1], re.findall(r"--([\w.]+)", " ".join(parser.format_help() for parser in parsers))
        error = f"There is no option `--{word}`."
    elif found := re.search(rf"invalid choice: '(\w+)' \(choose from '?{commands[0]}", error):  # argparse
        word, known = found[1], commands
        error = f"There is no command `{word}`. Commands are {', '.join(known)}."
    else:
        return error
    close = get_close_matches(word, known, 1)
    return f"{error} Did you mean `{close[0]}`?" if close else error
