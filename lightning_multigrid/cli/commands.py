"""The subcommands: Lightning's, and ours, with types and help from signatures."""

import argparse
import logging
import os
import shlex
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from inspect import signature
from pathlib import Path
from typing import Any, Literal

import torch
import yaml
from jsonargparse import ArgumentError, ArgumentParser, Namespace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.utilities.exceptions import SIGTERMException

from lightning_multigrid.cli.compare import compare
from lightning_multigrid.cli.data_commands import CORES, check_videos, index_videos, prepare_videos
from lightning_multigrid.cli.init import init
from lightning_multigrid.cli.main import OF_DATA, OF_FILE, OURS
from lightning_multigrid.cli.mistakes import (
    LoadedWeights,
    refuse_other_commands,
    refuse_other_files,
    refuse_other_texts,
    told,
)
from lightning_multigrid.cli.plan import MIXED, count_clips, measure_loader, measure_steps, preview, seconds_by_points
from lightning_multigrid.cli.pyslowfast import translate_pyslowfast
from lightning_multigrid.cli.terminal import say
from lightning_multigrid.files import at_home, new_file, require
from lightning_multigrid.reports import comparison_figure, new_figure, plan_figure
from lightning_multigrid.schedule import LongCycle, ShortCycle
from lightning_multigrid.training import AtomicCheckpointIO, MultigridCallback, NewestCheckpoint, show_grids
from lightning_multigrid.video import PredictionWriter, VideoClassifier, VideoDataModule

_PRESETS = Path(__file__).parent / "presets"


def plan(
    cli: "_ConfigCLI",
    clips: int | None = None,
    devices: int | None = None,
    step_time: float | None = None,
    measure: bool = False,
    plot: str | None = None,
    like: str | None = None,
) -> None:
    """Prints the multigrid schedule of a config, and what it costs. It needs neither videos nor a GPU.

    Args:
        cli: Has made the parts of the config.
        clips: Number of training videos, over all devices. By default the videos on this machine are counted.
        devices: Number of GPUs, over all nodes. By default the config says it.
        step_time: Seconds of a baseline step on one device. Steps on other grids are estimated from it (Eq. 1).
        measure: Measure the steps on each grid, with clips of noise, on the GPU or CPU of this machine. Also measure
            the loader, if the videos are here.
        plot: Draw shapes and LR, as Figure 2 of the paper, to this file (.png, .svg, .pdf).
        like: Plan a recipe of the paper instead of a config, for instance kinetics-slowfast.
    """
    require(clips is None or clips >= 1, "--clips", clips, "at least 1")
    require(devices is None or devices >= 1, "--devices", devices, "at least 1")
    _require_drawable(plot)
    trainer, data = cli.trainer, cli.datamodule
    if not isinstance(data, VideoDataModule):
        raise MisconfigurationException(
            f"`plan` reads the baseline off a VideoDataModule, got {type(data).__name__}. With other data the schedule "
            "is printed when `fit` starts."
        )
    require(step_time is None or step_time > 0, "--step_time", step_time, "above 0")
    configured = cli.configured_world
    world = devices or configured
    callback = next((c for c in trainer.callbacks if isinstance(c, MultigridCallback)), None)  # type: ignore[attr-defined]
    if callback is None:
        say("`trainer.callbacks` has no MultigridCallback, so this is the baseline as it is.", sys.stderr)
        synced = world if cli.config.trainer.sync_batchnorm else 1
        callback = MultigridCallback.baseline(sub_batch=data.batch_size * synced)
    number = clips or count_clips(data)
    planned = preview(callback, trainer, cli.model, data, clips=number, world=world, configured_world=configured)
    if plot is not None:
        plan_figure(planned.plan.schedule, planned.lrs).savefig(plot, dpi=150)
        say(f"Drawn to {plot}.", sys.stderr)
    shapes, baseline = planned.shapes, planned.plan.schedule.baseline.shape
    seconds = {} if step_time is None else seconds_by_points(shapes, baseline, step_time)
    if measure:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if cli.precision not in (*MIXED, "32-true"):
            say(f"Steps are measured at 32 bits, and not in `precision: {cli.precision}`.", sys.stderr)
        seconds = measure_steps(cli.model, shapes, device, precision=cli.precision)
    say(planned.table(seconds))
    if measure:
        here = clips is None and planned.counted
        missing = "The loader is not measured, as the videos are not here, or `--clips` stands for them."
        say(measure_loader(planned, trainer, cli.model, data, seconds) if here else missing)


