"""The rows of a list of videos: CSV with or without a header, or JSON lines."""

import csv
import io
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from lightning_multigrid.files import VIDEO_SUFFIXES, quoted
from lightning_multigrid.sources.text import ManifestError, csv_rows, read_text

# The columns that hold paths and labels, in any capitals; the first of these that a header has.
_PATHS = ("path", "file_name", "filename", "filepath", "file_path", "video_path", "video", "file", "clip")
_LABELS = ("label", "labels", "class", "class_name", "category", "action")
_STRETCH = ("start", "end")
_UNLABELLED = {*_PATHS, *_STRETCH}  # a header without labels has no other columns
_SPLITS = ("split", "subset", "partition", "fold")  # columns that say which rows are of training

_SEPARATORS = "\t, ;"
_NUMBERS = re.compile(r"[0-9]{1,9}(\s*[;,]\s*[0-9]{1,9})*", re.ASCII)
_NO_UTF_8 = re.compile("[\ud800-\udfff]")  # as which `read_text` returns such bytes
_METADATA = ("metadata.csv", "metadata.jsonl")  # of a video folder of Hugging Face


class Row(NamedTuple):
    """A video of a list, from `where` ("line 3"): its labels as numbers or as names, and its stretch in seconds."""

    where: str
    path: str
    labels: list[int] | list[str]
    stretch: tuple[float, float]


def read_list(path: str, classes: Sequence[str] = (), *, multi_label: bool, folders: bool) -> list[Row]:
    """Reads the rows of a list, whose labels are all numbers or all names.

    In a list without a header, a name must follow the path of a video file, because a field may also be a part of a
    path that holds the separator. With `folders`, where paths have no suffix, names need a header. `classes` are those
    that are known; without `multi_label`, only one of them may hold a `;`.
    """
    rows: list[Row] = []
    first: Row | None = None  # with a label
    for where, named, fields in _records(path):
        error, label = _error_at(path, where), fields["label"]
        labels = _labels(error, label, classes, multi_label)
        stretch = _seconds(error, fields["start"], 0.0), _seconds(error, fields["end"], math.inf)
        row = Row(where, fields["path"], labels, stretch)
        if labels and isinstance(labels[0], str):
            sure = named or (not folders and row.path.lower().endswith(VIDEO_SUFFIXES))
            if not sure or str(label).lower().endswith(VIDEO_SUFFIXES):
                raise error(_what_label(label))
        if labels and first is None:
            first = row
        elif labels and first is not None and type(labels[0]) is not type(first.labels[0]):
            raise error(
                f"the label {quoted(str(label))} is not of the kind of {quoted(str(first.labels[0]))} in "
                f"{first.where}: labels are all numbers from 0, or all names. Correct it, or rename the classes "
                "whose names are numbers"
            )
        rows.append(row)
    return rows


def metadata_in(folder: str) -> str | None:
    """Returns the list that a video folder of Hugging Face holds: `metadata.csv` or `.jsonl`, if it has labels."""
    found = [path for name in _METADATA if os.path.isfile(path := os.path.join(folder, name))]
    if len(found) > 1:
        raise ManifestError(f"{folder} holds {' and '.join(_METADATA)}. Give one of them as the list.")
    return next((path for path in found if _has_labels(path)), None)


def _has_labels(path: str) -> bool:
    text = read_text(path)
    if path.endswith(".jsonl"):
        header = next((list(record) for _, record in _json_records(path)), [])
    else:
        header = next((row for _, row in csv_rows(path, text, _separator(text))), [])
    return _names_labels([name.lower() for name in header])


def _is_header(names: Sequence[str]) -> bool:
    """Whether a first row names columns: those of paths and of labels, or of paths and stretches alone."""
    return _names_labels(names) or (_UNLABELLED.issuperset(names) and not set(_PATHS).isdisjoint(names))


def _names_labels(header: Sequence[str]) -> bool:
    """Whether a header has a column of paths and one of labels."""
    return not any(set(names).isdisjoint(header) for names in (_PATHS, _LABELS))


def _records(path: str) -> Iterator[tuple[str, bool, dict[str, Any]]]:
    """Yields where each row is, whether its columns are named, and its path, label, start and end, or None."""
    splits: dict[str, Any] = {}
    if path.lower().endswith(".jsonl"):
        for where, record in _json_records(path):
            fields = {name.lower(): value for name, value in record.items()}
            _one_split(_error_at(path, where), fields, splits)
            yield where, True, _fields(fields)
        return
    if path.lower().endswith(".json"):
        raise ManifestError(
            f"{path} is JSON, and a list has a row for each video: `path label`, or an object of JSON with `file_name` "
            "and `label` if its name ends in `.jsonl`. Write one of these."
        )
    header: list[str] = []
    text = read_text(path)
    separator = _separator(text)
    for number, (line, row) in enumerate(csv_rows(path, text, separator)):
        where = f"line {line}"
        error = _error_at(path, where)
        while not row[-1]:  # spaces at the end of a line do not make fields
            row.pop()
        names = [name.lower() for name in row]
        if number == 0 and _is_header(names):
            header = names
            if twice := [name for name in (*_PATHS, *_LABELS, *_STRETCH) if header.count(name) > 1]:
                raise error(f"two columns are named `{twice[0]}`. Rename the one that does not count")
            if ("start" in header) != ("end" in header):
                raise error("stretches need two columns, `start` and `end`; their fields may be empty")
            continue
        if len(row) > (len(header) or 2):
            raise error(
                f"{len(row)} fields ({quoted(', '.join(row))}), as it was split at {separator!r}; "
                f"{f'{len(header)} are named' if header else '`path label` or `path` is required'}. Put a path that "
                "holds the separator in double quotes, let the first row name the columns (`path,label`, "
                "for stretches `path,label,start,end`), and read official annotation files with `Kinetics` and so on"
            )
        fields = dict(zip(header or ("path", "label"), row, strict=False))
        _one_split(error, fields, splits)
        yield where, bool(header), _fields(fields)


