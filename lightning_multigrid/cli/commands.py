"""The subcommands in one parser: Lightning's, and ours, with types and help from signatures."""

import json as json_format
import math
import re
import sys
from argparse import SUPPRESS, RawDescriptionHelpFormatter
from collections.abc import Sequence
from dataclasses import replace
from inspect import getdoc, signature
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import torch
import yaml
from jsonargparse import ArgumentError, DefaultHelpFormatter, Namespace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning_utilities.core.rank_zero import rank_zero_info

from lightning_multigrid import __version__
from lightning_multigrid.cli.budget import factor_within, told
from lightning_multigrid.cli.compare import compare
from lightning_multigrid.cli.data_commands import check_videos, index_videos, prepare_videos
from lightning_multigrid.cli.forecast import Forecast, clip_costs, measure_steps
from lightning_multigrid.cli.init import init
from lightning_multigrid.cli.plan import Preview, count_clips, preview
from lightning_multigrid.cli.pyslowfast import translate_pyslowfast
from lightning_multigrid.cli.terminal import say
from lightning_multigrid.reports import plan_figure, save
from lightning_multigrid.training import AtomicCheckpointIO, MultigridCallback
from lightning_multigrid.video import PredictionWriter, VideoClassifier, VideoDataModule

_PRESETS = Path(__file__).parent / "presets"
# What our commands take of a config of `fit`.
_TAKES = {"plan": "all", "compare": "all", "init": "nothing", "prepare": "data", "check": "data"}
_TAKES["index"] = "data"
_TAKES["migrate"] = "nothing"
_OF_TRAINING = "trainer", "model"
_MEASURED = 8.0  # seconds, at least: the speed of shared machines goes up and down within a few
_OF_FIT = "ckpt_path", "weights_only"
# The option for the word after a command.
_FIRST = {"predict": "data.predict", "init": "source", "prepare": "source", "check": "source", "migrate": "source"}
_FIRST["index"] = "source"


