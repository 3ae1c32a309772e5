"""What jsonargparse says of a mistake in a config or on the command line, without its dumps, and the name meant."""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from pydoc import locate
from textwrap import indent, shorten

import yaml
from jsonargparse import ArgumentError, ArgumentParser

# Messages of jsonargparse (4.53). Others stay as they are.
_UNION = re.compile(  # of a value that none of several types takes
    r"^(?P<margin> *)(?P<bullet>- )?Does not validate against any of the Union subtypes\n"
    r"(?P=margin)Subtypes: .*\n"
    r"(?P=margin)Errors:\n"
    r"(?P<errors>(?:(?P=margin)  .*\n|\n)+)"
    r"(?P=margin)Given value type: .*\n"
    r"(?P=margin)Given value: (?P<value>.*(?:\n(?P=margin).*)*)",
    re.MULTILINE,
)
_IN_CLASS = "Problem with given class_path "
_NO_ARGUMENT = re.compile(rf"{_IN_CLASS}'(?P<of>[\w.]+)':\n *Option '(?P<name>\w+)' is not accepted$", re.MULTILINE)
_NO_CLASS = re.compile(rf"{_IN_CLASS}'(?P<of>[\w.]+)\.(?P<name>\w+)':\n.* has no attribute '(?P=name)'$", re.MULTILINE)
_NO_MAPPING = re.compile("Unexpected config: (?P<given>.*)", re.DOTALL)
_NO_OPTION = re.compile(
    r"^(?:Option|Subcommand '\w+' does not accept option|Group '([\w.]+)' does not accept option) '([\w.]+)'"
    r"|^unrecognized arguments: --([\w.]+)"
)


@contextmanager
def told(parser: ArgumentParser) -> Iterator[None]:
    """Makes the errors of a parser say what tells a mistake, and which names of its own are nearest."""
    try:
        yield
    except ArgumentError as error:
        said = telling(str(error))
        raise ArgumentError(None, said + _meant(nearest(said, parser.get_defaults().keys()))) from error


def refuse_other_texts(config: str) -> None:
    """Refuses a config that is no YAML in UTF-8, or says a key twice: YAML readers take the last one, silently."""
    if not os.path.isfile(config):  # jsonargparse says it, or reads it as the text of a config
        return
    try:
        node = yaml.compose(Path(config).read_text("utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except UnicodeDecodeError as error:
        what = f"{config} is no text in UTF-8: it has another byte at {error.start}. Save it as UTF-8."
        raise ArgumentError(None, what) from error
    except yaml.YAMLError as error:
        raise ArgumentError(None, f"{config} is no YAML: {' '.join(str(error).split())}") from error
    nodes, seen = [node], set()
    while nodes:
        node = nodes.pop()
        if id(node) in seen or not isinstance(node, yaml.CollectionNode):  # an alias, or a leaf
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            nodes += node.value
            continue
        nodes += [value for _, value in node.value]
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            name, line = (key.tag, str(key.value)), key.start_mark.line + 1
            if name in lines and key.value != "<<":  # more than one of these may be merged
                raise ArgumentError(
                    None,
                    f"{config} has `{key.value}` twice, in lines {lines[name]} and {line}, and only the last would "
                    "count. Put what they say under one.",
                )
            lines[name] = line


def refuse_other_commands(word: str, commands: Iterable[str]) -> None:
    """Refuses a first word of the command line that is no command, and says which is nearest."""
    names = list(commands)
    if word not in names:
        near = _meant(get_close_matches(word.lower(), names, n=1))
        raise ArgumentError(None, f"`{word}` is no command. There are {', '.join(names)}.{near}")


def _meant(names: Iterable[str]) -> str:
    quoted = [f"`{name}`" for name in dict.fromkeys(names)]
    return f"\nDid you mean {' or '.join(quoted)}?" if quoted else ""


def telling(message: str) -> str:
    """Returns a message without its dumps; of the types that don't take a value, only classes that it names, if any."""
    if no_mapping := _NO_MAPPING.match(message):
        given = f"`{text}`" if (text := shorten(no_mapping["given"], 200)) else "an empty one"
        return (
            f"A config is a mapping, such as `trainer: {{max_epochs: 10}}`, got {given}. "
            "`lightning-multigrid init FOLDER` writes a first one for a folder of videos."
        )
    return _UNION.sub(_told_of_union, message).replace(":\n\n", ":\n")


def _told_of_union(union: re.Match[str]) -> str:
    lines = re.sub(f"^{union['margin']}  ", "", union["errors"], flags=re.MULTILINE)
    errors = [error.strip() for error in re.split("^- ", lines, flags=re.MULTILINE)[1:]]
    of_classes = dict.fromkeys(telling(error.replace("\n  ", "\n")) for error in errors if error.startswith(_IN_CLASS))
    lost = any("Option 'class_path'" in error for error in of_classes)  # beside a misspelled `init_args`
    if of_classes and not lost:
        said = (union["bullet"] or "") + "\n".join(of_classes)
    else:
        said = "\n".join([*(f"- {error}" for error in errors), f"Given value: {shorten(union['value'], 200)}"])
    return indent(said, union["margin"])


def nearest(message: str, options: Iterable[str]) -> Iterator[str]:
    """The accepted names that are nearest to those that a message refuses."""
    for found in _NO_ARGUMENT.finditer(message):
        with suppress(TypeError, ValueError):  # it has no signature
            yield from get_close_matches(found["name"], signature(locate(found["of"])).parameters, n=1)  # type: ignore
    for found in _NO_CLASS.finditer(message):
        yield from get_close_matches(found["name"], dir(locate(found["of"])), n=1)
    for found in _NO_OPTION.finditer(message):
        name = ".".join(filter(None, found.groups()))
        known = options if "." in name else {option.partition(".")[0] for option in options}
        yield from get_close_matches(name, known, n=1)
