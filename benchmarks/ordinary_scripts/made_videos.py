"""Makes the videos on which the scripts train, and their frames as JPEG.

    python benchmarks/ordinary_scripts/made_videos.py FOLDER

Each is an ordinary H.264 file of 340 x 256 pixels, 64 frames and 30 frames per second. In `FOLDER/videos/SPLIT/CLASS`,
squares or rings move in one of four directions over a background that moves on its own: eight classes. Every second
frame of `FOLDER/videos/SPLIT/CLASS/0.mp4` is in the folder `FOLDER/frames/SPLIT/CLASS/0`.
"""

import argparse
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

HEIGHT, WIDTH, FRAMES, RATE = 256, 340, 64, 30
SHAPES = ("rings", "squares")
DIRECTIONS = {"down": (1, 0), "left": (0, -1), "right": (0, 1), "up": (-1, 0)}
CLASSES = [(shape, direction) for shape in SHAPES for direction in DIRECTIONS]


def draw(shape: str, direction: str, rng: np.random.Generator) -> np.ndarray:
    """A video as frames x height x width x 3. What leaves the frame at one side returns at the other."""
    background, noise = texture(rng), rng.integers(-3, 4, (HEIGHT, WIDTH, 1), np.int16)
    colour = rng.uniform(45, 90, 3).astype(np.int16)
    foreground = shapes(shape, rng.uniform(26, 38), rng)[..., None] * colour
    drift, speed = rng.uniform(-1, 1, 2), rng.uniform(2, 3.5)
    frames = np.empty((FRAMES, HEIGHT, WIDTH, 3), np.uint8)
    for number in range(FRAMES):
        moved = np.round(number * speed * np.array(DIRECTIONS[direction])).astype(int)
        frame = np.roll(background, np.round(number * drift).astype(int), (0, 1))
        frame += np.roll(foreground, moved, (0, 1))
        frame += np.roll(noise, rng.integers(0, WIDTH, 2), (0, 1))  # the camera's
        frames[number] = np.clip(frame, 0, 255)
    return frames


def shapes(shape: str, radius: float, rng: np.random.Generator) -> np.ndarray:
    """Where four of them are, half a frame apart: height x width."""
    y, x = (np.arange(length) + rng.uniform(0, length) for length in (HEIGHT, WIDTH))
    dy, dx = np.abs(y % (HEIGHT / 2) - HEIGHT / 4)[:, None], np.abs(x % (WIDTH / 2) - WIDTH / 4)
    if shape == "squares":
        return np.maximum(dx, dy) < 0.8 * radius
    return np.abs(np.hypot(dx, dy) - 0.75 * radius) < 0.3 * radius


def texture(rng: np.random.Generator) -> np.ndarray:
    """Smooth noise around grey, whose ends meet: height x width x 3."""
    frequency = np.hypot(np.fft.fftfreq(HEIGHT)[:, None], np.fft.rfftfreq(WIDTH))[..., None]
    spectrum = np.fft.rfft2(rng.standard_normal((HEIGHT, WIDTH, 3)), axes=(0, 1)) / (frequency + 0.02) ** 1.3
    spectrum[0, 0] = 0
    smooth = np.fft.irfft2(spectrum, s=(HEIGHT, WIDTH), axes=(0, 1))
    return (110 + 16 * smooth / smooth.std()).astype(np.int16)


def write_video(path: Path, frames: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=RATE, options={"threads": "1"})
        stream.height, stream.width, stream.pix_fmt = HEIGHT, WIDTH, "yuv420p"
        for number, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(pixels, "rgb24")
            frame.pts, frame.time_base = number, Fraction(1, RATE)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def write_frames(folder: Path, video: Path) -> None:
    """Every second frame of a video, as most tools extract them."""
    folder.mkdir(parents=True, exist_ok=True)
    with av.open(str(video)) as container:
        for number, frame in enumerate(container.decode(video=0)):
            if number % 2 == 0:
                frame.to_image().save(folder / f"{number // 2:05}.jpg", quality=90)


def make(folder: Path, train: int, val: int) -> None:
    """Makes `train` and `val` videos of each class, but for those that are there."""
    for split, (name, videos) in enumerate({"train": train, "val": val}.items()):
        for label, (shape, direction) in enumerate(CLASSES):
            for number in range(videos):
                inside = Path(name, f"{shape}-{direction}", str(number))
                path, frames = (folder / "videos" / inside).with_suffix(".mp4"), folder / "frames" / inside
                if not frames.exists():
                    write_video(path, draw(shape, direction, np.random.default_rng((split, label, number))))
                    write_frames(frames, path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=16, help="videos of each class (default: %(default)s)")
    parser.add_argument("--val", type=int, default=6, help="videos of each class (default: %(default)s)")
    options = parser.parse_args()
    make(options.folder, options.train, options.val)
