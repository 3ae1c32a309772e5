"""`docs/api`, a page for each sub-package: names that only other sub-packages use follow the documented ones.

`python -m tests.helpers.api_page` writes them, and the tables of the first page, again.
"""

import re
from importlib import import_module
from pathlib import Path

from tests.helpers.packages import PACKAGES, purpose

FOLDER = Path(__file__).parents[2] / "docs" / "api"
INTERNAL = ("host", "reports", "files", "cli")  # nothing in them is for users
DOCUMENTED = [package for package in PACKAGES if package not in INTERNAL]
START = "For the other sub-packages: "


def names(found):
    return ", ".join(f"`{name}`" for name in sorted(found)) + "."


def page(package):
    """The page of a sub-package, with every public name that it does not document."""
    text = (FOLDER / f"{package}.md").read_text()
    documented = re.findall(r"^::: lightning_multigrid\.(?:\w+\.)?(\w+)", text, re.MULTILINE)
    rest = set(import_module(f"lightning_multigrid.{package}").__all__) - set(documented)
    text = re.sub(rf"\n\n{START}.*", "", text).rstrip()
    return text + (f"\n\n{START}{names(rest)}" if rest else "") + "\n"


def first_page():
    """The sub-packages with a page, and the names of the others."""
    head = (FOLDER / "index.md").read_text().partition("| sub-package |")[0]
    lines = ["| sub-package | what it is for |", "| --- | --- |"]
    lines += [f"| [`{package}`]({package}.md) | {purpose(package)} |" for package in DOCUMENTED]
    lines += ["", "## What the other sub-packages are for", ""]
    lines += ["Nothing in them is for scripts; the other sub-packages take these names from them.", ""]
    for package in INTERNAL:
        public = import_module(f"lightning_multigrid.{package}").__all__
        lines.append(f"- `lightning_multigrid.{package}`: {purpose(package)}. {names(public)}")
    return head + "\n".join(lines) + "\n"


if __name__ == "__main__":
    (FOLDER / "index.md").write_text(first_page())
    for each in DOCUMENTED:
        (FOLDER / f"{each}.md").write_text(page(each))
