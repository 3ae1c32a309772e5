"""Something-Something V2."""

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_multigrid.files import StrPath, path_argument, quoted
from lightning_multigrid.sources.builder import ManifestBuilder
from lightning_multigrid.sources.manifest import Manifest
from lightning_multigrid.sources.text import ManifestError, csv_rows, file_or, read_json, sibling


@dataclass(frozen=True)
class SomethingSomething:
    """Something-Something V2, with the new names of its files or the old ones. Sample it by segments, without flips.

    Args:
        annotations: `train.json`, `validation.json` or `test.json`, or `something-something-v2-train.json` and so on.
        videos: Folder of `<id>.webm`.
        labels_file: `labels.json`; by default the one beside `annotations`.
        answers_file: `test-answers.csv`, which holds the labels of the test split. Without it, they are unknown.
        frame_rate: Frames per second if `videos` holds folders of frames, `<id>/`, instead.
        existing_only: Leave out, and count, videos that are not on disk.
    """

    annotations: StrPath
    videos: StrPath
    labels_file: StrPath | None = None
    answers_file: StrPath | None = None
    frame_rate: float | None = None
    existing_only: bool = False

    def read(self, classes: Sequence[str] = ()) -> Manifest:
        """Reads the videos of the split; the classes are always those of the labels file.

        A `ManifestError` if a file can't be read, or a template is not among the labels.
        """
        path = path_argument("annotations", self.annotations)
        beside = sibling(path, "validation|train|test", "labels")
        labels = _label_ids(file_or(beside, "labels_file", self.labels_file))
        answers = {} if self.answers_file is None else _answers(path_argument("answers_file", self.answers_file))
        entries = read_json(path)
        if not isinstance(entries, list):
            raise ManifestError(f"{path} holds no list of videos. Give the official train, validation or test file.")
        videos, names = path_argument("videos", self.videos), sorted(labels, key=labels.__getitem__)
        builder = ManifestBuilder(
            path, videos, classes=names, frame_rate=self.frame_rate, existing_only=self.existing_only
        )
        suffix = ".webm" if self.frame_rate is None else ""
        for number, entry in enumerate(entries, start=1):
            where = f"entry {number}"
            fields = entry if isinstance(entry, dict) else {}
            video = str(fields["id"]) if isinstance(fields.get("id"), str | int) else ""
            template = fields.get("template", answers.get(video))
            if not (video.isascii() and video.isdecimal() and isinstance(template, str | None)):
                raise builder.error(where, "a number as `id` and text as `template` are needed. Give the official file")
            if template is None and answers:
                raise builder.error(where, f"no answer for video {quoted(video)}. Give the answers of this split")
            label = None if template is None else template.replace("[", "").replace("]", "")
            if label is not None and label not in labels:
                raise builder.error(where, f"{quoted(label)} is not among the {len(labels)} labels. Give `labels_file`")
            builder.add(video + suffix, [] if label is None else [labels[label]], where=where)
        return builder.build()


def _label_ids(path: str) -> dict[str, int]:
    labels = read_json(path)
    if isinstance(labels, dict) and all(isinstance(number, str | int) for number in labels.values()):
        numbers = {label: str(number) for label, number in labels.items()}
        if set(numbers.values()) == set(map(str, range(len(labels)))):
            return {label: int(number) for label, number in numbers.items()}
    raise ManifestError(f"{path} does not hold labels with the ids 0, 1, 2 and so on. Give the official labels.json.")


def _answers(path: str) -> dict[str, str]:
    answers = {}
    for line, row in csv_rows(path, ";"):
        if len(row) != 2:
            raise ManifestError(f"{path}, line {line}: {len(row)} fields, `id;label` is needed. Give test-answers.csv.")
        answers[row[0]] = row[1]
    return answers
