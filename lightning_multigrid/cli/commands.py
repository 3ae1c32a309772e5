"""The subcommands: Lightning's, and ours, with types and help from signatures."""

import argparse
import json as json_format
import math
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from inspect import getdoc, signature
from pathlib import Path
from typing import Any, Literal

import torch
import yaml
from jsonargparse import ArgumentError, ArgumentParser, DefaultHelpFormatter, Namespace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning_utilities.core.rank_zero import rank_zero_info

from lightning_multigrid import __version__
from lightning_multigrid.cli.budget import factor_within, told
from lightning_multigrid.cli.compare import compare
from lightning_multigrid.cli.data_commands import CORES, check_videos, index_videos, prepare_videos
from lightning_multigrid.cli.forecast import Forecast, clip_costs, measure_steps
from lightning_multigrid.cli.init import init
from lightning_multigrid.cli.plan import Preview, count_clips, preview
from lightning_multigrid.cli.pyslowfast import translate_pyslowfast
from lightning_multigrid.cli.terminal import say
from lightning_multigrid.reports import plan_figure, save
from lightning_multigrid.training import AtomicCheckpointIO, MultigridCallback
from lightning_multigrid.video import PredictionWriter, VideoClassifier, VideoDataModule

_PRESETS = Path(__file__).parent / "presets"
_MEASURED = 8.0  # seconds, at least: the speed of shared machines goes up and down within a few
_OF_TRAINING = "trainer", "model"
_OF_FIT = "ckpt_path", "weights_only"
_BOOLS = {"true": "true", "yes": "true", "on": "true", "false": "false", "no": "false", "off": "false"}


def plan(
    cli: "_ConfigCLI",
    clips: int | None = None,
    devices: int | None = None,
    num_nodes: int | None = None,
    step_time: float | None = None,
    measure: bool = False,
    hours: float | None = None,
    plot: str | None = None,
    json: bool = False,
    like: str | None = None,
) -> None:
    """Prints the multigrid schedule of a config and what it costs, without data or GPU.

    Args:
        cli: Has made the parts of the config.
        clips: Training videos, over all devices; None counts them if they are on this machine.
        devices: GPUs per node; None is what the config says.
        num_nodes: Nodes; None is what the config says, or 1 if `devices` is given.
        step_time: Seconds of a baseline step on one device; FLOPs give those of other steps.
        measure: Measure the steps of every shape on this machine's GPU, or its CPU, on clips of noise.
        hours: Plan for so many hours of steps, by the times of steps: with the `epoch_factor` that they hold.
        plot: Draw shapes and LR, as Figure 2 of the paper, and the costs of grids to this file (.png, .svg, .pdf).
        json: Print JSON instead of a table.
        like: Name of a recipe of the paper to plan instead of a config, such as kinetics-slowfast.
    """
    callbacks = [c for c in cli.trainer.callbacks if isinstance(c, MultigridCallback)]  # type: ignore[attr-defined]
    if not callbacks:
        say("`trainer.callbacks` has no MultigridCallback, so this is the baseline as it is.", sys.stderr)
    if not isinstance(cli.datamodule, VideoDataModule):
        raise MisconfigurationException(
            f"`plan` reads the baseline off a VideoDataModule, got {type(cli.datamodule).__name__}. With other "
            "data the schedule is printed when `fit` starts."
        )
    if step_time is not None and (measure or step_time <= 0):
        wrong = f"{step_time:g} and `--measure`" if measure else f"{step_time:g}"
        raise ValueError(f"`--step_time` must be above 0 and come without `--measure`, got {wrong}. Give either.")
    # `--devices` alone means that many in all, rather than on each of a recipe's nodes.
    nodes = num_nodes or (1 if devices else cli.configured[1])
    world = (devices or cli.configured[0]) * nodes
    clips = count_clips(cli.datamodule) if clips is None else clips
    parts = next(iter(callbacks), None), cli.trainer, cli.model, cli.datamodule
    on: dict[str, Any] = {"clips": clips, "world": world, "configured_world": math.prod(cli.configured)}
    on["sync_batchnorm"] = cli.config.trainer.sync_batchnorm
    planned = preview(*parts, **on)
    forecast = _forecast(planned, cli, step_time, measure)
    if hours is not None:
        if not callbacks or callbacks[0].schedule is not None:
            raise ValueError(
                "`--hours` chooses the `epoch_factor` of a MultigridCallback whose schedule is inferred. Let the "
                "config have one, without `schedule`."
            )
        callbacks[0].epoch_factor = factor_within(planned, forecast, hours)
        planned = preview(*parts, **on)
        forecast = replace(forecast, schedule=planned.schedule)
    if json:
        print(json_format.dumps(planned.as_json(forecast), indent=2))
    else:
        say(planned.table(forecast))
        if hours is not None:
            say(told(planned, forecast, hours))
    if plot is not None:
        save(plan_figure(planned.schedule, planned.lrs, forecast.relative_costs()), plot)
        say(f"Drawn to {plot}.", sys.stderr)


