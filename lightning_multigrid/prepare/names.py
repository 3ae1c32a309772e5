"""Names of prepared videos: those of their sources, unless two would share a name."""

import hashlib
import os
import unicodedata
from collections.abc import Sequence

from lightning_multigrid.files import is_url


def names_of(sources: Sequence[str], root: str) -> dict[str, str]:
    """Returns a path for each source (whole path or URL), all different, below the folder of prepared videos."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for source in dict.fromkeys(sources):
        name = plain = _name(source, root)
        digest = b""
        while _known_as(name) in taken:  # `a.avi` and `a.avi.mp4`, `b.mp4` and `B.mp4`
            digest = hashlib.sha256(digest + os.fsencode(source)).digest()
            folder, base = os.path.split(plain[: -len(".mp4")])
            name = os.path.join(folder, _short(f"{base}~{digest.hex()[:16]}.mp4"))
        taken.add(_known_as(name))
        names[source] = name
    return names


def _name(source: str, root: str) -> str:
    """The name of a source, if no other one has it. No part is `..`, because the manifest gives whole paths."""
    prefix = os.path.join(root, "")
    path = source if is_url(source) else os.path.normpath(source)
    inside = path.startswith(prefix)
    parts = (path[len(prefix) :] if inside else os.path.join("outside", path.lstrip(os.sep))).split(os.sep)
    if not parts[-1].lower().endswith(".mp4"):
        parts[-1] += ".mp4"
    return os.path.join(*map(_short, parts))


def _known_as(name: str) -> str:
    """The same for all names that a file system may take for one: some ignore case, or know only one form of `é`."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _short(part: str) -> str:
    """Shortens the name of a file or folder so that a file system takes it."""
    encoded = os.fsencode(part)
    if len(encoded) <= 255:
        return part
    return f"{os.fsdecode(encoded[:200])}~{hashlib.sha256(encoded).hexdigest()[:16]}.mp4"
