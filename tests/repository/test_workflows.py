"""GitHub's workflows: what they run is there, and is what CI runs."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}


def commands(workflow):
    steps = [step for job in WORKFLOWS[workflow]["jobs"].values() for step in job["steps"]]
    return [line for step in steps for line in step.get("run", "").splitlines()]


def test_paths_in_commands_exist():
    for workflow in WORKFLOWS:
        for command in commands(workflow):
            for path in re.findall(r"\btests/[\w/.]+", command):
                assert (ROOT / path).exists(), command


def test_no_file_names_the_host_of_a_package_registry():
    """An index may be another one where the reader is; installers know theirs."""
    hosts = re.compile(r"pypi\.org|pythonhosted|download\.pytorch|--index-url|npmjs|anaconda\.org")
    files = [path for suffix in ("md", "yml", "yaml", "toml", "sh", "ipynb") for path in ROOT.glob(f"*.{suffix}")]
    folders = (ROOT / name for name in (".github", ".ci", "docs", "examples", "benchmarks"))
    files += [path for folder in folders for path in folder.rglob("*") if path.suffix not in (".png", ".gif")]
    assert len(files) > 50
    assert [path for path in files if path.is_file() and hosts.search(path.read_text(errors="ignore"))] == []


def test_pythons_are_those_of_the_package():
    (least,) = re.findall(r'requires-python = ">=(.*)"', (ROOT / "pyproject.toml").read_text())
    assert WORKFLOWS["tests"]["jobs"]["linux"]["strategy"]["matrix"]["python"][0] == least
    assert WORKFLOWS["release"]["jobs"]["try"]["strategy"]["matrix"]["python"][0] == least


def test_templates_have_what_github_needs():
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        template = yaml.safe_load(path.read_text())
        if path.stem != "config":
            assert {"name", "description", "body"} <= set(template)
            assert all(set(part) >= {"type", "attributes"} for part in template["body"])
