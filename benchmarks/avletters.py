"""AVLetters, a dataset of real videos that a CPU trains on: people say a letter, and the lips show which.

    git clone --filter=blob:none --no-checkout https://github.com/datamllab/automl-in-action-notebooks notebooks
    git -C notebooks archive 1884d93a299000bcc4c3d1a95002a879a7a4d0a8 avletters/Lips | tar x
    python benchmarks/avletters.py avletters/Lips avletters
    lightning-multigrid compare --config avletters/config.yaml --output avletters/compared
    python benchmarks/avletters.py avletters/Lips avletters_0 --people 0   # two people validate, the others train

Matthews et al., "Extraction of Visual Features for Lipreading", 2002: 10 people say each of 26 letters three times, in
12 to 40 frames of 60 x 80 grey pixels. The script writes the 780 clips as lossless videos into a folder per letter, the
first two takes into `train` and the third into `val`, and the config of the comparison in `docs/evidence.md`. Or two of
the ten people into `val`: five such folds have each person there once.

The dataset is for research. No licence comes with it, so do not publish the files or the videos.
"""

import argparse
import struct
from collections.abc import Sequence
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt

HEIGHT, WIDTH = 60, 80
UINT8 = 50  # `MOPT` of a MATLAB 4 file: little-endian, 8-bit unsigned, a full matrix
VALIDATED_TAKE = "3"
PEOPLE = 10
FOLDS = 5  # each has two people who validate
# Each frame on its own, so that a clip of few frames is decoded faster.
LOSSLESS = {"qp": "0", "g": "1", "preset": "veryfast", "tune": "fastdecode", "threads": "1"}
CONFIG = """\
threads: 1    # the other core decodes
seed_everything: 0
model:
  class_path: lightning_multigrid.VideoClassifier
  init_args:
    model:
      class_path: lightning_multigrid.models.small_cnn
      init_args: {{num_classes: 26}}
    num_classes: 26
    lr: 0.005
    schedule: cosine
data:
  class_path: lightning_multigrid.VideoDataModule
  init_args:
    train: {train}
    val: {val}
    batch_size: 4
    frames: 12
    size: 32
    sampling: segments    # a clip is the whole letter
    short_side: [32, 34]    # a crop has 56 to 60 of the 60 rows: the whole mouth
    flip: false
    num_workers: 1
trainer:
  max_epochs: 64
  check_val_every_n_epoch: 8
  accelerator: cpu
  callbacks:
    - class_path: lightning_multigrid.MultigridCallback
"""


def read_frames(path: Path) -> npt.NDArray[np.uint8]:
    """Reads the first matrix of a MATLAB 4 file, which has a frame per column: T x H x W."""
    content = path.read_bytes()
    kind, rows, frames, imaginary, name_length = struct.unpack_from("<5i", content)
    if (kind, rows, imaginary) != (UINT8, HEIGHT * WIDTH, 0):
        raise ValueError(f"{path} must hold 8-bit frames of {HEIGHT} x {WIDTH} in MATLAB's version 4.")
    pixels = np.frombuffer(content, np.uint8, rows * frames, offset=20 + name_length)
    return pixels.reshape(frames, WIDTH, HEIGHT).transpose(0, 2, 1)


def write_video(path: Path, frames: npt.NDArray[np.uint8]) -> None:
    """Writes T x H x W grey frames as H.264 without loss: they are its luma."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options=LOSSLESS)
        stream.height, stream.width, stream.pix_fmt = HEIGHT, WIDTH, "yuvj420p"
        colourless = np.full((HEIGHT // 2, WIDTH), 128, np.uint8)
        for frame in frames:
            planes = np.concatenate([frame, colourless])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(planes, format="yuvj420p")))
        container.mux(stream.encode())


def _person(file: Path) -> str:
    return file.name.partition("_")[2]


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="the folder of the .mat files")
    parser.add_argument("target", type=Path, help="the folder to make, for the videos and config.yaml")
    parser.add_argument("--people", type=int, choices=range(FOLDS), help="the fold whose two people validate")
    options = parser.parse_args(given)
    files = sorted(options.source.glob("*-lips.mat"))
    if not files:
        parser.error(f"{options.source} has no files such as A1_Anya-lips.mat")
    people = sorted({_person(file) for file in files})
    if options.people is not None and len(people) != PEOPLE:
        parser.error(f"{options.source} has {len(people)} people, and the folds are of {PEOPLE}")
    for file in files:
        name = file.name.removesuffix("-lips.mat")  # letter, take, person: A1_Anya
        held_out = name[1] == VALIDATED_TAKE
        if options.people is not None:
            held_out = people.index(_person(file)) % FOLDS == options.people
        folder = options.target / ("val" if held_out else "train") / name[0]
        folder.mkdir(parents=True, exist_ok=True)
        write_video(folder / f"{name}.mp4", read_frames(file))
    config = options.target / "config.yaml"
    config.write_text(CONFIG.format(train=options.target / "train", val=options.target / "val"))
    print(f"{len(files)} videos and {config} are written.")


if __name__ == "__main__":
    main()
