"""Scripts that are put together at random keep the laws of the drop-in callback, and looking at the loader is free."""

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from lightning_multigrid import MultigridCallback
from tests.helpers import styles_of_modules as modules
from tests.helpers.script_styles import STYLES
from tests.helpers.scripts import SHAPE, Style, check_style, run, weights
from tests.helpers.small_scripts import CLIPS, EPOCHS, Script

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*`ModelCheckpoint\\(monitor"),
    pytest.mark.filterwarnings("ignore:Precision .* is not supported by the model summary"),
]

# Of scripts that resume to the bit and need no other library.
PARTS = [style for style in STYLES if style.refused is style.needs is style.warns is None and style.resumes is True]
PLAIN = Style("", "")  # what a row says nothing of


def rows(*groups):
    return st.sampled_from([style for style in PARTS if style.group in groups])


@st.composite
def styles(draw):
    """A script with the data, the optimizer and scheduler, the Trainer and the callbacks of rows that are drawn."""
    data = draw(rows("Datasets and samples", "Loaders and samplers"))
    module = draw(rows("Optimizers", "LR schedulers"))
    trainer = draw(rows("Arguments of the Trainer"))
    callbacks = draw(rows("Callbacks of the script").filter(lambda row: row.module is Script))
    if (data.clips, data.shape) != (CLIPS, SHAPE) and (trainer.clips, trainer.epochs) != (CLIPS, EPOCHS):
        trainer = PLAIN  # its numbers are for other data
    if data.module is not Script:
        module = data  # which takes its mini-batches apart
    chosen = [part.name for part in (data, module, trainer, callbacks)]
    return replace(
        data,
        name=", ".join(chosen),
        module=module.module,
        trainer={**trainer.trainer, **callbacks.trainer},
        callbacks=callbacks.callbacks,
        multigrid={**data.multigrid, **module.multigrid},
        clips=trainer.clips if trainer.clips != CLIPS else data.clips,
        epochs=trainer.epochs,
        lr=module.lr,
    )


def check(style):
    note(style.name)
    with tempfile.TemporaryDirectory() as folder:
        check_style(style, Path(folder))
        peeking = replace(style, callbacks=lambda: [*style.callbacks(), modules.Peek()])
        one, other = (
            run(each, Path(folder) / str(number), MultigridCallback(**style.multigrid), enable_checkpointing=False)
            for number, each in enumerate((style, peeking))
        )
    assert (one.watch.losses, one.watch.lrs) == (other.watch.losses, other.watch.lrs)
    mine, its = weights(one.module), weights(other.module)
    assert all(torch.equal(value, its[name]) for name, value in mine.items())


COMMON = {"deadline": None, "database": None, "derandomize": True, "phases": [Phase.generate]}
COMMON["suppress_health_check"] = [HealthCheck.too_slow]


@settings(max_examples=1, **COMMON)
@given(styles())
def test_scripts_of_random_parts(style):
    check(replace(style, resumes=None))


@pytest.mark.slow
@pytest.mark.timeout(3000)
@settings(max_examples=100, **COMMON)
@given(styles())
def test_many_scripts_of_random_parts_resume_too(style):
    check(style)
