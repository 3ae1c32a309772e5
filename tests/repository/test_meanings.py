"""What each part of Lightning means under multigrid training is said of every one that the installed Lightning has."""

import logging

import pytest
from lightning.pytorch import callbacks

from lightning_multigrid import MultigridCallback
from tests.helpers import meanings
from tests.helpers.tiny import Module, fit, loader

pytestmark = pytest.mark.usefixtures("_unrehearsed")


@pytest.mark.parametrize("kind", meanings.lightnings())
def test_nothing_of_lightning_is_left_out(kind):
    said, there = meanings.lightnings()[kind]
    assert there <= said.keys(), "Say in tests/helpers/meanings.py what the new ones mean under multigrid training."


def test_the_page_has_the_table():
    page = meanings.PAGE.read_text()
    _, table = page.split(meanings.BEGIN)
    assert table.split(meanings.END)[0].strip() == meanings.table(), "Run `python -m tests.helpers.meanings`."


class Two(Module):
    def __init__(self):
        super().__init__()
        self.backbone = self.net[:2]


def steps(tmp_path, *own, **arguments):
    """Optimizer steps and epochs of a run."""
    logging.disable(logging.INFO)
    data = {"train": loader(number=40), "val": loader(shuffle=False, number=8)}
    host = fit(Two(), MultigridCallback(seed=0), *own, **data, **arguments, default_root_dir=tmp_path, max_epochs=2)
    return host.global_step, host.current_epoch


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return steps(tmp_path_factory.mktemp("alone"))


AS_EVER = {name for name, meaning in meanings.CALLBACKS.items() if meaning == meanings.AS_EVER}
BASES = {"BaseFinetuning", "BasePredictionWriter", "Callback", "Checkpoint", "ProgressBar"}  # to be derived from
ARGUMENTS = {"BackboneFinetuning": [1, lambda epoch: 1.5], "ModelPruning": ["l1_unstructured"]}


@pytest.mark.filterwarnings("ignore:.*ckpt_path")  # Lightning, where there is such a checkpoint
@pytest.mark.filterwarnings("ignore:.*already exist within another group")  # of an optimizer of all parameters
@pytest.mark.parametrize("name", sorted(AS_EVER - BASES))
def test_what_is_as_ever_changes_no_step(alone, tmp_path, name):
    saves = "Checkpoint" in name
    given = ARGUMENTS.get(name, [tmp_path] if saves else [])
    arguments = {"enable_checkpointing": saves, "enable_progress_bar": "Progress" in name}
    arguments |= {"enable_model_summary": "Summary" in name}
    assert steps(tmp_path, getattr(callbacks, name)(*given), **arguments) == alone
