"""Broken and damaged videos: each is named once, and too many broken ones end the run."""

import math
import warnings
from collections import defaultdict
from collections.abc import Sequence

from lightning_multigrid.clips import BrokenVideo, ClipBatch
from lightning_multigrid.decode import BrokenVideosError
from lightning_multigrid.files import printable, require
from lightning_multigrid.host import Trainer

_FASTER = "Start the training again, or run `lightning-multigrid index` or `prepare`: they make what is missing."


class BrokenVideoWarning(UserWarning):
    """Names a video that can't be read; once for each."""


class DamagedVideoWarning(UserWarning):
    """Names a damaged video whose clips are used anyway; once for each."""


class SlowVideoWarning(UserWarning):
    """Names a video whose clips are read slowly in training; once for each reason."""


def warn_of(video: BrokenVideo, fate: str, stacklevel: int) -> None:
    """Warns of a broken, damaged or slow video; `fate` says what becomes of a broken one."""
    path, reason = printable(video.path), printable(video.reason)
    kind: type[UserWarning]
    if video.slow:
        text, kind = f"{path} {reason}, so clips are read from its beginning. {_FASTER}", SlowVideoWarning
    elif video.used_anyway:
        text = f"{path}: {reason}, as far as it was read. Its frames are used as FFmpeg decodes them."
        text, kind = f"{text} `check` names all damage.", DamagedVideoWarning
    else:
        text, kind = f"Cannot read {path}: {reason}. {fate}", BrokenVideoWarning
    warnings.warn(text, kind, stacklevel=stacklevel + 1)


class BrokenVideos:
    """The broken videos that this process met. More than `max_bad_fraction` are an error, but in prediction."""

    def __init__(self, max_bad_fraction: float) -> None:
        require(0 <= max_bad_fraction <= 1, "max_bad_fraction", max_bad_fraction, "a share in [0, 1]")
        self._most = max_bad_fraction
        self._missed: defaultdict[str, dict[int, str]] = defaultdict(dict)  # paths by row: a video may be in several
        self._named = set[tuple[bool, str]]()
        self.reasons: dict[str, str] = {}

    def name(self, videos: Sequence[BrokenVideo]) -> None:
        for video in videos:
            named = video.used_anyway, video.reason if video.slow else video.path
            if named not in self._named:
                warn_of(video, "In training another video takes its place, elsewhere it is left out.", stacklevel=4)
            self._named.add(named)
            if not video.used_anyway:
                self.reasons[video.path] = video.reason

    def report(self, split: str, batch: ClipBatch, videos: int, trainer: Trainer) -> None:
        """Names broken, damaged and slow videos; raises if too many of the split's `videos` are broken by now."""
        self.name([video for video in batch.broken if split == "train" or not video.slow])
        for video in batch.broken:
            if not video.used_anyway and (split == "train" or not video.substitute):
                self._missed[split][video.index] = video.path
        for row in batch.indices:  # no longer broken: on a drive that fails for moments, they would add up over days
            path = self._missed[split].pop(row, None)
            if path is not None and not any(path in rows.values() for rows in self._missed.values()):
                self.reasons.pop(path, None)
        # In evaluation a rank reads its share of the videos; in training, sooner or later, it reads all of them.
        ranks = 1 if split == "train" else trainer.world_size
        missed, videos = self._missed[split], math.ceil(videos / ranks)
        most = videos if split == "predict" else self._most * videos  # the table of predictions names them
        if len(missed) > (most if ranks == 1 else math.ceil(most)):  # a share may be a little worse than the whole
            first = "; ".join(f"{path}: {self.reasons[path]}" for path in sorted(set(missed.values()))[:3])
            of_rank = "" if ranks == 1 else f" that rank {trainer.global_rank} was given"
            raise BrokenVideosError(
                f"{len(missed)} of the {videos} videos of `{split}`{of_rank} cannot be read, more than "
                f"`max_bad_fraction={self._most}` allows. Check the paths and `root`, repair or remove the "
                f"videos, or raise `max_bad_fraction`. The first: {printable(first)}"
            )
