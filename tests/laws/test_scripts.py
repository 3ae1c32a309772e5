"""Each way to write a script, without and with the callback: shapes, LR, state afterwards, resume, or why not."""

import gc
import re
import warnings

import pytest

from tests.helpers import script_styles
from tests.helpers.identity import REASONS, differences
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
IDENTITY = {style.id: style for style in STYLES}
SAMPLE_OF_IDENTITY = (
    "Complete scripts: `import lightning as L`",
    "Datasets and samples: an `IterableDataset` and `clips_per_epoch`",
    "Loaders and samplers: your own sampler with `set_epoch`",
    "Manual optimization: a model and a critic (GAN), `toggle_optimizer`, schedulers",
    "Arguments of the Trainer: `accumulate_grad_batches=2`",
    "Arguments of the Trainer: `val_check_interval=6`",
)
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
    pytest.importorskip(style.needs or "lightning")
    check_style(style, tmp_path)


@pytest.mark.parametrize("style", REFUSED, ids=lambda style: style.id)
def test_a_style_that_is_refused(style, tmp_path):
    pytest.importorskip(style.needs or "lightning")
    check_refused(style, tmp_path)


@pytest.mark.parametrize("name", sampled(IDENTITY, *SAMPLE_OF_IDENTITY))
def test_the_baseline_is_the_script_alone(name, tmp_path):
    """`MultigridCallback.baseline()` may differ from the script alone only where a reason is listed."""
    style = IDENTITY[name]
    pytest.importorskip(style.needs or "lightning")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = differences(style, tmp_path)
        except Exception as error:
            if style.refused is None or not re.search(style.refused, str(error)):
                raise
            return  # the baseline refuses it, too
    listed = {*REASONS[""][0], *REASONS.get(name, (set(),))[0]}
    others = {aspect: both for aspect, both in found.items() if aspect not in listed}
    assert not others, f"{name}: differs in {[*others]}, without the callback and with it: {str(others)[:3000]}"
    assert found.keys() == listed, f"no longer differs in {listed - found.keys()}: leave it out of `REASONS`"


def test_the_page_has_the_rows():
    assert len(STYLES) >= 200
    assert len({style.id for style in STYLES}) == len(STYLES)
    assert {style.group for style in STYLES} == set(script_styles.WORKS)
    page = script_styles.PAGE.read_text(encoding="utf-8")
    assert script_styles.with_tables(page) == page, "python -m tests.helpers.script_styles"
    assert {style.name for style in STYLES if style.refused is not None} >= script_styles.MET
