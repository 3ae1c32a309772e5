"""A sheet has what it is given, where one looks for it."""

import numpy as np
import torch
from PIL import Image

from lightning_multigrid.reports import write_sheet


def test_frames_lie_in_rows_of_eight_in_their_order_and_colours(tmp_path):
    colours = torch.rand(10, 3, 1, 1)
    write_sheet(tmp_path / "sheet.png", [(colours.expand(10, 3, 80, 100), "a text"), (torch.ones(1, 1, 80, 100), "b")])
    sheet = np.asarray(Image.open(tmp_path / "sheet.png").convert("RGB"))
    expected = (255 * colours.view(10, 3)).round().byte().numpy()
    for number, colour in enumerate(expected):
        down, across = divmod(number, 8)
        top, left = 4 + 18 + 84 * down, 4 + 104 * across
        assert (sheet[top : top + 80, left : left + 100] == colour).all()
    assert (sheet[:, -4:] == 255).all()


def test_small_frames_are_enlarged_without_blur_and_large_ones_reduced(tmp_path):
    checks = torch.arange(16.0).view(1, 1, 4, 4) / 15
    write_sheet(tmp_path / "small.png", [(checks, "")])
    sheet = np.asarray(Image.open(tmp_path / "small.png").convert("L"))
    assert (sheet[22 : 22 + 72, 4 : 4 + 72] == (17 * np.arange(16).reshape(4, 4)).repeat(18, 0).repeat(18, 1)).all()
    write_sheet(tmp_path / "large.png", [(torch.zeros(2, 3, 300, 400), "word " * 200)])
    sheet = np.asarray(Image.open(tmp_path / "large.png").convert("L"))
    assert (sheet[-12 - 120 : -12, 4 : 4 + 160] == 0).all()
    assert sheet.shape[0] > 120 + 5 * 18  # lines of a long text
