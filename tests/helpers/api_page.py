"""`docs/api.md`: names that only other sub-packages use follow the documented ones. To write them again:

python -m tests.helpers.api_page
"""

import re
from importlib import import_module
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
INTERNAL = {"host", "reports", "files", "cli"}  # nothing in them is for users
START = "For the other sub-packages: "


def names(found):
    return ", ".join(f"`{name}`" for name in sorted(found)) + "."


def updated(page):
    """The page, with every public name of each sub-package that it does not document."""
    parts = re.split(r"^(?=::: .*\n    options|## )", page, flags=re.MULTILINE)
    for place, part in enumerate(parts):
        heading = re.match(r"::: lightning_multigrid\.(\w+)\n", part)
        if heading:
            documented = re.findall(r"^::: lightning_multigrid\.(?:\w+\.)?(\w+)", part, re.MULTILINE)
            rest = set(import_module(f"lightning_multigrid.{heading[1]}").__all__) - set(documented)
            part = re.sub(rf"\n\n{START}.*", "", part).rstrip()
            parts[place] = part + (f"\n\n{START}{names(rest)}" if rest else "") + "\n\n"
    for package in INTERNAL:
        module = import_module(f"lightning_multigrid.{package}")
        line = f"- `lightning_multigrid.{package}`: {module.__doc__.splitlines()[0]} {names(module.__all__)}"
        parts[-1] = re.sub(
            rf"^- `lightning_multigrid\.{package}`: .*", lambda _, line=line: line, parts[-1], flags=re.M
        )
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text()))
