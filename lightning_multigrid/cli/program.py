"""The program runs a command, and says an error that a user can fix in one paragraph."""

import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from io import TextIOWrapper
from textwrap import shorten

from jsonargparse import ArgumentError
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.exceptions import SIGTERMException

from lightning_multigrid.cli.commands import run
from lightning_multigrid.cli.mistakes import TRAIN_FROM_IT
from lightning_multigrid.cli.terminal import say


def _raised_here(error: BaseException | None) -> BaseException | None:
    """Returns the error, or its cause, that this package, Lightning or the system raised: one that a user can fix."""
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


def program(words: Sequence[str]) -> None:
    """Runs a command line. An error that a user can fix is one paragraph."""
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
