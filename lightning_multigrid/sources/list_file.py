"""The rows of a list of videos: CSV with or without a header."""

import csv
import io
import math
import os
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

from lightning_multigrid.files import VIDEO_SUFFIXES, quoted
from lightning_multigrid.sources.text import ManifestError, csv_rows, open_text

# The columns that hold paths, labels and so on, in any capitals; of each kind the first that a header has.
_PATHS = ("path", "file_name", "filename", "filepath", "file_path", "video_path", "video", "file", "clip")
_LABELS = ("label", "labels", "class", "class_name", "category", "action")
_COLUMNS = (_PATHS, _LABELS, ("start",), ("end",), ("spans",))
_UNLABELLED = {*_PATHS, "start", "end"}  # a header without labels has no other columns
_STARTS, _ENDS = (re.compile(f"^({words})|({words})$") for words in ("start|begin", "end|stop"))  # names of times
_SPLITS = ("split", "subset", "partition", "fold")  # columns that say which rows are of training

_SEPARATORS = "\t, ;|"
_NUMBER = re.compile("[0-9]{1,9}", re.ASCII)
_NUMBERS = re.compile(r"[0-9]{1,9}(\s*[;,]\s*[0-9]{1,9})*", re.ASCII)
_NO_UTF_8 = re.compile("[\ud800-\udfff]")  # as which `open_text` reads such bytes
_METADATA = ("metadata.csv", "metadata.jsonl")  # of a video folder of Hugging Face; the second is refused
_HEAD = 1 << 16  # characters by which the separator is found
WHOLE = 0.0, math.inf
_Error = Callable[[str], ManifestError]  # of a row: it is given what is wrong, then how to go on


class Row(NamedTuple):
    """A video of a list as it stands in a `line`; what it lacks is empty."""

    line: int
    path: str
    label: str
    start: str
    end: str
    spans: str


