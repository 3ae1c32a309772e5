"""`compare` trains what is missing, and says what came of it."""

import json
import runpy
import subprocess
import sys
from types import SimpleNamespace

import pytest
import yaml

from lightning_multigrid.cli import compare as module
from lightning_multigrid.cli.compare import compare, shorten, with_callback, without_callback
from lightning_multigrid.cli.main import main
from lightning_multigrid.reports import BASELINE, MULTIGRID, SHORTENED, Comparison, RunRecord
from tests.helpers.sampling import sampled

pytestmark = pytest.mark.usefixtures("_unrehearsed")

CONFIG = yaml.safe_load(
    """
model:
  class_path: lightning_multigrid.VideoClassifier
  init_args:
    model:
      class_path: lightning_multigrid.models.small_cnn
      init_args: {num_classes: 16}
    num_classes: 16
    lr: 0.01
    schedule: steps
    milestones: [2, 3]
    warmup_epochs: 1
data:
  class_path: lightning_multigrid.MovingShapesDataModule
  init_args: {train_per_class: 2, val_per_class: 1, batch_size: 2, frames: 8, size: 24, num_workers: 0}
trainer:
  max_epochs: 4
  accelerator: cpu
  logger: false
  enable_progress_bar: false
  callbacks:
    - class_path: lightning_multigrid.MultigridCallback
      init_args: {epoch_factor: 1.0}
    - class_path: lightning.pytorch.callbacks.ModelCheckpoint
      init_args: {dirpath: checkpoints}
"""
)


def test_only_the_callback_differs():
    plain = without_callback(CONFIG)
    assert [c["class_path"].rpartition(".")[2] for c in plain["trainer"]["callbacks"]] == ["ModelCheckpoint"]
    assert plain["model"] == CONFIG["model"]
    assert with_callback(CONFIG) == CONFIG
    assert with_callback(plain)["trainer"]["callbacks"][-1] == {"class_path": "lightning_multigrid.MultigridCallback"}
    assert len(CONFIG["trainer"]["callbacks"]) == 2  # as it was
    for name in ("paper", "progressive"):
        other = {"trainer": {"callbacks": [{"class_path": f"lightning_multigrid.MultigridCallback.{name}"}]}}
        assert (with_callback(other), without_callback(other)) == (other, {"trainer": {"callbacks": []}})
    baseline = {"trainer": {"callbacks": [{"class_path": "lightning_multigrid.MultigridCallback.baseline"}]}}
    assert without_callback(baseline) == baseline  # it shares BatchNorm statistics, and is the baseline
    assert with_callback(baseline)["trainer"]["callbacks"] == [{"class_path": "lightning_multigrid.MultigridCallback"}]


def test_a_shortened_baseline_has_its_milestones_and_warm_up_in_proportion():
    short = shorten(without_callback(CONFIG), 0.45)
    assert short["trainer"]["max_epochs"] == 2
    assert short["model"]["init_args"]["milestones"] == [1, 1.5]
    assert short["model"]["init_args"]["warmup_epochs"] == 0.5
    by_steps = without_callback(CONFIG)
    by_steps["trainer"].update(max_epochs=None, max_steps=1000)
    assert shorten(by_steps, 0.3)["trainer"]["max_steps"] == 300
    assert shorten(CONFIG | {"model": {"class_path": "mine.Module"}}, 0.3) is None


@pytest.fixture
def here(monkeypatch, tmp_path):
    """Runs train in this process."""
    started, run_of_subprocess = [], subprocess.run

    def run(command, **options):
        if command[2] != "lightning_multigrid.cli":  # what a training starts
            return run_of_subprocess(command, **options)
        started.append(command[-1])
        main(command[3:])
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.chdir(tmp_path)
    return started


