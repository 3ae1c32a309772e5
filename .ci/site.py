"""For mkdocs: formulas become MathML, which browsers draw without a script and without a network."""

import re
from typing import Any

from latex2mathml.converter import convert

_FORMULA = re.compile(r"^\$\$(.+?)\$\$$", re.MULTILINE | re.DOTALL)


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Replaces each formula that stands between lines of its own."""
    return _FORMULA.sub(lambda formula: convert(formula[1].strip(), display="block"), markdown)
