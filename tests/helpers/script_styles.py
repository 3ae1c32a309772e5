"""How people write training scripts: a row for each way, run by `tests/laws/test_scripts.py`.

`python -m tests.helpers.script_styles` prints the tables of `docs/scripts.md`.
"""

from __future__ import annotations

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


def tables() -> str:
    """The tables of the documentation, as Markdown."""
    parts = []
    for group in dict.fromkeys(style.group for style in STYLES):
        lines = [f"## {group}", "", "| the script | with the callback |", "| --- | --- |"]
        for style in STYLES:
            if style.group == group:
                lines.append(f"| {style.name} | {_outcome(style)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _outcome(style: Style) -> str:
    if style.refused is not None:
        return f"refused: {style.outcome}"
    said = "works"
    if style.multigrid:
        said += " with `" + ", ".join(f"{name}={value!r}" for name, value in style.multigrid.items()) + "`"
    if style.resumes is False:
        said += ", resumes at the same step"
    return said + (f"; {style.outcome}" if style.outcome else "")


if __name__ == "__main__":
    print(tables(), end="")
