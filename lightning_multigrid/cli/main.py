"""The program: it answers `--help` itself, at once, from the source of the commands, or runs a command.

To import what trains takes seconds, so this file imports nothing of it before a command runs.
"""

import argparse
import ast
import os
import re
import select
import shutil
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from textwrap import fill, shorten

from lightning_multigrid import __version__

_LIGHTNINGS = {
    "fit": "Trains the model of a config.",
    "validate": "Measures a trained model on the validation videos of a config.",
    "test": "Measures a trained model on the test videos of a config.",
    "predict": "Writes a table of the classes of new videos.",
}
_OF_CONFIGS = {
    "config CONFIG": "A YAML file of `model`, `data` and `trainer`. `lightning-multigrid init` writes a first one.",
    "trainer.max_epochs=10": "A value of the Trainer, by its name in the config.",
    "data.batch_size=4": "A value of the data module.",
    "model.lr=0.1": "A value of the module.",
    "ckpt_path FILE": "The checkpoint that is continued or measured; `last` is the newest one.",
    "print_config": "Print the whole config, with all options and their defaults.",
    "model.help CLASS": "Show the arguments of a class; also `--data.help` and `--trainer.callbacks.help`.",
    "help_all": "Show all options. This takes some seconds.",
}  # of Lightning's commands: the options that most trainings need
# Where the functions of our own commands are.
OURS = {
    "init": ("init.py", "init"),
    "plan": ("commands.py", "plan"),
    "show": ("commands.py", "show"),
    "compare": ("commands.py", "compare_command"),
    "prepare": ("data_commands.py", "prepare_videos"),
    "check": ("data_commands.py", "check_videos"),
    "index": ("data_commands.py", "index_videos"),
    "migrate": ("commands.py", "migrate"),
}
OF_FILE, OF_DATA = ("init", "migrate"), ("prepare", "check", "index")  # which need no config, and need its data alone


def main(args: Sequence[str] | None = None) -> None:
    """Runs a command line, that of the process if `args` is None. An error that a user can fix is one paragraph."""
    words = list(sys.argv[1:] if args is None else args)
    with ends_quietly():
        if words[:1] in ([], ["-h"], ["--help"]):
            _program().print_help()
        elif words == ["--version"]:
            print(f"lightning-multigrid {__version__}")
        elif words[0] in OURS and {"-h", "--help"} & {*words}:
            _parser(words[0]).print_help()
        elif words[0] in _LIGHTNINGS and words[1:] in (["-h"], ["--help"]):
            _page(words[0]).print_help()
        else:
            _run([*words[:-1], "--help"] if words[-1] == "--help_all" else words)


def _page(command: str) -> argparse.ArgumentParser:
    source = " [PREDICT]" if command == "predict" else ""
    parser = argparse.ArgumentParser(
        usage=f"lightning-multigrid {command}{source} [--config CONFIG] [options]", description=_LIGHTNINGS[command]
    )
    for name, says in _OF_CONFIGS.items():
        parser.add_argument(f"--{name}", metavar="", help=says)
    return parser


def _program() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("lightning-multigrid", description="Multigrid training of video models.")
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND")
    for name, says in [*_LIGHTNINGS.items(), *((name, _documented(name)[1].partition("\n\n")[0]) for name in OURS)]:
        commands.add_parser(name, help=says)
    return parser


def _documented(command: str) -> tuple[ast.arguments, str, dict[str, str]]:
    """Returns what a command takes, and its docstring: what it does, and what each argument means."""
    file, function = OURS[command]
    body = ast.parse(Path(__file__).with_name(file).read_text(encoding="utf-8")).body
    node = next(one for one in body if isinstance(one, ast.FunctionDef) and one.name == function)
    does, _, arguments = str(ast.get_docstring(node)).partition("\n\nArgs:\n")
    return node.args, does, dict(re.findall(r"^    (\w+): ((?:.+\n?)(?: {8}.+\n?)*)", arguments, re.MULTILINE))