class ListFile:
    """A list of videos, whose rows may be read once, until `close`.

    Attributes:
        columns: Their names, in small letters; empty if they have none.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.columns: list[str] = []
        if path.lower().endswith((".json", ".jsonl")):
            raise ManifestError(
                f"{path} is JSON, and a list is a CSV with a row for each video, such as `path,label`. Write one, for "
                f"instance with pandas: `pandas.read_json(path{', lines=True' if path.lower().endswith('l') else ''})"
                ".to_csv('list.csv', index=False)`. `SomethingSomething` reads its official files."
            )
        self._rows = self._read()
        self._first = next(self._rows, None)  # by now, the names of the columns are read

    def __iter__(self) -> Iterator[Row]:
        return chain([] if self._first is None else [self._first], self._rows)

    def close(self) -> None:
        self._rows.close()

    def error(self, line: int, what: str) -> ManifestError:
        return ManifestError(f"{self.path}, line {line}: {what}.")

    def _read(self) -> Generator[Row, None, None]:
        with open_text(self.path) as file:
            head = file.read(_HEAD)
            separator = _separator(head)
            lines = chain(io.StringIO(head + file.readline(), newline=""), file)
            width, chosen, splits = 2, itemgetter(0, 1, 2, 2, 2), dict[str, str]()
            of_splits: list[int] = []
            for number, (line, row) in enumerate(csv_rows(self.path, lines, separator)):
                while not row[-1]:  # spaces at the end of a line do not make fields
                    row.pop()
                if number == 0 and _is_header(names := [name.lower() for name in row]):
                    self.columns, width = names, len(names)
                    self._check_columns(line)
                    places = (next((names.index(n) for n in kind if n in names), width) for kind in _COLUMNS)
                    chosen = itemgetter(*places)
                    of_splits = [names.index(name) for name in _SPLITS if name in names]
                    continue
                if len(row) > width:
                    raise self._too_wide(line, row, separator)
                row += [""] * (width + 1 - len(row))
                for place in of_splits:
                    self._check_split(line, self.columns[place], row[place], splits)
                yield Row(line, *chosen(row))

    def _check_columns(self, line: int) -> None:
        if twice := [name for name in chain(*_COLUMNS) if self.columns.count(name) > 1]:
            raise self.error(line, f"two columns are named `{twice[0]}`. Rename the one that does not count")
        if ("start" in self.columns) != ("end" in self.columns):
            raise self.error(line, "stretches need two columns, `start` and `end`; their fields may be empty")
        times = [name for name in self.columns if _STARTS.search(name) or _ENDS.search(name)]
        if "start" not in self.columns and any(map(_STARTS.search, times)):
            raise self.error(
                line,
                f"`{times[0]}` may say where a stretch begins or ends, and only `start` and `end`, in seconds, do. "
                f"Rename {' and '.join(f'`{name}`' for name in times)}, or leave them out if a row is a whole video",
            )

    def _check_split(self, line: int, name: str, value: str, splits: dict[str, str]) -> None:
        if splits.setdefault(name, value) != value:
            raise self.error(
                line,
                f"`{name}` is {quoted(value)}, and {quoted(splits[name])} in a row before; all rows would be of one "
                f"split. Give a list of each split, or leave the column `{name}` out",
            )

    def _too_wide(self, line: int, row: Sequence[str], separator: str) -> ManifestError:
        named = f"{len(self.columns)} are named" if self.columns else "`path label` or `path` is required"
        if not self.columns:
            named += f"; a header needs a column {', '.join(_PATHS[:3])} ... and one {', '.join(_LABELS[:3])} ..."
        return self.error(
            line,
            f"{len(row)} fields ({quoted(', '.join(row))}), as it was split at {separator!r}; {named}. Put a path that "
            "holds the separator in double quotes, let the first row name the columns (`path,label`, for stretches "
            "`path,label,start,end`), and read official annotation files with `Kinetics` and so on",
        )


class Labels:
    """Makes numbers of the labels of a list, row by row: they are all numbers from 0, or all names of classes.

    In a list without a header, a name must follow the path of a video file, because a field may also be a part of a
    path that holds the separator. With `folders`, where paths have no suffix, names need a header.

    `classes` are those that are known, in the order of their numbers; `counted` says whether the numbers of the list
    count these, or perhaps others than those of training. Without `multi_label` only a name of `classes` may hold a
    `;`. `ids` are the numbers of the classes, new ones in the order in which they came.
    """

    def __init__(
        self, rows: ListFile, classes: Sequence[str], *, counted: bool, multi_label: bool, folders: bool
    ) -> None:
        self._known, self._multi_label, self._rows, self._folders = bool(classes), multi_label, rows, folders
        self.ids = {name: number for number, name in enumerate(classes)}
        self._numbered = {int(name): name for name in classes if not counted and _NUMBER.fullmatch(name)}
        self._first: tuple[int, str, type] | None = None  # line, label and kind of the first

    def of(self, row: Row) -> list[int]:
        line, path, label, *_ = row
        if not label:
            return []
        error = partial(self._rows.error, line)
        labels = self._read(label, error)
        self._first = self._first or (line, label, type(labels[0]))
        if type(labels[0]) is not self._first[2]:
            raise error(
                f"the label {quoted(label)} is not of the kind of {quoted(self._first[1])} in line {self._first[0]}: "
                "labels are all numbers from 0, or all names. Correct it, or rename the classes whose names are "
                "numbers"
            )
        unsure = isinstance(labels[0], str) and not self._rows.columns
        if unsure and (self._folders or not path.lower().endswith(VIDEO_SUFFIXES)):
            raise self._no_label(label, error)
        return [self._number(label, error) for label in labels]

    def _number(self, label: int | str, error: _Error) -> int:
        if isinstance(label, str):
            if label not in self.ids and self._known:
                first = next(iter(self.ids))
                raise error(
                    f"{quoted(label)} is not among the {len(self.ids):,} classes, such as {quoted(first)}. Correct it, "
                    "give the training split a video of it, or name all classes in a file for `classes` of `VideoList`"
                )
            return self.ids.setdefault(label, len(self.ids))
        if (name := self._numbered.get(label)) is not None and self.ids[name] != label:
            raise error(
                f"the label {label} may be the class {quoted(name)} of training or its class {label}, counted from 0. "
                "Give the `VideoList` of this list the `classes` that its numbers count"
            )
        return label

    def _read(self, label: str, error: _Error) -> Sequence[int | str]:
        if _NUMBERS.fullmatch(label):
            return [int(part) for part in re.findall("[0-9]+", label)]
        if label in self.ids:  # known, or judged in a row before
            return [label]
        if ";" in label and not self._multi_label:
            raise error(
                f"the label {quoted(label)} is several names, one is required. Pass `multi_label=True` to `VideoList`, "
                "in a config as docs/dataset.md shows, or give it the names of the classes as `classes`, if this is "
                "one of them"
            )
        if _NO_UTF_8.search(label):
            raise error(f"the label {quoted(label)} is not in UTF-8. Save the list as UTF-8")
        between = ";" if ";" in label else ","  # names such as "Male speech, man speaking" hold a comma
        names = [name.strip() for name in label.split(between)] if self._multi_label else [label]
        if len(names) > 1 and between == "," and not (self._known and self.ids.keys() >= {*names}):
            raise error(
                f"the label {quoted(label)} may be several names, or one that holds a comma. Part names by `;`, or "
                "give `VideoList` all names as `classes`"
            )
        unlike = any(len(name.splitlines()) != 1 or _is_number(name) for name in names)
        if unlike or label.lower().endswith(VIDEO_SUFFIXES):
            raise self._no_label(label, error)
        return names

    def _no_label(self, label: str, error: _Error) -> ManifestError:
        return error(
            f"the label {quoted(label)} is not a number from 0, several such as `1;5`, or a name after the path "
            "of a video. Put a path that holds a separator in double quotes, let the first row name the columns "
            "(`path,label`), or use a folder per class"
        )


def times(rows: ListFile, row: Row) -> tuple[tuple[float, float], list[tuple[float, float]]]:
    """The stretch of a row, in seconds of its video, and the span of each label; none if labels hold for all of it."""
    line, _, _, start, end, spans = row
    if start == end == spans == "":
        return WHOLE, []
    stretch = []
    for moment, absent in zip((start, end), WHOLE, strict=True):
        try:
            stretch.append(absent if moment == "" else float(moment))
        except ValueError:
            said = f"the start or end {quoted(moment)} is not a number of seconds. Write it like `12.5`"
            raise rows.error(line, said) from None
    try:
        pairs = [(float(low), float(high)) for low, high in map(str.split, spans.split(";"))] if spans else []
    except ValueError:
        said = f"the spans {quoted(spans)} are not the start and the end of each label in seconds"
        raise rows.error(line, f"{said}. Write them like `1.5 3;0 12.25`") from None
    return (stretch[0], stretch[1]), pairs


def metadata_in(folder: str) -> str | None:
    """Returns the list that a video folder of Hugging Face holds, `metadata.csv`, if it has labels."""
    for path in filter(os.path.isfile, (os.path.join(folder, name) for name in _METADATA)):
        with closing(ListFile(path)) as rows:
            if _names_labels(rows.columns):
                return path
    return None


def _is_header(names: Sequence[str]) -> bool:
    return _names_labels(names) or (_UNLABELLED.issuperset(names) and not set(_PATHS).isdisjoint(names))


def _names_labels(header: Sequence[str]) -> bool:
    return not any(set(names).isdisjoint(header) for names in (_PATHS, _LABELS))


def _is_number(text: str) -> bool:
    """Whether it is any number, also one that is not a label, or not a number (`nan`)."""
    with suppress(ValueError):
        float(text)
        return True
    return False


def _separator(text: str) -> str:
    """Returns the separator by which the first row names columns, or else the first that it has outside of quotes."""
    start = text.lstrip()
    for separator in _SEPARATORS:
        with suppress(csv.Error):
            row = next(csv.reader(io.StringIO(start, ""), delimiter=separator, skipinitialspace=True), [])
            if len(row) > 1 and _is_header([name.strip().lower() for name in row]):
                return separator
    first = re.sub('"[^"]*"', "quoted", text).lstrip().partition("\n")[0].strip()
    found = next((separator for separator in _SEPARATORS if separator in first), ",")
    return found if found != "|" or first.partition("|")[0].lower().endswith(VIDEO_SUFFIXES) else ","
