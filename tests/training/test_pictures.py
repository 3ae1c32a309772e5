"""Pictures of a script's clips are those that it would train on, one for each grid."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from lightning_multigrid import LongCycle, MultigridCallback, ShortCycle, show_grids
from lightning_multigrid.loading import ClipRequest, FixedClips

CYCLES = {"long_cycle": LongCycle(((0.5, 0.5), (1, 1))), "short_cycle": ShortCycle((1,))}


class Grey(Dataset):
    """Clip i is as bright as i, and frame t a little brighter."""

    def __init__(self, shape=(3, 4, 80, 80), kind=torch.uint8):
        self.shape, self.kind = shape, kind

    def __len__(self):
        return 6

    def __getitem__(self, index):
        frames = torch.full(self.shape, 10 * index) + torch.arange(4).view(-1, 1, 1)
        return {"video": frames.to(self.kind), "label": index, "name": f"clip-{index}"}


def shown(monkeypatch, dataset, callback, **given):
    """The texts and the clips that a sheet got, by its name."""
    sheets = {}
    monkeypatch.setattr(
        "lightning_multigrid.training.pictures.write_sheet", lambda path, clips: sheets.update({path.name: clips})
    )
    paths = show_grids(DataLoader(dataset, batch_size=2), callback=callback, **given)
    assert [path.name for path in paths] == [*sheets]
    return sheets


def test_each_grid_has_a_picture_of_the_same_clips(monkeypatch, tmp_path):
    sheets = shown(monkeypatch, Grey(), MultigridCallback(**CYCLES), folder=tmp_path / "new", clips=3)
    assert [*sheets] == ["2x40.png", "4x80.png"]
    texts = [[text for _, text in clips] for clips in sheets.values()]
    assert texts[0] == texts[1]
    assert len({*texts[0]}) == 3
    for clips, (frames, size) in zip(sheets.values(), [(2, 40), (4, 80)], strict=True):
        for clip, text in clips:
            index = int(text.split()[1].rstrip(":"))
            assert text == f"sample {index}: label {index}; name clip-{index}"
            assert clip.shape == (frames, 3, size, size)
            assert (255 * clip[:, 0, 0, 0]).round().tolist() == [10 * index + t for t in range(0, 4)] or frames == 2
    (tmp_path / "new").rmdir()


def test_a_clip_is_the_one_of_its_request(monkeypatch, tmp_path):
    requests = []

    def show(request):
        requests.append(request)
        return torch.zeros(request.frames, 3, request.size, request.size), "drawn"

    shown(monkeypatch, Grey(), MultigridCallback(**CYCLES), folder=tmp_path, clips=2, show=show)
    again = [FixedClips(Grey()).read_clip(one)["video"].shape for one in requests]
    assert again == 2 * [(3, 2, 40, 40)] + 2 * [(3, 4, 80, 80)]
    assert (requests[0].index, requests[0].seed) == (requests[2].index, requests[2].seed)


def test_normalised_pixels_are_stretched_and_depth_has_one_channel(monkeypatch, tmp_path):
    class Depth(Grey):
        def __getitem__(self, index):
            return torch.linspace(-3, 5, 4 * 64).view(4, 8, 8), index

    callback = MultigridCallback(clips={0: "THW"}, **CYCLES)
    [(clip, text)] = shown(monkeypatch, Depth(), callback, folder=tmp_path, clips=1)["4x8.png"]
    assert clip.shape == (4, 1, 8, 8)
    assert clip.flatten().tolist() == pytest.approx(torch.linspace(0, 1, 4 * 64).tolist())
    assert text.startswith("sample ")


def test_a_picture_is_a_file_of_its_grid(tmp_path):
    [coarse, fine] = show_grids(DataLoader(Grey(), batch_size=2), tmp_path, MultigridCallback(**CYCLES), clips=1)
    found = [np.asarray(Image.open(path).convert("L")) for path in (coarse, fine)]
    assert all((picture < 100).sum() >= frames * 80 * 80 for picture, frames in zip(found, (2, 4), strict=True))


class Own:
    """Makes its clips on any grid itself."""

    frames, size, stride = 4, 8, 1

    def __init__(self, channels):
        self.channels = channels

    def __len__(self):
        return 2

    def read_clip(self, request: ClipRequest):
        return torch.full((self.channels, request.frames, request.size, request.size), request.index / 4), 7


def test_clips_that_a_dataset_brings_to_a_grid_itself_are_drawn(monkeypatch, tmp_path):
    drawn = shown(monkeypatch, Own(3), MultigridCallback(**CYCLES), folder=tmp_path, clips=2)
    shapes = {name: [clip.shape for clip, _ in clips] for name, clips in drawn.items()}
    assert shapes == {"2x4.png": [(2, 3, 4, 4)] * 2, "4x8.png": [(4, 3, 8, 8)] * 2}
    values = sorted((clip.mean().item(), text) for clip, text in drawn["4x8.png"])
    assert values == [(0.0, "sample 0: 7"), (0.25, "sample 1: 7")]


def test_what_has_no_picture_is_refused(tmp_path):
    with pytest.raises(ValueError, match="a clip of 2 x 2 x 4 x 4, and no axis of 1 or 3 channels tells its layout"):
        show_grids(DataLoader(Own(2), batch_size=2), tmp_path, MultigridCallback(**CYCLES))
    flow = DataLoader(Grey((2, 4, 80, 80), torch.float), batch_size=2)
    with pytest.raises(ValueError, match=r"1 or 3 channels, got CTHW of \(2, 2, 40, 40\). Give `show`"):
        show_grids(flow, tmp_path, MultigridCallback(clips={"video": "CTHW"}, **CYCLES))
