"""How people write training scripts: a row for each way, run by `tests/laws/test_scripts.py`.

`python -m tests.helpers.script_styles` writes the tables of `docs/refused.md`.
"""

from __future__ import annotations

import re
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
MARKED = re.compile(r"(<!-- made by tests/helpers/script_styles\.py: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

# What people meet most: the page says these in a table of its own.
MET = {
    "your own `BatchSampler`",
    "a list of batches",
    "webdataset's `WebLoader`",
    "webdataset that makes mini-batches (`.batched`)",
    "resizes in `collate_fn`",
    "resizes in `forward`",
    "resizes in `on_after_batch_transfer`",
    "an LR that is written by the script's own count",
    "a weight decay that is written by the script's own count",
    "a fixed table of positions",
    "the first rows of a table of positions",
    "`reload_dataloaders_every_n_epochs=1`",
    "`StochasticWeightAveraging`",
    "an `IterableDataset` without a length",
}

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
    "Complete scripts": "Module, data module, usual callbacks.",
    "Datasets and samples": "Samples of any structure with a clip of uint8 or floats, and streams of a known length.",
    "Loaders and samplers": "Any `DataLoader` with an order of indices; its workers, `collate_fn` and generators.",
    "Where the loader comes from": "One loader, from wherever Lightning takes it.",
    "Data of other libraries": "Hugging Face, webdataset, litdata and pytorchvideo.",
    "Several tensors per sample": "Views, depth, flow, masks, boxes, labels of frames, once [named]"
    "(script.md#several-tensors-per-sample).",
    "Optimizers": "Any with an `lr` in its parameter groups.",
    "LR schedulers": "All of torch's, per epoch or per step, alone or chained.",
    "LR by hand, and your own schedulers": "Scaled; with `lr_by_hand='run'` also if written within an epoch.",
    "Manual optimization": "Any number of optimizers and schedulers: a GAN, SAM, accumulation.",
    "Arguments of the Trainer": "All that keep one loader and an end.",
    "Callbacks of the script": "All but two, which drive the LR or the accumulation themselves.",
    "Modules and models": "Any that takes clips of any length and size.",
}


def works() -> str:
    """What works: for each group a sentence, and last how ways resume."""
    lines = []
    ways = [style for style in STYLES if style.refused is None]
    for group, sentence in WORKS.items():
        lines.append(f"- **{group}.** {sentence}")
    inexact = [style for style in ways if style.resumes is False]
    for style in inexact:
        assert style.outcome or style.group in ("Datasets and samples", "Data of other libraries"), style.name
    named = [f"{style.name} ({style.outcome})" for style in inexact if style.outcome]
    lines.append("- **Resuming.** To the bit. Streams and draws that no seed sets resume at the same step. So do:")
    lines += [f"    - {name}." for name in named]
    return "\n".join(lines) + "\n"


def refused() -> str:
    """What is refused and not met most. After the last semicolon of an outcome is what to write."""
    answers: dict[str, list[str]] = {}
    for style in sorted(STYLES, key=lambda style: [*WORKS].index(style.group)):
        if style.refused is not None and style.name not in MET:
            _, instead = style.outcome.rsplit("; ", 1)
            answers.setdefault(instead, []).append(style.name)
    lines = [f"| {'; '.join(names)} | {answer} |" for answer, names in answers.items()]
    return "\n".join(["| the script | write instead |", "| --- | --- |", *lines]) + "\n"


def summary() -> str:
    """How many ways there are."""
    return (
        f"{sum(style.refused is None for style in STYLES)} of the {len(STYLES)} ways to write a script that are tested."
    )


def with_tables(page: str) -> str:
    """The page with what is made between its marks."""
    made = {"refused": refused, "works": works, "summary": summary}
    return MARKED.sub(lambda found: f"{found[1]}\n{made[found[2]]().strip()}\n\n{found[3]}", page)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
