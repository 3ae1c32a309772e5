"""Pictures of clips: a sheet has a row of frames, and a line of text, for each clip."""

from collections.abc import Sequence
from os import PathLike
from textwrap import wrap

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

_ACROSS = 8  # frames
_SMALLEST, _LARGEST = 72, 160  # pixels of a frame's longer side
_WIDTH = 640  # of the text, at least
_GAP, _LINE, _LETTER = 4, 18, 8


def write_sheet(path: str | PathLike[str], clips: Sequence[tuple[Tensor, str]]) -> None:
    """Writes a picture of clips, T x C x H x W each with 1 or 3 channels from 0 to 1, with a text above each."""
    frames = [[_image(frame) for frame in clip] for clip, _ in clips]
    width = max(_WIDTH, *(min(len(of), _ACROSS) * (of[0].width + _GAP) for of in frames))
    texts = [wrap(text, width // _LETTER) or [""] for _, text in clips]
    font = ImageFont.load_default(size=13)
    heights = [
        len(lines) * _LINE + -(-len(of) // _ACROSS) * (of[0].height + _GAP) + 2 * _GAP
        for of, lines in zip(frames, texts, strict=True)
    ]
    sheet = Image.new("RGB", (width + _GAP, sum(heights) + _GAP), "white")
    draw, top = ImageDraw.Draw(sheet), _GAP
    for of, lines, height in zip(frames, texts, heights, strict=True):
        for number, line in enumerate(lines):
            draw.text((_GAP, top + number * _LINE), line, "black", font)
        for number, frame in enumerate(of):
            down, across = divmod(number, _ACROSS)
            place = _GAP + across * (frame.width + _GAP), top + len(lines) * _LINE + down * (frame.height + _GAP)
            sheet.paste(frame, place)
        top += height
    sheet.save(path)


def _image(frame: Tensor) -> Image.Image:
    values = (255 * frame.detach().float().cpu().clamp(0, 1)).round().to(torch.uint8).expand(3, -1, -1)
    image = Image.fromarray(values.permute(1, 2, 0).contiguous().numpy())
    longest = max(image.size)
    if longest < _SMALLEST:  # each pixel becomes a square
        times = -(-_SMALLEST // longest)
        return image.resize((times * image.width, times * image.height), Image.Resampling.NEAREST)
    if longest > _LARGEST:
        image.thumbnail((_LARGEST, _LARGEST))
    return image
