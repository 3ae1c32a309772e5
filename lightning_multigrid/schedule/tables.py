"""Plain-text tables."""

from collections.abc import Sequence


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


def duration(seconds: float) -> str:
    """A time in text, in its two largest units.

    >>> duration(12.3), duration(3720), duration(86400 * 3 + 3600 * 4.4)
    ('12 s', '1 h 2 min', '3 d 4 h')
    """
    whole = max(1, round(seconds))
    for unit, size, lower, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part} {lower}"
    return f"{whole} s"
