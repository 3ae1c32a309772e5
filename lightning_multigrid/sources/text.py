"""Text files from users and datasets: read line by line, with errors that name the line and the way out."""

import csv
import json
import os
import re
from collections.abc import Iterator
from typing import Any, TextIO

from lightning_multigrid.files import StrPath, path_argument, quoted

_LONGEST_LINE = 2**17  # annotation files have no longer ones; a binary or a JSON file may be one of gigabytes


class ManifestError(ValueError):
    """A list, a folder or an annotation file that can't be read as videos and labels."""


def file_or(default: str, name: str, value: StrPath | None) -> str:
    """Returns the path given as the argument `name`; `default` if none is given."""
    return default if value is None else path_argument(name, value)


def parse_labels(text: str) -> tuple[int, ...] | None:
    """Returns the labels of a field such as `3`, `1,5` or `1;5`; None if it holds anything but whole numbers from 0."""
    if not text:
        return ()
    parts = [part.strip() for part in text.replace(";", ",").split(",")]
    # No label has more than 18 digits, and `int` refuses thousands of them.
    if all(part.isascii() and part.isdecimal() and len(part) <= 18 for part in parts):
        return tuple(map(int, parts))
    return None


def open_text(path: str, errors: str = "strict") -> TextIO:
    """Opens a regular file as UTF-8 text, with or without a byte order mark; line ends are kept."""
    if os.path.exists(path) and not os.path.isfile(path):  # to open a pipe would wait for its writer
        raise ManifestError(f"{path} is not a file. Give the file that lists the videos.")
    try:
        return open(path, encoding="utf-8-sig", errors=errors, newline="")
    except FileNotFoundError as error:
        raise ManifestError(
            f"{path} does not exist (looked for in {os.path.abspath(os.curdir)}). Give the path of an existing file."
        ) from error
    except OSError as error:
        raise ManifestError(f"{path} can't be opened: {error.strerror}. Check the path and its permissions.") from error


def text_lines(path: str, errors: str = "strict") -> Iterator[str]:
    """Yields the lines of a text file with their line ends; `errors` are those of Python's `open`."""
    number = 0
    try:
        with open_text(path, errors) as file:
            while line := file.readline(_LONGEST_LINE):
                number += 1
                if "\0" in line:
                    raise ManifestError(
                        f"{path}, line {number}: a NUL character, so this is a binary file or UTF-16. "
                        "Give a text file saved as UTF-8."
                    )
                if len(line) == _LONGEST_LINE:
                    raise ManifestError(
                        f"{path}, line {number}: {_LONGEST_LINE:,} characters or more, so this is no list of videos. "
                        "Give a text file with one video per line."
                    )
                yield line
    except UnicodeDecodeError as error:
        raise ManifestError(
            f"{path} is not UTF-8 text (byte {error.object[error.start]:#04x} after line {number}). "
            "Give a text file, saved as UTF-8."
        ) from error
    except OSError as error:
        raise ManifestError(f"{path} can't be read beyond line {number}: {error.strerror}. Check the disk.") from error


def csv_rows(path: str, separator: str, *, of_users: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Yields the rows that are not blank, each with the number of its last line.

    In those `of_users` faulty quotes are refused, and bytes that are no UTF-8 are kept: a file may have such a name.
    """
    lines, strict = text_lines(path, "surrogateescape" if of_users else "strict"), of_users
    reader = csv.reader(lines, delimiter=separator, strict=strict, skipinitialspace=strict)
    try:
        for row in reader:
            if any(row):
                yield reader.line_num, row
    except csv.Error as error:
        raise ManifestError(
            f"{path}, line {reader.line_num}: {error}. Check the double quotes: each is closed in its row, and one "
            "inside a quoted field is doubled."
        ) from error


def csv_table(path: str, required: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields the records below a header that has the `required` columns, each with the number of its last line."""
    header: list[str] | None = None
    for line, row in csv_rows(path, ","):
        if header is None:
            header = [name.strip() for name in row]
            if absent := [name for name in required if name not in header]:
                raise ManifestError(
                    f"{path}, line {line}: the columns are {quoted(','.join(header))}; {', '.join(absent)} is "
                    "required. Give the official annotation file."
                )
        elif len(row) != len(header):
            raise ManifestError(
                f"{path}, line {line}: {len(row)} fields; {len(header)} are required, as in the first line. "
                "Download the file again, or repair the line."
            )
        else:
            yield line, dict(zip(header, row, strict=True))


def numbered_names(path: str, number: str, first: int) -> list[str]:
    """Returns the names that a file numbers from `first` on: `c000 Holding some clothes` if `number` is `c{:03d}`."""
    names: list[str] = []
    for line in filter(None, map(str.strip, text_lines(path))):
        required = number.format(first + len(names))
        given, _, name = line.partition(" ")
        if given != required or not name:
            raise ManifestError(f"{path}: {quoted(line)}, where `{required} name` is required. Give the official list.")
        names.append(name)
    if not names:
        raise ManifestError(f"{path} is empty, `{number.format(first)} name` is required. Give the official list.")
    return names


def sibling(path: str, words: str, word: str) -> str:
    """Returns the path beside `path` with `word` in place of one of the `words` (a regular expression) in its name."""
    folder, name = os.path.split(path)
    return os.path.join(folder, re.sub(words, word, name))


def names_in(folder: str) -> list[str]:
    """Names of what a folder holds, sorted."""
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        message = f"{folder} can't be listed: {error.strerror}. Give the path of an existing folder."
        raise ManifestError(message) from error


def read_json(path: str) -> Any:
    """What a JSON file holds."""
    with open_text(path) as file:
        try:
            return json.load(file)
        except OSError as error:
            raise ManifestError(f"{path} can't be read: {error.strerror}. Check the disk.") from error
        # Mistakes in the text or its encoding are ValueErrors; brackets may be nested deeper than the stack.
        except (ValueError, RecursionError) as error:
            raise ManifestError(f"{path} is not JSON: {error}. Download the file again.") from error
