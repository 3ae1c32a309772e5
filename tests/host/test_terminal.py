"""What a person sees on a terminal: every message whole, once and in order, and a bar that keeps its place."""

import io
import json
import logging
import re
import warnings
from functools import partial

import lightning as L
import pytest
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar
from rich.console import Console
from rich.progress import Progress

from lightning_multigrid import MultigridCallback
from lightning_multigrid.cli.main import main
from lightning_multigrid.host import say, whole_words
from lightning_multigrid.host.terminal import drawing, wrapped
from tests.helpers.sampling import sampled
from tests.helpers.terminal import on_terminal
from tests.helpers.tiny import Module, fit, loader

BROKEN = "The video /videos/of/a/long/folder/whose/name/does/not/end/before/the/line/does/abcdefgh.mp4 is broken."


class Warns(Module):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("now", loss.detach(), prog_bar=True, logger=False)
        if isinstance(self._trainer, L.Trainer) and (self.current_epoch, batch_idx) == (1, 1):
            warnings.warn(BROKEN, UserWarning, stacklevel=1)
        return loss


def train(bar, told):
    """Trains with a bar; notes in a file what was said, in order."""
    said = []

    class Noting(logging.Handler):
        def emit(self, record):
            said.append(record.getMessage())

    for name in ("lightning.pytorch", "pytorch_lightning"):  # whichever a test imported last
        logging.getLogger(name).addHandler(Noting())
    show = warnings.showwarning

    def noting(message, category, filename, lineno, file=None, line=None):
        said.append(warnings.formatwarning(message, category, filename, lineno, line))
        show(message, category, filename, lineno, file, line)

    warnings.showwarning = noting
    shown = {"enable_progress_bar": bar is not None, "max_epochs": 2, "num_sanity_val_steps": 1}
    bars = [] if bar is None else [bar()]
    fit(Warns(), MultigridCallback(), *bars, val=loader(number=8, shuffle=False), **shown)
    told.write_text(json.dumps(said))


def squeezed(lines):
    return "".join("".join(lines).split())


def test_drawing():
    """Rich's lock, which is not public."""
    progress = Progress(console=Console(file=io.StringIO()))
    bar = RichProgressBar()
    assert not hasattr(drawing(bar), "acquire")  # there is no bar yet
    bar.progress = progress
    assert hasattr(drawing(bar), "acquire")


def test_lines_end_between_words_but_for_tables_code_and_long_words():
    table = "phase  steps\n    0     10"
    assert wrapped(table, columns=4) == table
    assert wrapped("one two three\n\n four\n", columns=7) == "one two\nthree\n\n four\n"
    assert wrapped("a /path/without-an/end b", columns=6) == "a\n/path/without-an/end\nb"


def test_messages_and_warnings_are_wrapped_where_they_are_printed_and_records_stay(capsys, monkeypatch):
    long = "word " * 30 + "end"
    ours, of_script, records = logging.StreamHandler(io.StringIO()), logging.StreamHandler(io.StringIO()), []
    of_script.setFormatter(logging.Formatter("12:00 %(message)s"))
    logger = logging.getLogger("lightning.pytorch")
    monkeypatch.setattr(logger, "handlers", [ours, of_script])
    monkeypatch.setattr(logger, "filters", [lambda record: records.append(record.getMessage()) or True])
    formatted = warnings.formatwarning
    with whole_words(), whole_words():  # a command, and the callback in it
        logger.warning(long)
        text = warnings.formatwarning(long, UserWarning, "script.py", 1, "fit()")
    assert ours.stream.getvalue() == f"{wrapped(long)}\n"
    assert of_script.stream.getvalue() == f"12:00 {long}\n"
    assert records == [long]
    assert max(map(len, text.splitlines())) <= 80
    assert squeezed(text) == squeezed(f"script.py:1:UserWarning:{long} fit()")
    assert (warnings.formatwarning, ours.formatter) == (formatted, None)
    say(long)
    assert capsys.readouterr().out == f"{wrapped(long)}\n"


def plan():
    main(["plan", "--like", "kinetics-i3d-1gpu", "--step_time=0.5"])


def test_a_plan_has_lines_as_wide_as_the_terminal(capsys):
    plan()
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    narrow, wide = ([*on_terminal(plan, columns).lines] for columns in (80, 120))
    printed_there = narrow[next(i for i, line in enumerate(narrow) if line.startswith("Multigrid schedule")) :]
    assert printed_there == printed.splitlines()
    assert max(map(len, wide)) > 100
    assert " ".join(" ".join(wide).split()).endswith(" ".join(printed.split()))


WIDTHS = (60, 80, 100, 160, 230)


@pytest.mark.parametrize(
    ("bar", "columns"),
    sampled(
        [*((bar, width) for bar in (RichProgressBar, TQDMProgressBar) for width in WIDTHS), (None, 100)],
        *((RichProgressBar, 80), (TQDMProgressBar, 60), (None, 100)),
    ),
)
def test_a_person_sees_every_message_whole_once_and_in_order(bar, columns, tmp_path):
    seen = on_terminal(partial(train, bar, tmp_path / "said"), columns, watch=re.compile("Epoch.*grid.*left.*").match)
    assert seen.status == 0, seen.lines
    bars = [index for index, line in enumerate(seen.lines) if line.startswith("Epoch ")]
    second = {index + 1 for index in bars if seen.lines[index + 1].startswith(" ")}  # 60 columns need two lines
    messages = [line for index, line in enumerate(seen.lines) if index not in {*bars, *second}]
    said = json.loads((tmp_path / "said").read_text())
    assert squeezed(messages) == squeezed(said)
    if columns >= 80:  # as wide as tables are
        seen_words = set(" ".join(messages).split())
        before_fit = [message for message in said if "💡" in message]  # of the Trainer
        words = " ".join(message for message in said if message not in before_fit).split()
        assert {word for word in words if len(word) <= columns} <= seen_words  # no edge cuts one
    assert [message for message in said if BROKEN in " ".join(message.split())]
    report = next(index for index, line in enumerate(seen.lines) if line.startswith("Time per shape of mini-batch"))
    assert "Attheend:" in squeezed(seen.lines[report:])
    assert len(bars) == (bar is not None)
    assert all(index < report for index in bars)  # the report comes when the bar is gone
    shown = [line for lines in seen.watched for line in lines]
    if bar is RichProgressBar and columns >= 80:
        # The others were seen while they were drawn.
        whole = [line for line in shown if "now: " in line]
        places = {tuple(line.index(item) for item in ("grid: ", "lr: ", "left: ", "now: ")) for line in whole}
        assert len(places) == 1
        assert {line.index("grid: ") for line in shown} == {place[0] for place in places}
        assert re.search(r"left: \d:\d\d:\d\d now: \d\.\d{3}$", shown[-1])
    if bar is TQDMProgressBar and columns >= 100:
        assert re.search(r"grid=\S+, lr=\S+, left=\d:\d\d:\d\d, now=\d\.\d+\]$", shown[-1])
