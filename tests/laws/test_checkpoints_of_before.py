"""A checkpoint that an earlier version wrote, in the middle of an epoch, continues as it would have continued it."""

from pathlib import Path

import pytest
from torch.optim.lr_scheduler import MultiStepLR

from lightning_multigrid import MultigridCallback, MultigridSchedule
from tests.helpers.tiny import Module, fit

# Of `fit(Module(...), MultigridCallback(seed=0))`, 15 of 31 steps.
DATA = Path(__file__).parent / "data"
# What 0.1.0 trained from there on: epoch, batch, clips x frames x size, LR, loss.
SEEN = [
    (3, 3, (16, 8, 16), 0.1, 0.5855438113212585),
    (3, 4, (32, 2, 23), 0.08, 0.6960063576698303),
    (3, 5, (8, 2, 23), 0.08, 0.8830334544181824),
    (4, 0, (64, 2, 16), 0.08, 0.764030396938324),
    (4, 1, (16, 4, 23), 0.04, 0.3816903233528137),
    (4, 2, (8, 4, 32), 0.02, 0.4631109833717346),
    (4, 3, (12, 4, 16), 0.02, 0.720578670501709),
    (5, 0, (32, 4, 16), 0.02, 0.5106982588768005),
    (5, 1, (8, 8, 23), 0.01, 0.5116657614707947),
    (5, 2, (4, 8, 32), 0.01, 1.0300137996673584),
    (5, 3, (16, 8, 16), 0.01, 0.35400471091270447),
    (5, 4, (8, 8, 23), 0.01, 2.1493754386901855),
    (5, 5, (4, 8, 32), 0.001, 0.689671516418457),
    (5, 6, (16, 8, 16), 0.001, 0.571403980255127),
    (5, 7, (8, 8, 23), 0.001, 0.6214902997016907),
    (5, 8, (4, 8, 32), 0.001, 1.620198130607605),
]


# Lightning's advice on the folder of the checkpoints, which is another one now.
@pytest.mark.filterwarnings("ignore:.*Please add the following callbacks. ..ModelCheckpoint{")
@pytest.mark.parametrize("tails_as_before", [True, False])
def test_a_checkpoint_of_version_0_1_0_continues(tails_as_before, monkeypatch):
    if tails_as_before:
        monkeypatch.setattr(MultigridSchedule, "gradient_scale", lambda schedule, step: 1.0)
    module = Module(lambda optimizer, module: MultiStepLR(optimizer, [2, 3]))
    fit(module, MultigridCallback(seed=0), ckpt_path=DATA / "version_0.1.0.ckpt")
    assert [(epoch, batch) for epoch, batch, *_ in module.seen] == [(epoch, batch) for epoch, batch, *_ in SEEN]
    assert module.shapes == [shape for _, _, shape, _, _ in SEEN]
    assert module.lrs == pytest.approx([lr for *_, lr, _ in SEEN])
    # Not to the last bit: another processor, or another version of torch, rounds otherwise.
    # Tails of epochs count by their clips now; the first one is the third of these steps.
    equal = len(SEEN) if tails_as_before else 3
    assert [loss for *_, loss in module.seen][:equal] == pytest.approx([loss for *_, loss in SEEN][:equal], rel=1e-3)


# What 0.2.0 trained from there on, which kept the LR in use in `param_groups` between steps.
SEEN_BY_0_2_0 = [
    (3, 3, (16, 8, 16), 0.1, 0.6008269786834717),
    (3, 4, (32, 2, 23), 0.08, 0.6601014137268066),
    (3, 5, (8, 2, 23), 0.08, 0.8139458298683167),
    (4, 0, (64, 2, 16), 0.08, 0.714218258857727),
    (4, 1, (16, 4, 23), 0.04, 0.40144237875938416),
    (4, 2, (8, 4, 32), 0.02, 0.503315806388855),
    (4, 3, (12, 4, 16), 0.02, 0.8301625847816467),
    (5, 0, (32, 4, 16), 0.02, 0.43638700246810913),
    (5, 1, (8, 8, 23), 0.01, 0.4765211045742035),
    (5, 2, (4, 8, 32), 0.01, 1.1791768074035645),
    (5, 3, (16, 8, 16), 0.01, 0.468937486410141),
    (5, 4, (8, 8, 23), 0.01, 2.573326587677002),
    (5, 5, (4, 8, 32), 0.001, 0.6844344139099121),
    (5, 6, (16, 8, 16), 0.001, 0.6952891945838928),
    (5, 7, (8, 8, 23), 0.001, 0.6247251033782959),
    (5, 8, (4, 8, 32), 0.001, 1.2835232019424438),
]


def test_a_checkpoint_of_version_0_2_0_continues():
    module = Module(lambda optimizer, module: MultiStepLR(optimizer, [2, 3]))
    fit(module, MultigridCallback(seed=0), ckpt_path=DATA / "version_0.2.0.ckpt")
    found = [(epoch, batch, shape) for (epoch, batch, *_), shape in zip(module.seen, module.shapes, strict=True)]
    assert found == [(epoch, batch, shape) for epoch, batch, shape, _, _ in SEEN_BY_0_2_0]
    assert module.lrs == pytest.approx([lr for *_, lr, _ in SEEN_BY_0_2_0])
    assert [loss for *_, loss in module.seen] == pytest.approx([loss for *_, loss in SEEN_BY_0_2_0], rel=1e-3)
