"""A part of a frame, in pixels."""

from typing import NamedTuple


class Box(NamedTuple):
    """A part of a shown frame, in pixels from the frame's top left corner."""

    top: int
    left: int
    height: int
    width: int

    @staticmethod
    def of(box: "Box | None", height: int, width: int) -> "Box":
        """Checks a box of a frame of `height` x `width` pixels. None is the whole frame."""
        box = Box(0, 0, height, width) if box is None else Box(*box)
        empty = not box.height or not box.width
        if min(box) < 0 or empty or box.top + box.height > height or box.left + box.width > width:
            raise ValueError(f"`box` must lie within the frame of {height} x {width} pixels, got {box}.")
        return box
