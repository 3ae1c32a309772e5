"""Checkpoint files that are whole or absent: written in one move, by `files`, and read without running code.

Lightning moves a checkpoint from the system's temporary folder. To a network drive that is a copy, and a process that
is killed meanwhile leaves half a file under its name.
"""

import errno
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import fsspec
import torch
from typing_extensions import override

from lightning_multigrid.files import StrPath, new_file
from lightning_multigrid.host import TorchCheckpointIO


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints that are whole or absent, and refuses those that could run code.

    `Trainer(plugins=[AtomicCheckpointIO()])`; the command line adds it automatically. A checkpoint is written under
    another name in its folder, flushed to disk and renamed. Lightning itself saves to paths with a protocol, such as
    `s3://`.
    """

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], path: StrPath, storage_options: Any = None) -> None:
        if storage_options is not None or "://" in os.fspath(path):
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
            ValueError: If the file holds more than tensors and plain values, or other bytes than were written.
        """
        try:
            # Lightning's own method trusts every URL, and before 2.6 every file.
            with fsspec.open(os.fspath(path), "rb") as file:
                if "://" not in os.fspath(path):  # else it would be transferred twice
                    _refuse_damage(file, path)
                checkpoint: dict[str, Any] = torch.load(file, map_location, weights_only=weights_only is not False)
        except FileNotFoundError as error:  # that of a URL says no more than the URL
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path)) from error
        except pickle.UnpicklingError as error:
            raise ValueError(
                f"{path} holds more than tensors and plain values, and reading it could run code of whoever wrote it "
                f"({_reason(error)}). If you trust them, give `fit` or `validate` `weights_only=False` (Lightning 2.6)."
            ) from error
        return checkpoint


def _refuse_damage(file: IO[bytes], path: StrPath) -> None:
    """Refuses a checkpoint with other bytes than were written: torch writes checksums, and reads without them."""
    damaged = None
    if zipfile.is_zipfile(file) and torch.serialization.get_crc32_options():
        try:
            damaged = zipfile.ZipFile(file).testzip()
        except zipfile.BadZipFile as error:
            damaged = str(error)
    if damaged is not None:
        raise ValueError(
            f"{path} is damaged: it has other bytes than were written ({damaged}). Copy it again, or take another "
            "checkpoint. If it was written without checksums, by `torch.serialization.set_crc32_options(False)`, also "
            "read it so."
        )
    file.seek(0)


def _reason(error: BaseException) -> str:
    """Returns the first sentence of an error, or of its cause if that comes from the operating system."""
    cause = error.__cause__ or error.__context__
    said = str(cause if isinstance(cause, OSError) else error).strip().split("\n")[0].split(". ")[0].rstrip(".")
    return said or type(error).__name__
