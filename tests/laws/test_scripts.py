"""Each way to write a script, without and with the callback: shapes, LR, state afterwards, resume, or why not."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import script_styles
from tests.helpers.chosen_package import VARIABLE
from tests.helpers.sampling import sampled
from tests.helpers.script_styles import STYLES
from tests.helpers.scripts import check_refused, check_style

WORKS = {style.id: style for style in STYLES if style.refused is None}
# Plain scripts, and ways that say something new when they resume.
SAMPLE = (
    "Complete scripts: `import lightning as L`",
    "Datasets and samples: the dataset is told the epoch in `on_train_epoch_start`",
    "Datasets and samples: draws that no seed sets",
    "Datasets and samples: an `IterableDataset` with `limit_train_batches`",
    "Loaders and samplers: torchdata's `StatefulDataLoader`",
    "Several tensors per sample: SlowFast's pathways",
    "LR by hand, and your own schedulers: a warm-up of 500 steps in `optimizer_step`",
    "LR by hand, and your own schedulers: your own class of scheduler, told the epoch",
    "LR by hand, and your own schedulers: a constant, written before each step",
    "LR schedulers: two for one optimizer: by epoch, and every third step",
    "Manual optimization: a teacher that is a moving average of the model",
    "Manual optimization: two optimizers and schedulers, stepped in the last mini-batch of each epoch",
    "Arguments of the Trainer: `accumulate_grad_batches=2`",
)
REFUSED = [style for style in STYLES if style.refused is not None]
ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata's use of torch
    pytest.mark.filterwarnings("ignore:.*`ModelCheckpoint\\(monitor"),
    pytest.mark.filterwarnings("ignore:The given buffer is not writable"),  # litdata's use of torch
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),  # webdataset's shards
]


@pytest.fixture(autouse=True)
def _shards_are_closed_here(request):
    yield
    if "webdataset" in request.node.name:
        gc.collect()


@pytest.mark.parametrize("name", sampled(WORKS, *SAMPLE))
def test_a_style_that_works(name, tmp_path):
    style = WORKS[name]
    if style.needs is not None:
        pytest.importorskip(style.needs)
    if style.package == "lightning":
        check_style(style, tmp_path)
        return
    pytest.importorskip(style.package)
    alone = [sys.executable, "-m", "tests.helpers.styles_of_whole_scripts", style.id, str(tmp_path)]
    told = {"env": {**os.environ, VARIABLE: style.package}, "cwd": ROOT}
    ended = subprocess.run(alone, capture_output=True, text=True, check=False, **told)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("style", REFUSED, ids=lambda style: style.id)
def test_a_style_that_is_refused(style, tmp_path):
    if style.needs is not None:
        pytest.importorskip(style.needs)
    check_refused(style, tmp_path)


def test_the_page_has_the_rows():
    assert len(STYLES) >= 120
    assert len({style.id for style in STYLES}) == len(STYLES)
    assert {style.group for style in STYLES} == set(script_styles.WORKS)
    page, (start, end) = script_styles.PAGE.read_text(encoding="utf-8"), script_styles.MARKS
    assert page.partition(start)[2].partition(end)[0] == script_styles.tables(), "python -m tests.helpers.script_styles"
