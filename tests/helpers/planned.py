"""What the command `plan` knows, before it is text."""

from unittest import mock

from lightning_multigrid.cli.main import main
from lightning_multigrid.cli.plan import Preview


def planned(*words):
    """Runs `plan` with these words; returns its `Preview` and the seconds of its steps."""
    with mock.patch.object(Preview, "table", autospec=True, return_value="") as table:
        main(["plan", *words])
    return table.call_args.args
