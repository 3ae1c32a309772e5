"""The rules of the structure, by the table in `tests/helpers/packages.py`."""

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import lightning_multigrid
from tests.helpers.packages import MULTIGRID, PACKAGE, PACKAGES, VIDEOS, modules, table

TESTS = Path(__file__).parents[1]
# Tests that belong to no single module of their sub-package.
OF_SEVERAL = {
    "clips": {"transfer"},
    "decode": {"matrix", "faults"},
    "models": {"models"},
    "prepare": {"sharing"},
    "sources": {"source"},
}


def imported(path):
    """(module, names) of the imports of a file, wherever they stand; no names for `import module`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import"
            yield node.module, tuple(alias.name for alias in node.names)


def public_names(package):
    """What the statements on `__all__` list."""
    names = []
    for node in ast.parse((PACKAGE / package / "__init__.py").read_text()).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if getattr(target, "id", "") == "__all__":
            names += ast.literal_eval(node.value)
    assert names, f"{package} has no `__all__`"
    return names


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr


# --- What may import what ---


def test_every_sub_package_is_in_the_table():
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} == set(PACKAGES)
    assert sorted(path.name for path in PACKAGE.glob("*.py")) == ["__init__.py", "__main__.py"]


def test_multigrid_knows_nothing_of_videos_but_how_files_are_written():
    for imports, _ in MULTIGRID.values():
        assert set(imports) <= {*MULTIGRID, "files"}


def test_videos_know_of_multigrid_the_request_the_grid_and_places():
    for imports, _ in VIDEOS.values():
        assert set(imports) <= {*VIDEOS, "host", "loading", "positions", "schedule"}


def test_sub_packages_form_no_circle():
    arrows = {name: imports for name, (imports, _) in PACKAGES.items()}
    assert set(TopologicalSorter(arrows).static_order()) == set(PACKAGES)
    assert sum(map(len, arrows.values())) <= 42


def test_rooms_of_training_form_no_circle():
    """Rooms are its folders; a file beside them is a room by itself."""
    arrows = {}
    for path in modules("training"):
        own = path.relative_to(PACKAGE / "training").with_suffix("").parts[0]
        inside = (name for name, _ in imported(path) if name.startswith("lightning_multigrid.training."))
        arrows.setdefault(own, set()).update({name.split(".")[2] for name in inside} - {own})
    assert {"script", "rehearsal", "parts", "lr", "checkpoints", "trainer"} <= set(arrows)
    assert [*TopologicalSorter(arrows).static_order()][-1] == "callback"


@pytest.mark.parametrize("package", PACKAGES)
def test_a_sub_package_imports_what_the_table_says(package):
    used, others = set(), set()
    for path in [PACKAGE / package / "__init__.py", *modules(package)]:
        for module, names in imported(path):
            top, _, rest = module.partition(".")
            other, _, inner = rest.partition(".")
            if top != "lightning_multigrid":
                used.add(top)
            elif other in ("", package):
                assert other or set(names) <= {"__version__"}, f"{path} imports {names} from the whole package"
            else:
                others.add(other)
                assert not inner, f"{path} imports {module}, past the public names of {other}"
                assert set(names) <= set(public_names(other)), f"{path} imports {names} from {other}"
    assert others == set(PACKAGES[package][0])
    assert used - set(sys.stdlib_module_names) == set(PACKAGES[package][1])


# --- Public names ---


def test_public_names_are_there():
    for name in lightning_multigrid.__all__:
        assert getattr(lightning_multigrid, name).__name__ == name
    assert lightning_multigrid.__all__ == sorted(lightning_multigrid._PACKAGE)
    assert set(lightning_multigrid.__all__) <= set(dir(lightning_multigrid))
    for module in (lightning_multigrid, lightning_multigrid.models):
        with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
            module.nonsense  # noqa: B018


@pytest.mark.parametrize(
    "steps",
    [
        [
            ("import lightning_multigrid.schedule", "torch"),
            ("from lightning_multigrid import MultigridSchedule", "torch"),
            ("import lightning_multigrid.files", "torch av"),
            ("import lightning_multigrid.sources", "av lightning"),
            ("import lightning_multigrid.pixels", "av torchvision lightning"),
            ("import lightning_multigrid.models", "torchvision lightning"),
            ("import lightning_multigrid.loading, lightning_multigrid.norm", "lightning"),
            ("import lightning_multigrid.decode", "lightning"),
        ],
        pytest.param([("from lightning_multigrid import MultigridCallback", "av")], marks=pytest.mark.slow),
    ],
)
def test_an_import_spares_what_it_does_not_need(steps):
    """In one process, one after the other: what is not there after several imports is needed by none of them."""
    code = (f"{imports}\nassert not set({spared.split()}) & set(sys.modules), {imports!r}" for imports, spared in steps)
    assert run("\n".join(["import sys", *code])) == ""


def test_a_system_that_it_does_not_run_on_is_named_at_once():
    errors = run("import os; os.name = 'nt'; import lightning_multigrid")
    assert "ImportError: lightning-multigrid runs on Linux and macOS, this system is 'nt'." in errors


# --- Where things stand ---


def test_the_table_of_contributing_is_this_one():
    assert table() in (TESTS.parent / "CONTRIBUTING.md").read_text(), "python -m tests.helpers.packages prints it"


def test_the_newest_version_of_the_changelog_is_this_one():
    root = PACKAGE.parent
    newest = re.findall(r"^## \[(\d.*)\]", (root / "CHANGELOG.md").read_text(), re.MULTILINE)[0]  # not "Unreleased"
    cited = re.findall(r"^version: (.*)$", (root / "CITATION.cff").read_text(), re.MULTILINE)
    assert [newest] == cited == [lightning_multigrid.__version__]


def test_tests_stand_where_their_modules_do():
    for folder in TESTS.iterdir():
        names = {path.stem.removeprefix("test_") for path in folder.glob("test_*.py")}
        if folder.name in PACKAGES:
            assert names <= {path.stem for path in modules(folder.name)} | OF_SEVERAL.get(folder.name, set())
        else:
            assert not names or folder.name in ("laws", "repository")
    assert not list(TESTS.glob("test_*.py"))


def test_no_test_file_imports_another():
    for path in TESTS.rglob("*.py"):
        for module, names in imported(path):
            if module.startswith("tests."):
                assert module.startswith("tests.helpers"), f"{path} imports {names} from {module}"