class CommandTrainer(Trainer):
    """Lightning's Trainer; its methods are the subcommands, and those of ours only describe them."""

    def plan(
        self,
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

    def compare(
        self,
        output: str = "compared",
        seeds: int = 3,
        metric: str | None = None,
        mode: Literal["max", "min"] | None = None,
        clock: Literal["wall", "cpu"] = "wall",
    ) -> None:
        """Trains a config with MultigridCallback, without it, and without it in as much time: does it pay?

        A run whose file is in the output folder is not repeated, so an interrupted comparison continues.

        Args:
            output: Folder for the runs, what they print, and `compare.png`.
            seeds: Runs of each kind, with seeds from 0.
            metric: What to compare, of what the validation logs; None is the first that is no loss.
            mode: What is better; None is `min` for names with `loss` or `err` in them.
            clock: What "as much time" means: `cpu` is for trainings on CPUs that share a machine.
        """

    init = staticmethod(init)
    prepare = staticmethod(prepare_videos)
    check = staticmethod(check_videos)
    index = staticmethod(index_videos)

    @staticmethod
    def migrate(source: str) -> None:
        """Prints the config of `fit` that trains what a config of PySlowFast trains.

        Settings without a counterpart are in comments at its top.

        Args:
            source: A YAML file of PySlowFast.
        """


class _Help(RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """Keeps the lines of a description."""


class _Parser(LightningArgumentParser):
    """The help of a subcommand begins with its own options; `takes` is what it takes of a config of `fit`."""

    takes: str | None = None  # one of `_TAKES`; None for Lightning's own

    def format_help(self, *args: Any, **kwargs: Any) -> str:
        parts = re.split(r"\n\n(?=\S)", str(super().format_help(*args, **kwargs)).rstrip())
        text = [part for part in parts if not re.search(r"\n  -", part)]
        options = [part for part in parts if part not in text]
        own = options[1:] and [options.pop()]
        shown = [*options[:1], *own, *([] if self.takes == "data" else options[1:])]
        return "\n\n".join([text[0], *text[1:], *shown]) + "\n"


def _takes(parser: LightningArgumentParser) -> str | None:
    return parser.takes if isinstance(parser, _Parser) else None


class MultigridCLI(LightningCLI):
    """Lightning's command line with our subcommands."""

    parsers: list[_Parser]

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        # Lightning hands model and data to each command.
        return {**LightningCLI.subcommands(), **{name: {"model", "datamodule"} for name in _TAKES}}

    def init_parser(self, takes: str | None = None, **kwargs: Any) -> LightningArgumentParser:
        """Makes the parser of the program, then those of its subcommands."""
        parser = _Parser(**kwargs) if takes == "nothing" else super().init_parser(**kwargs)
        assert isinstance(parser, _Parser)
        parser.takes = takes
        self.__dict__.setdefault("parsers", []).append(parser)
        return parser

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        if _takes(parser) in (None, "all"):
            super().add_default_arguments_to_parser(parser)

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        if _takes(parser) in (None, "all"):
            super().add_core_arguments_to_parser(parser)
        elif _takes(parser) == "data":
            parser.add_lightning_class_args(self.trainer_class, "trainer")
            for name, kind in (("model", LightningModule), ("data", LightningDataModule)):
                parser.add_lightning_class_args(kind, name, subclass_mode=True, required=False)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds what a config may say beside its parts; what a command doesn't use is not in its help."""
        if _takes(parser) in (None, "all"):
            threads = "Threads that torch computes with on a CPU; null is as many as it has cores."
            parser.add_argument("--threads", type=int | None, default=None, help=threads)
            for name, when in (("about", "before"), ("next", "after")):
                parser.add_argument(f"--{name}", type=str | None, help=f"Text to show {when} `fit`.")
        unused = {"all": _OF_FIT, "data": (*_OF_FIT, "seed_everything", "threads", "about", "next")}
        for name in unused.get(str(_takes(parser)), ()):
            parser.add_argument(f"--{name}", type=Any, help=SUPPRESS)

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        super().parse_arguments(parser, args)
        if _TAKES.get(self.config.subcommand, "all") != "all":
            self.config[self.config.subcommand].seed_everything = False  # Lightning's word for no seed

    def before_instantiate_classes(self) -> None:
        threads = self.config[self.subcommand].get("threads")
        if threads is not None:
            torch.set_num_threads(threads)
        if self.subcommand == "plan":  # it needs no GPU, and logs nothing
            trainer = self.config.plan.trainer
            self.configured = (_count_devices(trainer.devices), trainer.num_nodes)
            self.precision = str(trainer.precision or "32-true")
            trainer.accelerator, trainer.strategy, trainer.precision, trainer.logger = "cpu", "auto", None, False
            trainer.devices = trainer.num_nodes = 1

    def instantiate_classes(self) -> None:
        """Makes what the command needs: for data no model and no Trainer, others nothing at all."""
        command = str(self.subcommand)
        if _TAKES.get(command, "all") == "all":
            super().instantiate_classes()
            return
        given = {name: value for name, value in vars(self.config[command]).items() if name not in _OF_TRAINING}
        made = self._own_parsers[command].instantiate_classes(Namespace(given))  # type: ignore[no-untyped-call]
        self.config_init = Namespace({command: made})  # type: ignore[no-untyped-call]
        self.model, self.datamodule = None, made.get("data")
        self.trainer = self.trainer_class  # type: ignore[assignment]

    @property
    def _own_parsers(self) -> dict[str, _Parser]:
        return dict(zip(self.subcommands(), self.parsers[1:], strict=True))

    def before_fit(self) -> None:
        """Says what the config is about, and how large the model is; Lightning's table is for modules of many parts."""
        self._say("about")
        model = getattr(self.model, "model", self.model)
        rank_zero_info(f"{type(model).__name__}: {sum(p.numel() for p in model.parameters()):,} parameters.")

    def after_fit(self) -> None:
        self._say("next")

    def _say(self, name: str) -> None:
        if self.config.fit[name] is not None:
            rank_zero_info(self.config.fit[name].rstrip())

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Makes a Trainer with `AtomicCheckpointIO`, unless the config has another `CheckpointIO`."""
        trainer: Trainer = super().instantiate_trainer(**kwargs)
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            trainer.strategy.checkpoint_io = AtomicCheckpointIO()
        return trainer

    def before_predict(self) -> None:
        """Makes `predict` write a table, unless the config has another writer, module or data module."""
        trainer = self.trainer
        writers = [c for c in trainer.callbacks if isinstance(c, BasePredictionWriter)]  # type: ignore[attr-defined]
        if not writers and isinstance(self.model, VideoClassifier) and isinstance(self.datamodule, VideoDataModule):
            trainer.callbacks.append(PredictionWriter())  # type: ignore[attr-defined]

    def plan(self, **options: Any) -> None:
        """Does what `_Trainer.plan` documents."""
        given = SimpleNamespace(**options)
        clips, step_time, measure = given.clips, given.step_time, given.measure
        callbacks = [c for c in self.trainer.callbacks if isinstance(c, MultigridCallback)]  # type: ignore[attr-defined]
        if not callbacks:
            say("`trainer.callbacks` has no MultigridCallback, so this is the baseline as it is.", sys.stderr)
        if not isinstance(self.datamodule, VideoDataModule):
            raise MisconfigurationException(
                f"`plan` reads the baseline off a VideoDataModule, got {type(self.datamodule).__name__}. With other "
                "data the schedule is printed when `fit` starts."
            )
        if step_time is not None and (measure or step_time <= 0):
            wrong = f"{step_time:g} and `--measure`" if measure else f"{step_time:g}"
            raise ValueError(f"`--step_time` must be above 0 and come without `--measure`, got {wrong}. Give either.")
        configured = math.prod(self.configured)
        # `--devices` alone means that many in all, rather than on each of a recipe's nodes.
        nodes = given.num_nodes or (1 if given.devices else self.configured[1])
        world = (given.devices or self.configured[0]) * nodes
        clips = count_clips(self.datamodule) if clips is None else clips
        parts = next(iter(callbacks), None), self.trainer, self.model, self.datamodule
        sync = self.config.plan.trainer.sync_batchnorm
        plan = preview(*parts, clips=clips, world=world, configured_world=configured, sync_batchnorm=sync)
        forecast = self._forecast(plan, step_time, measure)
        if given.hours is not None:
            if not callbacks or callbacks[0].schedule is not None:
                raise ValueError(
                    "`--hours` chooses the `epoch_factor` of a MultigridCallback whose schedule is inferred. Let the "
                    "config have one, without `schedule`."
                )
            callbacks[0].epoch_factor = factor_within(plan, forecast, given.hours)
            plan = preview(*parts, clips=clips, world=world, configured_world=configured, sync_batchnorm=sync)
            forecast = replace(forecast, schedule=plan.schedule)
        if given.json:
            print(json_format.dumps(plan.as_json(forecast), indent=2))
        else:
            say(plan.table(forecast))
            if given.hours is not None:
                say(told(plan, forecast, given.hours))
        if given.plot is not None:
            save(plan_figure(plan.schedule, plan.lrs, forecast.relative_costs()), given.plot)
            say(f"Drawn to {given.plot}.", sys.stderr)

    def _forecast(self, plan: Preview, step_time: float | None, measure: bool) -> Forecast:
        known = {} if step_time is None else {plan.schedule.baseline.shape: step_time}
        if measure:
            known = measure_steps(self.model, plan.shapes, _device(), precision=self.precision, at_least=_MEASURED)
        shapes = [shape for shape, _ in plan.shapes]
        return Forecast(plan.schedule, clip_costs(self.model, shapes), known, plan.world)

    def compare(self, model: Any, datamodule: Any = None, **options: Any) -> None:
        config = yaml.safe_load(self._own_parsers["compare"].dump(self.config.compare, skip_none=False))
        config = {name: value for name, value in config.items() if name not in options}
        compare(config, Path(options.pop("output")), **options)

    def init(self, model: None, **given: Any) -> None:
        init(**given)

    def prepare(self, model: None, datamodule: LightningDataModule | None = None, **given: Any) -> None:
        prepare_videos(datamodule, **given)

    def check(self, model: None, datamodule: LightningDataModule | None = None, **given: Any) -> None:
        check_videos(datamodule, **given)

    def index(self, model: None, datamodule: LightningDataModule | None = None, **given: Any) -> None:
        index_videos(datamodule, **given)

    def migrate(self, model: None, source: str) -> None:
        print(translate_pyslowfast(source), end="")


def typed(words: Sequence[str]) -> list[str]:
    """Returns words of the command line as the parser takes them.

    `--json=true` for a bare `--json`, `--source=FOLDER` for `check FOLDER`, and the file of a preset for its name.
    """
    command, *words = words or [""]
    if command in _FIRST and words and not words[0].startswith("-"):
        words = [*words[1:], f"--{_FIRST[command]}={words[0]}"]  # after a config, which may name the class of the data
    arguments = signature(getattr(CommandTrainer, command)).parameters if command in _TAKES else {}
    bools = [name for name, argument in arguments.items() if argument.annotation is bool]
    flags = {f"--{spelled}": f"--{name}" for name in bools for spelled in (name, name.replace("_", "-"))}
    expanded = [command] if command else []
    for word, following in pairwise([*words, ""]):
        bare = word in flags and following.lower() not in ("true", "false")
        expanded.append(f"{flags[word]}=true" if bare else flags.get(word, word))
    if command != "plan":
        return expanded
    while "--like" in expanded:
        place = expanded.index("--like")
        expanded[place : place + 2] = [f"--like={''.join(expanded[place + 1 : place + 2])}"]
    return [part for word in expanded for part in (_preset(word[7:]) if word.startswith("--like=") else [word])]


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


def _preset(name: str) -> list[str]:
    names = sorted(path.stem for path in _PRESETS.glob("*.yaml"))
    if name not in names:
        raise ValueError(
            f"`--like` must be one of {', '.join(names)}, got {name!r}. For your own recipe use `--config`."
        )
    return ["--config", str(_PRESETS / f"{name}.yaml")]


def _refuse_without_config(command: str, words: Sequence[str]) -> None:
    """Says that a command needs a config, where it would name what the config has to hold."""
    asks = any("help" in word or word.startswith(("-h", "--print", "-c", "--config", "--model")) for word in words)
    if _TAKES.get(command, "all") == "all" and command in MultigridCLI.subcommands() and not asks:
        raise ArgumentError(
            None,
            "A config has to say what the model and the data are: give `--config CONFIG`. `lightning-multigrid init "
            "FOLDER` writes one for a folder of videos.",
        )


def run(args: ArgsType) -> None:
    """Runs a command line, that of the process if `args` is None."""
    words: list[str] = []
    if args is None:
        words = sys.argv[1:] = typed(sys.argv[1:])
    elif isinstance(args, list):
        words = args = typed(args)
    command = words[0] if words else ""
    _refuse_without_config(command, words[1:])
    cli = _cli_of(command)
    cli(
        LightningModule,
        LightningDataModule,
        trainer_class=CommandTrainer,
        subclass_mode_model=True,
        subclass_mode_data=True,
        auto_configure_optimizers=False,
        seed_everything_default=0,
        save_config_kwargs={"overwrite": True},
        trainer_defaults={"enable_model_summary": False},
        parser_class=_Parser,
        parser_kwargs={
            "prog": "lightning-multigrid",
            "version": __version__,
            "description": "Multigrid training of video models.",
            "formatter_class": _Help,
            # Otherwise a mistake in one argument prints the names of all arguments.
            "exit_on_error": False,
            **{name: _parser_kwargs(name) for name in cli.subcommands()},
        },
        args=args,
    )


def _cli_of(command: str) -> type[MultigridCLI]:
    """Returns the command line with a parser for one command alone, where that one suffices."""
    commands = MultigridCLI.subcommands()
    if command not in commands:
        return MultigridCLI
    alone = {"subcommands": staticmethod(lambda: {command: commands[command]})}
    return type(MultigridCLI.__name__, (MultigridCLI,), alone)


def _parser_kwargs(command: str) -> dict[str, Any]:
    takes = _TAKES.get(command)
    first = f" [{_FIRST[command].rpartition('.')[2].upper()}]" if command in _FIRST else ""
    config = "" if takes == "nothing" else " [--config CONFIG]"
    kwargs = {"exit_on_error": False, "usage": f"lightning-multigrid {command}{first}{config} [options]"}
    if takes is None:
        return kwargs
    described = str(getdoc(getattr(CommandTrainer, command))).partition("\n\nArgs:")[0]
    return {**kwargs, "takes": takes, "description": described, "formatter_class": _Help}
