"""A part of a frame, in pixels."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Box"]


class Box(NamedTuple):
    """A part of a frame as it is shown, in pixels from its top left corner."""

    top: int
    left: int
    height: int
    width: int

    @staticmethod
    def of(box: Box | None, height: int, width: int) -> Box:
        """A box of a frame of some height and width: the whole frame for None.

        Raises:
            ValueError: If it does not lie within the frame.
        """
        box = Box(0, 0, height, width) if box is None else Box(*box)
        if (
            min(box) < 0
            or not box.height
            or not box.width
            or box.top + box.height > height
            or box.left + box.width > width
        ):
            raise ValueError(f"`box` must lie within the frame of {height} x {width} pixels, got {box}.")
        return box
