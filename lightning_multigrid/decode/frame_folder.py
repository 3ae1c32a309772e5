"""Folders of images as videos."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction

import numpy as np
import torch
from av.video.frame import VideoFrame
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from lightning_multigrid.decode.frame_pixels import Box
from lightning_multigrid.decode.frame_table import MAX_PIXELS
from lightning_multigrid.decode.video import Video, places_of
from lightning_multigrid.decode.video_file import VideoError
from lightning_multigrid.files import FRAME_SUFFIXES, is_frame, on_disk

_FORMATS = ("BMP", "JPEG", "PNG", "WEBP")  # whatever the name of a file: some others of Pillow's run programs
_TICK = Fraction(1, 90_000)  # seconds; rates of videos are multiples of it, or nearly
_DIGITS = re.compile("([0-9]+)")


class FrameFolder(Video):
    """A folder of images as a video.

    Images are sorted by the numbers in their names, of which the first counts most, as in `00-01-59.png`; so images
    `1_000.png` and `2_000.png` are of one video. Each is shown equally long, whichever numbers are missing. Hidden
    files, other files and folders are skipped. A `VideoError` if there is no such folder, it holds no images, or the
    first can't be read; and if the names differ in more than digits, or have decimals of unequal length (`0.5.png`,
    `0.25.png`; `1.9.png`, `1.10.png`), as then they have no clear order.

    Args:
        path: The folder.
        rate: Frames per second.
    """

    def __init__(self, path: str | os.PathLike[str], rate: float) -> None:
        self._path = on_disk(path)
        self.rate = rate
        self._names = _images(self._path)
        with self._opened(self._names[0]) as image:
            self.width, self.height = image.size

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[VideoFrame]:
        for index in range(len(self)):
            frame = VideoFrame.from_ndarray(self.read([index])[0].numpy(), format="rgb24")
            frame.pts, frame.time_base = round(self.time_of(index) / _TICK), _TICK
            yield frame

    def read(self, indices: Sequence[int], box: Box | None = None) -> Tensor:
        """Reads frames, turned as their EXIF data say.

        A frame of another size than the first is an error, and so is one of 16 bits a channel.
        """
        top, left, height, width = Box.of(box, self.height, self.width)
        places = places_of(indices, len(self), self._path)
        clip = torch.empty((len(indices), height, width, 3), dtype=torch.uint8)
        for index, members in places.items():
            name = self._names[index]
            with self._opened(name) as image:
                if image.size != (self.width, self.height):
                    sizes = f"{image.height} x {image.width} pixels, but the first frame {self.height} x {self.width}"
                    raise VideoError(self._path, f"{name} has {sizes}")
                if image.mode[0] == "I":  # Pillow's conversion would take all above 255 for white
                    raise VideoError(self._path, f"{name} has 16 bits a channel, 8 are required")
                shown = image.crop((left, top, left + width, top + height)).convert("RGB")
                clip[members] = torch.from_numpy(np.array(shown))
        return clip

    @contextmanager
    def _opened(self, name: str) -> Iterator[Image.Image]:
        """Opens an image, turned to be shown. Until the end of the `with`, every fault of it is a `VideoError`."""
        try:
            with Image.open(os.path.join(self._path, name), formats=_FORMATS) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise VideoError(self._path, f"{name} has more than {MAX_PIXELS} pixels")
                if "exif" in image.info:  # else Pillow might decode the pixels to see what comes after them
                    ImageOps.exif_transpose(image, in_place=True)
                yield image
        except (VideoError, MemoryError):
            raise
        except UnidentifiedImageError as error:
            raise VideoError(self._path, f"{name} is not an image, or damaged at its head") from error
        except Exception as error:  # Pillow raises errors of many kinds for damaged files
            raise VideoError(self._path, f"{name} cannot be decoded ({type(error).__name__}: {error})") from error


def _images(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            names = [entry.name for entry in entries if is_frame(entry.name) and entry.is_file()]
    except OSError as error:
        raise VideoError(path, f"not a folder of frames ({error.strerror})") from error
    if not names:
        raise VideoError(path, f"holds no images ({' '.join(FRAME_SUFFIXES)})")
    return _in_order(path, names)


def _in_order(path: str, names: Sequence[str]) -> list[str]:
    """Sorts names by the numbers in them, the first of which counts most; refuses those that have no clear order."""
    numbers: dict[tuple[int, ...], str] = {}
    alike: dict[tuple[str, ...], str] = {}
    decimals: dict[tuple[int, ...], str] = {}
    for name in sorted(names):
        parts = _DIGITS.split(os.path.splitext(name)[0])  # by turns what is before a number, and the number
        number = tuple(map(int, parts[1::2]))
        alike.setdefault(tuple(parts[::2]), name)
        after_points = (len(digits) for before, digits in zip(parts[2::2], parts[3::2], strict=False) if before == ".")
        decimals.setdefault(tuple(after_points), name)
        if (other := numbers.setdefault(number, name)) != name or len(alike) > 1:
            such = f"by names such as {' and '.join([*alike.values()] if len(alike) > 1 else [other, name])}"
            raise VideoError(path, f"holds frames of several videos, {such}. Give each video a folder of its own")
    if len(decimals) > 1:
        images = f"images such as {' and '.join([*decimals.values()][:2])}"
        raise VideoError(path, f"has {images}, whose order is not clear: fill up what follows the point with zeros")
    return [numbers[key] for key in sorted(numbers)]
