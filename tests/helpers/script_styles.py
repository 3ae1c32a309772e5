"""How people write training scripts: a row for each way, run by `tests/laws/test_scripts.py`.

`python -m tests.helpers.script_styles` writes the tables of `docs/scripts.md` and `docs/refused.md`.
"""

from __future__ import annotations

from pathlib import Path

from tests.helpers import (
    styles_of_data,
    styles_of_libraries,
    styles_of_modules,
    styles_of_optimizers,
    styles_of_samples,
    styles_of_whole_scripts,
)
from tests.helpers.scripts import Style

STYLES: list[Style] = [
    *styles_of_whole_scripts.row,
    *styles_of_data.row,
    *styles_of_libraries.row,
    *styles_of_samples.row,
    *styles_of_optimizers.row,
    *styles_of_modules.row,
]


# What works, in a sentence for each group.
WORKS = {
    "Whole scripts": "Scripts of either of Lightning's packages.",
    "Datasets and samples": "Samples of any structure with a clip of uint8 or floats; streams of a known length.",
    "Loaders and samplers": "Any `DataLoader` with an order of indices; its workers, `collate_fn` and generators.",
    "Where the loader comes from": "One loader, from wherever Lightning takes it.",
    "Data of other libraries": "Hugging Face, webdataset, litdata and pytorchvideo.",
    "Several tensors per sample": "Clips, masks, boxes, key points and labels of frames, once they are named.",
    "Optimizers": "Any with an `lr` in its parameter groups.",
    "LR schedulers": "All of torch's, per epoch or per step, alone or chained.",
    "LR by hand, and schedulers of one's own": "It is scaled; what counts steps itself counts those of this run.",
    "Manual optimization": "Any number of optimizers and schedulers: a GAN, SAM, accumulation.",
    "Arguments of the Trainer": "All that leave the plan one loader and an end.",
    "Callbacks of the script": "All but two, which drive the LR or the accumulation themselves.",
    "Modules and models": "Any that takes clips of any length and size.",
}


def works() -> str:
    """What works: for each group a sentence, and a table that is folded, as Markdown that also shows on GitHub."""
    parts = []
    for group, sentence in WORKS.items():
        rows = [style for style in STYLES if style.group == group and style.refused is None]
        lines = [f"## {group}", "", sentence, ""]
        lines += ["<details markdown>", f"<summary>The {len(rows)} ways that are tested</summary>", ""]
        lines += ["| the script | with the callback |", "| --- | --- |"]
        lines += [f"| {style.name} | {_outcome(style)} |" for style in rows]
        parts.append("\n".join([*lines, "", "</details>"]))
    return "\n\n".join(parts) + "\n"


def refused() -> str:
    """What is refused, as a table in Markdown. An outcome says why and, after its last semicolon, what to write."""
    lines = ["| the script | why it can't be followed | write instead |", "| --- | --- | --- |"]
    for group in WORKS:
        rows = [style for style in STYLES if style.group == group and style.refused is not None]
        lines += [f"| **{group}** | | |"] * bool(rows)
        for style in rows:
            why, instead = style.outcome.rsplit("; ", 1)
            lines.append(f"| {style.name} | {why} | {instead} |")
    return "\n".join(lines) + "\n"


def _outcome(style: Style) -> str:
    said = "works"
    if style.multigrid:
        said += " with `" + ", ".join(f"{name}={value!r}" for name, value in style.multigrid.items()) + "`"
    if style.resumes is False:
        said += ", resumes at the same step"
    return said + (f"; {style.outcome}" if style.outcome else "")


if __name__ == "__main__":
    docs = Path(__file__).parents[2] / "docs"
    for page, table, start in (
        ("scripts.md", works(), "## Whole scripts"),
        ("refused.md", refused(), "| the script | why"),
    ):
        text = (docs / page).read_text(encoding="utf-8")
        (docs / page).write_text(text[: text.index(start)] + table, encoding="utf-8")
