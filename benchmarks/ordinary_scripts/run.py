"""Trains ordinary scripts alone and with the line, and prints what each takes.

    python benchmarks/ordinary_scripts/run.py FOLDER --json ordinary_scripts.json

The first is the script of `docs/faster.md`, as it is and after each of the page's diffs. The others are in this folder,
as people write them: with PyAV, torchcodec, JPEG frames, pytorchvideo, and a processor of Hugging Face. Their videos
are H.264 of 340 x 256 pixels, made by `made_videos.py` in FOLDER. Each variant is a program of its own, with caches of
its own: frame tables are made within it, and `prepare` counts where its copies are used. CPU seconds are those of the
program and of its workers.
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
from ordinary_scripts.measured import READS, STEP
from ordinary_scripts.measured import RESULT as RESULT_FILE

PAGE = (Path(__file__).parents[2] / "docs" / "faster.md").read_text()
SCRIPT, *_ = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
DIFFS = re.findall(r"^```diff\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
[PREPARE] = re.findall(r"^lightning-multigrid (.*)$", PAGE, re.MULTILINE)
SCRIPTS = "pyav_clips", "torchcodec_clips", "jpeg_frames", "labeled_video_dataset", "hugging_face"
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


def measured(command: Sequence[str], folder: Path, cache: str, **environment: str) -> dict[str, Any]:
    """Runs a program in a folder; returns its wall-clock and CPU seconds, and what it printed."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    given = os.environ | {"LIGHTNING_MULTIGRID_CACHE": cache} | environment
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, cwd=folder, env=given, text=True, check=False, **pipes)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": time.perf_counter() - start, "cpu": cpu, "said": done.stdout}


def row(script: str, variant: str, found: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """The figures of a program, and what it said of its loader; prints them."""
    *before, word = re.split(r"(?=The loader is the limit)", found["said"], maxsplit=1)
    figures = {"script": script, "variant": variant, **result, "wall": found["wall"], "cpu": found["cpu"]}
    figures["said"] = word.splitlines()[0] if before else ""
    figures["said_at"] = before[0].count(STEP) if before else None
    print(
        f"{script}, {variant}: {found['wall']:.0f} s, {found['cpu']:.0f} CPU s, {result['accuracy']:.0%}, "
        f"{result.get('reads', '-')} reads; {figures['said'][:60]}",
        flush=True,
    )
    return figures


def run_page(folder: Path, epochs: int) -> list[dict[str, Any]]:
    """Trains the page's script and its variants in a folder of videos; the seconds of `prepare` stand apart."""
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
        prepare = {key: prepared[key] for key in ("wall", "cpu")}
        rows.append(row("faster.md", name, found, json.loads(result) | {"prepare": prepare}))
    return rows


def run_script(name: str, folder: Path) -> list[dict[str, Any]]:
    """Trains a script of this folder alone and with the line."""
    rows = []
    for variant in ("alone", "line"):
        with TemporaryDirectory() as scratch:
            reads, result = Path(scratch, "reads"), Path(scratch, "result")
            reads.touch()
            command = [sys.executable, str(Path(__file__).with_name(f"{name}.py")), variant]
            found = measured(command, folder, scratch, **{READS: str(reads), RESULT_FILE: str(result)})
            figures = json.loads(result.read_text()) | {"reads": reads.stat().st_size}
        rows.append(row(name, variant, found, figures))
    return rows


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=16, help="videos of each of the 8 classes (default: %(default)s)")
    parser.add_argument("--val", type=int, default=6, help="videos of each class (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=12, help="of the page's script (default: %(default)s)")
    parser.add_argument("--scripts", nargs="*", default=["faster.md", *SCRIPTS], help="those to train (default: all)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(given)
    make(options.folder, options.train, options.val)
    rows = []
    for name in options.scripts:
        rows += run_page(options.folder, options.epochs) if name == "faster.md" else run_script(name, options.folder)
    write_json(options, "ordinary_scripts", {"rows": rows})


if __name__ == "__main__":
    main()
