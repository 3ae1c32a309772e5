"""Plain-text tables."""

from collections.abc import Sequence

_WIDTH = 80  # of a terminal


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines of right-aligned cells under their column names.

    Columns for which 80 characters leave no room come below, beside the first one again.

    >>> print(text_table(["clips", "size"], [["16", "112"], ["8", "158"]]))
    clips  size
       16   112
        8   158
    """
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    blocks: list[list[int]] = [[0]]
    for column in range(1, len(columns)):
        if sum(2 + widths[other] for other in blocks[-1]) + widths[column] > _WIDTH and blocks[-1] != [0]:
            blocks.append([0])
        blocks[-1].append(column)
    return "\n\n".join(
        "\n".join("  ".join(row[column].rjust(widths[column]) for column in block) for row in (columns, *rows))
        for block in blocks
    )


def counted(number: float, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "step"), counted(1200, "pass"), counted(2, "mini-batch"), counted(2, "epoch")
    ('1 step', '1,200 passes', '2 mini-batches', '2 epochs')
    """
    plural = "es" if noun.endswith(("s", "tch")) else "s"
    return f"{number:,.10g} {noun}{'' if number == 1 else plural}"


def duration(seconds: float) -> str:
    """A time in text, in its two largest units.

    >>> duration(1.94), duration(12.3), duration(3720), duration(86400 * 3 + 3600 * 4.4)
    ('1.9 s', '12 s', '1 h 2 min', '3 d 4 h')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, size, lower, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part} {lower}"
    return f"{whole} s"


def three_digits(value: float) -> str:
    """Returns a number with three digits, and with all digits before the point.

    >>> three_digits(0.04567), three_digits(45.67), three_digits(4567.8)
    ('0.0457', '45.7', '4568')
    """
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
