"""How people write training scripts: a row for each way, run by `tests/laws/test_scripts.py`.

`python -m tests.helpers.script_styles` writes the tables of `docs/refused.md`.
"""

from __future__ import annotations

from collections.abc import Callable
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

PAGE = Path(__file__).parents[2] / "docs" / "refused.md"
MARKS = "<!-- made by tests/helpers/script_styles.py: -->\n", "<!-- end -->\n"

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
    "Complete scripts": "Module, data module, `ModelCheckpoint`, `EarlyStopping`, `LearningRateMonitor`, resumed.",
    "Datasets and samples": "Samples of any structure with a clip of uint8 or floats, and streams of a known length.",
    "Loaders and samplers": "Any `DataLoader` with an order of indices; its workers, `collate_fn` and generators.",
    "Where the loader comes from": "One loader, from wherever Lightning takes it.",
    "Data of other libraries": "Hugging Face, webdataset, litdata and pytorchvideo.",
    "Several tensors per sample": "Two views, depth, flow, masks, boxes, key points and labels of frames, once [they "
    "are named](script.md#several-tensors-per-sample).",
    "Optimizers": "Any with an `lr` in its parameter groups.",
    "LR schedulers": "All of torch's, per epoch or per step, alone or chained.",
    "LR by hand, and your own schedulers": "The LR is scaled. What counts steps itself counts those of this run.",
    "Manual optimization": "Any number of optimizers and schedulers: a GAN, SAM, accumulation.",
    "Arguments of the Trainer": "All that keep one loader and an end.",
    "Callbacks of the script": "All but two, which drive the LR or the accumulation themselves.",
    "Modules and models": "Any that takes clips of any length and size.",
}


def works() -> str:
    """What works: for each group a sentence and what there is more to say, and last how ways resume."""
    lines = []
    ways = [style for style in STYLES if style.refused is None]
    for group, sentence in WORKS.items():
        rows = [style for style in ways if style.group == group]
        lines.append(f"- **{group}.** {sentence} {len(rows)} ways are tested.")
        lines += [f"    - For {names}, {more}." for more, names in _by_words(rows, _adds) if more]
    inexact = [style for style in ways if style.resumes is False]
    lines.append("- **Resuming.** A run resumes to the bit, but for some ways, in which it resumes at the same step:")
    for why, names in _by_words(inexact, lambda style: style.outcome):
        lines.append(f"    - {names}{why and ', because '}{why}.")
    return "\n".join(lines) + "\n"


def refused() -> str:
    """What is refused, as a table in Markdown. An outcome says why and, after its last semicolon, what to write."""
    answers: dict[str, list[str]] = {}
    for style in sorted(STYLES, key=lambda style: [*WORKS].index(style.group)):
        if style.refused is not None:
            why, instead = style.outcome.rsplit("; ", 1)
            answers.setdefault(f"{instead} ({why})", []).append(style.name)
    lines = [f"| {'; '.join(names)} | {answer} |" for answer, names in answers.items()]
    return "\n".join(["| the script | write instead |", "| --- | --- |", *lines]) + "\n"


def tables() -> str:
    return f"{refused()}\n## What works\n\n{works()}"


def _adds(style: Style) -> str:
    """What to write, and what else is to say. Names of parts are on another page."""
    ways = [f"`{name}={value!r}`" for name, value in style.multigrid.items() if name not in ("clips", "follow")]
    written = [f"write {' and '.join(ways)}"] if ways else []
    return "; ".join([*written, *[style.outcome] * bool(style.outcome and style.resumes is not False)])


def _by_words(styles: list[Style], words: Callable[[Style], str]) -> list[tuple[str, str]]:
    """The styles' words, each once, with the names of its styles."""
    found: dict[str, list[str]] = {}
    for style in styles:
        found.setdefault(words(style), []).append(style.name)
    return [(said, "; ".join(names)) for said, names in found.items()]


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(MARKS[0])
    PAGE.write_text(before + MARKS[0] + tables() + MARKS[1] + rest.partition(MARKS[1])[2], encoding="utf-8")