def _parser(command: str) -> argparse.ArgumentParser:
    """The parser of one of our own commands, for its help; what is typed is read by the types of its classes."""
    taken, does, means = _documented(command)
    width = shutil.get_terminal_size().columns - 2
    paragraphs = [text if text[0] == " " else fill(text, width) for text in does.split("\n\n")]
    config, more = "" if command in OF_FILE else " [--config CONFIG]", ""
    if command not in (*OF_FILE, *OF_DATA):
        more = (
            "All options of `fit` are also taken, such as --trainer.max_epochs=10, --model.lr=0.1 and "
            "--data.batch_size=4. `lightning-multigrid fit --help_all` shows them."
        )
    parser = argparse.ArgumentParser(
        usage=f"lightning-multigrid {command}{'' if more else ' SOURCE'}{config} [options]",
        description="\n\n".join(paragraphs),
        epilog=f"{'-' * width}\n{fill(more, width)}" if more else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if config:
        what = "A config of `fit`." if more else "A config of `fit`, whose videos are taken. SOURCE is then left out."
        parser.add_argument("-c", "--config", help=what)
    required = len(taken.args) - len(taken.defaults)
    defaults = [*[None] * required, *taken.defaults, *taken.kw_defaults]
    for argument, default in zip([*taken.args, *taken.kwonlyargs], defaults, strict=True):
        name, kind = argument.arg, ast.unparse(argument.annotation) if argument.annotation else ""
        if name in ("cli", "datamodule"):
            continue
        says = " ".join(means[name].split()).replace("%", "%%")
        with suppress(ValueError):  # what is not written as a value is said in the docstring
            value = None if default is None else ast.literal_eval(default)
            says += f" (default: {value})" if value else ""
        if name == "source":
            parser.add_argument(name, metavar="SOURCE", help=says)
        elif kind == "bool":
            parser.add_argument(f"--{name}", action="store_true", help=says)
        else:
            names = re.findall(r"'(\w+)'", kind) if "Literal" in kind else []
            parser.add_argument(f"--{name}", metavar=f"{{{','.join(names)}}}" if names else None, help=says)
    return parser


@contextmanager
def ends_quietly() -> Iterator[None]:
    """Ends a command in a word at Ctrl-C, and without one if nobody reads what it prints, as in front of `head`."""
    try:
        try:
            yield
        except SystemExit:
            sys.stdout.flush()
            raise
        sys.stdout.flush()
    except KeyboardInterrupt:  # also while what trains is imported
        print("Stopped.", file=sys.stderr)
        raise SystemExit(130) from None  # the exit status of a program that Ctrl-C ends
    except BrokenPipeError:
        poll = select.poll()
        poll.register(sys.stdout, 0)
        if not poll.poll(0):  # it is another pipe
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python writes when it ends
        raise SystemExit(141) from None  # as a shell has it of programs that end so


def _raised_here(error: BaseException | None) -> BaseException | None:
    """Returns the error, or its cause, that this package, Lightning or the system raised: one that a user can fix."""
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    raised = error
    while error is not None:
        if _raiser(error).startswith("lightning_multigrid."):
            return error
        error = error.__cause__ or error.__context__
    known = isinstance(raised, MisconfigurationException) or (isinstance(raised, OSError) and raised.errno is not None)
    return raised if raised is not None and (known or _raiser(raised).startswith("lightning.")) else None


def _raiser(error: BaseException) -> str:
    names = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    return names[-1] if names else ""  # what another process raised has no frames here


def _run(words: Sequence[str]) -> None:
    from jsonargparse import ArgumentError
    from lightning.fabric.utilities.exceptions import MisconfigurationException
    from lightning.pytorch.utilities.exceptions import SIGTERMException

    from lightning_multigrid.cli.commands import run
    from lightning_multigrid.cli.mistakes import TRAIN_FROM_IT
    from lightning_multigrid.cli.terminal import say

    entry = run
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        # Then torchrun shows in its summary which error ended the rank that failed first.
        from torch.distributed.elastic.multiprocessing.errors import record

        entry = record(run)
    if not sys.warnoptions:  # these are for their authors; those of the user's code are shown
        warnings.filterwarnings("ignore", category=FutureWarning, module="lightning|torch|jsonargparse")
    if isinstance(sys.stdout, TextIOWrapper):  # as of stderr: a letter that it doesn't have ends no command
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        entry(words)
    except ArgumentError as error:
        say(f"error: {error}", sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:  # `main` knows whose
        raise
    except (ValueError, OSError, ModuleNotFoundError, MisconfigurationException) as error:
        ours = _raised_here(error)
        if ours is None:
            raise
        say(f"error: {ours}", sys.stderr)
        raise SystemExit(1) from None
    except RuntimeError as error:  # torch's
        what, _, where = str(error).partition("Error(s) in loading state_dict for ")
        if what or not where:
            raise
        say(
            f"error: The weights of the checkpoint don't fit {shorten(where, 300)}\n"
            f"The config must describe the model of the checkpoint. {TRAIN_FROM_IT}",
            sys.stderr,
        )
        raise SystemExit(1) from None
    except SIGTERMException:
        raise SystemExit(143) from None  # the one of SIGTERM; Lightning's is 0, as if the training had ended
