"""Public Lightning projects that train on video, without the callback and with it.

    python benchmarks/public_projects/run.py --folder FOLDER
    python benchmarks/public_projects/run.py --folder FOLDER --json results.json zamba-slowfast TeCNO

The folder keeps the projects: each is fetched from its public address at the commit that `project_scripts.py` names,
unless it is there already. Nothing of them is changed: their modules, datasets, `collate_fn`s and optimizers train on
small clips that are made in the project's own format. What is put in their place has nothing to do with training
(weights from the network, a program that reads videos), or is a name that Lightning 2 no longer has;
`project_scripts.py` says which.

Each project runs in a process of its own, for some epochs of a few steps, first without the callback. With it, a
project *works* if

- each mini-batch has the clips, frames and pixels of the plan, on three grids or more;
- each optimizer step has the LR of the first run at the same point of the baseline's clock, times the scale;
- afterwards the Trainer, the module and the optimizers are as they were.

It is *refused* if the callback's own error ends the run before the first step. Anything else was *wrong*: a finding,
and no row of a table. Warnings that only the second run has are printed by their first sentence. A project that needs
packages which are not installed is named, and not run.
"""

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

os.environ.setdefault("PACKAGE_OF_SCRIPTS", "pytorch_lightning")  # as nearly all of these projects
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the benchmarks
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from measuring import write_json
from project_scripts import SCRIPTS, Way

import lightning_multigrid
from lightning_multigrid import LongCycle, MultigridCallback, ShortCycle
from tests.helpers.scripts import Run, Style, Watch, check_lr, check_restored, plan_of, run

LEAST_GRIDS = 3
Shapes = list[tuple[int, int, int]]  # clips x frames x size


def fetch(way: Way, folder: Path) -> Path:
    """Returns the folder of a project at its commit, which is fetched if it is not there."""
    target = folder / way.repository.partition("/")[2]
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=folder) as beside:  # a fetch that ends early leaves nothing
            address = f"https://github.com/{way.repository}"
            for command in ("init", f"fetch --depth 1 {address} {way.commit}", f"checkout {way.commit}"):
                subprocess.run(["git", "-c", "advice.detachedHead=false", *command.split()], cwd=beside, check=True)
            shutil.move(beside, target)
    return target


def first_sentence(text: object) -> str:
    return " ".join(str(text).split()).partition(". ")[0].rstrip(".") + "."


def is_ours(error: BaseException) -> bool:
    """Whether an error comes from the callback: no other one is a refusal."""
    frames = traceback.extract_tb(error.__traceback__)
    return Path(frames[-1].filename).is_relative_to(Path(lightning_multigrid.__file__).parent)


class Steps(Watch):
    """Counts the steps of a run that may end early."""


def as_planned(found: Shapes, planned: Shapes, lengths: tuple[int, int] | None) -> bool:
    """Whether mini-batches have the planned shapes, of which padded ones have the frames of their longest clip."""
    if lengths is None:
        return found == planned
    shares = [frames / max(planned, key=itemgetter(1))[1] for _, frames, _ in planned]
    within = all(
        round(share * lengths[0]) <= frames <= round(share * lengths[1])
        for share, (_, frames, _) in zip(shares, found, strict=True)
    )
    return within and [shape[::2] for shape in found] == [shape[::2] for shape in planned]


def attempt(way: Way, style: Style, plain: Run, folder: Path, arguments: dict[str, Any]) -> dict[str, Any]:
    """Runs a script with the callback, and says what came of it."""
    callback, steps = MultigridCallback(**arguments), Steps(style.axes)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            ours = run(style, folder, callback, steps)
        except Exception as error:  # of whatever kind
            name = "refused" if is_ours(error) and not steps.losses else "wrong"
            if name == "wrong":
                traceback.print_exc()
            return {"outcome": name, "message": f"{type(error).__name__}: {error}"}
    of_ours = [one for one in told if "MultigridCallback" in str(one.message) or "rehearsed" in str(one.message)]
    found = {"steps": len(ours.watch.shapes), "grids": sorted({shape[1:] for shape in ours.watch.shapes})}
    found["warnings"] = sorted({first_sentence(one.message) for one in of_ours})
    try:
        planned = plan_of(style, callback)
        assert as_planned(ours.watch.shapes, planned, way.lengths), f"shapes {ours.watch.shapes} instead of {planned}"
        assert len({*planned}) >= LEAST_GRIDS, f"only {sorted({*planned})}"
        if style.lr:
            check_lr(style, plain, ours, callback)
        check_restored(plain, ours, callback)
    except AssertionError as error:
        traceback.print_exc()
        return {"outcome": "wrong", "message": str(error), **found}
    return {"outcome": "works", **found}


