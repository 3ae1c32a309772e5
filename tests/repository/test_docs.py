"""What the README and the pages of documentation show is run."""

import doctest
import re
from pathlib import Path

import pytest
import yaml
from jsonargparse import ArgumentParser

import lightning_multigrid
from lightning_multigrid import BatchShape, MultigridCallback
from lightning_multigrid.training.arguments import Arguments
from tests.helpers.packages import PACKAGES
from tests.helpers.planned import planned

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
DOCS = ROOT / "docs"
OF_API = [package for package in PACKAGES if package not in ("host", "reports", "files", "cli")]  # what users need
PAGES = {"README.md": README, **{str(path.relative_to(DOCS)): path.read_text() for path in sorted(DOCS.rglob("*.md"))}}


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES[page], re.DOTALL | re.MULTILINE)


def pages_with(language):
    return [page for page in PAGES if blocks(page, language)]


@pytest.mark.filterwarnings("ignore:.*there is no last checkpoint available")
@pytest.mark.parametrize("page", sorted({*pages_with("python")} - {"faster.md"}))  # `test_faster.py` has its videos
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}  # a page is read from top to bottom
    for block in blocks(page, "python"):
        if block.startswith(">>>"):
            test = doctest.DocTestParser().get_doctest(block, names, page, page, 0)
            runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
            assert runner.run(test, clear_globs=False).failed == 0
            names.update(test.globs)
        else:
            exec(compile(block, page, "exec"), names)


@pytest.mark.parametrize("page", pages_with("yaml"))
def test_configs_make_a_plan(page, tmp_path):
    for block in blocks(page, "yaml"):
        if "model:" not in block:  # lines to put into a config
            assert set(yaml.safe_load(block)) <= {"data", "trainer"}
            continue
        (tmp_path / "mine.yaml").write_text(block)
        given = yaml.safe_load(block)["data"]["init_args"]
        preview, _ = planned("--config", str(tmp_path / "mine.yaml"), "--clips=1000")
        shape = BatchShape(given["batch_size"], given["frames"], given["size"])
        assert preview.plan.schedule.baseline.shape == shape


CHOICES = re.findall(r"^\| [^|]* \| `(\w+=[^|]*)` \| `([^|]*)` \|$", PAGES["choose.md"], re.MULTILINE)


@pytest.mark.parametrize(("code", "config"), CHOICES)
def test_a_choice_in_python_is_that_in_a_config(code, config):
    names = {name: getattr(lightning_multigrid, name) for name in lightning_multigrid.__all__}
    callback = eval(f"MultigridCallback({code})", names)
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(MultigridCallback, "callback")
    read = parser.instantiate(parser.parse_object({"callback": yaml.safe_load(f"{{{config}}}")})).callback
    [name] = yaml.safe_load(f"{{{config}}}")
    assert rounded(getattr(read, name)) == rounded(getattr(callback, name)) != rounded(Arguments.__dict__[name])


def rounded(value):
    """A choice without the digits that nobody writes."""
    return re.sub(r"\d+(\.\d+)?", lambda number: f"{float(number[0]):.4f}", repr(value))


@pytest.mark.parametrize("page", PAGES)
def test_links_and_files_that_are_named_exist(page):
    folder = ROOT if page == "README.md" else (DOCS / page).parent
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", PAGES[page]):
        assert target.startswith("https://") or (folder / target).exists(), target
    for path in re.findall(r"`?((?:examples|benchmarks|tests)/[\w./-]+)", PAGES[page]):
        assert (ROOT / path.rstrip(".")).exists(), path


def test_every_page_is_in_the_table_of_contents():
    listed = re.findall(r"(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(set(PAGES) - {"README.md"})


def test_the_api_has_every_name_of_the_root():
    pages = "".join(PAGES[f"api/{name}.md"] for name in OF_API)
    listed = re.findall(r"^::: lightning_multigrid\.(\S+)", pages, re.MULTILINE)
    assert {f"api/{name}.md" for name in ("index", *OF_API)} == {page for page in PAGES if page.startswith("api/")}
    assert {name for name in listed if "." not in name} == set(lightning_multigrid.__all__)
    assert len(listed) == len(set(listed))


def test_the_commands_of_the_readme_are_those_of_ci():
    assert 'python -m pip install ".[test]" && pytest' in README
    assert "python -m pip install . && lightning-multigrid fit --config examples/quickstart.yaml" in README
    assert re.search(r'\npython -m pip install -q "\.\[test\]"\ntimeout .* pytest ', (ROOT / ".ci" / "run").read_text())