@pytest.mark.filterwarnings("ignore")  # Lightning's, of small data
def test_a_config_is_compared_and_an_interrupted_comparison_continues(here, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(module, "_share", lambda comparison: 0.5)
    folder, config = tmp_path / "compared", yaml.safe_load(yaml.safe_dump(CONFIG))
    config["trainer"]["max_epochs"] = 2
    config["model"]["init_args"].update(milestones=[1, 1.5], warmup_epochs=0.5)
    found = compare(config, folder, seeds=1)
    assert [path.split("/")[-2] for path in here] == ["multigrid-0", "baseline-0", "shortened-0"]
    assert {variant: len(runs) for variant, runs in found.runs.items()} == {MULTIGRID: 1, BASELINE: 1, SHORTENED: 1}
    assert [found.runs[variant][0].epochs for variant in (BASELINE, SHORTENED)] == [2, 1]
    assert found.runs[MULTIGRID][0].steps < found.runs[BASELINE][0].steps == 2 * 16
    assert sorted(p.name for p in (folder / "runs" / "baseline-0").iterdir() if p.is_dir()) == ["checkpoints"]
    said = capsys.readouterr().out
    assert "CPU s" in said
    (folder / "baseline-0.json").unlink()
    here.clear()
    compare(config, folder, seeds=1)
    assert [path.split("/")[-2] for path in here] == ["baseline-0"]
    (folder / "shortened-0.json").unlink()
    for made, reason in ((config, "it would be the whole baseline"), (None, "compare shortens only the `max_epochs`")):
        monkeypatch.setattr(module, "shorten", lambda *_, made=made: made)
        compare(config, folder, seeds=1)
        assert f"The baseline of as much time is left out: {reason}" in capsys.readouterr().out
    config["model"]["init_args"]["lr"] = 0.02
    with pytest.raises(ValueError, match=r"multigrid-0\.json is a run of another config\. Give another --output"):
        compare(config, folder, seeds=1)


@pytest.mark.filterwarnings("ignore")  # Lightning's, of small data
def test_shorter_trainings_go_on_until_one_is_worse(here, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(module, "_share", lambda comparison: 1.0)
    for as_good in (False, True):
        monkeypatch.setattr(Comparison, "as_good", lambda *_, as_good=as_good: as_good)
        found = compare(CONFIG, tmp_path / "compared", seeds=1, lengths=(0.5, 0.75))
        assert [path.split("/")[-2] for path in here][2:] == ["multigrid_0.75-0", "multigrid_0.5-0"][: 1 + as_good]
    for share in ("0.75", "0.5"):
        [run], [whole] = found.runs[f"multigrid_{share}"], found.runs[MULTIGRID]
        config = yaml.safe_load(run.config)
        assert run.epochs == config["trainer"]["max_epochs"] == float(share) * whole.epochs
        milestones = [float(share) * mark for mark in CONFIG["model"]["init_args"]["milestones"]]
        assert config["model"]["init_args"]["milestones"] == milestones
        assert len(run.validations) == len(whole.validations)
    monkeypatch.setattr(module, "shorten", lambda *_: None)
    compare(CONFIG, tmp_path / "compared", seeds=1, lengths=(0.5,))
    assert "No other length is trained: compare shortens only the `max_epochs`" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"`--lengths` must be between 0 and 1.*, got 2"):
        compare(CONFIG, tmp_path / "compared", seeds=1, lengths=(0.5, 2))


VALIDATIONS = [
    (7, {"check_val_every_n_epoch": 3}, 2),  # not at the end
    (2, {"val_check_interval": 0.5}, 4),  # within epochs
    (2, {"check_val_every_n_epoch": None, "val_check_interval": 10}, 3),  # by mini-batches of the baseline, of 32
]


@pytest.mark.filterwarnings("ignore")  # Lightning's, of small data
@pytest.mark.parametrize(("epochs", "settings", "count"), sampled(VALIDATIONS, VALIDATIONS[2]))
def test_all_three_validate_as_often_and_at_the_same_points_of_the_training(
    epochs, settings, count, here, tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "_share", lambda comparison: 1 / epochs)  # a single epoch
    config = yaml.safe_load(yaml.safe_dump(CONFIG))
    config["trainer"].update(max_epochs=epochs, **settings)
    config["model"]["init_args"].update(schedule="cosine", milestones=[], warmup_epochs=0)
    config["trainer"]["callbacks"][0]["init_args"]["epoch_factor"] = 3.0
    found = compare(config, tmp_path / "compared", seeds=1)
    assert found.runs[SHORTENED][0].epochs == 1
    clocks = [[share for _, share, _ in runs[0].validations] for runs in found.runs.values()]
    assert [len(clock) for clock in clocks] == [count] * 3
    of_multigrid, of_baseline, of_shortened = clocks
    assert of_baseline == pytest.approx(of_multigrid, abs=1 / (16 * epochs))  # each at the end of a mini-batch, of 16
    assert of_shortened == pytest.approx(of_multigrid, abs=1 / 16)
    if epochs == 7:
        assert of_multigrid == pytest.approx([3 / 7, 6 / 7])  # epochs are the script's


def test_a_run_that_stops_early_has_others_watched_to_their_end(tmp_path):
    validations = [(1.0, 0.25, {}), (2.0, 0.5, {})]
    RunRecord(MULTIGRID, 0, validations=validations, done=0.6).write(tmp_path / "multigrid-0.json")
    assert module._validations(tmp_path) == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize(("clock", "share"), [("wall", 0.5), ("cpu", 0.25)])
def test_as_much_time_is_that_of_the_clock_without_the_start(clock, share, tmp_path):
    for variant, seconds, cpu in ((MULTIGRID, 60.0, 30.0), (BASELINE, 110.0, 90.0)):
        record = RunRecord(variant, 0, {"start": 2.0, "steps": seconds - 10}, command=seconds, cpu=cpu)
        record.write(tmp_path / f"{variant}-0.json")
    assert module._share(Comparison(tmp_path, clock=clock)) == share


def stand_in(folder, script, monkeypatch):
    """A script of a shell in the place of Python."""
    (folder / "python").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))


