"""Does the callback pay for this config? It is trained with it, without it, and without it in as much time."""

import copy
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any, Literal

import yaml

from lightning_multigrid.cli.terminal import say
from lightning_multigrid.files import require
from lightning_multigrid.reports import BASELINE, MULTIGRID, SHORTENED, Comparison, RunRecord, cpu_seconds, shorter
from lightning_multigrid.schedule import duration

Config = dict[str, Any]
_LENGTHS = "max_epochs", "max_steps"
_SHORTENED = "compare shortens only the `max_epochs` or `max_steps` of the Trainer, and the LR of VideoClassifier."
_CALLBACK, _RECORDER = "lightning_multigrid.MultigridCallback", "lightning_multigrid.reports.Recorder"


def compare(
    config: Config,
    folder: Path,
    seeds: int,
    metric: str | None = None,
    mode: str | None = None,
    clock: Literal["wall", "cpu"] = "wall",
    lengths: Sequence[float] = (),
) -> Comparison:
    """Trains what is missing in a folder, each run as a command of its own; prints a table.

    `config` is a whole config of `fit`, as plain values. `lengths` are shares of its length: trainings with the
    callback, from the longest on, up to the first that is worse than the baseline. Runs of another config in the folder
    are refused.
    """
    for length in lengths:
        require(0 < length < 1, "--lengths", length, "between 0 and 1: shares of the training's length")
    epochs, every = (config["trainer"].get(name) or 0 for name in ("max_epochs", "check_val_every_n_epoch"))
    most, advice = f"at most the `max_epochs` of {epochs}", " A comparison needs the metric of a validation."
    require(not 0 < epochs < every, "check_val_every_n_epoch", every, most, advice)
    folder.mkdir(parents=True, exist_ok=True)
    say("If it is stopped, the same command goes on with the runs that are missing.")

    def train(variant: str, config: Config) -> None:
        for seed in range(seeds):
            _run(config, folder, variant, seed, _validations(folder) if variant != MULTIGRID else None)
            Comparison(folder, metric, mode, clock)  # refuses a metric that is not logged

    multigrid, baseline = with_callback(config), without_callback(config)
    train(MULTIGRID, multigrid)
    train(BASELINE, baseline)
    for length in sorted(lengths, reverse=True):
        made = shorten(multigrid, length)
        if made is None:
            say(f"No other length is trained: {_SHORTENED}")
            break
        train(shorter(length), made)
        if not Comparison(folder, metric, mode, clock).as_good(shorter(length)):
            break
    found = Comparison(folder, clock=clock)
    before = [yaml.safe_load(run.config) for run in found.runs[SHORTENED]]  # more seeds don't change its length
    shortened = before[0] if before else shorten(baseline, _share(found))
    if shortened is None:
        say(f"The baseline of as much time is left out: {_SHORTENED}")
    elif all(shortened["trainer"].get(name) == config["trainer"].get(name) for name in _LENGTHS):
        say("The baseline of as much time is left out: it would be the whole baseline.")
    else:
        train(SHORTENED, shortened)
    comparison = Comparison(folder, metric, mode, clock)
    say(str(comparison))
    return comparison


def with_callback(config: Config) -> Config:
    """Returns the config with MultigridCallback: its own, or one without arguments, also for `.baseline`."""
    made = copy.deepcopy(config)
    callbacks = made["trainer"]["callbacks"] = [one for one in _callbacks(made) if _name(one) != "baseline"]
    if not any(map(_is_multigrid, callbacks)):
        callbacks.append({"class_path": _CALLBACK})
    return made


def without_callback(config: Config) -> Config:
    """Returns the config without MultigridCallback: the baseline."""
    made = copy.deepcopy(config)
    made["trainer"]["callbacks"] = [callback for callback in _callbacks(made) if not _is_multigrid(callback)]
    return made


def _callbacks(config: Config) -> list[Config]:
    given = config["trainer"].get("callbacks") or []
    return list(given) if isinstance(given, list) else [given]


def _name(part: Config) -> str:
    return str(part.get("class_path", "")).rpartition(".")[2]