def show(cli: "_ConfigCLI", output: str = "shown", clips: int = 4) -> None:
    """Draws some training clips of a config as the model gets them, on each grid of its schedule.

    Each clip is drawn with its classes, its file, the seconds and the frames. Look at the pictures before a long
    training: are the stretch, the stride and the colours right, and may the clip be mirrored?

    Args:
        cli: Has made the parts of the config.
        output: Folder for the pictures, one for each grid.
        clips: How many clips.
    """
    require(clips >= 1, "--clips", clips, "at least 1")
    data, callbacks = cli.datamodule, cli.trainer.callbacks  # type: ignore[attr-defined]
    callback = next((one for one in callbacks if isinstance(one, MultigridCallback)), None)
    if callback is None:
        callback = MultigridCallback(long_cycle=LongCycle(((1, 1),)), short_cycle=ShortCycle((1,)))
    drawn = None
    if isinstance(data, VideoDataModule):
        data.index, drawn = False, data.show_clip  # a few clips need no tables
    data.prepare_data()
    data.setup("fit")
    seed = cli.config.seed_everything or 0
    for picture in show_grids(data.train_dataloader(), output, callback, clips, seed, drawn, cli.model):
        say(str(picture))


def compare_command(
    cli: "_ConfigCLI",
    output: str = "compared",
    seeds: int = 3,
    metric: str | None = None,
    mode: Literal["max", "min"] | None = None,
    clock: Literal["wall", "cpu"] = "wall",
    lengths: tuple[float, ...] = (),
    plot: str | None = None,
) -> None:
    """Trains a config with MultigridCallback and without it, and says whether the callback pays.

    A third training, without the callback, gets as much time as the first one took. A run whose file is in the output
    folder is not repeated, so the same command continues an interrupted comparison.

    Args:
        cli: Has read the config.
        output: Folder for the runs, and what they print.
        seeds: Number of runs of each kind, with seeds from 0.
        metric: Name of the metric to compare, which the validation logs. By default the first one that is not a loss.
        mode: Whether more or less is better. By default `min` for losses, errors, WER, CER, perplexity, MAE, MSE, RMSE
            and the like, and `max` for other metrics.
        clock: What "as much time" means: `cpu` is for trainings on CPUs that share a machine.
        lengths: Shares of the training's length, for instance `[0.75,0.67,0.5]`. Also train these with the callback,
            until one is worse than the baseline: how much time does the baseline's accuracy take?
        plot: Draw the metric over the time, a line for each run, to this file (.png, .svg, .pdf).
    """
    require(seeds >= 1, "--seeds", seeds, "at least 1")
    _require_drawable(plot)
    config = yaml.safe_load(cli.parser.dump(cli.config, skip_unset=False))
    config = {name: value for name, value in config.items() if name not in signature(compare_command).parameters}
    comparison = compare(config, Path(output), seeds=seeds, metric=metric, mode=mode, clock=clock, lengths=lengths)
    if plot is not None:
        comparison_figure(comparison).savefig(plot, dpi=150)
        say(f"Drawn to {plot}.", sys.stderr)


def _require_drawable(plot: str | None) -> None:
    """Refuses a picture that can't be drawn, before the work: matplotlib, the kind or the folder is missing."""
    if plot is not None:
        kinds = sorted(f".{kind}" for kind in new_figure().canvas.get_supported_filetypes())
        require(Path(plot).suffix.lower() in kinds, "--plot", plot, f"a file that ends in {', '.join(kinds)}")
        require(Path(plot).parent.is_dir(), "--plot", plot, "in a folder that is there")


