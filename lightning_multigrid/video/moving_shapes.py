"""Videos of moving shapes that the package draws and encodes itself, so that nothing is downloaded."""

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import cast

import av
import numpy as np
from rich.progress import track
from typing_extensions import override

from lightning_multigrid.files import cache_folder, require
from lightning_multigrid.video.datamodule import VideoDataModule
from lightning_multigrid.video.shape_clips import DIRECTIONS, HEIGHT, SHAPES, WIDTH, Difficulty, Image, draw_clip

MOVING_SHAPES = tuple(f"{shape}-{direction}" for shape, direction in product(SHAPES, DIRECTIONS))
"""The 16 classes, in the order of their labels."""

# Part of the folder's name: raise it whenever a pixel changes.
_VERSIONS: dict[Difficulty, str] = {"easy": "v1", "hard": "hard-v1"}
_RATE = 12

# Equal bytes each time need one thread, whose number is part of an H.264 file, and no macroblock tree, through which
# x264 lets videos that are encoded at the same time change each other. `fastdecode` halves the time of decoding.
_H264 = {"preset": "veryfast", "tune": "fastdecode", "crf": "26", "threads": "1", "mbtree": "0"}
_MOTION_JPEG = {"qmin": "2", "qmax": "6", "threads": "1"}


def _encode(path: Path, clip: Image, difficulty: Difficulty) -> None:
    # Of a Motion JPEG only the frames of the clip are decoded. On few cores a small model trains about as fast as H.264
    # decodes, and a comparison of training methods would compare decoding.
    suffix, codec, pixels, options = {
        "easy": (".mp4", "libx264", "yuv420p", _H264),
        "hard": (".avi", "mjpeg", "yuvj420p", _MOTION_JPEG),
    }[difficulty]
    with av.open(str(path.with_suffix(suffix)), "w") as container:
        stream = cast("av.VideoStream", container.add_stream(codec, rate=_RATE, options=options))
        stream.height, stream.width, stream.pix_fmt = HEIGHT, WIDTH, pixels
        for image in clip:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())


class MovingShapesDataModule(VideoDataModule):
    """Moving shapes, written to disk when they are first needed.

    Training clips are never mirrored: that would turn `left` into `right`.

    Args:
        root: Folder for the dataset; None means the user's cache folder (see `files.cache_folder`).
        train_per_class: Training videos of each of the 16 classes.
        val_per_class: Validation videos of each of the 16 classes; the test takes the same.
        difficulty: `easy`, or `hard` for videos of low contrast with clutter and changing speed (see `draw_clip`).
        batch_size: Clips per device (B).
        frames: Frames per clip (T), of the 24 of a video.
        size: Height and width of a clip, in pixels (S). Frames have 64 x 80 pixels.
        stride: Temporal stride, in source frames.
        num_workers: Processes that decode.

    Raises:
        ValueError: If `difficulty` is unknown, or another argument is out of range.

    >>> data = MovingShapesDataModule("videos")
    >>> data.batch_size, data.frames, data.size, data.stride
    (8, 16, 40, 1)
    """

    def __init__(
        self,
        root: str | None = None,
        *,
        train_per_class: int = 94,
        val_per_class: int = 25,
        difficulty: Difficulty = "easy",
        batch_size: int = 8,
        frames: int = 16,
        size: int = 40,
        stride: int = 1,
        num_workers: int = 2,
    ) -> None:
        require(difficulty in _VERSIONS, "difficulty", difficulty, f"one of {', '.join(_VERSIONS)}")
        self._per_class, self._difficulty = (train_per_class, val_per_class), difficulty
        self.train_videos = len(MOVING_SHAPES) * train_per_class
        numbers = f"{train_per_class}-{val_per_class}-seed0"  # the name has all that determines the pixels
        root_folder = cache_folder() if root is None else Path(root)
        self.folder = folder = root_folder / f"moving-shapes-{_VERSIONS[difficulty]}-{numbers}"
        super().__init__(
            folder / "train",
            folder / "val",
            folder / "val",
            batch_size=batch_size,
            frames=frames,
            size=size,
            stride=stride,
            flip=False,
            num_workers=num_workers,
        )

    @override
    def prepare_data(self) -> None:
        """Writes the videos, all at once, unless they are there already; then makes their frame tables."""
        folder = self.folder
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            # Beside its place, so that moving it there is a single step of the file system.
            with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
                unfinished = Path(temporary, folder.name)
                self._write_videos(unfinished)
                try:
                    os.replace(unfinished, folder)
                except OSError:
                    if not folder.is_dir():  # else another process has written the same videos first
                        raise
        super().prepare_data()

    def _write_videos(self, folder: Path) -> None:
        classes = list(product(SHAPES, DIRECTIONS))
        seeds = [
            (0, split, label, index)
            for split, number in enumerate(self._per_class)
            for label in range(len(classes))
            for index in range(number)
        ]

        def write(seeds: tuple[int, int, int, int]) -> None:
            _, split, label, index = seeds
            clip = draw_clip(*classes[label], np.random.default_rng(seeds), self._difficulty)
            class_folder = folder / ("train", "val")[split] / "-".join(classes[label])
            class_folder.mkdir(parents=True, exist_ok=True)
            _encode(class_folder / f"{index:04}", clip, self._difficulty)

        # Threads are enough: NumPy and the encoder release the interpreter.
        pool = ThreadPoolExecutor(os.cpu_count())
        try:
            for _ in track(pool.map(write, seeds), "Writing the moving shapes", total=len(seeds)):
                pass
        finally:
            pool.shutdown(cancel_futures=True)
