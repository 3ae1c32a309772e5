"""The command line: Lightning's subcommands, `plan`, and the commands that need no Trainer."""

import json as json_format
import logging
import math
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from jsonargparse import ArgumentError
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning_utilities.core.rank_zero import rank_zero_info

from lightning_multigrid import __version__
from lightning_multigrid.cli.completion import completion_script
from lightning_multigrid.cli.data_commands import run_data_command
from lightning_multigrid.cli.explain import explained
from lightning_multigrid.cli.forecast import Forecast, clip_costs, measure_steps
from lightning_multigrid.cli.init import init
from lightning_multigrid.cli.own_commands import OWN_COMMANDS, own_parser
from lightning_multigrid.cli.plan import Preview, count_clips, preview
from lightning_multigrid.cli.pyslowfast import translate_pyslowfast
from lightning_multigrid.reports import plan_figure, save
from lightning_multigrid.training import AtomicCheckpointIO, MultigridCallback
from lightning_multigrid.video import PredictionWriter, VideoClassifier, VideoDataModule

_USAGE = "lightning-multigrid %s --config CONFIG [options]"
_DESCRIPTION = """Multigrid training of video models. Other commands, with a --help of their own: `init` writes a config
for a folder of videos, `prepare` and `check` make a dataset ready, `migrate` translates a config of PySlowFast, and
`completion` prints a script by which Tab completes commands and options."""
_PRESETS = Path(__file__).parent / "presets"


class _Trainer(Trainer):
    """Lightning's Trainer, whose methods are the subcommands."""

    def plan(
        self,
        clips: int | None = None,
        devices: int | None = None,
        num_nodes: int | None = None,
        step_time: float | None = None,
        measure: bool = False,
        plot: str | None = None,
        json: bool = False,
        like: str | None = None,
        ckpt_path: str | None = None,
    ) -> None:
        """Prints the multigrid schedule of a config and what it costs, without data or GPU.

        Args:
            clips: Training videos, over all devices; None counts them if they are on this machine.
            devices: GPUs per node; None is what the config says.
            num_nodes: Nodes; None is what the config says, or 1 if `devices` is given.
            step_time: Seconds of a baseline step on one device; FLOPs give those of other steps.
            measure: Measure the steps of every shape on this machine's GPU, or its CPU, on clips of noise.
            plot: Draw shapes and LR, as Figure 2 of the paper, and the costs of grids to this file (.png, .svg, .pdf).
            json: Print JSON instead of a table.
            like: Name of a recipe of the paper to plan instead of a config, such as kinetics-slowfast.
            ckpt_path: Not used; configs of `fit` may have it.
        """


class _Parser(LightningArgumentParser):
    """The help of a subcommand begins with its own options."""

    def format_help(self, *args: Any, **kwargs: Any) -> str:
        start, *groups = re.split(r"\n\n(?=\S)", str(super().format_help(*args, **kwargs)).rstrip())
        if len(groups) > 3:  # after its description and `--config`
            groups.insert(2, groups.pop())
        return "\n\n".join([start, *groups]) + "\n"


class _MultigridCLI(LightningCLI):
    known: list[LightningArgumentParser]

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        return {**LightningCLI.subcommands(), "plan": set()}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds what a config may say beside its parts; keeps the parser of each subcommand for the words it knows."""
        self.__dict__.setdefault("known", []).append(parser)
        threads = "Threads that torch computes with on a CPU; null is as many as it has cores."
        parser.add_argument("--threads", type=int | None, default=None, help=threads)
        for name, when in (("about", "before"), ("next", "after")):
            parser.add_argument(f"--{name}", type=str | None, help=f"Text to show {when} `fit`.")

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        if args == ["completion"]:
            own = {command: own_parser(command) for command in OWN_COMMANDS}
            print(completion_script(dict(zip(self.subcommands(), self.known, strict=True)) | own), end="")
            raise SystemExit
        with explained(*self.known):
            super().parse_arguments(parser, args)

    def before_instantiate_classes(self) -> None:
        threads = (self.config if self.subcommand is None else self.config[self.subcommand]).threads
        if threads is not None:
            torch.set_num_threads(threads)
        if self.subcommand == "plan":  # it needs no GPU, and logs nothing
            trainer = self.config.plan.trainer
            self.configured = (_count_devices(trainer.devices), trainer.num_nodes)
            self.precision = str(trainer.precision)
            trainer.accelerator, trainer.strategy, trainer.precision, trainer.logger = "cpu", "auto", None, False
            trainer.devices = trainer.num_nodes = 1

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
            print("`trainer.callbacks` has no MultigridCallback, so this is the baseline as it is.", file=sys.stderr)
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
        forecast = _forecast(plan, self.model, step_time, self.precision if measure else None)
        print(json_format.dumps(plan.as_json(forecast), indent=2) if given.json else plan.table(forecast))
        if given.plot is not None:
            save(plan_figure(plan.schedule, plan.lrs, forecast.relative_costs()), given.plot)
            print(f"Drawn to {given.plot}.", file=sys.stderr)


def _count_devices(devices: int | str | list[int]) -> int:
    """Returns the devices that a config asks for on each node; 1 if it leaves that to the machine.

    It reads `devices` as Lightning 2.5.3 to 2.6.6 does: `"0,1"` is a list of two, `"2"` a number. Lightning's own
    function, `Accelerator.parse_devices`, refuses devices that this machine doesn't have.
    """
    if isinstance(devices, str):
        listed = "," in devices
        devices = [int(part) for part in devices.split(",") if part] if listed else int(devices.replace("auto", "-1"))
    return max(1, len(devices) if isinstance(devices, list) else devices)


def _forecast(plan: Preview, module: LightningModule, step_time: float | None, measured_at: str | None) -> Forecast:
    shapes = [shape for shape, _ in plan.shapes]
    seconds = {} if step_time is None else {plan.schedule.baseline.shape: step_time}
    if measured_at is not None:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        seconds = measure_steps(module, plan.shapes, device, precision=measured_at)
    return Forecast(plan.schedule, clip_costs(module, shapes), seconds, plan.world)


def _raised_here(error: BaseException | None) -> BaseException | None:
    """Returns the error, or the cause of it, that this package or Lightning raised: an error that a user can fix."""
    raised = error
    while error is not None:
        if _raiser(error).startswith("lightning_multigrid."):
            return error
        error = error.__cause__ or error.__context__
    known = isinstance(raised, (MisconfigurationException, FileNotFoundError, PermissionError))
    return raised if raised is not None and (known or _raiser(raised).startswith("lightning.")) else None


def _raiser(error: BaseException) -> str:
    return str(list(traceback.walk_tb(error.__traceback__))[-1][0].f_globals.get("__name__"))


@contextmanager
def _quiet() -> Iterator[None]:
    """Within it, advertisements and what a user of the command line can't act on is not shown."""

    def of_use(record: logging.LogRecord) -> bool:
        return re.match("💡|TPU available", str(record.msg)) is None

    # The messages of both packages are in the logger of the one that was imported last.
    loggers = [logging.getLogger(f"{name}.utilities.rank_zero") for name in ("lightning.pytorch", "pytorch_lightning")]
    for logger in loggers:
        logger.addFilter(of_use)
    try:
        with warnings.catch_warnings():
            if not sys.warnoptions:
                for of_other_packages in (DeprecationWarning, FutureWarning):
                    warnings.simplefilter("ignore", of_other_packages)
                # Our report says when the loader is too slow, and the callback sets how often is logged.
                warnings.filterwarnings("ignore", ".*(does not have many workers|smaller than the logging interval)")
            yield
    finally:
        for logger in loggers:
            logger.removeFilter(of_use)


