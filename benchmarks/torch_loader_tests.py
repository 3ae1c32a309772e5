"""Runs torch's own tests of its `DataLoader` on ours.

    python benchmarks/torch_loader_tests.py CHECKOUT
    python benchmarks/torch_loader_tests.py CHECKOUT -k shuffle

CHECKOUT is a folder with torch's sources, of the installed release. Only `test/test_dataloader.py` in it is read, and
nothing is fetched. Each test runs with torch's loader, and with a `MultigridLoader` that has the baseline's plan. A
test that passes there and fails here must have a reason in `REASONS`. The tests need `expecttest` and `psutil`.
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
from typing import Any, TypeVar

import pytest
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch.utils.data import DataLoader

from lightning_multigrid import Baseline, BatchShape, LongCycle, MultigridSchedule, Plan, ShortCycle, Step
from lightning_multigrid.loading import MultigridLoader, MultigridSampler, StreamSamples, order_of
from lightning_multigrid.schedule import Place
from lightning_multigrid.training.script.recipe import user_loader

TESTS, T = "test_dataloader.py", TypeVar("T")
WHOLE = "a sample is a clip: whole mini-batches (`batch_size=None`, own batch samplers) are refused"
LENGTH = "the plan needs a length"
ORDER = "the worker that is free takes the next mini-batch, and all come in the order of the plan"
REASONS = {
    name: reason
    for reason, names in {
        WHOLE: "test_batch_sampler test_builtin_collection_conversion test_bulk_loading_nobatch test_sampler "
        "test_iterable_style_dataset test_sequential_nonbatch test_shuffle_batch_none test_dataloader_with_namedtuple",
        LENGTH: "test_error_in_init test_in_order_iterable_ds test_out_of_order_iterable_ds "
        "test_multiprocessing_iterdatapipe",
        ORDER: "test_ind_worker_queue test_in_order_index_ds test_out_of_order_index_ds",
        "its iterator is none of torch's, whose workers the test asks for": "test_partial_workers",
        "the plan keeps the length of the dataset, and refuses another": "test_growing_dataset",
        "the plan cuts the data among the ranks itself": "test_duplicating_data_with_drop_last",
        "an error of a sample ends the epoch": "test_error test_error_workers",
        "all workers read each mini-batch of a stream together": "test_multi_epochs_reproducibility",
    }.items()
    for name in names.split()
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
        one: Any = {"world_size": 1, "limit_train_batches": 1.0, "fast_dev_run": False}
        trainer: Any = SimpleNamespace(**one, strategy=SingleDeviceStrategy("cpu"))
        script = user_loader(DataLoader(*args, **arguments), trainer)
        clips = len(script.dataset) if isinstance(script.dataset, StreamSamples) else len(script.sampler)
        shape = Baseline(BatchShape(script.batch_size, 1, 1), epochs=1000)
        off = LongCycle(((1, 1),)), ShortCycle((1,))
        schedule = MultigridSchedule(shape, *off, epoch_factor=1, fine_tuning=False)
        plan = Plan(schedule, clips - clips % script.batch_size if script.drop_last else clips)
        ours = MultigridLoader(Samples(script.dataset), MultigridSampler(plan, order_of(script, plan.seed)), script)
        ours.loop = Epochs(plan)
        vars(ours).update(batch_size=script.batch_size, drop_last=script.drop_last)  # as a script sees them
        return ours


class Outcomes:
    """A plugin of pytest: how each test ended."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.found[report.nodeid.partition("::")[2]] = f"{report.outcome}\n{report.longreprtext}"


def run(tests: Path, loader: str, chosen: str) -> dict[str, str]:
    """How torch's tests end with a loader; in a folder with their module, as some are run in processes of their own."""
    with tempfile.TemporaryDirectory() as folder:
        module = f"exec(compile(open({str(tests)!r}).read(), {str(tests)!r}, 'exec'))\n"
        module += f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        module += f"from torch_loader_tests import {loader} as DataLoader\n"
        Path(folder, TESTS).write_text(module)
        here = [sys.executable, __file__, folder, "--run", "-k", chosen]
        subprocess.run(here, check=False, stdout=sys.stderr)
        return json.loads(Path(folder, "outcomes").read_text())


def reason(name: str) -> str | None:
    return REASONS.get(name.rpartition("::")[2])


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("-k", default="", metavar="EXPRESSION", help="of pytest, which chooses some tests")
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(args)
    if given.run:
        outcomes, alone = Outcomes(), ["-p", "no:randomly", "-p", "no:cacheprovider", "-n", "0", "--timeout", "120"]
        pytest.main(["-c", "/dev/null", "-q", "-k", given.k, *alone, str(given.checkout / TESTS)], plugins=[outcomes])
        (given.checkout / "outcomes").write_text(json.dumps(outcomes.found))
        return
    tests = given.checkout / "test" / TESTS
    if not tests.exists():
        sys.exit(f"{tests} isn't there. Give a folder with the sources of the installed release of torch.")
    theirs, ours = (run(tests, loader, given.k) for loader in ("DataLoader", "Ours"))
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