def migrate(source: str) -> None:
    """Prints the config of `fit` that trains what a config of PySlowFast trains.

    Settings without a counterpart are in comments at its top.

    Args:
        source: A YAML file of PySlowFast.
    """
    print(translate_pyslowfast(source), end="")


_FUNCTIONS = init, plan, show, compare_command, prepare_videos, check_videos, index_videos, migrate
_OURS: dict[str, Callable[..., None]] = dict(zip(OURS, _FUNCTIONS, strict=True))
_LIGHTNINGS = LightningCLI.subcommands()
_FIRST_WORDS = {"predict": "data.predict", **dict.fromkeys((*OF_DATA, *OF_FILE), "source")}  # options that they are


def _parser_arguments(command: str) -> dict[str, Any]:
    # `exit_on_error` would print the names of all arguments; a slip of the pen would be taken for an abbreviation.
    word = f" [{_FIRST_WORDS[command].rpartition('.')[2].upper()}]" if command in _FIRST_WORDS else ""
    usage = f"lightning-multigrid {command}{word} [--config CONFIG] [options]"
    return {"exit_on_error": False, "allow_abbrev": False, "usage": usage}


def _refuse_callbacks(config: Namespace) -> None:
    # jsonargparse (4.53) lets null or a list for a cycle and a `trainer` that is none pass, and then can't make them.
    needed = "the arguments of a Trainer, such as `{max_epochs: 10}`"
    require(isinstance(config.trainer, Namespace), "trainer", config.trainer, needed)
    given = config.trainer.callbacks or []
    callbacks = given if isinstance(given, list) else [given]
    of_multigrid = [path for one in callbacks if "MultigridCallback" in (path := one.get("class_path", "")).split(".")]
    if len(of_multigrid) > 1:
        raise ValueError(
            f"A training takes one MultigridCallback, got {' and '.join(of_multigrid)}. Leave out the others."
        )
    for callback in callbacks:
        for name, none in (("short_cycle", "[1]"), ("long_cycle", "[[1, 1]]")):
            arguments = callback.get("init_args") or {}
            if name in arguments and not isinstance(arguments[name], (Namespace, dict, str)):
                raise ValueError(
                    f"`{name}` of MultigridCallback has arguments of its own, got {arguments[name]!r}. Write "
                    f"`{name}: {{factors: ...}}`, with `factors: {none}` for no such cycle, or leave it out."
                )


