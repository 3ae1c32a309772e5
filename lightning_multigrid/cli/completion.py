"""`completion`: a script with which a shell completes the command line without starting Python."""

from collections.abc import Mapping
from inspect import signature
from pathlib import Path

from jsonargparse import ArgumentParser

from lightning_multigrid.video import VideoClassifier, VideoDataModule

SHELLS = ["bash", "zsh"]


def completion_script(parsers: Mapping[str, ArgumentParser]) -> str:
    """Returns the script for bash and zsh, from the parser of each command.

    Options of the classes that nearly every config has are given as well: a parser knows those only from a config.
    """
    cases = [(":*", [*parsers, "--help", "--version"])]
    for command, parser in parsers.items():
        actions = parser._actions
        options = [option for action in actions for option in action.option_strings if option.startswith("--")]
        for part, kind in (("model", VideoClassifier), ("data", VideoDataModule)):
            if f"--{part}" in options:
                options += [f"--{part}.{name}" for name in signature(kind).parameters]
        cases.append((f"{command}:-*", options))
    cases.append(("completion:*", SHELLS))
    script = Path(__file__).with_suffix(".sh").read_text(encoding="utf-8")
    lines = (f'{pattern}) words="{" ".join(words)}" ;;' for pattern, words in cases)
    return script.replace("CASES", f"\n{8 * ' '}".join(lines))
