"""For mkdocs: formulas become MathML, which browsers draw without a script or a network; files become pages."""

import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

_FORMULA = re.compile(r"^\$\$(.+?)\$\$$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^<!-- file: (.+) -->$", re.MULTILINE)
_PAGES = re.compile(r"\]\((\.\./)*docs/")
_NOTEBOOK = re.compile(r"^<!-- notebook: (.+) -->$", re.MULTILINE)
_ROOT = Path(__file__).parents[1]


def on_config(config: Any) -> None:
    """Writes the version into the footer of each page."""
    config.copyright += f", version {version('lightning-multigrid')}"


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Replaces formulas between lines of their own, and marks: `<!-- notebook: FILE -->`, `<!-- file: FILE -->`.

    In a file, links to pages lead from its own folder.
    """
    markdown = _NOTEBOOK.sub(lambda line: _cells(_ROOT / line[1]), markdown)
    markdown = _FILE.sub(lambda line: _PAGES.sub("](", (_ROOT / line[1]).read_text(encoding="utf-8")), markdown)
    return _FORMULA.sub(lambda formula: convert(formula[1].strip(), display="block"), markdown)


def _cells(notebook: Path) -> str:
    parts = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```{{ .python }}\n{source}\n```")
        parts += map(_shown, cell.get("outputs", []))
    return "\n\n".join(parts)


def _shown(output: dict[str, Any]) -> str:
    """What a cell has shown: text, a table, or a picture."""
    if "text" in output:
        return f"```{{ .text }}\n{''.join(output['text']).rstrip()}\n```"
    data = output["data"]
    for kind in data:
        if kind.startswith("image/"):
            return f'<img alt="" src="data:{kind};base64,{"".join(data[kind]).strip()}">'
    return "".join(data.get("text/html", ""))
