"""Runs the tests that need a GPU, and nothing else of the test suite: pytest is the only tool they need.

    python benchmarks/cuda_tests.py --json cuda_tests.json

It copies `tests` to a folder of its own, so that the tests find the package that is installed, with pytest's settings
as they come instead of those of the repository. The JSON file is written after each test. Without a GPU all of them are
skipped, which shows that they can be collected.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from measuring import choose_device, machine, machine_line, write_json

TESTS = Path(__file__).parents[1] / "tests"
SETTINGS = "[pytest]\nmarkers =\n    cuda: needs a CUDA device\n    slow: a proof that takes minutes\n"


class Outcomes:
    """A pytest plugin that notes how each test ended."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.tests: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            found = {"outcome": report.outcome, "seconds": report.duration}
            if report.failed:
                found["why"] = str(report.longrepr)[-2000:]
            self.tests[report.nodeid] = found
            self.save()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.tests[report.nodeid] = {"outcome": "failed", "why": str(report.longrepr)[-2000:]}
            self.save()

    @property
    def counts(self) -> dict[str, int]:
        return dict(Counter(test["outcome"] for test in self.tests.values()))

    def save(self) -> None:
        write_json(self.options, "cuda_tests", {"counts": self.counts, "tests": self.tests})


def files_with_cuda_tests(tests: Path) -> list[Path]:
    return sorted(path for path in tests.rglob("test_*.py") if "mark.cuda" in path.read_text())


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the outcomes there")
    options = parser.parse_args(args)
    device = choose_device(options, parser.error)
    print(machine_line(machine(device)))
    outcomes = Outcomes(options)
    home = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tests"
        shutil.copytree(TESTS, copy, ignore=shutil.ignore_patterns("__pycache__"))
        (Path(folder) / "pytest.ini").write_text(SETTINGS)
        options.json = options.json.absolute() if options.json else None
        os.chdir(folder)
        try:
            given = ["-c", "pytest.ini", "-m", "cuda", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
            files = map(str, files_with_cuda_tests(copy))
            status = pytest.main([*given, "--continue-on-collection-errors", "-rs", *files], plugins=[outcomes])
        finally:
            os.chdir(home)
    outcomes.save()
    torch.compiler.set_stance("default")
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit(int(status))


if __name__ == "__main__":
    main()
