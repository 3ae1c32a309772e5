"""Every name that a module of 0.1.0 listed is importable as before, or `docs/migration.md` says where it is."""

import re
from importlib import import_module
from pathlib import Path

import lightning_multigrid

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "migration.md").read_text()
OLD = [line.split(": ") for line in Path(__file__).with_name("names_of_0_1_0.txt").read_text().splitlines()]


def find(path):
    """What stands at `module.name` in the package today, or None."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(f"lightning_multigrid.{module}".rstrip(".")), name, None)
    except ModuleNotFoundError:
        return None


def written(text):
    """The names in a text such as "`grid.span` `.stride_range`"."""
    module = ""
    for name in re.findall(r"`([\w.]+)`", text):
        module = module if name.startswith(".") else name.rpartition(".")[0]
        yield module + name if name.startswith(".") else name


def moved():
    """Old name -> new one, of the first table."""
    table = PAGE.partition("## Names that have moved")[2].partition("\n\nWhat else")[0]
    for old, new in re.findall(r"^\| (`.*?) \| (.*?) \|$", table, re.MULTILINE):
        before, after = list(written(old)), list(written(new))
        if new == "the root":
            after = [name.rpartition(".")[2] for name in before]
        elif "the same name" in new:
            after = [f"{after[0]}.{name.rpartition('.')[2]}" for name in before]
        elif len(after) == 1:
            after *= len(before)
        yield from zip(before, after, strict=True)


def test_what_has_moved_is_where_the_page_says():
    assert len(dict(moved())) > 100
    for old, new in moved():
        assert find(new) is not None or hasattr(lightning_multigrid, new), f"{old} is not at {new}"


def test_every_name_is_there_or_on_the_page():
    told = dict(moved()).keys() | set(written(PAGE.partition("## Names that are gone")[2].partition("\n## What is")[0]))
    files = re.findall(r"`([\w.]+)`\s→\s((?:`[\w.]+`\s?)+)", PAGE)
    places = {module: re.findall(r"`(.*?)`", new) for module, new in files}
    names = [(module, name) for module, listed in OLD for name in listed.split()]
    lost = [
        f"{module}.{name}"
        for module, name in names
        if find(f"{module}.{name}") is None
        and f"{module}.{name}" not in told
        and not any(find(f"{place}.{name}") is not None for place in places.get(module, ()))
    ]
    assert len(names) > 300
    assert lost == []


def test_the_newest_version_of_the_changelog_is_this_one():
    newest = re.findall(r"^## \[(.*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    cited = re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert [newest] == cited == [lightning_multigrid.__version__]