class _SavedRun(SaveConfigCallback):
    """Saves the config, and beside it the names of the classes, as `VideoList` takes them in a file."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        data, folder = trainer.datamodule, trainer.log_dir  # type: ignore[attr-defined]
        super().setup(trainer, pl_module, stage)  # all ranks have asked for the folder
        classes = data.classes if isinstance(data, VideoDataModule) else ()
        if not (classes and folder and "://" not in folder and trainer.is_global_zero):
            return
        file, names = Path(folder) / "classes.txt", "".join(f"{name}\n" for name in classes)
        written = names.encode("utf-8", "surrogateescape")
        if not trainer.loggers and file.exists() and file.read_bytes() != written:  # the folder is not the run's alone
            say(f"{file} has other names than the classes of this training, and is left as it is.", sys.stderr)
            return
        with new_file(file) as to:
            to.write(written)


@contextmanager
def _without_tips() -> Iterator[None]:
    """Leaves out what Lightning says of seeds, GPUs and its own products: nothing is trained here."""
    before = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "GPU available but not used")  # `plan` needs none
            yield
    finally:
        logging.disable(before)


class _ConfigCLI(LightningCLI):
    """Lightning's command line for one command: Lightning's own, or ours, for which it makes the parts of a config."""

    def __init__(self, command: str, words: Sequence[str]) -> None:
        self.command, self.ours, self.words = command, _OURS.get(command), words
        of_command = _parser_arguments(command)
        of_program = {"prog": "lightning-multigrid", "exit_on_error": False, "allow_abbrev": False, command: of_command}
        with _without_tips() if self.ours else nullcontext():
            super().__init__(
                LightningModule,
                LightningDataModule,
                subclass_mode_model=True,
                subclass_mode_data=True,
                auto_configure_optimizers=False,
                seed_everything_default=0,
                save_config_callback=_SavedRun,
                save_config_kwargs={"overwrite": True},
                trainer_defaults={"enable_model_summary": False},
                parser_kwargs=of_command if self.ours else of_program,
                args=list(words) if self.ours else [command, *words],
                run=self.ours is None,
            )
        if self.ours is not None:
            names = signature(self.ours).parameters.keys() & self.config_init.keys()
            given = {name: self.config_init[name] for name in names}
            self.ours(self.config_init.data if command in OF_DATA else self, **given)

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        return {} if self.ours else {self.command: _LIGHTNINGS[self.command]}

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        if self.ours:
            parser.add_function_arguments(self.ours, as_group=False, skip={"cli", "datamodule"})
        super().add_default_arguments_to_parser(parser)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds what a config may say beside its parts; what a command doesn't use is not in its help."""
        self.of_command = parser
        threads = "Threads that torch computes with on a CPU; null is the cores that `num_workers` leave."
        parser.add_argument("--threads", type=int | None, default=None, help=threads)
        for name in ("ckpt_path", "weights_only") if self.ours else ():  # of `fit`
            parser.add_argument(f"--{name}", type=Any, help=argparse.SUPPRESS)

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        assert isinstance(args, list)
        with told(self.of_command, args):
            self.config = parser.parse_args(args)
        self.ckpt_path = None if self.ours else self.config[self.command].get("ckpt_path")
        if self.ckpt_path is not None:
            refuse_other_files(self.ckpt_path)
            # From here to the next hook, Lightning (2.5.5) would let the hyperparameters in the file override what is
            # typed, and import the classes that they name.
            self.config[self.command].ckpt_path = None
        _refuse_callbacks(self.config if self.ours else self.config[self.command])

    def before_instantiate_classes(self) -> None:
        if self.ckpt_path:
            self.config[self.command].ckpt_path = self.ckpt_path
        if self.command in ("plan", "show"):  # it needs no GPU, and logs nothing
            trainer = self.config.trainer
            self.configured_world = _count_devices(trainer.devices) * trainer.num_nodes
            given = str(trainer.precision or "32-true")
            self.precision = {"16": "16-mixed", "bf16": "bf16-mixed", "32": "32-true"}.get(given, given)  # Lightning's
            trainer.accelerator, trainer.strategy, trainer.precision, trainer.logger = "cpu", "auto", None, False
            trainer.devices = trainer.num_nodes = 1

    def instantiate_classes(self) -> None:
        if self.command not in OF_DATA:
            super().instantiate_classes()
            return
        given = {name: value for name, value in vars(self.config).items() if name not in ("trainer", "model")}
        self.config_init = self.parser.instantiate(Namespace(given))  # type: ignore[no-untyped-call]

    def after_instantiate_classes(self) -> None:
        """Leaves cores to the processes that decode, which torch's threads would take from them on a CPU."""
        given = (self.config if self.ours else self.config[self.command]).threads
        if given is not None:
            torch.set_num_threads(given)
        elif self.ours is None and "OMP_NUM_THREADS" not in os.environ:
            workers = getattr(self.datamodule, "num_workers", 0)
            if workers and isinstance(self.trainer.accelerator, CPUAccelerator) and self.trainer.world_size == 1:
                torch.set_num_threads(max(1, CORES - workers))

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        trainer: Trainer = super().instantiate_trainer(**kwargs)
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, NewestCheckpoint):
                callback.command = _continues(self.command, self.words)
        if self.command in _LIGHTNINGS and self.command != "fit":
            trainer.callbacks.append(LoadedWeights(self.ckpt_path))  # type: ignore[attr-defined]
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            trainer.strategy.checkpoint_io = AtomicCheckpointIO()
        return trainer

    def before_predict(self) -> None:
        trainer = self.trainer
        writers = [c for c in trainer.callbacks if isinstance(c, BasePredictionWriter)]  # type: ignore[attr-defined]
        if not writers and isinstance(self.model, VideoClassifier) and isinstance(self.datamodule, VideoDataModule):
            trainer.callbacks.append(PredictionWriter())  # type: ignore[attr-defined]