def outcomes(way: Way, folder: Path, project: Path) -> dict[str, Any]:
    """What came of a script with the callback alone, and if that is refused, with all that a user can write."""
    scripts = way.script(project, folder)
    style, changed = scripts if isinstance(scripts, tuple) else (scripts, scripts)
    plain = run(style, folder / "plain")
    found = attempt(way, style, plain, folder / "ours", {})
    if found["outcome"] == "refused" and (way.given or way.changes):
        arguments = eval(f"dict({way.given})", {"LongCycle": LongCycle, "ShortCycle": ShortCycle})
        style = replace(changed, multigrid=arguments)
        plain = plain if changed is style else run(style, folder / "changed")
        found = {"alone": found, **attempt(way, style, plain, folder / "given", arguments)}
    return {"steps_of_baseline": len(plain.watch.shapes), **found}


def missing(way: Way) -> list[str]:
    return [name for name in way.needs if importlib.util.find_spec(name) is None]


def run_alone(name: str, folder: Path) -> dict[str, Any]:
    """Runs a script in a process of its own, as projects have modules of the same names."""
    with tempfile.TemporaryDirectory() as made:
        result = Path(made) / "result.json"
        command = [sys.executable, __file__, "--folder", str(folder), "--alone", str(result), name]
        environment = os.environ | {"PACKAGE_OF_SCRIPTS": SCRIPTS[name].package}
        ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if result.exists():
            return json.loads(result.read_text())
        return {"outcome": "not run", "message": (ended.stderr.strip().splitlines() or ["no message"])[-1]}


def alone(name: str, folder: Path, result: Path | None) -> None:
    way = SCRIPTS[name]
    project = fetch(way, folder)
    with tempfile.TemporaryDirectory() as made:
        began = time.monotonic()
        found = outcomes(way, Path(made), project) | {"seconds": round(time.monotonic() - began)}
    text = json.dumps(found, indent=1)
    print(text) if result is None else result.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("projects", nargs="*", help="some of: " + ", ".join(SCRIPTS))
    parser.add_argument("--folder", type=Path, required=True, help="keeps the projects")
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := {*options.projects} - {*SCRIPTS}:
        parser.error(f"no such projects: {', '.join(sorted(unknown))}; there are {', '.join(SCRIPTS)}")
    if options.alone is not None:
        alone(options.projects[0], options.folder.resolve(), options.alone)
        return
    results = json.loads(options.json.read_text())["projects"] if options.json and options.json.exists() else {}
    packages = ["pytorch_lightning", "timm", "pytorchvideo", "torchmetrics", "kornia"]
    for name in options.projects or SCRIPTS:
        way = SCRIPTS[name]
        lacks = missing(way)
        found = {"outcome": "not run", "message": f"needs {', '.join(lacks)}"} if lacks else None
        found = found or run_alone(name, options.folder.resolve())
        of = {"project": way.repository, "commit": way.commit, "kind": way.kind}
        results[name] = of | {"why": way.why, "given": way.given, "changes": way.changes} | found
        write_json(options.json, "projects", {"device": "cpu"}, {"projects": results}, packages)
        needed = " and ".join(filter(None, (way.given, way.changes))) if "alone" in found else ""
        says = [found["message"]] if "message" in found else found.get("warnings", [])
        print(f"{name}: {found['outcome']}{' with ' * bool(needed)}{needed}", *says, sep="\n    ", flush=True)


if __name__ == "__main__":
    main()
