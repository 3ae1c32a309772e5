"""Checkpoint files that are whole or absent: written in one move, and read only if no byte has changed.

Lightning moves a checkpoint from the system's temporary folder. To a network drive that is a copy, and a process that
is killed meanwhile leaves half a file under its name. Besides, torch loads a corrupted file without complaint.
"""

import os
import pickle
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import torch
from lightning_utilities.core.rank_zero import rank_zero_warn
from typing_extensions import override

from lightning_multigrid.files import StrPath, new_file
from lightning_multigrid.host import TorchCheckpointIO


class DamagedCheckpointError(ValueError):
    """A checkpoint has changed since it was written."""


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints that are whole or absent, and refuses those that are damaged or could run code.

    `Trainer(plugins=[AtomicCheckpointIO()])`; the command line adds it automatically. A checkpoint is written under
    another name in its folder, flushed to disk and renamed. Loading reads the file twice, as its checksums are verified
    first. Lightning itself saves to paths with a protocol, such as `s3://`.

    Args:
        fall_back: Instead of a damaged checkpoint, load the newest whole one of the folder, with a warning.
    """

    def __init__(self, fall_back: bool = False) -> None:
        self.fall_back = fall_back

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], path: StrPath, storage_options: Any = None) -> None:
        if storage_options is not None or not _is_local(path):
            super().save_checkpoint(checkpoint, os.fspath(path), storage_options)
            return
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        # Always the same name, so that the next process overwrites what a killed one leaves. Lightning 2.5.3 to 2.6.6
        # takes every file with "ckpt_" in its name for one of SLURM's checkpoints (`_CheckpointConnector`).
        part = target.with_name(f".{target.stem.replace('ckpt_', '')}.part")
        try:
            with new_file(target, part) as file:
                torch.save(checkpoint, file)
        except (OSError, RuntimeError) as error:  # torch turns the errors of a file into its own
            raise OSError(
                f"The checkpoint {target} could not be written: {_reason(error)}. What was there before is untouched. "
                "Make room, and continue with `ckpt_path='last'`."
            ) from error

    @override
    def load_checkpoint(
        self,
        path: StrPath,
        map_location: Callable[..., Any] | None = lambda storage, _: storage,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Loads a file, to `map_location` as `torch.load` does. Only `weights_only=False` allows the file to run code.

        Raises:
            FileNotFoundError: If there is no such file.
            DamagedCheckpointError: If the file has changed since it was written, and `fall_back` is off or finds none.
            ValueError: If the file holds more than tensors and plain values.
        """
        if _is_local(path):
            try:
                check_checkpoint(path)
            except DamagedCheckpointError as error:
                whole = last_whole_checkpoint(Path(path).parent)
                if whole is None:
                    raise
                if not self.fall_back:
                    raise DamagedCheckpointError(
                        f"{error} The newest whole checkpoint of its folder is {whole}: give it as `ckpt_path`, or let "
                        "`AtomicCheckpointIO(fall_back=True)` take it."
                    ) from error
                rank_zero_warn(f"{error} Continuing with {whole} instead.")
                path = whole
        try:
            # Lightning's own method trusts every URL, and before 2.6 every file.
            with fsspec.open(os.fspath(path), "rb") as file:
                checkpoint: dict[str, Any] = torch.load(file, map_location, weights_only=weights_only is not False)
        except pickle.UnpicklingError as error:
            raise ValueError(
                f"{path} holds more than tensors and plain values, and reading it could run code of whoever wrote it "
                f"({_reason(error)}). If you trust them, load its weights yourself, and save their state dict alone."
            ) from error
        return checkpoint


def check_checkpoint(path: StrPath) -> None:
    """Reads a whole checkpoint of `torch.save`, and refuses one with a part that differs from its checksum."""
    with open(path, "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                # `torch.serialization.set_crc32_options(False)` leaves all checksums 0.
                damaged = archive.testzip() if any(part.CRC for part in archive.infolist()) else None
            if damaged is None:
                # Torch reads the archive's directory more strictly than Python does; no tensor is read here.
                torch.load(path, map_location="meta", mmap=True, weights_only=True)
        except pickle.UnpicklingError:
            pass  # whole, but it holds more than tensors and plain values
        except Exception as error:  # a damaged archive can raise anything
            raise DamagedCheckpointError(f"The checkpoint {path} is damaged: {_reason(error)}.") from error
    if damaged is not None:
        raise DamagedCheckpointError(f"The checkpoint {path} is damaged: {damaged} has changed.")


def last_whole_checkpoint(folder: StrPath) -> Path | None:
    """Returns the newest checkpoint of a folder that has not changed since it was written; None if there is none."""
    files = Path(folder).glob("*.ckpt")
    for path in sorted(files, key=lambda path: (path.stat().st_mtime_ns, path.name), reverse=True):
        with suppress(DamagedCheckpointError, OSError):
            check_checkpoint(path)
            return path
    return None


def _is_local(path: StrPath) -> bool:
    return "://" not in os.fspath(path)


def _reason(error: BaseException) -> str:
    """Returns the first sentence of an error, or of its cause if that comes from the operating system."""
    cause = error.__cause__ or error.__context__
    said = str(cause if isinstance(cause, OSError) else error).strip().split("\n")[0].split(". ")[0].rstrip(".")
    return said or type(error).__name__