def _forecast(planned: Preview, cli: "_ConfigCLI", step_time: float | None, measure: bool) -> Forecast:
    known = {} if step_time is None else {planned.schedule.baseline.shape: step_time}
    if measure:
        known = measure_steps(cli.model, planned.shapes, _device(), precision=cli.precision, at_least=_MEASURED)
    shapes = [shape for shape, _ in planned.shapes]
    return Forecast(planned.schedule, clip_costs(cli.model, shapes), known, planned.world)


def compare_baselines(
    cli: "_ConfigCLI",
    output: str = "compared",
    seeds: int = 3,
    metric: str | None = None,
    mode: Literal["max", "min"] | None = None,
    clock: Literal["wall", "cpu"] = "wall",
) -> None:
    """Trains a config with MultigridCallback, without it, and without it in as much time: does it pay?

    A run whose file is in the output folder is not repeated, so an interrupted comparison continues.

    Args:
        cli: Has read the config.
        output: Folder for the runs, what they print, and `compare.png`.
        seeds: Runs of each kind, with seeds from 0.
        metric: What to compare, of what the validation logs; None is the first that is no loss.
        mode: What is better; None is `min` for names with `loss` or `err` in them.
        clock: What "as much time" means: `cpu` is for trainings on CPUs that share a machine.
    """
    config = yaml.safe_load(cli.parser.dump(cli.config, skip_none=False))
    config = {name: value for name, value in config.items() if name not in signature(compare_baselines).parameters}
    compare(config, Path(output), seeds=seeds, metric=metric, mode=mode, clock=clock)


def migrate(source: str) -> None:
    """Prints the config of `fit` that trains what a config of PySlowFast trains.

    Settings without a counterpart are in comments at its top.

    Args:
        source: A YAML file of PySlowFast.
    """
    print(translate_pyslowfast(source), end="")


@dataclass(frozen=True)
class _Command:
    """A subcommand of ours: what it does, and what it takes of a config of `fit`."""

    run: Callable[..., None]
    takes: Literal["all", "data", "nothing"]

    @property
    def options(self) -> dict[str, Any]:
        """Its own options, of the parameters of `run`, and their types."""
        parameters = signature(self.run).parameters.items()
        return {name: each.annotation for name, each in parameters if name not in ("cli", "datamodule")}

    @property
    def description(self) -> str:
        return str(getdoc(self.run)).partition("\n\nArgs:")[0]


_OURS = {
    "plan": _Command(plan, "all"),
    "compare": _Command(compare_baselines, "all"),
    "init": _Command(init, "nothing"),
    "prepare": _Command(prepare_videos, "data"),
    "check": _Command(check_videos, "data"),
    "index": _Command(index_videos, "data"),
    "migrate": _Command(migrate, "nothing"),
}
_LIGHTNINGS = LightningCLI.subcommands()
# The option that a word alone is for.
_ALONE = {"predict": "data.predict", **dict.fromkeys(("init", "prepare", "check", "index", "migrate"), "source")}
_WITHOUT_VALUE = "-h", "--help", "--print_config"