def typed(command: str, words: Sequence[str]) -> list[str]:
    """Returns words of the command line as the parser takes them.

    That is `--measure=true` for `--measure`, and `--source=FOLDER` for FOLDER, which stands right after the command.
    Configs come first. A leading `~/` is the home folder, also after a `=`, where shells leave it.

    >>> typed("prepare", ["videos", "--timeout", "3"])
    ['--timeout', '3', '--source=videos']
    """
    parameters = signature(_OURS[command]).parameters.values() if command in _OURS else ()
    names = [parameter.name for parameter in parameters if parameter.annotation is bool]
    flags = {f"--{spelled}": f"--{name}=true" for name in names for spelled in (name, name.replace("_", "-"))}
    parts = (word.partition("=") if word.startswith("-") else ("", "", word) for word in words)
    taken = [flags.get(word := f"{name}{given}{at_home(value)}", word) for name, given, value in parts]
    if command in _FIRST_WORDS and taken and not taken[0].startswith("-"):
        taken.append(f"--{_FIRST_WORDS[command]}={taken.pop(0)}")
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    either = parser.add_mutually_exclusive_group()
    either.add_argument("-c", "--config", action="append", default=[])
    if command == "plan":
        either.add_argument("--like", choices=sorted(path.stem for path in _PRESETS.glob("*.yaml")))
    given, taken = parser.parse_known_args(taken)
    configs = given.config if getattr(given, "like", None) is None else [_PRESETS / f"{given.like}.yaml"]
    return [*(f"--config={config}" for config in configs), *taken]  # other options are for the classes of a config


def _continues(command: str, words: Sequence[str]) -> str:
    """The command line that goes on where this one has stopped.

    >>> _continues("fit", ["--config=my config.yaml", "--ckpt_path", "a.ckpt"])
    "lightning-multigrid fit '--config=my config.yaml' --ckpt_path last"
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--ckpt_path")
    _, others = parser.parse_known_args(list(words))
    return shlex.join(["lightning-multigrid", command, *others, "--ckpt_path", "last"])


def run(words: Sequence[str]) -> None:
    """Runs a command line."""
    refuse_other_commands(words[0], [*_LIGHTNINGS, *_OURS])
    if words[0] in _LIGHTNINGS:  # Lightning takes SIGTERM itself
        _run(words[0], words[1:])
        return
    before = signal.signal(signal.SIGTERM, _end)
    try:
        _run(words[0], words[1:])
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(*_: object) -> None:
    """Ends a command as Ctrl-C does: with the trainings that it has started, and with what it has half written."""
    raise SIGTERMException


def _run(command: str, words: Sequence[str]) -> None:
    words = typed(command, words)
    for config in (word.partition("=")[2] for word in words if word.startswith("--config=")):
        refuse_other_texts(config)
    configured = any(word.startswith("-c") or word.partition("=")[0] == "--config" for word in words)
    if command in OF_FILE or (command in OF_DATA and not configured):
        parser = ArgumentParser(**_parser_arguments(command))
        if command in OF_DATA:
            parser.add_argument("-c", "--config", default=argparse.SUPPRESS)
        parser.add_function_arguments(_OURS[command], as_group=False, skip={"datamodule"})
        with told(parser, words):
            given = parser.parse_args(words)
        _OURS[command](**vars(parser.instantiate(given)))
        return
    try:
        _ConfigCLI(command, words)
    except ArgumentError:
        if configured or any(word.startswith("--model") for word in words):
            raise
        raise ArgumentError(
            None,
            f"`{command}` needs the config of a training, such as `--config multigrid.yaml`.\n"
            "`lightning-multigrid init FOLDER` writes a first one for a folder of videos.",
        ) from None


def _count_devices(devices: int | str | list[int]) -> int:
    # Lightning's own function, `Accelerator.parse_devices`, refuses devices that this machine doesn't have.
    if isinstance(devices, str):
        listed = "," in devices
        devices = [int(part) for part in devices.split(",") if part] if listed else int(devices.replace("auto", "-1"))
    return max(1, len(devices) if isinstance(devices, list) else devices)
