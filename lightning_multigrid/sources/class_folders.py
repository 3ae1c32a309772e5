"""A folder that holds a folder per class, each with its videos, or videos without classes."""

import os
from collections.abc import Iterator, Sequence

from lightning_multigrid.files import FRAME_SUFFIXES, VIDEO_SUFFIXES, quoted
from lightning_multigrid.sources.builder import ManifestBuilder
from lightning_multigrid.sources.text import ManifestError

_SPLITS = ("train", "training", "val", "valid", "validate", "validation", "test", "testing")


class ClassFolders:
    """Lists the videos of `source`, a folder that holds a folder per class; with `frames`, a video is a folder, too.

    In a folder without folders, the videos have no labels.
    """

    def __init__(self, source: str, *, frames: bool, follow_links: bool) -> None:
        self._source = source
        self._frames = frames
        self._suffixes = FRAME_SUFFIXES if frames else VIDEO_SUFFIXES
        self._boundary = "" if follow_links else os.path.join(os.path.realpath(source), "")
        # Absolute paths, like the builder's root.
        self._folders, files = self._listing(os.path.abspath(source))
        self._flat = [] if self._folders else files
        if not self._folders and (frames or not files):
            raise ManifestError(
                f"{source} holds no folders and no videos; a folder per class is required "
                f"({os.path.join(source, 'run', 'a.mp4')}), or for prediction, videos."
            )
        self.classes = tuple(map(os.path.basename, self._folders))
        if self.classes and all(name.lower() in _SPLITS for name in self.classes):
            raise ManifestError(
                f"{source} holds a folder per split ({', '.join(self.classes)}); a folder per class is required. "
                f"Give one split: {os.path.join(source, self.classes[0])}."
            )

    def add_to(self, builder: ManifestBuilder, classes: Sequence[str]) -> None:
        """Adds all videos; `classes` are those of the training split in the order of their labels."""
        for path in self._flat:
            builder.add(path, where=path)
        labels = {name: label for label, name in enumerate(classes or self.classes)}
        for folder, name in zip(self._folders, self.classes, strict=True):
            if name not in labels:
                raise ManifestError(
                    f"{self._source} has a folder {quoted(name)}, which is not among the {len(classes):,} `classes`. "
                    "Give the classes of the training split, or move the folder away."
                )
            videos = list(self._videos(folder, {os.path.realpath(self._source)}))
            if not videos:
                kind = "folders of images" if self._frames else "videos"
                raise ManifestError(
                    f"{folder} holds no {kind} ({' '.join(sorted(self._suffixes))}); at least one per class is "
                    "required. Add some, or remove the folder."
                )
            for path in videos:
                builder.add(path, [labels[name]], where=f"class {name}")

    def _videos(self, folder: str, seen: set[str]) -> Iterator[str]:
        # Links may form a loop, so each folder is entered once per class, by the first of its names.
        real = os.path.realpath(folder)
        if real in seen:
            return
        seen.add(real)
        folders, files = self._listing(folder)
        if self._frames and files:
            yield folder
        elif not self._frames:
            yield from files
        for inner in folders:
            yield from self._videos(inner, seen)

    def _listing(self, folder: str) -> tuple[list[str], list[str]]:
        """Returns the folders in a folder, and its files with a known suffix, sorted."""
        folders, files = [], []
        try:
            entries = list(os.scandir(folder))
        except OSError as error:
            raise ManifestError(f"{folder} can't be listed: {error.strerror}. Check its permissions.") from error
        for entry in sorted((entry for entry in entries if entry.name[0] != "."), key=lambda entry: entry.name):
            link = entry.is_symlink()
            # Only a link must be looked up on the disk: the listing has the kind of all other entries.
            is_folder = os.path.isdir(entry.path) if link else entry.is_dir()
            if not is_folder and os.path.splitext(entry.name)[1].lower() not in self._suffixes:
                continue
            if link and not os.path.join(os.path.realpath(entry.path), "").startswith(self._boundary):
                raise ManifestError(
                    f"{entry.path} is a link out of {self._source}. Give the folder it leads to, or pass "
                    "`allow_outside_root=True`."
                )
            if is_folder:
                folders.append(entry.path)
            elif link or entry.is_file():
                files.append(entry.path)
        return folders, files
