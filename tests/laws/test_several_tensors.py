"""Samples of several tensors through a whole `fit`: detection, segmentation, pathways, views."""

import runpy
from pathlib import Path

import lightning as L
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from lightning_multigrid import LongCycle, MultigridCallback, ShortCycle
from tests.helpers.tiny import Module, fit

EXAMPLES = Path(__file__).parents[2] / "examples"


class Frames(Dataset):
    """Pixels of a clip are the number of their frame; the mask is one wherever the frame's label says so."""

    def __init__(self, number=64):
        self.number = number

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        numbers = torch.arange(8.0).view(1, 8, 1, 1).expand(3, 8, 16, 16) + index / 100
        labels = torch.randint(2, (8,))
        clips = {"fast": numbers + torch.rand(()) / 1000, "slow": numbers[:, ::2]}
        follow = {"mask": labels.view(8, 1, 1).expand(8, 16, 16), "labels": labels.numpy()}
        return {**clips, **follow, "boxes": torch.tensor([[0.0, 0, 16, 16]] * 8)}


class Recording(Module):
    def training_step(self, batch, batch_idx):
        if isinstance(self._trainer, L.Trainer):
            self.seen.append({name: part.clone() for name, part in batch.items()})
        return nn.functional.cross_entropy(self.net(batch["fast"]), batch["labels"][:, 0]) + batch["slow"].mean()

    def note_lr(self, optimizer, *_):
        """Not here."""

    def validation_step(self, batch, batch_idx):
        assert batch["fast"].shape[2:] == batch["mask"].shape[1:] == (8, 16, 16)


CLIPS = {"clips": ["fast", "slow"], "follow": {"mask": "THW", "labels": "T", "boxes": "Txyxy"}, "seed": 3}


def seen(workers=0, **arguments):
    module = Recording()
    validation = DataLoader(Frames(4), 2)
    train = DataLoader(Frames(), 4, shuffle=True, num_workers=workers, pin_memory=False)
    fit(module, MultigridCallback(**CLIPS, **arguments), train=train, val=validation, max_epochs=2)
    return module.seen


def test_every_mini_batch_holds_the_same_moments_in_all_of_its_parts():
    batches = seen(precise_bn_batches=2)
    assert len({tuple(batch["fast"].shape[2:]) for batch in batches}) >= 4
    for batch in batches:
        clips, _, frames, height, width = batch["fast"].shape
        assert batch["mask"].shape == (clips, frames, height, width)
        assert (batch["mask"] == batch["labels"][:, :, None, None]).all()
        assert (batch["boxes"] == torch.tensor([0.0, 0, width, height])).all()
        assert batch["slow"].shape == (clips, 3, frames // 2, height, width)
        torch.testing.assert_close(batch["slow"], batch["fast"][:, :, ::2], rtol=0, atol=2e-3)


def test_each_clip_ends_with_the_last_frame_of_the_whole_one():
    batches = seen(whole_span=True)
    assert len({batch["fast"].shape[2] for batch in batches}) >= 3
    for batch in batches:
        first, last = batch["fast"][:, 0, 0, 0, 0].floor(), batch["fast"][:, 0, -1, 0, 0].floor()
        assert (last == 7).all()
        assert (first == 8 // batch["fast"].shape[2] - 1).all()


def test_workers_draw_the_same():
    for one, other in zip(seen(), seen(workers=2), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_dataset_that_reads_its_own_clips_has_no_parts_to_name():
    class Own(Frames):
        frames, size, stride = 8, 16, 1

        def read_clip(self, request):
            raise AssertionError

    message = "Own brings its samples to a grid itself, in `read_clip`, so `clips` and `whole_span` would"
    with pytest.raises(ValueError, match=message):
        fit(Recording(), MultigridCallback(clips=["fast"], whole_span=True), train=DataLoader(Own(), 4))


@pytest.mark.smallest
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "epochs", "score"),
    [
        pytest.param("detection", 8, 0.3, marks=pytest.mark.slow),
        ("segmentation", 3, 0.5),
        pytest.param("self_supervised", 2, 0.2, marks=pytest.mark.slow),
        pytest.param("masked_pretraining", 60, 0.1, marks=pytest.mark.slow),
    ],
)
def test_the_examples_learn(name, epochs, score, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    main = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]
    assert main(["--clips=128", f"--epochs={epochs}"]) > score
    assert ": 0." in capsys.readouterr().out


@pytest.mark.parametrize(("axes", "name"), [((3, 16, 25, 2), {"layout": "CTHW"}), ((16, 25, 3), {"clips": {0: "THW"}})])
def test_skeletons_train_on_grids_of_time_alone(axes, name):
    """The way out that the refusal of joints names."""

    class Skeletons(Recording):
        def make_net(self):
            return nn.Linear(1, 1)

        def training_step(self, batch, batch_idx):
            x, _ = batch
            if isinstance(self._trainer, L.Trainer):  # a rehearsal has none
                shapes.add(tuple(x.shape[1:]))
            return self.net(x.flatten(1).mean(dim=1, keepdim=True)).square().mean()

    shapes, data = set(), [(torch.rand(axes), 0) for _ in range(40)]
    cycles = {"long_cycle": LongCycle(((0.5, 1), (1, 1))), "short_cycle": ShortCycle((1,))}
    fit(Skeletons(), MultigridCallback(**name, **cycles), train=DataLoader(data, 2))
    coarse = tuple(8 if length == 16 else length for length in axes)
    assert shapes == {axes, coarse}