def _fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The path, label, start and end of a row whose columns have names; None where it has none."""
    chosen = {"path": _PATHS, "label": _LABELS, "start": ("start",), "end": ("end",)}
    found = {kind: next((fields[name] for name in names if name in fields), None) for kind, names in chosen.items()}
    return {**found, "path": found["path"] if isinstance(found["path"], str) else ""}


def _one_split(error: Callable[[str], ManifestError], fields: Mapping[str, Any], splits: dict[str, Any]) -> None:
    """Refuses a row that is of another split than those before, in a column such as `split`; `splits` has theirs."""
    for name in _SPLITS:
        if name in fields and splits.setdefault(name, fields[name]) != fields[name]:
            raise error(
                f"`{name}` is {quoted(str(fields[name]))}, and {quoted(str(splits[name]))} in a row before; all rows "
                f"would be of one split. Give a list of each split, or leave the column `{name}` out"
            )


def _json_records(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:  # numbers may be too long, and brackets deeper than the stack
            raise _error_at(path, where)(f"no JSON: {error}. Write an object of JSON on each line") from error
        if not isinstance(record, dict):
            raise _error_at(path, where)(
                f"{quoted(line.strip())} is no object of JSON. Write one with `file_name` and `label` on each line"
            )
        yield where, record


def _labels(
    error: Callable[[str], ManifestError], label: Any, classes: Sequence[str], multi_label: bool
) -> list[int] | list[str]:
    """Returns the labels of a field, or of a value of JSON."""
    if label is None or label == "":
        return []
    if isinstance(label, list):
        parts = [_labels(error, part, classes, False) for part in label]
        if any(len(part) != 1 or type(part[0]) is not type(parts[0][0]) for part in parts):
            raise error(_what_label(label))
        return [part[0] for part in parts]  # type: ignore[return-value]
    if isinstance(label, int) and not isinstance(label, bool):
        label = str(label)
    if not isinstance(label, str):
        raise error(_what_label(label))
    if _NUMBERS.fullmatch(label):
        return [int(part) for part in re.findall("[0-9]+", label)]
    if ";" in label and not multi_label and label not in classes:
        raise error(
            f"the label {quoted(label)} is several names, one is required. Pass `multi_label=True` to `VideoList`, or "
            "give it the names of the classes as `classes`, if this is one of them"
        )
    if _NO_UTF_8.search(label):
        raise error(f"the label {quoted(label)} is not in UTF-8. Save the list as UTF-8")
    between = ";" if ";" in label else ","  # names such as "Male speech, man speaking" hold a comma
    names = [name.strip() for name in label.split(between)] if multi_label and label not in classes else [label]
    if any(len(name.splitlines()) != 1 or "\0" in name or _is_number(name) for name in names):
        raise error(_what_label(label))
    return names


def is_label(name: str) -> bool:
    """Whether a list would take the name of a class for the number of one."""
    return re.fullmatch("[0-9]{1,9}", name) is not None


def _is_number(text: str) -> bool:
    """Whether it is any number, also one that is no label, or none (`nan`)."""
    with suppress(ValueError):
        float(text)
        return True
    return False


def _what_label(label: Any) -> str:
    return (
        f"the label {quoted(str(label))} is not a number from 0, several such as `1;5`, or a name behind the path of a "
        "video. Put a path that holds a separator in double quotes, let the first row name the columns (`path,label`), "
        "or use a folder per class"
    )


def _seconds(error: Callable[[str], ManifestError], moment: Any, absent: float) -> float:
    if moment is None or moment == "":
        return absent
    with suppress(ValueError, TypeError, OverflowError):
        return float(moment)
    raise error(f"the start or end {quoted(str(moment))} is no number of seconds. Write it like `12.5`")


def _error_at(path: str, where: str) -> Callable[[str], ManifestError]:
    """Returns what makes the error of a row; it is told what is wrong, then how to go on."""
    return lambda what: ManifestError(f"{path}, {where}: {what}.")


def _separator(text: str) -> str:
    """Returns the separator by which the first row names columns, or else the first that it has outside of quotes."""
    start = text.lstrip()
    for separator in _SEPARATORS:
        with suppress(csv.Error):
            row = next(csv.reader(io.StringIO(start, ""), delimiter=separator, skipinitialspace=True), [])
            if len(row) > 1 and _is_header([name.strip().lower() for name in row]):
                return separator
    first = re.sub('"[^"]*"', "quoted", text).lstrip().partition("\n")[0].strip()
    return next((separator for separator in _SEPARATORS if separator in first), ",")
