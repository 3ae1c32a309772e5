"""Trains the script of `docs/faster.md` as it is, and after each of its diffs; prints what each takes, as a table.

    python benchmarks/ordinary_scripts/run.py FOLDER --json benchmarks/results/ordinary_script.json

Its videos are H.264 of 340 x 256 pixels, made by `made_videos.py` in FOLDER. Each variant is a program of its own, in a
new process, with caches of its own: frame tables are made within it, and `prepare` counts where its copies are used.
CPU seconds are those of the program and of its workers.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from measuring import write_json
from ordinary_scripts.made_videos import make

PAGE = (Path(__file__).parents[2] / "docs" / "faster.md").read_text()
SCRIPT, *_ = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
DIFFS = re.findall(r"^```diff\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
[PREPARE] = re.findall(r"^lightning-multigrid (.*)$", PAGE, re.MULTILINE)
VARIANTS = "the script alone", "with the line", "and with `VideoClips`", "and from planes"
RESULT = """
import json
print("RESULT", json.dumps({"steps": trainer.global_step, "accuracy": float(trainer.callback_metrics["accuracy"])}))
"""


def changed(script: str, diff: str) -> str:
    """A script after a diff, whose hunks are parted by `@@`."""
    for hunk in diff.split("@@\n"):
        lines = hunk.splitlines(True)
        before, after = ("".join(line[1:] for line in lines if line[0] in kept) for kept in (" -", " +"))
        if script.count(before) != 1:
            raise ValueError(f"The diff fits {script.count(before)} places of the script, not one:\n{before}")
        script = script.replace(before, after)
    return script


def measured(command: Sequence[str], folder: Path, cache: str) -> dict[str, Any]:
    """Runs a program in a folder; returns its wall-clock and CPU seconds, and what it printed."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = os.environ | {"LIGHTNING_MULTIGRID_CACHE": cache}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": time.perf_counter() - start, "cpu": cpu, "said": done.stdout + done.stderr}


def run(folder: Path, epochs: int) -> list[dict[str, Any]]:
    """Trains each variant in a folder of videos; returns its figures, those of `prepare` apart."""
    rows = []
    for name, script in zip(VARIANTS, accumulate(DIFFS, changed, initial=SCRIPT), strict=True):
        with TemporaryDirectory() as cache:
            prepared = {"wall": 0.0, "cpu": 0.0}
            if "prepared/" in script:
                prepared = measured([sys.executable, "-m", "lightning_multigrid", *PREPARE.split()], folder, cache)
            file = folder / "script.py"
            file.write_text(script.replace("max_epochs=12", f"max_epochs={epochs}") + RESULT)
            found = measured([sys.executable, str(file)], folder, cache)
        [result] = re.findall(r"^RESULT (.*)$", found["said"], re.MULTILINE)
        word = re.search(r"The loader is the limit[^\n]*", found["said"])
        rows.append(
            {
                "variant": name,
                **json.loads(result),
                "wall": found["wall"],
                "cpu": found["cpu"],
                "prepare": {key: prepared[key] for key in ("wall", "cpu")},
                "said": word[0] if word else "",
            }
        )
        print(f"{name}: {rows[-1]['wall']:.0f} s, {rows[-1]['cpu']:.0f} CPU s, {rows[-1]['accuracy']:.0%}", flush=True)
    return rows


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=16, help="videos of each of the 8 classes (default: %(default)s)")
    parser.add_argument("--val", type=int, default=6, help="videos of each class (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=12, help="(default: %(default)s, as on the page)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(given)
    make(options.folder, options.train, options.val)
    write_json(options, "ordinary_script", {"rows": run(options.folder, options.epochs)})


if __name__ == "__main__":
    main()
