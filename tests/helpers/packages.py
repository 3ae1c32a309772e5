"""The sub-packages, what each may import, and the table of them in CONTRIBUTING: `python -m tests.helpers.packages`."""

import ast
from pathlib import Path

import lightning_multigrid

PACKAGE = Path(lightning_multigrid.__file__).parent

# In reading order, with the sub-packages and the libraries that each may import. Whoever changes this changes the
# structure: say why in the commit.
MULTIGRID = {
    "host": ((), ("lightning", "lightning_utilities", "pytorch_lightning")),
    "schedule": ((), ()),
    "norm": ((), ("torch",)),
    "positions": ((), ("torch",)),
    "loading": (("schedule",), ("numpy", "torch")),
    "reports": (("host", "schedule"), ("PIL", "matplotlib", "torch", "typing_extensions")),
    "training": (
        ("files", "host", "loading", "norm", "positions", "reports", "schedule"),
        ("fsspec", "lightning_utilities", "numpy", "torch", "typing_extensions"),
    ),
}
VIDEOS = {
    "files": ((), ("aiohttp", "fsspec")),
    "pixels": ((), ("numpy", "torch", "torchvision")),
    "decode": (("files", "pixels"), ("PIL", "av", "numpy", "safetensors", "torch", "xxhash")),
    "sources": (("files",), ("numpy", "torch")),
    "clips": (("decode", "files", "loading", "pixels", "schedule", "sources"), ("torch", "typing_extensions")),
    "prepare": (("decode", "files", "sources"), ("av", "numpy", "pebble", "rich", "torch")),
    "models": (("positions",), ("numpy", "safetensors", "torch", "torchvision", "transformers")),
    "video": (
        ("clips", "decode", "files", "host", "loading", "models", "pixels", "prepare", "sources"),
        ("av", "lightning_utilities", "numpy", "rich", "torch", "torchmetrics", "typing_extensions"),
    ),
}
PROGRAM = {
    "cli": (
        ("files", "norm", "positions", "prepare", "reports", "schedule", "sources", "training", "video"),
        ("jsonargparse", "lightning", "rich", "torch", "yaml"),
    )
}
PACKAGES = {**MULTIGRID, **VIDEOS, **PROGRAM}


def modules(package):
    """The modules of a sub-package, without its `__init__`."""
    return sorted(path for path in (PACKAGE / package).rglob("*.py") if path.name != "__init__.py")


def purpose(package):
    """The first sentence of a sub-package's docstring."""
    docstring = ast.get_docstring(ast.parse((PACKAGE / package / "__init__.py").read_text()))
    return docstring.partition("\n")[0].rstrip(".")


def table():
    """Markdown: a row for each sub-package, in reading order."""
    parts = {"multigrid, for any dataset": MULTIGRID, "videos": VIDEOS, "command line": PROGRAM}
    lines = ["| sub-package | what it is for |", "| --- | --- |"]
    for title, packages in parts.items():
        lines.append(f"| **{title}** | |")
        lines += [f"| `{name}` | {purpose(name)} |" for name in packages]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
