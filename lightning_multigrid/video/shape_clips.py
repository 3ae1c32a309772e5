"""Clips of moving shapes: what the quick start and the comparison of training methods train on.

A class is a shape and the direction it moves in. Shapes are equally probable everywhere, and opposite directions show
the same frames in opposite order, so a single frame does not show the direction.

Legend: T frames, H W pixels.
"""

from itertools import product
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Shape = Literal["cross", "ring", "square", "triangle"]
Direction = Literal["down", "left", "right", "up"]
Difficulty = Literal["easy", "hard"]
Image = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.floating[Any]]

SHAPES: tuple[Shape, ...] = ("cross", "ring", "square", "triangle")
DIRECTIONS: tuple[Direction, ...] = ("down", "left", "right", "up")
FRAMES, HEIGHT, WIDTH = 24, 64, 80


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
