"""For mkdocs: makes Markdown of docstrings. Doctests get a fence, and `::` before an example becomes `:`."""

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^( *)>>> .*(?:\n\1.+)*", re.MULTILINE)


class Markdown(griffe.Extension):
    """Rewrites each docstring."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            fenced = _DOCTEST.sub(r"\1```python\n\g<0>\n\1```", obj.docstring.value)
            obj.docstring.value = fenced.replace("::\n\n", ":\n\n")
