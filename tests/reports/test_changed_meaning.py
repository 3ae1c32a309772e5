"""Each thing that changes meaning is said once, only in runs that use it."""

import re

import pytest
from lightning.pytorch import callbacks
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lightning_multigrid import MultigridCallback
from tests.helpers.tiny import Module, fit, loader

pytestmark = pytest.mark.usefixtures("_unrehearsed")

SAID = "(counts|averages over|thaws layers at|may see its metric)"  # what all of these have


class Thawing(callbacks.BaseFinetuning):
    def freeze_before_training(self, pl_module):
        pass

    def finetune_function(self, pl_module, epoch, optimizer):
        pass


def plateau(optimizer, module):
    return {"scheduler": ReduceLROnPlateau(optimizer, patience=3), "monitor": "val"}


# 4 epochs become 6, and their 100 steps 27 or so.
USED = [
    (
        {"callbacks": lambda: [callbacks.EarlyStopping("val", patience=5)]},
        r"`EarlyStopping\(patience=5\)` counts only in the last phase, from",
    ),
    ({"schedulers": plateau}, r"`ReduceLROnPlateau\(patience=3\)` may see its metric stand still until a coarse"),
    (
        {"callbacks": lambda: [callbacks.EMAWeightAveraging()]},
        r"`EMAWeightAveraging` averages over steps of this run, .* \(0\.999 to 0\.99[67]\d\)",
    ),
    ({"callbacks": lambda: [Thawing()]}, "`Thawing` thaws layers at epochs of this run, 6 instead of"),
]


def run(tmp_path, multigrid=None, **used):
    module = Module(used.pop("schedulers", None))
    own = used.pop("callbacks", list)()
    arguments = {"train": loader(), "val": loader(shuffle=False, number=8), "default_root_dir": tmp_path, **used}
    fit(module, multigrid or MultigridCallback(), *own, **arguments)
    return module


@pytest.mark.parametrize(("used", "said"), USED, ids=lambda value: value[:40] if isinstance(value, str) else "")
def test_what_a_script_uses_is_said_once(used, said, tmp_path, caplog):
    if "EMA" in said and not hasattr(callbacks, "EMAWeightAveraging"):
        pytest.skip("new in Lightning 2.6")
    run(tmp_path, **used)
    messages = [record.getMessage() for record in caplog.records]
    assert sum(bool(re.search(said, message)) for message in messages) == 1
    assert sum(bool(re.search(SAID, message)) for message in messages) == 1


@pytest.mark.filterwarnings("ignore:Found .* in eval mode")
def test_an_average_of_timm_is_told_the_same(caplog):
    utils = pytest.importorskip("timm.utils")

    class Averaged(Module):
        def __init__(self):
            super().__init__()
            self.average = utils.ModelEmaV3(self.net, decay=0.999)

    fit(Averaged(), MultigridCallback())
    assert re.search(r"`ModelEmaV3` averages over steps of this run, .* \(0\.999 to 0\.99[67]\d\)", caplog.text)


def test_a_plain_script_hears_nothing(tmp_path, caplog):
    run(tmp_path, enable_checkpointing=True)
    saver = callbacks.ModelCheckpoint(tmp_path / "others", every_n_epochs=2)
    run(tmp_path, callbacks=lambda: [saver], enable_checkpointing=True, check_val_every_n_epoch=2)
    assert not [record for record in caplog.records if re.search(SAID, record.getMessage())]


# --- Few steps in an epoch ---

FEW = "The first epoch has 3 steps, at 8 times the baseline's LR.*precise_bn_batches"


@pytest.mark.parametrize(
    ("used", "said"),
    [
        ({}, True),
        ({"multigrid": MultigridCallback(precise_bn_batches=2)}, False),
        ({"multigrid": MultigridCallback.baseline()}, False),
        pytest.param({"val": None}, False, marks=pytest.mark.slow),
        pytest.param({"train": loader(number=500), "max_epochs": 1}, False, marks=pytest.mark.slow),
    ],
    ids=["few", "precise", "baseline", "no validation", "many"],
)
def test_what_first_validations_mean_is_said_where_epochs_have_few_steps(used, said, tmp_path, caplog):
    run(tmp_path, **used)
    assert any(re.search(FEW, record.getMessage()) for record in caplog.records) == said
