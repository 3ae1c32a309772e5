"""Each way to write a script, without and with the callback: shapes, LR, state afterwards, resume, or why not."""

from pathlib import Path

import pytest

from tests.helpers.script_styles import STYLES
from tests.helpers.scripts import check_refused, check_style

WORKS = [style for style in STYLES if style.refused is None]
REFUSED = [style for style in STYLES if style.refused is not None]

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*`ModelCheckpoint\\(monitor"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory"),
]


@pytest.mark.parametrize("style", WORKS, ids=lambda style: style.id)
def test_a_style_that_works(style, tmp_path):
    check_style(style, tmp_path)


@pytest.mark.parametrize("style", REFUSED, ids=lambda style: style.id)
def test_a_style_that_is_refused(style, tmp_path):
    check_refused(style, tmp_path)
