"""Measures which way a clip moves."""

import numpy as np

# The sign of the movement in the axes T, H, W of a clip.
MOVEMENT = {"down": (1, 0), "up": (-1, 0), "right": (0, 1), "left": (0, -1)}


def movement(clip):
    """Pixels per frame (down, right) by which each frame is most like the one before, on the torus."""
    grey = clip.astype(np.float32).mean(axis=3)
    grey -= grey.mean(axis=(1, 2), keepdims=True)
    spectra = np.fft.fft2(grey)
    likeness = np.fft.ifft2(spectra[4:] * spectra[:-4].conj()).real.mean(axis=0)  # four frames apart
    height, width = likeness.shape
    near = np.fft.fftshift(likeness)[height // 2 - 9 : height // 2 + 10, width // 2 - 9 : width // 2 + 10]
    down, right = np.unravel_index(near.argmax(), near.shape)
    return (down - 9) / 4, (right - 9) / 4