def _with_values(args: list[str]) -> list[str]:
    """Returns arguments as jsonargparse needs them: `--json=true` for a bare `--json`, and the files of presets."""
    expanded = []
    for arg, following in pairwise([*args, ""]):
        bare = arg in ("--json", "--measure") and following.lower() not in ("true", "false")
        expanded.append(f"{arg}=true" if bare else arg)
    if expanded[:1] != ["plan"]:
        return expanded
    while "--like" in expanded:
        place = expanded.index("--like")
        expanded[place : place + 2] = [f"--like={''.join(expanded[place + 1 : place + 2])}"]
    return [part for arg in expanded for part in (_preset(arg[7:]) if arg.startswith("--like=") else [arg])]


def _preset(name: str) -> list[str]:
    names = sorted(path.stem for path in _PRESETS.glob("*.yaml"))
    if name not in names:
        raise ValueError(
            f"`--like` must be one of {', '.join(names)}, got {name!r}. For your own recipe use `--config`."
        )
    return ["--config", str(_PRESETS / f"{name}.yaml")]


def _run(args: ArgsType) -> None:
    words = sys.argv[1:] if args is None else args
    if isinstance(words, list) and words and words[0] in OWN_COMMANDS:
        parser = own_parser(words[0])
        with explained(parser):
            given = parser.instantiate_classes(parser.parse_args(words[1:]))
        if words[0] == "init":
            init(given)
        elif words[0] == "migrate":
            print(translate_pyslowfast(given.config), end="")
        elif words[0] != "completion":
            run_data_command(words[0], given)
        if words[0] != "completion":
            return
        args = ["completion"]  # it needs the parsers of all commands
    if args is None:
        sys.argv[1:] = _with_values(sys.argv[1:])
    elif isinstance(args, list):
        args = _with_values(args)
    _MultigridCLI(
        LightningModule,
        LightningDataModule,
        trainer_class=_Trainer,
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
            "description": _DESCRIPTION,
            # Otherwise a mistake in one argument prints the names of all arguments.
            "exit_on_error": False,
            **{name: {"exit_on_error": False, "usage": _USAGE % name} for name in _MultigridCLI.subcommands()},
        },
        args=args,
    )


def main(args: ArgsType = None) -> None:
    """Runs a command line, that of the process if `args` is None. An error that a user can fix is one paragraph."""
    run, threads = _run, torch.get_num_threads()
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        # Then torchrun shows in its summary which error ended the rank that failed first.
        from torch.distributed.elastic.multiprocessing.errors import record

        run = record(_run)
    try:
        with _quiet():
            run(args)
    except ArgumentError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except torch.OutOfMemoryError as error:
        said = str(error).partition(". ")[0]
        print(f"error: {said}. Give a smaller `--data.batch_size`, or `--trainer.precision=16-mixed`.", file=sys.stderr)
        raise SystemExit(1) from None
    except (ValueError, OSError, ModuleNotFoundError, MisconfigurationException) as error:
        ours = _raised_here(error)
        if ours is None:
            raise
        advice = " Give `--trainer.accelerator=cpu`, or auto." if "backend found" in str(ours) else ""
        print(f"error: {ours}{advice}", file=sys.stderr)
        raise SystemExit(1) from None
    finally:
        torch.set_num_threads(threads)
