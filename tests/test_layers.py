"""The house rules of imports: the arrow never turns round."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import lightning_multigrid

PACKAGE = Path(lightning_multigrid.__file__).parent

# A module imports only modules of lower levels, or of its own level that stand before it.
LEVELS = {
    "arithmetic": ["tables", "grid", "schedule"],
    "torch": [
        "figures",
        "waiting",
        "randomness",
        "rank_statistics",
        "norm",
        "to_device",
        "yuv",
        "resample",
        "augment",
        "textfile",
        "durable",
        "watched_file",
        "remote_root",
        "remote_file",
        "packed",
        "packed_file",
        "manifest",
        "annotations",
        "charades",
        "sources",
        "boxes",
        "nal",
        "packet_index",
        "index_store",
        "video_file",
        "frame_pixels",
        "indexing",
        "kept",
        "decode",
        "torchcodec_reader",
        "frame_folder",
        "prepared_index",
        "opening",
        "transcode",
        "models.blocks",
        "models.resnet",
        "models.slowfast",
        "models.small",
        "models.position",
        "models.files",
        "models.names",
        "models.weights",
        "models",
    ],
    "data": [
        "clip_batch",
        "sampler",
        "loader",
        "clip_parts",
        "fixed_clips",
        "clip_sampling",
        "views",
        "video_metrics",
        "dataset",
        "processes",
        "journal",
        "prepared_names",
        "prepare",
        "check",
    ],
    "lightning": [
        "baseline_lr",
        "probe",
        "precise_bn",
        "roll_call",
        "forecast",
        "measure",
        "report",
        "run_report",
        "recipe",
        "takeover",
        "resume",
        "run",
        "checkpoints",
        "callback",
        "compiled",
        "predictions",
        "classifier",
        "pretrained",
        "broken_videos",
        "datamodule",
        "shape_clips",
        "moving_shapes",
    ],
    "program": ["pyslowfast", "data_cli", "plan", "cli", "__main__"],
}
ORDER = [module for modules in LEVELS.values() for module in modules]
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}
MODULES.pop("__init__")


def imports(path):
    """Names of the modules that a file imports anywhere, except for type checking only."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import"
            yield node.module


def ours(path):
    for name in imports(path):
        if name.startswith("lightning_multigrid."):
            yield name.removeprefix("lightning_multigrid.")


def test_every_module_has_its_place():
    assert set(MODULES) <= set(ORDER), "give the new module its place in LEVELS"


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_go_down_only(module):
    for imported in ours(MODULES[module]):
        assert ORDER.index(imported) < ORDER.index(module), f"{module} imports {imported}"


def third_party(module):
    top = {name.partition(".")[0] for name in imports(MODULES[module])}
    return top - set(sys.stdlib_module_names) - {"lightning_multigrid"}


@pytest.mark.parametrize("module", LEVELS["arithmetic"])
def test_arithmetic_needs_the_standard_library_only(module):
    assert third_party(module) == set()


@pytest.mark.parametrize("module", [m for m in LEVELS["torch"] + LEVELS["data"] if m in MODULES])
def test_tensors_and_data_know_no_lightning(module):
    assert not {"lightning", "lightning_utilities", "lightning_fabric"} & third_party(module)


def test_only_the_decoder_decodes():
    assert [module for module in sorted(MODULES) if "av" in third_party(module)] == [
        "decode",
        "frame_pixels",
        "indexing",
        "kept",
        "moving_shapes",
        "transcode",
        "video_file",
    ]


def test_torchcodec_and_fsspec_are_optional():
    assert [module for module in sorted(MODULES) if "torchcodec" in third_party(module)] == ["torchcodec_reader"]
    code = "import sys, lightning_multigrid.opening; sys.exit(bool({'torchcodec', 'fsspec'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_models_know_no_schedule():
    for module in MODULES:
        if module.startswith("models"):
            assert all(imported.startswith("models") for imported in ours(MODULES[module]))


def test_public_names_are_there_and_the_schedule_costs_no_torch():
    for name in lightning_multigrid.__all__:
        assert getattr(lightning_multigrid, name).__name__ == name
    assert set(lightning_multigrid.__all__) <= set(dir(lightning_multigrid))
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        lightning_multigrid.nonsense  # noqa: B018
    code = "import sys, lightning_multigrid as m; m.MultigridSchedule; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
