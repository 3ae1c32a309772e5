"""Videos of moving shapes that the package draws and encodes itself, so that nothing is downloaded.

A class is a shape and the direction it moves in. Shapes are equally probable everywhere, and opposite directions show
the same frames in opposite order, so a single frame does not show the direction.

Legend: T frames, H W pixels.
"""

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any, Literal, cast

import av
import numpy as np
import numpy.typing as npt
from rich.progress import track
from typing_extensions import override

from lightning_multigrid.files import cache_folder, require
from lightning_multigrid.video.datamodule import VideoDataModule

Shape = Literal["cross", "ring", "square", "triangle"]
Direction = Literal["down", "left", "right", "up"]
Difficulty = Literal["easy", "hard"]
Image = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.floating[Any]]

SHAPES: tuple[Shape, ...] = ("cross", "ring", "square", "triangle")
DIRECTIONS: tuple[Direction, ...] = ("down", "left", "right", "up")
FRAMES, HEIGHT, WIDTH = 24, 64, 80
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


def draw_clip(shape: Shape, direction: Direction, rng: np.random.Generator, difficulty: Difficulty = "easy") -> Image:
    """Draws a clip of four equal shapes that move together, with noise and a small shake: T x H x W x 3, RGB.

    The frame is a torus: what leaves it at one side returns at the other. The shapes are about half a frame apart, so
    every training crop shows one, and on a coarser grid no shape can be taken for its neighbour.

    A hard clip has the shapes, places and directions of an easy one. In addition its contrast is low, its speed
    changes, its background has a texture that moves on its own, discs cross it, and bars cover parts of it.
    """
    hard = difficulty == "hard"
    time = np.arange(FRAMES) - (FRAMES - 1) / 2
    speed = rng.uniform(1, 2)
    shake_x, shake_y = rng.uniform(-0.5, 0.5, (2, FRAMES))
    place_x, place_y = rng.uniform(0, WIDTH), rng.uniform(0, HEIGHT)
    radius = rng.uniform(7, 10)
    jitter = [rng.uniform(-3, 3, 2) for _ in range(4)]
    background, foreground = rng.uniform(30, 110, 3), rng.uniform(145, 225, 3)
    noise = rng.standard_normal((FRAMES, HEIGHT, WIDTH, 1), np.float32) * 8

    moved = speed * (_warped(time, rng) if hard else time)
    difference = (0.7 if hard else 1) * (foreground - background)
    sideways = direction in ("left", "right")
    x = place_x + shake_x + (moved if sideways else 0)
    y = place_y + shake_y + (0 if sideways else moved)
    covered = np.zeros((FRAMES, HEIGHT, WIDTH), np.float32)
    for (column, row), (jitter_x, jitter_y) in zip(product((0, WIDTH / 2), (0, HEIGHT / 2)), jitter, strict=True):
        dx = _from_centre(x + column + jitter_x, WIDTH)[:, None, :]
        dy = _from_centre(y + row + jitter_y, HEIGHT)[:, :, None]
        np.maximum(covered, _filled(_distance(shape, dx, dy, radius)), out=covered)
    for _ in range(2 if hard else 0):
        np.maximum(covered, _disc(time, rng), out=covered)
    clip = background.astype(np.float32) + difference.astype(np.float32) * covered[..., None]
    if hard:
        clip += 8 * (1 - covered[..., None]) * _texture(time, rng)[..., None]
        bar = _bar(time, rng)
        clip += bar[..., None] * (rng.uniform(30, 225, 3).astype(np.float32) - clip)
    drawn = np.clip(clip + noise, 0, 255).astype(np.uint8)
    return drawn if direction in ("right", "down") else drawn[::-1]


def _warped(time: Floats, rng: np.random.Generator) -> Floats:
    """Time that runs faster and slower by up to a half, once to twice in a clip; it never turns round."""
    turns, phase = 2 * np.pi * rng.uniform(1, 2) / FRAMES, rng.uniform(0, 2 * np.pi)
    warped: Floats = time + 0.5 / turns * np.sin(turns * time + phase)
    return warped


def _motion(time: Floats, fastest: float, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Places x, y per frame of something that moves evenly from anywhere to anywhere, on the torus."""
    speed_x, speed_y = rng.uniform(-fastest, fastest, 2)
    return rng.uniform(0, WIDTH) + speed_x * time, rng.uniform(0, HEIGHT) + speed_y * time


def _disc(time: Floats, rng: np.random.Generator) -> Floats:
    x, y = _motion(time, 2, rng)
    distance = np.hypot(_from_centre(x, WIDTH)[:, None, :], _from_centre(y, HEIGHT)[:, :, None])
    return _filled(distance - rng.uniform(3, 6))


def _bar(time: Floats, rng: np.random.Generator) -> Floats:
    x, y = _motion(time, 0.5, rng)
    upright, half = rng.random() < 0.5, rng.uniform(3, 5)
    distance = _from_centre(x, WIDTH)[:, None, :] if upright else _from_centre(y, HEIGHT)[:, :, None]
    return np.broadcast_to(_filled(np.abs(distance) - half), (FRAMES, HEIGHT, WIDTH))


def _texture(time: Floats, rng: np.random.Generator) -> Floats:
    """Smooth noise of standard deviation 1 that moves evenly on the torus: T x H x W."""
    x, y = _motion(time, 2, rng)
    frequency_x, frequency_y = np.fft.rfftfreq(WIDTH), np.fft.fftfreq(HEIGHT)[:, None]
    smooth = np.exp(-0.5 * (2 * np.pi * 2.5) ** 2 * (frequency_x**2 + frequency_y**2))
    spectrum = np.fft.rfft2(rng.standard_normal((HEIGHT, WIDTH))) * smooth
    spectrum[0, 0] = 0
    shift = np.exp(-2j * np.pi * (frequency_x * x[:, None, None] + frequency_y * y[:, None, None]))
    texture: Floats = np.fft.irfft2(spectrum * shift, s=(HEIGHT, WIDTH))
    texture /= texture.std()
    return texture.astype(np.float32)


def _from_centre(centre: Floats, length: int) -> Floats:
    """Signed distances of the pixels from a centre per frame, on a circle of `length` pixels: T x length."""
    pixels = np.arange(length)
    return ((pixels - centre[:, None] + length / 2) % length - length / 2).astype(np.float32)


def _filled(distance: Floats) -> Floats:
    """How much of each pixel is covered: edges are soft, so that movements of less than a pixel show."""
    covered: Floats = np.clip(0.5 - distance, 0, 1)
    return covered


def _distance(shape: Shape, dx: Floats, dy: Floats, radius: float) -> Floats:
    """Distance of each pixel from the shape's edge, negative inside: T x H x W."""
    across, along = np.abs(dx), np.abs(dy)
    if shape == "cross":
        arm = 0.3 * radius
        return np.minimum(np.maximum(across - radius, along - arm), np.maximum(across - arm, along - radius))
    if shape == "ring":
        return np.abs(np.hypot(dx, dy) - 0.75 * radius) - 0.25 * radius
    if shape == "square":
        return np.maximum(across, along) - 0.85 * radius
    return np.maximum(0.866 * across + 0.5 * dy, -dy) - 0.55 * radius
