"""torch's own tests of its `DataLoader`, run on ours: `python -m tests.helpers.torch_loader_tests CHECKOUT`.

CHECKOUT is a folder with torch's sources, of the installed release. Only `test/test_dataloader.py` in it is read, and
nothing is fetched. Each test runs with torch's loader, and with a `MultigridLoader` that has the baseline's plan. A
test that passes there and fails here must have a reason in `REASONS`. The tests need `expecttest` and `psutil`.
`-k EXPRESSION` chooses some of them, as in pytest.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest
from torch.utils.data import DataLoader

from lightning_multigrid.loading import MultigridLoader, MultigridSampler, StreamSamples, order_of
from lightning_multigrid.schedule import (
    Baseline,
    BatchShape,
    LongCycle,
    MultigridSchedule,
    Place,
    Plan,
    ShortCycle,
    Step,
)
from lightning_multigrid.training.script.recipe import user_loader

OF_SHIM = "test_dataloader.py"
T = TypeVar("T")
WHOLE = "a sample is a clip: whole mini-batches (`batch_size=None`, own batch samplers) are refused"
LENGTH = "the plan needs a length"
REASONS = {
    f"TestDataLoader::{name}": reason
    for reason, names in {
        WHOLE: "test_batch_sampler test_builtin_collection_conversion test_bulk_loading_nobatch test_sampler "
        "test_iterable_style_dataset test_sequential_nonbatch test_shuffle_batch_none",
        LENGTH: "test_error_in_init",
        "the plan keeps the length of the dataset, and refuses another": "test_growing_dataset",
        "the plan cuts the data among the ranks itself": "test_duplicating_data_with_drop_last",
        "an error of a sample ends the epoch": "test_error test_error_workers",
        "all workers read each mini-batch of a stream together": "test_multi_epochs_reproducibility",
    }.items()
    for name in names.split()
}
ORDER = "the worker that is free takes the next mini-batch, and all come in the order of the plan"
REASONS |= {
    "TestNamedTupleDataLoader::test_dataloader_with_namedtuple": WHOLE,
    "TestIndividualWorkerQueue::test_ind_worker_queue": ORDER,
    "TestOutOfOrderDataLoader::test_in_order_index_ds": ORDER,
    "TestOutOfOrderDataLoader::test_out_of_order_index_ds": ORDER,
    "TestOutOfOrderDataLoader::test_in_order_iterable_ds": LENGTH,
    "TestOutOfOrderDataLoader::test_out_of_order_iterable_ds": LENGTH,
}


class Samples:
    """A dataset whose samples are the same on each grid."""

    frames = size = stride = 1

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def read_clip(self, request: Any) -> Any:
        return self.dataset[request.index]


class Epochs:
    """A training loop that begins the next epoch whenever the loader is iterated."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.numbers = plan, count()

    def begin(self) -> Step:
        return self.plan.step(Place(next(self.numbers), 0))

    def timed(self, mini_batches: Iterator[Any]) -> Iterator[Any]:
        return mini_batches


class Ours(DataLoader[T]):
    """Takes the arguments of torch's loader, and makes ours: of the same samples, in mini-batches of the same size."""

    def __new__(cls, *args: Any, **arguments: Any) -> Any:
        trainer = SimpleNamespace(world_size=1, limit_train_batches=1.0, fast_dev_run=False)
        script = user_loader(DataLoader(*args, **arguments), cast("Any", trainer))
        size = cast("int", script.batch_size)
        clips = len(script.dataset) if isinstance(script.dataset, StreamSamples) else len(script.sampler)
        shape = Baseline(BatchShape(size, 1, 1), epochs=1000)
        off = LongCycle(((1, 1),)), ShortCycle((1,))
        schedule = MultigridSchedule(shape, *off, epoch_factor=1, fine_tuning=False)
        plan = Plan(schedule, clips - clips % size if script.drop_last else clips)
        sampler = MultigridSampler(plan, order_of(script, plan.seed))
        ours = MultigridLoader(Samples(script.dataset), sampler, script, Epochs(plan))
        vars(ours).update(batch_size=size, drop_last=script.drop_last)  # as the loader that a script sees
        return ours


class Outcomes:
    """A plugin of pytest: how each test ended."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.found[report.nodeid.partition("::")[2]] = f"{report.outcome}\n{report.longreprtext}"


def run(tests: Path, loader: str, *options: str) -> dict[str, str]:
    """How torch's tests end with a loader; in a folder with their module, as some are run in processes of their own."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = "DataLoader" if loader == "torch" else "Ours"
        shim = f"exec(compile(open({str(tests)!r}).read(), {str(tests)!r}, 'exec'))\n"
        shim += f"from tests.helpers.torch_loader_tests import {chosen} as DataLoader\n"
        Path(folder, OF_SHIM).write_text(shim)
        here = [sys.executable, "-m", __spec__.name, folder, "--run", *options]
        subprocess.run(here, check=False, stdout=sys.stderr)
        return cast("dict[str, str]", json.loads(Path(folder, "outcomes").read_text()))


def reason(name: str) -> str | None:
    """Why a test fails; those with persistent workers have the reasons of the others."""
    return REASONS.get(name.replace("PersistentWorkers", ""))


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("-k", default="")
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(args)
    if given.run:
        outcomes, quiet = (
            Outcomes(),
            ["-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-n", "0", "--timeout", "120"],
        )
        pytest.main(["-c", "/dev/null", "-k", given.k, *quiet, str(given.checkout / OF_SHIM)], plugins=[outcomes])
        (given.checkout / "outcomes").write_text(json.dumps(outcomes.found))
        return
    tests = given.checkout / "test" / OF_SHIM
    if not tests.exists():
        sys.exit(f"{tests} isn't there. Give a folder with the sources of the installed release of torch.")
    theirs, ours = (run(tests, loader, "-k", given.k) for loader in ("torch", "ours"))
    passed = [name for name, outcome in theirs.items() if outcome.startswith("passed")]
    failed = {name: ours.get(name, "missing") for name in passed if not ours.get(name, "").startswith("passed")}
    for name in failed:
        print(f"{name}: {reason(name) or failed[name][-1500:]}")
    without = [name for name in failed if reason(name) is None]
    stale = [name for name in passed if name not in failed and reason(name) is not None]
    print(f"{len(passed)} tests pass with torch's loader, {len(passed) - len(failed)} of them with ours.")
    if without or stale:
        sys.exit(f"Without a reason: {without}. They pass now, so leave them out of REASONS: {stale}.")


if __name__ == "__main__":
    main()
