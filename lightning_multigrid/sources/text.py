"""Text files from users and datasets: all that can be wrong with a file is a `ManifestError` that names it."""

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader, BytesIO
from typing import Any, TextIO

from lightning_multigrid.files import InputFile, is_url, read_remote, url_fault


class ManifestError(ValueError):
    """A list, a folder or an annotation file that can't be read as videos and labels."""


@contextmanager
def open_text(path: str) -> Iterator[TextIO]:
    """Opens a UTF-8 text; line ends are kept, and bytes that are not UTF-8, as in names of files."""
    if is_url(path) and (fault := url_fault(path)):
        raise ManifestError(f"{path} {fault}.")
    try:
        data = BufferedReader(BytesIO(read_remote(path))) if is_url(path) else InputFile(path).stream()
        with io.TextIOWrapper(data, "utf-8-sig", "surrogateescape", newline="") as text:
            if b"\0" in data.peek():
                what = "is not text in UTF-8, but perhaps in UTF-16: it holds zeros. Save it as UTF-8"
                raise ManifestError(f"{path} {what}.")
            yield text
    except OSError as error:
        where = "" if is_url(path) else f" (looked for in {os.path.abspath(os.curdir)})"
        raise ManifestError(f"{path} can't be read: {error.strerror}{where}.") from error


def read_text(path: str) -> str:
    """Returns the text of a file, as `open_text` opens it."""
    with open_text(path) as file:
        return file.read()


def read_json(path: str) -> Any:
    """Returns what a file of JSON holds."""
    text = read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # numbers may be too long, and brackets deeper than the stack
        raise ManifestError(f"{path} is not JSON: {error}. Download or make the file again.") from error


def csv_rows(path: str, lines: Iterable[str], separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the rows of lines that are not blank, their fields stripped, each with the number of its last line.

    Double quotes may enclose a field, and are then doubled inside; others than these are refused.
    """
    reader = csv.reader(lines, delimiter=separator, strict=True, skipinitialspace=True)
    with _csv_errors(path, reader):
        for row in reader:
            if any(fields := [field.strip(" \t") for field in row]):
                yield reader.line_num, fields


def csv_table(path: str, *required: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields the records below a header that has the `required` columns, each with the number of its last line."""
    with open_text(path) as file, _csv_errors(path, reader := csv.DictReader(file)):
        if absent := set(required).difference(reader.fieldnames or ()):
            raise ManifestError(f"{path} has no column {', '.join(sorted(absent))}. Give the official annotation file.")
        for row in reader:
            if None in row or None in row.values():  # more fields or fewer than the header has
                raise ManifestError(
                    f"{path}, line {reader.line_num}: as many fields as in the first line are required. Download the "
                    "file again."
                )
            yield reader.line_num, row


@contextmanager
def _csv_errors(path: str, reader: Any) -> Iterator[None]:
    try:
        yield
    except csv.Error as error:
        raise ManifestError(
            f"{path}, line {reader.line_num}: {error}. Check the double quotes: each is closed in its row, and one "
            "inside a quoted field is doubled."
        ) from error


def refuse_unlisted(error: OSError) -> None:
    """The `onerror` of `os.walk`."""
    raise ManifestError(f"{error.filename} can't be listed: {error.strerror}.") from error
