"""Trains ordinary scripts alone, with the line, and as docs/faster.md recommends, and prints what each takes.

    python benchmarks/ordinary_scripts/run.py FOLDER --json ordinary_scripts.json

The first is the script of `docs/faster.md`, as it is and after each of the page's diffs. The others are in this folder,
as people write them: with PyAV, torchcodec, JPEG frames, pytorchvideo, a processor of Hugging Face, and torchvision's
r3d_18, which a GPU compiles. Recommended are `VideoClips` from planes. The videos are H.264 of 340 x 256 pixels, which
`made_videos.py` makes in FOLDER. Each variant is a program of its own, with caches of its own: frame tables are made
within it. What `prepare` takes stands apart. CPU seconds are those of the program and of its workers. A script whose
library is not installed is left out.
"""

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import import_module
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
SCRIPTS = {
    "pyav_clips": "av",
    "torchcodec_clips": "torchcodec.decoders",
    "jpeg_frames": "PIL",
    "labeled_video_dataset": "pytorchvideo.data",
    "hugging_face": "transformers",
    "r3d_18": "torchvision",
}
"""Each with the library that it needs."""
VARIANTS = "alone", "line", "recommended"
OF_PAGE = "the script alone", "with the line", "and with `VideoClips`", "and from planes"
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


def prepare(folder: Path, cache: str, source: str = "videos") -> dict[str, float]:
    """Runs the page's command on videos, or on `source`; returns its seconds."""
    shutil.rmtree(folder / "prepared", ignore_errors=True)
    arguments = [source if argument == "videos" else argument for argument in PREPARE.split()]
    arguments += ["--frame_rate", "15"] * (source == "frames")  # images don't say how many are shown per second
    found = measured([sys.executable, "-m", "lightning_multigrid", *arguments], folder, cache)
    return {key: found[key] for key in ("wall", "cpu")}


def run_page(folder: Path, epochs: int) -> list[dict[str, Any]]:
    """Trains the page's script and its variants in a folder of videos."""
    rows = []
    for name, script in zip(OF_PAGE, accumulate(DIFFS, changed, initial=SCRIPT), strict=True):
        with TemporaryDirectory() as cache:
            of_prepare = {"prepare": prepare(folder, cache)} if "prepared/" in script else {}
            file = folder / "script.py"
            file.write_text(script.replace("max_epochs=12", f"max_epochs={epochs}") + RESULT)
            found = measured([sys.executable, str(file)], folder, cache)
        [result] = re.findall(r"^RESULT (.*)$", found["said"], re.MULTILINE)
        rows.append(row("faster.md", name, found, json.loads(result) | of_prepare))
    return rows


def run_script(name: str, folder: Path) -> list[dict[str, Any]]:
    """Trains a script of this folder in each variant; none if its library is missing."""
    try:
        import_module(SCRIPTS[name])
    except Exception as error:  # torchcodec without a fitting FFmpeg raises a RuntimeError
        print(f"{name}: left out, as {SCRIPTS[name]} can't be imported ({type(error).__name__})", flush=True)
        return []
    rows = []
    for variant in VARIANTS:
        with TemporaryDirectory() as scratch:
            of_prepare = {}
            if variant == "recommended":
                of_prepare["prepare"] = prepare(folder, scratch, "frames" if name == "jpeg_frames" else "videos")
            reads, result = Path(scratch, "reads"), Path(scratch, "result")
            reads.touch()
            command = [sys.executable, str(Path(__file__).with_name(f"{name}.py")), variant]
            found = measured(command, folder, scratch, **{READS: str(reads), RESULT_FILE: str(result)})
            figures = json.loads(result.read_text()) | {"reads": reads.stat().st_size} | of_prepare
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
    options.folder = options.folder.resolve()  # each program runs in it
    make(options.folder, options.train, options.val)
    rows = []
    for name in options.scripts:
        rows += run_page(options.folder, options.epochs) if name == "faster.md" else run_script(name, options.folder)
    write_json(options, "ordinary_scripts", {"rows": rows})


if __name__ == "__main__":
    main()
