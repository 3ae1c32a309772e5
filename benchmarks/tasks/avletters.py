"""Letters that ten people say, each a short video of the mouth: few real videos for `lightning-multigrid compare`.

    git clone --filter=blob:none --no-checkout https://github.com/datamllab/automl-in-action-notebooks notebooks
    git -C notebooks archive 1884d93a299000bcc4c3d1a95002a879a7a4d0a8 avletters/Lips | tar x
    python benchmarks/tasks/avletters.py avletters/Lips avletters
    lightning-multigrid prepare avletters --store planes --output avletters_planes
    lightning-multigrid compare --config benchmarks/tasks/avletters.yaml --output avletters_default

AVLetters (Matthews, Cootes, Bangham, Cox and Harvey 2002, "Extraction of Visual Features for Lipreading"): ten people
say each of 26 letters three times, in 12 to 40 frames of 60 x 80 grey pixels. The script writes each as a lossless
video of its own, into a folder per letter; the third time is for validation.

The dataset is for research and has no licence: do not publish the videos.
"""

import argparse
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from grid_words import write_video

HEIGHT, WIDTH = 60, 80
UINT8 = 50  # `MOPT` of a MATLAB 4 file: little-endian, 8-bit unsigned, a full matrix
VALIDATED_TAKE = "3"


def read_frames(path: Path) -> npt.NDArray[np.uint8]:
    """Reads the first matrix of a MATLAB 4 file, which has a frame per column: T x H x W."""
    content = path.read_bytes()
    kind, rows, frames, imaginary, name_length = struct.unpack_from("<5i", content)
    if (kind, rows, imaginary) != (UINT8, HEIGHT * WIDTH, 0):
        raise ValueError(f"{path} must hold 8-bit frames of {HEIGHT} x {WIDTH} in MATLAB's version 4.")
    pixels = np.frombuffer(content, np.uint8, rows * frames, offset=20 + name_length)
    return pixels.reshape(frames, WIDTH, HEIGHT).transpose(0, 2, 1)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="the folder of files such as A1_Anya-lips.mat")
    parser.add_argument("target", type=Path, help="the folder to make, for the videos")
    options = parser.parse_args(given)
    files = sorted(options.source.glob("*-lips.mat"))
    if not files:
        parser.error(f"{options.source} has no files such as A1_Anya-lips.mat")
    colourless = np.full((HEIGHT // 2, WIDTH), 128, np.uint8)
    for file in files:
        name = file.name.removesuffix("-lips.mat")  # letter, take, person: A1_Anya
        part = "val" if name[1] == VALIDATED_TAKE else "train"
        planes = [np.concatenate([frame, colourless]) for frame in read_frames(file)]
        write_video(options.target / part / name[0] / f"{name}.mp4", planes, 25, "yuvj420p")
    print(f"{len(files)} videos are written to {options.target}.")


if __name__ == "__main__":
    main()
