"""The guard: which models count places from the first, and which don't."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models.video import r3d_18

from lightning_multigrid import LongCycle, MultigridCallback, ShortCycle
from lightning_multigrid.training.rehearsal.counted import TracedValues, counted_from_first
from tests.helpers.attention import swin
from tests.helpers.tiny import CLASSES, Module, clips, fit

WIDTH = 8
CYCLES = {"short_cycle": ShortCycle((0.5, 1)), "long_cycle": LongCycle(((0.5, 0.5), (0.5, 1), (1, 1)))}


def tokens_of(x):  # B x C x T x H x W -> B x N x C
    return x.flatten(2).transpose(1, 2)


class Tokens(nn.Module):
    """A transformer of patches of 8 pixels: 8 x 4 x 4 tokens on the baseline's grid, 2 x 2 x 2 on the coarsest."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv3d(3, WIDTH, (1, 8, 8), (1, 8, 8))
        self.table = nn.Parameter(torch.randn(1, 128, WIDTH))
        self.embedding = nn.Embedding(128, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.head(self.placed(self.patches(x)).mean(1))

    def placed(self, x):
        x = tokens_of(x)
        return x + self.places(x.shape[1], x)


def sinusoids(places):
    angles = places[:, None] * torch.exp(-torch.arange(WIDTH // 2, device=places.device))
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


class Sliced(Tokens):
    def places(self, n, x):
        return self.table[:, :n]


class Embedded(Tokens):
    def places(self, n, x):
        return self.embedding(torch.arange(n, device=x.device))


class Computed(Tokens):
    def places(self, n, x):
        return sinusoids(torch.arange(n, device=x.device).float())


class Rotated(Tokens):
    """As V-JEPA 2: the number of a token becomes frame, row and column of the grid that the model was made for."""

    def placed(self, x):
        x = tokens_of(x)
        ids = torch.arange(x.shape[1], device=x.device)
        return x * torch.cat([sinusoids((ids // 16).float()), sinusoids((ids % 16).float())], -1)[:, ::2]


class Complex(Tokens):
    def placed(self, x):
        x = torch.view_as_complex(x.flatten(2).transpose(1, 2).unflatten(-1, (-1, 2)).contiguous())
        angles = torch.arange(x.shape[1], device=x.device)[:, None] / torch.arange(1, 5, device=x.device)
        return torch.view_as_real(x * torch.polar(torch.ones_like(angles), angles)).flatten(2)


class InSpace(Tokens):
    """Tables of rows and columns, for each frame: the corner of the map, which is no beginning of its tokens."""

    def placed(self, x):
        table = self.table[0, :16].view(4, 4, WIDTH)[: x.shape[3], : x.shape[4]].flatten(0, 1)
        return (x.flatten(3).permute(0, 2, 3, 1) + table).flatten(1, 2)


class OfEachClip(Tokens):
    """As after a frame-wise model, with the frames of all clips in one axis."""

    def placed(self, x):
        n = x.shape[2]
        frames = x.mean((3, 4)).transpose(1, 2).flatten(0, 1)
        return (frames + self.table[0, :n].repeat(len(x), 1)).unflatten(0, (-1, n))


class Maps(Tokens):
    def placed(self, x):
        maps = self.table[0, :16].T.reshape(WIDTH, 1, 4, 4)
        return (x + maps[..., : x.shape[3], : x.shape[4]]).flatten(2).transpose(1, 2)


class Stacked(Tokens):
    def placed(self, x):
        x = x.flatten(2).transpose(1, 2)
        return torch.stack([x, self.table[:, : x.shape[1]].expand_as(x)], -1).flatten(2)[..., ::2]


class AsKeys(Tokens):
    def placed(self, x):
        x = x.flatten(2).transpose(1, 2)
        keys = self.table[:, : x.shape[1]].expand_as(x)
        return (x @ keys.transpose(1, 2)).softmax(-1) @ x


class Summed(Tokens):
    """Made of ones of the shape and the type of the data."""

    def places(self, n, x):
        return sinusoids(torch.ones_like(x[0, :, 0]).cumsum(0))


COUNTING = [
    Sliced, Embedded, Computed, Summed, Rotated, Complex, InSpace, OfEachClip, Maps, Stacked, AsKeys,
]  # fmt: skip


class Spread(Tokens):
    """Every n-th place, which are rows of the full table, too."""

    def placed(self, x):
        t, h, w = x.shape[2:]
        table = self.table.view(8, 4, 4, WIDTH)[:: 8 // t, :: 4 // h, :: 4 // w].flatten(0, 2)
        return x.flatten(2).transpose(1, 2) + table


class Interpolated(Tokens):
    def placed(self, x):
        table = self.table.view(1, 8, 4, 4, WIDTH).movedim(-1, 1)
        return (x + nn.functional.interpolate(table, x.shape[2:])).flatten(2).transpose(1, 2)


class Relative(Tokens):
    """Attention with a bias for each distance, and a mask of the future."""

    def placed(self, x):
        x = x.flatten(2).transpose(1, 2)
        n = torch.arange(x.shape[1], device=x.device)
        bias = self.table[0, (n[:, None] - n).abs(), 0] + torch.full_like(x[0, :, :1] @ x[0].T[:1], -1e9).triu(1)
        return (x @ x.transpose(1, 2) + bias).softmax(-1) @ x


class Coordinates(Tokens):
    def placed(self, x):
        rows = torch.linspace(-1, 1, x.shape[3], device=x.device)[:, None]
        return (x + rows).flatten(2).transpose(1, 2)


class Subsampled(Tokens):
    """As SlowFast's slow pathway: every other frame of the clip, by its number."""

    def placed(self, x):
        x = x.mean((3, 4)).transpose(1, 2)
        return x.index_select(1, torch.arange(0, x.shape[1], 2, device=x.device))


class Masked(Tokens):
    """Noise as long as the clip, and the frames before a length that came with the clips."""

    def placed(self, x):
        x = x.mean((3, 4)).transpose(1, 2)
        kept = torch.rand(x.shape[1], device=x.device) * (torch.arange(x.shape[1], device=x.device) < x[0, 0, 0].abs())
        return x * kept[:, None]


class CentreOfMass(Tokens):
    """Key points of heat maps, as shares of the frame: the columns, numbered from the first, over their number."""

    def placed(self, x):
        maps, columns = x.flatten(2).softmax(-1).view_as(x), torch.arange(x.shape[4], device=x.device) + 0.5
        across = (maps.sum((2, 3)) * columns).sum(-1) / x.shape[4]
        times = maps.sum((3, 4)) @ (torch.arange(x.shape[2], device=x.device) + 0.5) / x.shape[2]
        return torch.stack([across, times], 1)


NOT_COUNTING = [Spread, Interpolated, Relative, Coordinates, Subsampled, Masked, CentreOfMass]


def places(net, shape):
    """What meets the data on one grid."""
    clips = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(clips.numel())  # noise is another one on each grid
    with torch.no_grad(), TracedValues([clips], lambda: "layer") as values:
        net(clips)
    return values.met


def counts(net, full, coarse):
    ratios = coarse[2] / full[2], coarse[3] / full[3]
    return counted_from_first(places(net, full), places(net, coarse), ratios) == "layer"


FULL, COARSE = (2, 3, 8, 32, 32), [(2, 3, 2, 16, 16), (2, 3, 4, 16, 16), (2, 3, 8, 16, 16), (2, 3, 4, 32, 32)]


@pytest.mark.parametrize("model", [*COUNTING, *NOT_COUNTING])
def test_counted_places_are_found_and_no_others(model):
    torch.manual_seed(0)
    net = model()
    assert any(counts(net, FULL, coarse) for coarse in COARSE) == (model in COUNTING)
    assert not counts(net, FULL, FULL)


def test_two_rows_of_four_are_spread_or_counted():
    table = torch.randn(4, WIDTH)
    for rows, found in ((table[:2], "layer"), (table[::2], None)):
        assert counted_from_first({("layer", "add"): [table]}, {("layer", "add"): [rows]}, (0.5, 1)) == found


def test_models_of_torchvision_do_not_count():
    torch.manual_seed(0)
    for net in (r3d_18(), swin()):
        assert not any(counts(net, FULL, coarse) for coarse in COARSE)


# --- In a script ---


def script(net, kind=Module):
    module = kind()
    module.net = nn.Sequential(net, nn.Identity())
    return module


def test_a_model_that_counts_is_refused_by_name():
    message = (
        r"Module counts places from the first: on the grid of .*, `net\.0` \(Rotated\) gives its points the places at "
        r"the beginning of the baseline's grid.*`set_grid\(self, frames, size\)`.* let the method do nothing"
    )
    with pytest.raises(ValueError, match=message):
        fit(script(Rotated()), MultigridCallback(size_divisor=8))


class Accepted(Sliced):
    def set_grid(self, frames, size):
        """Counting is what it means."""


class Spreading(Sliced):
    """As a user would write it for the way out."""

    grid = 8, 32

    def set_grid(self, frames, size):
        self.grid = frames, size

    def places(self, n, x):
        t, h = 8 // self.grid[0], 32 // self.grid[1]
        return self.table.unflatten(1, (8, 4, 4))[:, ::t, ::h, ::h].flatten(1, 3)


@pytest.mark.parametrize("model", [Accepted, Spreading])
def test_a_method_set_grid_takes_it_upon_itself(model):
    module = script(model())
    fit(module, MultigridCallback(**CYCLES), max_epochs=1)
    assert len(set(module.shapes)) > 2


class WithBoxes(Dataset):
    """Clips, and the corners of a box per clip, in pixels."""

    def __len__(self):
        return 48

    def __getitem__(self, index):
        clip, label = clips(48)[index]
        return {"clip": clip, "boxes": torch.tensor([0.0, 0.0, 9.0, 9.0]), "label": label}


class OfDicts(Module):
    def training_step(self, batch, batch_idx):
        return super().training_step((batch["clip"], batch["label"]), batch_idx)


def test_pixels_may_be_counted_where_boxes_follow_and_frames_may_not():
    alone = {"clips": ["clip"], "seed": 0, "size_divisor": 8, **CYCLES}
    train = DataLoader(WithBoxes(), 4)
    for axes in ("xyxy", lambda boxes, change: boxes):  # or cameras
        fit(script(InSpace(), OfDicts), MultigridCallback(follow={"boxes": axes}, **alone), train=train, max_epochs=1)
    callback = MultigridCallback(follow={"boxes": "xyxy"}, **alone)
    with pytest.raises(ValueError, match=r"counts places from the first: on the grid of 4 x 32 x 32"):
        fit(script(OfEachClip(), OfDicts), callback, train=train, max_epochs=1)