def test_cpu_time_is_that_of_a_command_with_its_processes(tmp_path, monkeypatch):
    record = json.dumps({"variant": MULTIGRID, "seed": 0})
    busy = "import time; [None for _ in iter(lambda: time.process_time() < 0.3, False)]"
    own = tmp_path / "runs" / "multigrid-0"
    stand_in(tmp_path, f"({sys.executable} -c '{busy}')\necho '{record}' > {own / 'run.json'}", monkeypatch)
    module._run(with_callback(CONFIG), tmp_path, MULTIGRID, 0, None)
    found = RunRecord.read(tmp_path / "multigrid-0.json")
    assert found.cpu > 0.25  # systems count in hundredths


def test_a_run_that_fails_is_named_with_its_last_lines(tmp_path, monkeypatch):
    stand_in(tmp_path, "echo 'no such model' >&2\nexit 3", monkeypatch)
    with pytest.raises(ValueError, match=r"multigrid-0 has ended with exit status 3\. Its last lines: no such model"):
        compare(CONFIG, tmp_path, seeds=1)
    assert not list(tmp_path.glob("*.json"))


def test_a_training_ends_with_the_comparison_that_has_started_it(tmp_path, monkeypatch):
    started, watched = [], []

    def start(command, **_):
        started.extend(command)
        return SimpleNamespace(returncode=1)

    monkeypatch.setattr(module.subprocess, "run", start)
    with pytest.raises(ValueError, match="has ended with exit status 1"):
        compare(CONFIG, tmp_path, seeds=1)
    monkeypatch.setattr("lightning_multigrid.prepare.end_with_parent", lambda: watched.append(True))
    monkeypatch.setattr(sys, "argv", ["lightning-multigrid", "--version"])
    runpy.run_module(started[2], run_name="__main__", alter_sys=False)
    assert watched


def test_the_command_draws_what_it_has_compared(monkeypatch, tmp_path, capsys):
    RunRecord("baseline", 0, {"start": 9.0}, [(9.0, 1.0, {"val/top1": 0.5})]).write(tmp_path / "baseline-0.json")
    monkeypatch.setattr("lightning_multigrid.cli.commands.compare", lambda *_, **__: Comparison(tmp_path))
    (file := tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    main(["compare", "--config", str(file), f"--plot={tmp_path / 'curves.png'}"])
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "Drawn to" in capsys.readouterr().err


def test_the_command_hands_its_whole_config_on(monkeypatch, tmp_path):
    handed, null = [], CONFIG["trainer"] | {"check_val_every_n_epoch": None, "val_check_interval": 7}
    monkeypatch.setattr("lightning_multigrid.cli.commands.compare", lambda *args, **named: handed.append((args, named)))
    (file := tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG | {"trainer": null}))
    main(["compare", "--config", str(file), "--trainer.max_epochs=3", "--seeds=2", f"--output={tmp_path / 'out'}"])
    [((config, folder), options)] = handed
    assert folder == tmp_path / "out"
    assert options == {"seeds": 2, "metric": None, "mode": None, "clock": "wall", "lengths": ()}
    assert config["trainer"]["max_epochs"] == 3
    assert config["trainer"]["check_val_every_n_epoch"] is None  # not Lightning's default
    assert config["model"]["init_args"]["milestones"] == [2, 3]
    assert not {"seeds", "metric", "mode", "clock", "output", "lengths"} & config.keys()


def test_trainings_that_end_before_a_validation_are_refused_before_they_begin(tmp_path):
    rare = CONFIG | {"trainer": CONFIG["trainer"] | {"check_val_every_n_epoch": 5}}
    with pytest.raises(ValueError, match=r"`check_val_every_n_epoch` must be at most the `max_epochs` of 4, got 5\."):
        compare(rare, tmp_path / "out", seeds=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("seeds", [0, -1])
def test_a_comparison_needs_a_seed(tmp_path, capsys, seeds):
    (file := tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    with pytest.raises(SystemExit):
        main(["compare", "--config", str(file), f"--seeds={seeds}", f"--output={tmp_path / 'out'}"])
    assert f"`--seeds` must be at least 1, got {seeds}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
