"""URLs of videos and lists: which are read, and how names are appended to them."""

import os
import re
from importlib.util import find_spec
from urllib.parse import quote, unquote, urlsplit

from lightning_multigrid.files.arguments import StrPath

PROTOCOLS = {"https": "aiohttp", "http": "aiohttp", "s3": "s3fs", "hf": "huggingface_hub"}
"""How URLs begin that are read, and the package that reads them. No other is, such as `file`, whoever wrote a list."""

_URL = re.compile("[A-Za-z][A-Za-z0-9+.-]*://")


def is_url(path: StrPath) -> bool:
    """Whether a path is a URL, of any protocol."""
    return isinstance(path, str) and _URL.match(path) is not None


def url_fault(url: str) -> str:
    """What is wrong with a URL, and the way out, for the end of a sentence; empty if nothing is, as far as it tells."""
    protocol = url.partition("://")[0]
    if protocol not in PROTOCOLS:
        known = ", ".join(f"{name}://" for name in PROTOCOLS)
        return f"is at {protocol}://; {known} are read. Mount the store, or copy the videos to a disk"
    if "@" in urlsplit(url).netloc:
        return "holds a user or a password, which logs would show. Put them into fsspec's own configuration"
    if find_spec(PROTOCOLS[protocol]) is None:
        return f"needs a package that is not installed. Run `pip install {PROTOCOLS[protocol]}`"
    return ""


def joined(root: str, name: str) -> str:
    """The path of a file below a root, or the name itself if that is a whole path or a URL.

    >>> joined("https://host/videos", "a.mp4"), joined("/videos", "https://host/a.mp4")
    ('https://host/videos/a.mp4', 'https://host/a.mp4')
    """
    return name if is_url(name) else os.path.join(root, name)


def name_in_url(root: str, name: str) -> str:
    """The name of a file as it stands after a root: in URLs of HTTP, what means something else there is escaped.

    >>> name_in_url("https://host", "100% #1.mp4"), name_in_url("s3://bucket", "100% #1.mp4")
    ('100%25%20%231.mp4', '100% #1.mp4')
    """
    return quote(os.fsencode(name)) if root.startswith("http") else name


def name_below(root: str, url: str) -> str | None:
    """The name after a root of a URL below it; None if it isn't below.

    >>> name_below("https://host/videos", "https://host/videos/a.mp4")
    'a.mp4'
    >>> name_below("https://host/videos", "https://host/videos/../b.mp4")
    """
    name = url.removeprefix(f"{root}/")
    climbs = ".." in unquote(name.partition("?")[0]).split("/")
    return None if name == url or not name or name.startswith("/") or is_url(name) or climbs else name
