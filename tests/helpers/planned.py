"""What the command `plan` knows, before it is text."""

from contextlib import ExitStack
from unittest import mock

from lightning_multigrid.cli.main import main
from lightning_multigrid.cli.plan import Preview

DRAWS = ("kaiming_normal_", "kaiming_uniform_", "normal_", "trunc_normal_", "uniform_")


def planned(*words):
    """Runs `plan` with these words; returns its `Preview` and the seconds of its steps.

    To draw the first weights of a whole model, which no plan looks at, would take most of the time.
    """
    with ExitStack() as patches:
        for name in DRAWS:
            patches.enter_context(mock.patch(f"torch.nn.init.{name}", lambda tensor, *_, **__: tensor))
        table = patches.enter_context(mock.patch.object(Preview, "table", autospec=True, return_value=""))
        main(["plan", *words])
    return table.call_args.args
