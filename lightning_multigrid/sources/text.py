"""Text files that users and datasets hand us: read line by line, with errors that name the line and the way out."""

from __future__ import annotations

import csv
import json
import os
import re
import stat
from collections.abc import Iterator
from typing import Any, TextIO

from lightning_multigrid.files import PathError, quoted

__all__ = ["ManifestError", "csv_rows", "csv_table", "numbered_names", "open_text", "parse_labels", "text_lines"]

# Longer lines don't occur in any annotation file; a binary or a JSON file may be a single one of gigabytes.
_LONGEST_LINE = 2**17


class ManifestError(PathError):
    """A list, a folder or an annotation file that can't be read as videos and labels."""


def parse_labels(text: str) -> tuple[int, ...] | None:
    """Labels of a field such as `3`, `1,5` or `1;5`: none if it is empty, None if it holds anything but numbers from 0.

    >>> parse_labels("1;5"), parse_labels(""), parse_labels("run")
    ((1, 5), (), None)
    """
    if not text:
        return ()
    parts = [part.strip() for part in text.replace(";", ",").split(",")]
    # More than 18 digits are beyond any label, and `int` refuses thousands of them.
    if all(part.isascii() and part.isdecimal() and len(part) <= 18 for part in parts):
        return tuple(map(int, parts))
    return None


def open_text(path: str) -> TextIO:
    """Opens a regular file as UTF-8 text, with or without a byte order mark, line ends untouched.

    Raises:
        ManifestError: If there is no such file, or it can't be opened.
    """
    try:
        # Looked at before it is opened: to open a pipe waits for its writer.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ManifestError(f"{path} is not a file. Give the file that lists the videos.")
        return open(path, encoding="utf-8-sig", newline="")
    except FileNotFoundError as error:
        raise ManifestError(
            f"{path} does not exist (looked for in {os.path.abspath(os.curdir)}). Give the path of an existing file."
        ) from error
    except OSError as error:
        raise ManifestError(f"{path} can't be opened: {error.strerror}. Check the path and its permissions.") from error


def text_lines(path: str) -> Iterator[str]:
    """The lines of a text file with their line ends.

    Raises:
        ManifestError: If it is not UTF-8 text in lines of a sane length.
    """
    number = 0
    try:
        with open_text(path) as file:
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


def csv_rows(path: str, separator: str, *, strict: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Rows of separated values that are not blank, each with the number of its last line.

    Args:
        path: The file.
        separator: The character between fields.
        strict: Refuse text after a closing quote and a quote that is never closed, and skip spaces before a field.

    Raises:
        ManifestError: If the file can't be read as such.
    """
    reader = csv.reader(text_lines(path), delimiter=separator, strict=strict, skipinitialspace=strict)
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
    """Records of a comma-separated file with a header, each with the number of its last line.

    Args:
        path: The file.
        required: Columns that the header must have.

    Raises:
        ManifestError: If a column is missing, or a row has fewer fields than the header.
    """
    header: list[str] | None = None
    for line, row in csv_rows(path, ","):
        if header is None:
            header = [name.strip() for name in row]
            absent = [name for name in required if name not in header]
            if absent:
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
    """Names of a file that numbers them, in order: `c000 Holding some clothes`.

    Args:
        path: The file.
        number: How numbers are written, as a format.
        first: The first one.

    Raises:
        ManifestError: If there are none, or a line does not hold the number that comes next, and a name.
    """
    names: list[str] = []
    for line in filter(str.strip, text_lines(path)):
        required = number.format(first + len(names))
        given, _, name = line.strip().partition(" ")
        if given != required or not name:
            raise ManifestError(
                f"{path}: {quoted(line.strip())}, where `{required} name` is required. "
                "Give the official list of classes."
            )
        names.append(name)
    if not names:
        raise ManifestError(
            f"{path} is empty, `{number.format(first)} name` is required. Give the official list of classes."
        )
    return names


def sibling(path: str, words: str, word: str) -> str:
    """The file beside `path` in whose name `word` takes the place of one of the `words`, a regular expression."""
    folder, name = os.path.split(path)
    return os.path.join(folder, re.sub(words, word, name))


def names_in(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries)
    except OSError as error:
        raise ManifestError(
            f"{folder} can't be listed: {error.strerror}. Give the path of an existing folder."
        ) from error


def read_json(path: str) -> Any:
    with open_text(path) as file:
        try:
            return json.load(file)
        # What is wrong with the text or its encoding are ValueErrors; brackets may nest beyond the stack.
        except (ValueError, RecursionError, OSError) as error:
            raise ManifestError(f"{path} is not JSON: {error}. Download the file again.") from error
