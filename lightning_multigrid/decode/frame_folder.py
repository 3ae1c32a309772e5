"""Folders of images as videos: read like a `VideoReader`. T frames, H W pixels of a frame."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from lightning_multigrid.decode.index import MAX_PIXELS
from lightning_multigrid.decode.reader import VideoReader, places_of
from lightning_multigrid.decode.video_file import Damage, VideoError
from lightning_multigrid.files import FRAME_SUFFIXES
from lightning_multigrid.pixels import Box

# The formats that Pillow may read, whatever the name of a file: some of its others run programs.
_FORMATS = ("BMP", "JPEG", "PNG", "WEBP")


class FrameFolder:
    """A folder of images as a video, with the attributes of a `VideoReader`. Its length is the number of images.

    Images are sorted by name, shorter names first, so that `9.jpg` comes before `10.jpg`. Hidden files, other files and
    folders are skipped. A `VideoError` if there is no such folder, it holds no images, or the first can't be read.

    Args:
        path: The folder.
        rate: Frames per second.
    """

    def __init__(self, path: str | os.PathLike[str], rate: float) -> None:
        self._path = os.fspath(path)
        self.rate, self.damage = rate, Damage()
        try:
            with os.scandir(self._path) as entries:
                names = [entry.name for entry in entries if _is_image(entry.name) and entry.is_file()]
        except OSError as error:
            raise VideoError(self._path, f"no folder of frames ({error.strerror})") from error
        if not names:
            raise VideoError(self._path, f"holds no images ({' '.join(FRAME_SUFFIXES)})")
        self._names = sorted(names, key=lambda name: (len(name), name))
        with self._opened(0) as first:
            self.width, self.height = first.size

    def __enter__(self) -> "FrameFolder":
        return self

    def __exit__(self, *error: object) -> None:
        """No file is held open."""

    def __len__(self) -> int:
        return len(self._names)

    def time_of(self, frame: int) -> float:
        """Seconds from the first frame to another one."""
        return frame / self.rate

    def read(self, indices: Sequence[int], box: Box | None = None) -> Tensor:
        """Reads frames as a uint8 tensor T x H x W x 3 (RGB). Arguments and errors are those of `VideoReader.read`.

        A frame of another size than the first is an error, too.
        """
        top, left, height, width = Box.of(box, self.height, self.width)
        places = places_of(indices, len(self), self._path)
        clip = torch.empty((len(indices), height, width, 3), dtype=torch.uint8)
        for index, members in places.items():
            with self._opened(index) as image:
                if image.size != (self.width, self.height):
                    raise VideoError(
                        self._path,
                        f"{self._names[index]} has {image.height} x {image.width} pixels, but the first frame "
                        f"{self.height} x {self.width}",
                    )
                crop = image.crop((left, top, left + width, top + height)).convert("RGB")
            clip[members] = torch.from_numpy(np.array(crop))
        return clip

    @contextmanager
    def _opened(self, index: int) -> Iterator[Image.Image]:
        """Opens an image and reads its header. Until the end of the `with`, every fault of it is a `VideoError`."""
        name = self._names[index]
        try:
            with Image.open(os.path.join(self._path, name), formats=_FORMATS) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise VideoError(self._path, f"{name} has more than {MAX_PIXELS} pixels")
                yield image
        except (VideoError, MemoryError):
            raise
        except UnidentifiedImageError as error:
            raise VideoError(self._path, f"{name} is no image, or damaged at its head") from error
        except Exception as error:  # Pillow raises errors of many kinds for damaged files
            raise VideoError(self._path, f"{name} cannot be decoded ({type(error).__name__}: {error})") from error


def _is_image(name: str) -> bool:
    return name[0] != "." and os.path.splitext(name)[1].lower() in FRAME_SUFFIXES


def open_video(path: str, frame_rate: float | None) -> VideoReader | FrameFolder:
    """Opens a video file, or with `frame_rate`, in frames per second, a folder of images. Errors are `VideoError`s."""
    return VideoReader(path) if frame_rate is None else FrameFolder(path, frame_rate)
