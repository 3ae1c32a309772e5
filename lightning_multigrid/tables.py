"""Plain-text tables."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["text_table"]


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines of right-aligned cells under their column names.

    >>> print(text_table(["clips", "size"], [["16", "112"], ["8", "158"]]))
    clips  size
       16   112
        8   158
    """
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in (columns, *rows)
    )