def _is_multigrid(callback: Config) -> bool:
    return _name(callback) in ("MultigridCallback", "paper", "progressive")


def shorten(config: Config, share: float) -> Config | None:
    """Returns a config of a share of the length: epochs, milestones, warm-up. None if its LR has another clock."""
    made = copy.deepcopy(config)
    trainer, arguments = made["trainer"], made["model"].get("init_args", {})
    lengths = {name: trainer[name] for name in _LENGTHS if (trainer.get(name) or -1) > 0}
    if _name(made["model"]) != "VideoClassifier" or not lengths:
        return None
    length = next(iter(lengths.values()))
    exact = max(1, round(length * share)) / length
    trainer.update({name: max(1, round(value * exact)) for name, value in lengths.items()})
    for name in ("milestones", "warmup_epochs"):
        if value := arguments.get(name):
            arguments[name] = [mark * exact for mark in value] if isinstance(value, list) else value * exact
    return made


def _share(comparison: Comparison) -> float:
    """The share of the baseline's epochs that takes as much time as multigrid."""
    # To start is nearly all computing, so its wall clock is its CPU time, too.
    start = mean(run.start for run in comparison.runs[BASELINE])
    share = (comparison.seconds(MULTIGRID) - start) / (comparison.seconds(BASELINE) - start)
    return min(1.0, max(0.0, share))


def _validations(folder: Path) -> list[float]:
    """The shares of the training at which multigrid validates. So does what it is compared with."""
    # Validations take time, and with `val_check_interval` in mini-batches, variants by themselves have more or fewer.
    run = Comparison(folder).runs[MULTIGRID][0]
    shares = [share for _, share, _ in run.validations]
    while shares and run.done < 1 and shares[-1] < 1:  # it was stopped early; others are watched to their end
        shares.append(min(1.0, shares[-1] + shares[0]))
    return shares


def _run(config: Config, folder: Path, variant: str, seed: int, validate_at: list[float] | None) -> None:
    name = f"{variant}-{seed}"
    file, own = folder / f"{name}.json", folder / "runs" / name
    described = yaml.safe_dump(config, sort_keys=True)
    if file.exists():
        if RunRecord.read(file).config != described:
            raise ValueError(f"{file} is a run of another config. Give another --output, or remove it to run it again.")
        return
    own.mkdir(parents=True, exist_ok=True)
    made = copy.deepcopy(config)
    for callback in made["trainer"]["callbacks"]:
        arguments = callback.get("init_args", {})
        if arguments.get("dirpath"):  # such as ModelCheckpoint's: each run has its own
            arguments["dirpath"] = str(own / Path(arguments["dirpath"]).name)
    made["seed_everything"] = seed
    made["trainer"]["default_root_dir"] = str(own)
    recorder = {"file": str(own / "run.json"), "variant": variant, "seed": seed, "validate_at": validate_at}
    if validate_at is not None:
        made["trainer"].update(check_val_every_n_epoch=None, val_check_interval=1)  # the recorder asks then
    made["trainer"]["callbacks"].append({"class_path": _RECORDER, "init_args": recorder})
    (own / "config.yaml").write_text(yaml.safe_dump(made, sort_keys=False))
    command = [sys.executable, "-m", "lightning_multigrid.cli", "fit", "--config", str(own / "config.yaml")]
    say(f"{variant}, seed {seed}: {own / 'output.txt'} has what it prints.")
    started, cpu = time.monotonic(), cpu_seconds(of_children=True)
    with (own / "output.txt").open("w") as output:
        code = subprocess.run(command, check=False, stdout=output, stderr=subprocess.STDOUT).returncode
    seconds = time.monotonic() - started
    if code != 0 or not (own / "run.json").exists():
        last = (own / "output.txt").read_text(errors="replace").strip().splitlines()[-3:]
        raise ValueError(f"The run {own} has ended with exit status {code}. Its last lines: {os.linesep.join(last)}")
    record = RunRecord.read(own / "run.json")
    record.command, record.cpu, record.config = seconds, cpu_seconds(of_children=True) - cpu, described
    record.write(file)
    say(f"{variant}, seed {seed}: {duration(seconds)}.")
