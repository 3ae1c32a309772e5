"""Draws what the model gets of the same moment on each grid of the long cycle: `docs/images/real_frames.jpg`.

    python docs/figures/real_frames.py IMAGES real_frames.jpg

`IMAGES` is the folder `data` of scikit-image, as `pip install scikit-image` brings it. Its `astronaut.png`, by NASA and
in the public domain, becomes a video here: a window that wanders over the image.
"""

import argparse
import tempfile
from pathlib import Path

import av
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from lightning_multigrid import Baseline, BatchShape, MultigridSchedule, VideoDataModule, resample_clips
from lightning_multigrid.loading import ClipRequest

BASELINE = BatchShape(clips=8, frames=16, size=224)
HEIGHT, WIDTH, FRAMES = 256, 340, 40  # of the video
EDGE, GAP, TEXT = 84, 2, 22  # pixels of the picture: of a frame, between two, of a line of text


def write_video(path, image):
    """A window over the face, that wanders down and to the right and back."""
    pixels = np.asarray(Image.open(image).convert("RGB"))
    steps = np.sin(np.linspace(0, np.pi, FRAMES))
    path.parent.mkdir(parents=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=12, options={"crf": "18"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for top, left in np.stack([steps * 40, 20 + steps * 140], 1).astype(int):
            window = np.ascontiguousarray(pixels[top : top + HEIGHT, left : left + WIDTH])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(window, format="rgb24")))
        container.mux(stream.encode())


def read_clip(videos, shape, seed):
    """A clip as the model gets it, but not normalised: frames x size x size x 3, uint8."""
    clip = videos.read_clip(ClipRequest(0, shape.frames, shape.size, seed=seed))
    pixels = resample_clips([clip.crop], shape.size)[0] * 0.225 + 0.45
    return (255 * pixels.clamp(0, 1)).permute(1, 2, 3, 0).numpy().astype(np.uint8)


def draw(videos):
    schedule = MultigridSchedule(Baseline(BASELINE, epochs=10, milestones=(5,)))
    shapes = list(dict.fromkeys(phase.shape for phase in schedule.phases))
    columns = BASELINE.frames // 2
    picture = Image.new("RGB", (columns * (EDGE + GAP) - GAP, len(shapes) * (2 * EDGE + GAP + 2 * TEXT)), "white")
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(13)
    top = 0
    for shape in shapes:
        said = f"{shape.clips} clips of {shape.frames} frames of {shape.size} x {shape.size} pixels: one of them"
        pen.text((0, top + 3), said, "black", font)
        top += TEXT
        for number, frame in enumerate(read_clip(videos, shape, seed=8)):
            place = number % columns * (EDGE + GAP), top + number // columns * (EDGE + GAP)
            scaled = Image.fromarray(frame).resize((EDGE, EDGE), Image.Resampling.NEAREST)
            picture.paste(scaled, place)
        top += -(-shape.frames // columns) * (EDGE + GAP) + TEXT // 2
    return picture.crop((0, 0, picture.width, top))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path, help="the folder `data` of scikit-image")
    parser.add_argument("output", type=Path, help="the picture")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_video(Path(folder, "train", "astronaut", "a.mp4"), given.images / "astronaut.png")
        clips = {"frames": BASELINE.frames, "size": BASELINE.size, "stride": 2}
        data = VideoDataModule(Path(folder, "train"), batch_size=1, **clips, num_workers=0, index=False)
        data.setup("fit")
        draw(data.train_dataloader().dataset).save(given.output, quality=80)


if __name__ == "__main__":
    main()
