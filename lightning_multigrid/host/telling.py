"""What is said on the way: once for all ranks."""

from typing import Any

from lightning_utilities.core.rank_zero import rank_zero_info


def tell(text: str) -> None:
    """Says something on the first rank, by Lightning's logger."""
    rank_zero_info(text)


def tell_above_bar(trainer: Any, text: str) -> None:
    """Says something on the first rank while a progress bar may be on the terminal, whose line would be broken."""
    bar = trainer.progress_bar_callback
    if bar is None or getattr(bar, "is_disabled", False):  # a script's own bar may not know it
        tell(text)
    elif trainer.is_global_zero:
        bar.print(text)
