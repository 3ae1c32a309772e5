"""Draws what the model sees through a multigrid training, as an animated GIF: `docs/images/training.gif`.

    python docs/figures/animation.py training.gif

The clips come from the data module, at the shapes that the schedule plans: all clips of a mini-batch, each with as many
pixels as the model gets, playing as long as a clip of the baseline does. The GIF shows each size of the short cycle
once per phase, and leaves out the noise of the videos.
"""

import argparse
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from lightning_multigrid import Baseline, BatchShape, MovingShapesDataModule, MultigridSchedule, resample_clips
from lightning_multigrid.loading import ClipRequest

WIDTH, HEIGHT, TOP, STRIP = 720, 530, 66, 76
SCALE = 2  # pixels of the picture per pixel of a clip
GAP = 2
COLOURS_IN_FILE = 40
PICTURES, MILLISECONDS = 8, 800  # per mini-batch, at most
GROUND, INK, FAINT, LINE = (22, 27, 34), (235, 238, 242), (139, 148, 158), (48, 56, 66)
# Okabe and Ito's colours, one per base shape from coarse to fine, which colour-blind people can tell apart.
COLOURS = [(86, 180, 233), (0, 158, 115), (204, 121, 167), (230, 159, 0)]


def columns_of(clips, edge, width, height):
    """The number of columns in which so many squares fill a field best."""
    fitting = [n for n in range(1, clips + 1) if n * edge <= width and -(-clips // n) * edge <= height]
    full = [n for n in fitting if clips % n == 0] or fitting
    return min(full, key=lambda n: abs(n / width - -(-clips // n) / height))


def read_clips(videos, shape, first):
    """Clips of a mini-batch, as the model gets them but not yet normalised: clips x frames x size x size x 3, uint8."""
    order = np.random.default_rng(0).permutation(len(videos))
    numbers = range(first, first + shape.clips)
    requests = [ClipRequest(int(order[n % len(order)]), shape.frames, shape.size, seed=n) for n in numbers]
    clips = [videos.read_clip(request) for request in requests]
    pixels = [resample_clips([clip.crop], shape.size, flips=[clip.flip])[0] * 0.225 + 0.45 for clip in clips]
    return np.stack([without_noise((255 * p.clamp(0, 1)).permute(1, 2, 3, 0).numpy()) for p in pixels])


def without_noise(clip):
    """A clip in two colours, of its ground and of its shapes: noise would make the file many times as large."""
    grey = clip.mean(-1)
    bright = grey > (grey.min() + grey.max()) / 2
    ground, shapes = (np.median(clip[part], 0) if part.any() else 0.0 for part in (~bright, bright))
    difference = shapes - ground
    share = ((clip - ground) @ difference) / max(difference @ difference, 1.0)
    return (ground + (share > 0.5)[..., None] * difference).astype(np.uint8)


def draw_strip(draw, schedule, position, font):
    """Clips per mini-batch over the training, as steps, and where the training is."""
    left, right, bottom, top = 60, WIDTH - 20, HEIGHT - 20, HEIGHT - STRIP
    coarse_first = sorted(
        {phase.shape for phase in schedule.phases}, key=lambda shape: -shape.clips * shape.frames**0.1
    )
    heights = {8 * 2**power: bottom - power * (bottom - top) / 3 for power in range(4)}
    for clips, y in heights.items():
        draw.text((left - 12, y), str(clips), FAINT, font, anchor="rm")
        draw.line([(left, y), (right, y)], LINE)

    def place(epoch):
        return left + (right - left) * float(epoch) / schedule.epochs

    for phase in schedule.phases:
        colour = COLOURS[coarse_first.index(phase.shape)]
        y = heights[phase.shape.clips]
        draw.line([(place(phase.start_epoch), y), (place(phase.end_epoch), y)], colour, 4)
    for before, phase in pairwise(schedule.phases):
        x = place(phase.start_epoch)
        draw.line([(x, heights[before.shape.clips]), (x, heights[phase.shape.clips])], FAINT)
    draw.line([(place(position), top - 8), (place(position), bottom + 6)], INK, 2)
    draw.text((left - 12, bottom + 12), "clips", FAINT, font, anchor="rm")
    return coarse_first


def pictures_of(schedule, videos, fonts):
    """The pictures and how long each is shown, in ms: for each phase, the mini-batches of its short cycle."""
    large, small = fonts
    first = 0
    for phase in schedule.phases:
        cycle = list(dict.fromkeys(schedule.cycle(phase.shape)))
        for number, shape in enumerate(cycle):
            clips = read_clips(videos, shape, first)
            first += shape.clips
            position = phase.start_epoch + (phase.end_epoch - phase.start_epoch) * (2 * number + 1) / (2 * len(cycle))
            edge = SCALE * shape.size + GAP
            columns = columns_of(shape.clips, edge, WIDTH - 16, HEIGHT - TOP - STRIP - 20)
            rows = -(-shape.clips // columns)
            left = (WIDTH - columns * edge) // 2
            upper = TOP + (HEIGHT - TOP - STRIP - 20 - rows * edge) // 2
            shown = min(shape.frames, PICTURES)
            for picture in range(shown):
                image = Image.new("RGB", (WIDTH, HEIGHT), GROUND)
                draw = ImageDraw.Draw(image)
                order = draw_strip(draw, schedule, position, small)
                colour = COLOURS[order.index(phase.shape)]
                size = f"{shape.size} x {shape.size} pixels"
                draw.text((20, 12), f"{shape.clips} clips", colour, large)
                draw.text((190, 12), f"{shape.frames} frames", colour, large)
                draw.text((360, 12), size, colour, large)
                draw.text((WIDTH - 20, 15), f"epoch {float(position):.0f}", FAINT, large, anchor="ra")
                frame = picture * shape.frames // shown
                for n, clip in enumerate(clips[:, frame]):
                    tile = Image.fromarray(clip).resize((edge - GAP, edge - GAP), Image.Resampling.NEAREST)
                    image.paste(tile, (left + n % columns * edge, upper + n // columns * edge))
                yield image, MILLISECONDS // shown


def animate(schedule, videos, file):
    """Writes the animation of a schedule, with clips of a dataset such as that of `VideoDataModule`."""
    fonts = ImageFont.load_default(26), ImageFont.load_default(15)
    pictures, durations = zip(*pictures_of(schedule, videos, fonts), strict=True)
    # One palette for all, so that a picture stores only what moves.
    sample = Image.new("RGB", (WIDTH, HEIGHT * 3))
    for n, place in enumerate((0, len(pictures) // 2, len(pictures) - 1)):
        sample.paste(pictures[place], (0, n * HEIGHT))
    for n, colour in enumerate((*COLOURS, INK, FAINT, LINE)):
        sample.paste(colour, (100 * n, 0, 100 * n + 100, 100))
    palette = sample.quantize(COLOURS_IN_FILE)
    small = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    small[0].save(file, save_all=True, append_images=small[1:], duration=list(durations), loop=0)
    return len(small)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--milestones", type=float, nargs="*", default=[50])
    parser.add_argument("--epochs", type=int, default=100)
    given = parser.parse_args()
    schedule = MultigridSchedule(Baseline(BatchShape(8, 16, 40), given.epochs, tuple(given.milestones)))
    with tempfile.TemporaryDirectory() as folder:
        data = MovingShapesDataModule(
            folder, batch_size=8, frames=16, size=40, train_per_class=10, val_per_class=1, num_workers=0
        )
        data.prepare_data()
        data.setup("fit")
        pictures = animate(schedule, data.train_dataloader().dataset, given.file)
    print(f"{given.file}: {pictures} pictures, {given.file.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
