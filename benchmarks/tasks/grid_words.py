"""Words that a person says, each a short video of the mouth: real videos for `lightning-multigrid compare`, on a CPU.

    python benchmarks/tasks/grid_words.py FOLDER grid_words
    lightning-multigrid compare --config benchmarks/tasks/grid_words.yaml --output grid_words/default

`FOLDER` has speaker 1 of GRID (Cooke, Barker, Cunningham and Shao 2006, "An audio-visual corpus for speech perception
and automatic speech recognition"): `videos/` of 1,000 sentences, 96 x 64 pixels around the mouth, and `words.csv` with
`video,word,start,end,part`, a row for each of the 6,000 words, in seconds. `part` is `train` or `val`, by sentence. The
script writes each word as a lossless video of its own, into a folder per word, without an eighth of the columns at
either side, where no mouth is. For `grid_wide` the videos are 144 x 96 pixels, of the same mouth.

The corpus is not ours to hand on: do not publish the videos.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt

# Each frame on its own, so that a clip of few frames is decoded faster.
LOSSLESS = {"qp": "0", "g": "1", "preset": "veryfast", "tune": "fastdecode", "threads": "1"}


def read_planes(path: Path) -> tuple[list[npt.NDArray[np.uint8]], int]:
    """Reads all frames of a video as they are stored, 3 H / 2 x W of YUV 4:2:0 each, and its frames per second."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        return [frame.to_ndarray(format="yuv420p") for frame in container.decode(stream)], round(stream.average_rate)


def cut_columns(planes: npt.NDArray[np.uint8], columns: slice) -> npt.NDArray[np.uint8]:
    """Takes columns, from an even one to an even one, of a frame of `read_planes`."""
    width, rows = planes.shape[1], planes.shape[0] * 2 // 3
    half = slice(columns.start // 2, columns.stop // 2)
    luma, colour = planes[:rows, columns], planes[rows:].reshape(rows, width // 2)[:, half]
    return np.concatenate([luma, colour.reshape(rows // 2, -1)])


def write_video(path: Path, frames: Sequence[npt.NDArray[np.uint8]], rate: int, pixels: str = "yuv420p") -> None:
    """Writes frames of `read_planes`, or of another 4:2:0 format, as H.264 without loss."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=rate, options=LOSSLESS)
        stream.height, stream.width, stream.pix_fmt = frames[0].shape[0] * 2 // 3, frames[0].shape[1], pixels
        for planes in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(planes), format=pixels)))
        container.mux(stream.encode())


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="the folder of `videos/` and `words.csv`")
    parser.add_argument("target", type=Path, help="the folder to make, for the videos")
    options = parser.parse_args(given)
    words = defaultdict(list)
    with (options.source / "words.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            words[row["video"]].append(row)
    for name, rows in words.items():
        frames, rate = read_planes(options.source / "videos" / name)
        for number, row in enumerate(rows):
            start, end = (round(float(row[edge]) * rate) for edge in ("start", "end"))
            path = options.target / row["part"] / row["word"] / f"{Path(name).stem}_{number}.mp4"
            side, width = frames[0].shape[1] // 8, frames[0].shape[1]
            write_video(path, [cut_columns(frame, slice(side, width - side)) for frame in frames[start:end]], rate)
    print(f"{sum(map(len, words.values()))} videos are written to {options.target}.")


if __name__ == "__main__":
    main()
