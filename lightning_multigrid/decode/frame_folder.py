"""Folders of images as videos: read like a `VideoReader`. T frames, H W pixels of a frame."""

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress

import numpy as np
import numpy.typing as npt
import torch
from PIL import ExifTags, Image, UnidentifiedImageError
from torch import Tensor

from lightning_multigrid.decode.frame_pixels import Box
from lightning_multigrid.decode.frame_table import MAX_PIXELS, Damage
from lightning_multigrid.decode.reader import places_of
from lightning_multigrid.decode.video_file import VideoError
from lightning_multigrid.files import FRAME_SUFFIXES, READ_TIMEOUT, HangError, WatchedFile, within

# The formats that Pillow may read, whatever the name of a file: some of its others run programs.
_FORMATS = ("BMP", "JPEG", "PNG", "WEBP")
_LARGEST = 4 * MAX_PIXELS  # bytes of a file: one of zeros takes no space on a disk
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""By the orientation of EXIF 2.32, 4.6.4 A; 1 turns nothing."""
_SWAP = {turn for number, turn in _TURNS.items() if number >= 5}  # rows become columns


class FrameFolder:
    """A folder of images as a video, with the attributes of a `VideoReader`. Its length is the number of images.

    Images are sorted by name, shorter names first, so that `9.jpg` comes before `10.jpg`. Hidden files, other files and
    folders are skipped. A `VideoError` if there is no such folder, it holds no images, or the first can't be read.

    Args:
        path: The folder.
        rate: Frames per second.
        read_timeout: Seconds that the list of images, and an image, may take before it is an error.
    """

    def __init__(self, path: str | os.PathLike[str], rate: float, read_timeout: float = READ_TIMEOUT) -> None:
        self._path, self._timeout = os.fspath(path), read_timeout
        self.rate, self.damage = rate, Damage()
        try:
            names = within(read_timeout, lambda: _images(self._path))
        except HangError as error:
            raise VideoError(self._path, f"cannot be read: {error}, as on a network drive that is gone") from error
        except OSError as error:
            raise VideoError(self._path, f"no folder of frames ({error.strerror})") from error
        if not names:
            raise VideoError(self._path, f"holds no images ({' '.join(FRAME_SUFFIXES)})")
        self._names = sorted(names, key=lambda name: (len(name), name))
        with self._opened(0) as first:
            self.width, self.height = _shown_size(first)

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

        Images are turned as their EXIF data say; of 16 bits the higher 8 are taken. A frame of another size than the
        first is an error, too.
        """
        top, left, height, width = Box.of(box, self.height, self.width)
        places = places_of(indices, len(self), self._path)
        clip = torch.empty((len(indices), height, width, 3), dtype=torch.uint8)
        for index, members in places.items():
            with self._opened(index) as image:
                own_width, own_height = _shown_size(image)
                if (own_height, own_width) != (self.height, self.width):
                    raise VideoError(
                        self._path,
                        f"{self._names[index]} has {own_height} x {own_width} pixels, but the first frame "
                        f"{self.height} x {self.width}",
                    )
                turn = _turn(image)
                shown = image if turn is None else image.transpose(turn)
                clip[members] = torch.from_numpy(_rgb(shown.crop((left, top, left + width, top + height))))
        return clip

    @contextmanager
    def _opened(self, index: int) -> Iterator[Image.Image]:
        """Opens an image and reads its header. Until the end of the `with`, every fault of it is a `VideoError`."""
        name = self._names[index]
        try:
            with closing(WatchedFile(os.path.join(self._path, name), self._timeout)) as file:
                if file.size > _LARGEST:
                    raise VideoError(self._path, f"{name} has more than {_LARGEST} bytes")
                data = io.BytesIO(file.read(0, file.size))
            with Image.open(data, formats=_FORMATS) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise VideoError(self._path, f"{name} has more than {MAX_PIXELS} pixels")
                yield image
        except (VideoError, MemoryError):
            raise
        except UnidentifiedImageError as error:
            raise VideoError(self._path, f"{name} is no image, or damaged at its head") from error
        except HangError as error:
            raise VideoError(
                self._path, f"{name} cannot be read: {error}, as on a network drive that is gone"
            ) from error
        except Exception as error:  # Pillow raises errors of many kinds for damaged files
            raise VideoError(self._path, f"{name} cannot be decoded ({type(error).__name__}: {error})") from error


def _images(folder: str) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if _is_image(entry.name) and entry.is_file()]


def _turn(image: Image.Image) -> Image.Transpose | None:
    """How an image is to be turned by its EXIF data; those that can't be read turn nothing."""
    if "exif" in image.info:  # else Pillow might decode the pixels to look behind them
        with suppress(Exception):
            return _TURNS.get(int(image.getexif().get(ExifTags.Base.Orientation, 1)))
    return None


def _shown_size(image: Image.Image) -> tuple[int, int]:
    """Columns and rows of an image when it is shown."""
    return (image.height, image.width) if _turn(image) in _SWAP else image.size


def _rgb(image: Image.Image) -> npt.NDArray[np.uint8]:
    if image.mode[0] != "I":
        return np.array(image.convert("RGB"))
    # Grey of 16 bits. Pillow's conversion would take all above 255 for white; of colours it keeps the higher 8.
    grey = (np.asarray(image) >> 8).astype(np.uint8)
    return np.repeat(grey[..., None], 3, axis=2)


def _is_image(name: str) -> bool:
    return name[0] != "." and os.path.splitext(name)[1].lower() in FRAME_SUFFIXES
