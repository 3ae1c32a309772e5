"""Videos that could not be read: each is named once, and too many of them end the run."""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Sequence

from lightning.pytorch import Trainer

from lightning_multigrid.clips import BrokenVideosError, Failure

__all__ = ["BrokenVideoWarning", "BrokenVideos"]


class BrokenVideoWarning(UserWarning):
    """A video cannot be read; said once for each."""


class BrokenVideos:
    """Those that this process met, by split.

    Args:
        max_bad_fraction: Largest share of a split's videos that may be unreadable, in [0, 1].

    Raises:
        ValueError: If it is no such share.
    """

    def __init__(self, max_bad_fraction: float) -> None:
        if not 0 <= max_bad_fraction <= 1:
            raise ValueError(f"`max_bad_fraction` must be a share in [0, 1], got {max_bad_fraction}.")
        self._most = max_bad_fraction
        self._broken: defaultdict[str, dict[str, str]] = defaultdict(dict)
        self._missed: defaultdict[str, set[str]] = defaultdict(set)

    @property
    def reasons(self) -> dict[str, str]:
        """All of them, each with the reason."""
        return {path: reason for failures in self._broken.values() for path, reason in failures.items()}

    def report(self, split: str, failures: Sequence[Failure], videos: int, trainer: Trainer) -> None:
        """Warns of videos not seen broken before.

        Args:
            split: The split that they belong to.
            failures: What came with a mini-batch.
            videos: Number of videos of the split.
            trainer: That of the run.

        Raises:
            BrokenVideosError: If there are too many of them by now.
        """
        for failure in failures:
            if failure.path not in self.reasons:
                fate = "In training another video takes its place, elsewhere it is left out."
                message = f"Cannot read {failure.path}: {failure.reason}. {fate}"
                warnings.warn(message, BrokenVideoWarning, stacklevel=3)
            self._broken[split][failure.path] = failure.reason
            if split == "train" or not failure.substitute:
                self._missed[split].add(failure.path)
        # In evaluation a rank is asked for its share of the videos, in training, with time, for all of them.
        ranks = 1 if split == "train" else trainer.world_size
        missed, videos = self._missed[split], math.ceil(videos / ranks)
        most = self._most * videos
        if len(missed) > (most if ranks == 1 else math.ceil(most)):  # a share may be a little worse than the whole
            first = "; ".join(f"{path}: {self._broken[split][path]}" for path in sorted(missed)[:3])
            of_rank = "" if ranks == 1 else f" that rank {trainer.global_rank} was given"
            raise BrokenVideosError(
                f"{len(missed)} of the {videos} videos of `{split}`{of_rank} cannot be read, more than "
                f"`max_bad_fraction={self._most}` allows. Check the paths and `root`, repair or remove the "
                f"videos, or raise `max_bad_fraction`. The first: {first}"
            )
