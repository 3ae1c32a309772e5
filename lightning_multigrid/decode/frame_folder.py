"""Folders of images as videos: read like a `VideoReader`. T frames, H W pixels of a frame."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise

import numpy as np
import torch
from av.video.frame import VideoFrame
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from lightning_multigrid.decode.frame_pixels import Box
from lightning_multigrid.decode.frame_table import MAX_PIXELS, Damage, Orientation
from lightning_multigrid.decode.reader import places_of
from lightning_multigrid.decode.video_file import VideoError
from lightning_multigrid.files import FRAME_SUFFIXES

# The formats that Pillow may read, whatever the name of a file: some of its others run programs.
_FORMATS = ("BMP", "JPEG", "PNG", "WEBP")
_TIME = r"[0-9]+\.[0-9]+"  # as a name


class FrameFolder(AbstractContextManager["FrameFolder"]):
    """A folder of images as a video, with the attributes of a `VideoReader`. Its length is the number of images.

    Images are sorted by the numbers in their names, which may be times (`0.5.png`). Where numbers are missing, so are
    frames: the others keep their times. Hidden files, other files and folders are skipped. A `VideoError` if there is
    no such folder, it holds no images, images of several videos by their names, or the first can't be read.

    Args:
        path: The folder.
        rate: Frames per second.
    """

    def __init__(self, path: str | os.PathLike[str], rate: float) -> None:
        self._path = os.fspath(path)
        self.rate, self.start, self.damage, self.orientation, self.slow = rate, 0.0, Damage(), Orientation(), ""
        try:
            with os.scandir(self._path) as entries:
                names = [entry.name for entry in entries if _is_image(entry.name) and entry.is_file()]
        except OSError as error:
            raise VideoError(self._path, f"no folder of frames ({error.strerror})") from error
        if not names:
            raise VideoError(self._path, f"holds no images ({' '.join(FRAME_SUFFIXES)})")
        numbered = _numbered(self._path, names)
        self._names = [name for _, name in numbered]
        self._times = _times([numbers for numbers, _ in numbered])
        with self._opened(0) as first:
            self.width, self.height = first.size

    def __exit__(self, *error: object) -> None:
        """No file is held open."""

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[VideoFrame]:
        """Yields all frames, as a `FullDecode` does."""
        for index in range(len(self)):
            yield VideoFrame.from_ndarray(self.read([index])[0].numpy(), format="rgb24")

    def time_of(self, frame: int) -> float:
        """Seconds from the first frame to another one, or to the end of the last."""
        return self._times[frame] / self.rate

    def read(self, indices: Sequence[int], box: Box | None = None) -> Tensor:
        """Reads frames as a uint8 tensor T x H x W x 3 (RGB). Arguments and errors are those of `VideoReader.read`.

        Images are turned as their EXIF data say. A frame of another size than the first is an error, too, and so is one
        of 16 bits a channel.
        """
        top, left, height, width = Box.of(box, self.height, self.width)
        places = places_of(indices, len(self), self._path)
        clip = torch.empty((len(indices), height, width, 3), dtype=torch.uint8)
        for index, members in places.items():
            with self._opened(index) as image:
                if image.size != (self.width, self.height):
                    sizes = f"{image.height} x {image.width} pixels, but the first frame {self.height} x {self.width}"
                    raise VideoError(self._path, f"{self._names[index]} has {sizes}")
                if image.mode[0] == "I":  # Pillow's conversion would take all above 255 for white
                    raise VideoError(self._path, f"{self._names[index]} has 16 bits a channel, 8 are required")
                shown = image.crop((left, top, left + width, top + height)).convert("RGB")
                clip[members] = torch.from_numpy(np.array(shown))
        return clip

    @contextmanager
    def _opened(self, index: int) -> Iterator[Image.Image]:
        """Opens an image, turned to be shown. Until the end of the `with`, every fault of it is a `VideoError`."""
        name = self._names[index]
        try:
            with Image.open(os.path.join(self._path, name), formats=_FORMATS) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise VideoError(self._path, f"{name} has more than {MAX_PIXELS} pixels")
                if "exif" in image.info:  # else Pillow might decode the pixels to look behind them
                    ImageOps.exif_transpose(image, in_place=True)
                yield image
        except (VideoError, MemoryError):
            raise
        except UnidentifiedImageError as error:
            raise VideoError(self._path, f"{name} is no image, or damaged at its head") from error
        except Exception as error:  # Pillow raises errors of many kinds for damaged files
            raise VideoError(self._path, f"{name} cannot be decoded ({type(error).__name__}: {error})") from error


def _numbered(path: str, names: Sequence[str]) -> list[tuple[tuple[float, ...], str]]:
    """Returns names with the numbers in them, in their order; refuses those of several videos."""
    stems = [os.path.splitext(name)[0] for name in names]
    times = all(re.fullmatch(_TIME, stem) for stem in stems)
    number, value = re.compile(_TIME if times else r"[0-9]+"), float if times else int
    alike = {number.sub("#", stem): name for stem, name in zip(stems, names, strict=True)}
    numbered = sorted((tuple(map(value, number.findall(stem))), name) for stem, name in zip(stems, names, strict=True))
    twice = next((pair for pair in pairwise(numbered) if pair[0][0] == pair[1][0]), ())
    several = [*alike.values()][:2] if len(alike) > 1 else [name for _, name in twice]
    if several:
        reason = f"holds frames of several videos, by names such as {' and '.join(sorted(several))}"
        raise VideoError(path, f"{reason}. Give each video a folder of its own")
    return numbered


def _times(numbers: Sequence[tuple[float, ...]]) -> list[float]:
    """When frames with these numbers begin, and when the last ends, in frames."""
    last = [number[-1] if number else 0 for number in numbers]
    counted = isinstance(last[0], int) and all(number[:-1] == numbers[0][:-1] for number in numbers)
    if not counted or len(last) < 2:
        return [float(frame) for frame in range(len(last) + 1)]
    step = min(after - before for before, after in pairwise(last))  # every fifth frame may have been written
    begin = [(number - last[0]) / step for number in last]
    return [*begin, begin[-1] + 1]


def _is_image(name: str) -> bool:
    return name[0] != "." and os.path.splitext(name)[1].lower() in FRAME_SUFFIXES
