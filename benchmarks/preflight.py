"""Says which packages a machine lacks for the benchmarks, and how to carry them to one without a network.

    python benchmarks/preflight.py                        # on the machine with the GPU: what is missing
    python -m pip list --format=freeze > there.txt      # there, if a list can be brought here
    python benchmarks/preflight.py --there there.txt      # here, where the package is installed: what is missing there

The second way finds all that the package needs, and what that needs in turn, from what is installed here.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
# jsonargparse's extra `signatures`, which can't be looked up where jsonargparse is missing.
SIGNATURES = ("docstring-parser", "typeshed-client")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64")


def plain(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needed_packages(project: Path = PROJECT) -> list[str]:
    """The packages that this one depends on, by its pyproject.toml."""
    text = project.read_text().partition("\ndependencies = [")[2].partition("\n]")[0]
    return [plain(name) for name in re.findall(r'^\s+"([\w.-]+)', text, re.MULTILINE)]


def installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def missing_packages(names: Iterable[str]) -> list[str]:
    return [name for name in names if not installed(name)]


def closure(names: Iterable[str], there: set[str]) -> dict[str, str]:
    """Versions here of the packages, and of all that these need, but for those that are there."""
    found: dict[str, str] = {}
    waiting = [plain(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name in found or name in there or not installed(name):
            continue
        found[name] = version(name)
        for line in requires(name) or []:
            requirement, _, condition = line.partition(";")
            extra = "extra" in condition and not (name == "jsonargparse" and "signatures" in condition)
            if not extra and "sys_platform ==" not in condition and "platform_system ==" not in condition:
                waiting.append(plain(re.match(r"[\w.-]+", requirement)[0]))
    return dict(sorted(found.items()))


def carry(packages: Sequence[str], python: str = "3.12") -> str:
    """The commands that fetch wheels on a machine with a network, and install them on the other one."""
    platforms = " ".join(f"--platform {name}" for name in PLATFORMS)
    return (
        f"With a network, fetch wheels (for Python {python} on x86-64):\n"
        f"    python3 -m pip download --no-deps --only-binary=:all: --python-version {python} --implementation cp "
        f"{platforms} -d wheels {' '.join(packages)}\n"
        "Carry the folder `wheels`, and there, before the benchmarks:\n"
        "    python3 -m pip install --no-index --no-deps --no-compile --target /tmp/site wheels/*.whl\n"
        "    export PYTHONPATH=/tmp/site"
    )


def preflight() -> int:
    """Prints what is missing on this machine; returns how many packages are."""
    packages = needed_packages()
    missing = missing_packages([*packages, *SIGNATURES, "pytest"])
    print(f"Python {sys.version.split()[0]}.", end=" ")
    if not missing:
        print("Nothing is missing.")
        return 0
    print(f"Missing: {', '.join(missing)}.")
    print(carry(missing, ".".join(map(str, sys.version_info[:2]))))
    print("What these packages need in turn is not known here: see the second way in this script's --help.")
    return len(missing)


def main(args: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--there", type=Path, metavar="FILE", help="`pip list --format=freeze` of the other machine")
    parser.add_argument("--python", default="3.12", metavar="VERSION", help="of the other machine")
    options = parser.parse_args(args)
    if options.there is None:
        return preflight()
    there = {plain(re.split(r"[=@ ]", line)[0]) for line in options.there.read_text().splitlines() if line.strip()}
    packages = closure([*needed_packages(), "pytest"], there)
    if packages:
        print(carry([f"{name}=={number}" for name, number in packages.items()], options.python))
    else:
        print("Nothing is missing there.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
