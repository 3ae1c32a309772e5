"""Names of prepared videos: those of their sources."""

import os
import unicodedata
from collections.abc import Sequence


def names_of(sources: Sequence[str], root: str) -> dict[str, str]:
    """Returns a path for each source, a whole path, below the folder of prepared videos; a ValueError if two share one.

    >>> names_of(["/in/run/a.avi", "/other/b.mp4"], "/in")
    {'/in/run/a.avi': 'run/a.avi.mp4', '/other/b.mp4': 'outside/other/b.mp4'}
    """
    names: dict[str, str] = {}
    taken: dict[str, str] = {}
    for source in dict.fromkeys(sources):
        path = os.path.normpath(source)
        inside = path.removeprefix(os.path.join(root, ""))
        name = inside if inside != path else os.path.join("outside", path.lstrip(os.sep))
        names[source] = name if name.lower().endswith(".mp4") else f"{name}.mp4"
        # The same for all names that a file system may take for one: some ignore case, or know only one form of `é`.
        known = unicodedata.normalize("NFC", unicodedata.normalize("NFC", names[source]).casefold())
        if (other := taken.setdefault(known, source)) != source:
            raise ValueError(
                f"{other} and {source} would have the same name in the output, or on some disks. Rename one of them, "
                "or prepare them into different folders."
            )
    return names