class _Help(argparse.RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """Keeps the lines of a description."""


class _DataHelp(LightningArgumentParser):
    """A parser whose help leaves out what it takes of a config only so that configs of `fit` can be read."""

    def format_help(self, *args: Any, **kwargs: Any) -> str:
        parts = re.split(r"\n\n(?=\S)", str(super().format_help(*args, **kwargs)).rstrip())
        hidden = "  --(trainer|model|data)[. ]"
        return "\n\n".join(part for part in parts if not re.search(hidden, part)) + "\n"


class _ConfigCLI(LightningCLI):
    """Lightning's command line for one command, which makes the parts of a config."""

    def __init__(self, command: str, words: Sequence[str]) -> None:
        self.command, self.ours = command, _OURS.get(command)
        of_command = self.parser_arguments(command)
        of_program = {"prog": "lightning-multigrid", "exit_on_error": False, command: of_command}
        super().__init__(
            LightningModule,
            LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            auto_configure_optimizers=False,
            seed_everything_default=0,
            save_config_kwargs={"overwrite": True},
            trainer_defaults={"enable_model_summary": False},
            parser_class=_DataHelp if self.ours and self.ours.takes == "data" else LightningArgumentParser,
            parser_kwargs=of_command if self.ours else of_program,
            args=list(words),
            run=self.ours is None,
        )

    @staticmethod
    def parser_arguments(command: str) -> dict[str, Any]:
        """How the parser of a command is made; `exit_on_error` would print the names of all arguments."""
        word = f" [{_ALONE[command].rpartition('.')[2].upper()}]" if command in _ALONE else ""
        config = "" if command in _OURS and _OURS[command].takes == "nothing" else " [--config CONFIG]"
        usage = f"lightning-multigrid {command}{word}{config} [options]"
        arguments: dict[str, Any] = {"exit_on_error": False, "usage": usage, "formatter_class": _Help}
        return arguments | ({"description": _OURS[command].description} if command in _OURS else {})

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        return {} if self.ours else {self.command: _LIGHTNINGS[self.command]}

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        if self.ours:  # first in the help
            parser.add_function_arguments(self.ours.run, skip={"cli", "datamodule"})
        if not self._of_data:
            super().add_default_arguments_to_parser(parser)

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        if not self._of_data:
            super().add_core_arguments_to_parser(parser)
            return
        parser.add_lightning_class_args(self.trainer_class, "trainer")
        for name, kind in (("model", LightningModule), ("data", LightningDataModule)):
            parser.add_lightning_class_args(kind, name, subclass_mode=True, required=False)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds what a config may say beside its parts; what a command doesn't use is not in its help."""
        if not self._of_data:
            threads = "Threads that torch computes with on a CPU; null is the cores that `num_workers` leave."
            parser.add_argument("--threads", type=int | None, default=None, help=threads)
        unused = (*_OF_FIT, "seed_everything", "threads") if self._of_data else _OF_FIT
        for name in unused if self.ours else ():
            parser.add_argument(f"--{name}", type=Any, help=argparse.SUPPRESS)

    @property
    def _of_data(self) -> bool:
        return self.ours is not None and self.ours.takes == "data"

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        assert isinstance(args, list)
        self.config = parser.parse_args(args)
        if self._of_data:
            self.config.seed_everything = False  # Lightning's word for no seed

    def before_instantiate_classes(self) -> None:
        if self.command == "plan":  # it needs no GPU, and logs nothing
            trainer = self.config.trainer
            self.configured = (_count_devices(trainer.devices), trainer.num_nodes)
            self.precision = str(trainer.precision or "32-true")
            trainer.accelerator, trainer.strategy, trainer.precision, trainer.logger = "cpu", "auto", None, False
            trainer.devices = trainer.num_nodes = 1

    def instantiate_classes(self) -> None:
        """Makes what the command needs: for data no model and no Trainer."""
        if not self._of_data:
            super().instantiate_classes()
            return
        given = {name: value for name, value in vars(self.config).items() if name not in _OF_TRAINING}
        self.config_init = self.parser.instantiate_classes(Namespace(given))  # type: ignore[no-untyped-call]
        self.datamodule = self.config_init.get("data")

    def after_instantiate_classes(self) -> None:
        """Leaves cores to the processes that decode, which torch's threads would take from them on a CPU."""
        if self._of_data:
            return
        given = (self.config if self.ours else self.config[self.command]).threads
        workers = getattr(self.datamodule, "num_workers", 0)
        alone = isinstance(self.trainer.accelerator, CPUAccelerator) and self.trainer.world_size == 1
        if given is not None:
            torch.set_num_threads(given)
        elif self.ours is None and alone and workers and "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(max(1, CORES - workers))
            rank_zero_info(f"torch computes with {torch.get_num_threads()} of {CORES} cores, as {workers} decode.")

    def before_fit(self) -> None:
        """Says how large the model is; Lightning's table is for modules of many parts."""
        model = getattr(self.model, "model", self.model)
        rank_zero_info(f"{type(model).__name__}: {sum(p.numel() for p in model.parameters()):,} parameters.")

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Makes a Trainer with `AtomicCheckpointIO`, unless the config has another `CheckpointIO`."""
        trainer: Trainer = super().instantiate_trainer(**kwargs)
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            trainer.strategy.checkpoint_io = AtomicCheckpointIO()
            if self.command == "fit":
                rank_zero_info("Checkpoints are written by AtomicCheckpointIO; `trainer.plugins` may name another.")
        return trainer

    def before_predict(self) -> None:
        """Makes `predict` write a table, unless the config has another writer, module or data module."""
        trainer = self.trainer
        writers = [c for c in trainer.callbacks if isinstance(c, BasePredictionWriter)]  # type: ignore[attr-defined]
        if not writers and isinstance(self.model, VideoClassifier) and isinstance(self.datamodule, VideoDataModule):
            trainer.callbacks.append(PredictionWriter())  # type: ignore[attr-defined]


def typed(command: str, words: Sequence[str]) -> list[str]:
    """Returns words of the command line as the parser takes them.

    That is `--json=true` for a bare `--json`, and `--source=FOLDER` for FOLDER, behind a config that names the class.

    >>> typed("check", ["--full", "no", "--timeout", "3", "videos", "--workers=2"])
    ['--full=false', '--timeout', '3', '--workers=2', '--source=videos']
    """
    options = _OURS[command].options if command in _OURS else {}
    bools = [name for name, kind in options.items() if kind is bool]
    flags = {f"--{spelled}": f"--{name}" for name in bools for spelled in (name, name.replace("_", "-"))}
    taken: list[str] = []
    alone: list[str] = []
    rest = deque(words)
    while rest:
        word = rest.popleft()
        name, _, value = word.partition("=")
        if command == "plan" and name == "--like":
            taken.append(f"--config={_preset(value or ''.join(rest and [rest.popleft()]))}")
        elif word in flags:
            given = _BOOLS.get(rest[0].lower()) if rest else None
            if given:
                rest.popleft()
            taken.append(f"{flags[word]}={given or 'true'}")
        elif word.startswith("-"):
            taken.append(word)
            if "=" not in word and word not in _WITHOUT_VALUE and rest and not rest[0].startswith("--"):
                taken.append(rest.popleft())
        elif command in _ALONE and not alone:
            alone = [f"--{_ALONE[command]}={word}"]
        else:
            taken.append(word)
    return taken + alone


def _preset(name: str) -> Path:
    names = sorted(path.stem for path in _PRESETS.glob("*.yaml"))
    if name not in names:
        raise ValueError(
            f"`--like` must be one of {', '.join(names)}, got {name!r}. For your own recipe use `--config`."
        )
    return _PRESETS / f"{name}.yaml"


def run(args: Sequence[str] | None) -> None:
    """Runs a command line, that of the process if `args` is None."""
    words = list(sys.argv[1:] if args is None else args)
    command = next((word for word in words if word in (*_LIGHTNINGS, *_OURS)), None)
    if command is None and words and not words[0].startswith("-"):
        raise ArgumentError(None, f"invalid choice: {words[0]!r} (choose from {', '.join((*_LIGHTNINGS, *_OURS))})")
    if command is None:
        _program().parse_args(words or ["--help"])
        raise SystemExit(2)
    words.remove(command)
    words, ours = typed(command, words), _OURS.get(command)
    _refuse_without_config(command, words)
    if ours is None:
        _ConfigCLI(command, [command, *words])
    elif ours.takes == "nothing":
        parser = ArgumentParser(**_ConfigCLI.parser_arguments(command))
        parser.add_function_arguments(ours.run)
        ours.run(**parser.parse_args(words).as_dict())
    else:
        cli = _ConfigCLI(command, words)
        given = {name: cli.config_init[name] for name in ours.options if name in cli.config_init}
        ours.run(cli if ours.takes == "all" else cli.datamodule, **given)


def _program() -> argparse.ArgumentParser:
    """The parser of a command line without a command."""
    program = argparse.ArgumentParser("lightning-multigrid", description="Multigrid training of video models.")
    program.add_argument("--version", action="version", version=f"lightning-multigrid {__version__}")
    commands = program.add_subparsers(metavar="COMMAND")
    for name in _LIGHTNINGS:
        commands.add_parser(name, help=str(getdoc(getattr(Trainer, name))).replace("\n", " ").partition(". ")[0])
    for name, ours in _OURS.items():
        commands.add_parser(name, help=ours.description.partition("\n")[0])
    return program


def _refuse_without_config(command: str, words: Sequence[str]) -> None:
    """Says that a command needs a config, where it would name what the config has to hold."""
    asks = any("help" in word or word.startswith(("-h", "--print", "-c", "--config", "--model")) for word in words)
    if (command not in _OURS or _OURS[command].takes == "all") and not asks:
        raise ArgumentError(
            None,
            "A config has to say what the model and the data are: give `--config CONFIG`. `lightning-multigrid init "
            "FOLDER` writes one for a folder of videos.",
        )


def _count_devices(devices: int | str | list[int]) -> int:
    """Returns the devices that a config asks for on each node; 1 if it leaves that to the machine.

    It reads `devices` as Lightning 2.5.3 to 2.6.6 does: `"0,1"` is a list of two, `"2"` a number. Lightning's own
    function, `Accelerator.parse_devices`, refuses devices that this machine doesn't have.
    """
    if isinstance(devices, str):
        listed = "," in devices
        devices = [int(part) for part in devices.split(",") if part] if listed else int(devices.replace("auto", "-1"))
    return max(1, len(devices) if isinstance(devices, list) else devices)


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
