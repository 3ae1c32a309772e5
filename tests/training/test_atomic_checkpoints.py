"""Checkpoint files: whole or not there, and nothing else is loaded."""

import errno
import os
import stat
from unittest import mock

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_multigrid import AtomicCheckpointIO, MultigridCallback
from lightning_multigrid.cli.commands import run as run_command
from tests.helpers.tiny import Module, fit

pytestmark = pytest.mark.usefixtures("_unrehearsed")

CHECKPOINT = {"state_dict": {"w": torch.arange(50.0), "b": torch.ones(3)}, "epoch": 2, "note": "some text"}
io = AtomicCheckpointIO()


def same(one, other):
    one, other = dict(one), dict(other)
    tensors, others = one.pop("state_dict"), other.pop("state_dict")
    return one == other and all(torch.equal(tensors[name], others[name]) for name in ("w", "b"))


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


# --- Writing ---


def test_what_is_saved_is_loaded_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "new" / "folder" / "last.ckpt"
    for _ in range(2):
        io.save_checkpoint(CHECKPOINT, path)
        assert os.listdir(path.parent) == ["last.ckpt"]
        assert same(io.load_checkpoint(str(path)), CHECKPOINT)
    (tmp_path / "any").write_text("")
    assert mode_of(path) == mode_of(tmp_path / "any")  # others may read it as far as the user lets them
    io.remove_checkpoint(str(path))
    assert os.listdir(path.parent) == []


def test_a_checkpoint_at_a_url_is_that_of_lightning():
    io.save_checkpoint(CHECKPOINT, "memory://checkpoints/last.ckpt")
    assert same(io.load_checkpoint("memory://checkpoints/last.ckpt"), CHECKPOINT)
    with pytest.raises(FileNotFoundError, match="No such file or directory: 'memory://checkpoints/other.ckpt'"):
        io.load_checkpoint("memory://checkpoints/other.ckpt")


@pytest.mark.parametrize("failing", ["torch.save", "os.fsync", "os.replace"])
def test_a_full_disk_leaves_the_checkpoint_before(failing, tmp_path):
    io.save_checkpoint(CHECKPOINT, tmp_path / "last.ckpt")
    full = mock.patch(failing, side_effect=OSError(errno.ENOSPC, "No space left on device"))
    with full, pytest.raises(OSError, match="last.ckpt could not be .*: .* No space left"):
        io.save_checkpoint({"state_dict": {}}, tmp_path / "last.ckpt")
    assert os.listdir(tmp_path) == ["last.ckpt"]
    assert same(io.load_checkpoint(tmp_path / "last.ckpt"), CHECKPOINT)


def test_a_killed_write_leaves_nothing_that_lightning_takes_for_a_checkpoint(tmp_path):
    def killed(checkpoint, file):
        file.write(b"half")
        os._exit(9)

    io.save_checkpoint(CHECKPOINT, tmp_path / "hpc_ckpt_1.ckpt")
    if (pid := os.fork()) == 0:
        with mock.patch("torch.save", killed):
            io.save_checkpoint(CHECKPOINT, tmp_path / "hpc_ckpt_2.ckpt")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    (left,) = set(os.listdir(tmp_path)) - {"hpc_ckpt_1.ckpt"}
    assert "ckpt_" not in left
    assert not left.endswith(".ckpt")
    io.save_checkpoint(CHECKPOINT, tmp_path / "hpc_ckpt_2.ckpt")  # the next one clears it away
    assert sorted(os.listdir(tmp_path)) == ["hpc_ckpt_1.ckpt", "hpc_ckpt_2.ckpt"]


# --- Reading ---


class Hostile:
    def __reduce__(self):
        return os.mkdir, ("it ran",)


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saver = ModelCheckpoint(tmp_path, filename="good")
    fit(Module(), MultigridCallback(), saver, max_epochs=1, enable_checkpointing=True)
    checkpoint = torch.load("good.ckpt", weights_only=True)
    checkpoint["callbacks"]["MultigridCallback"]["seed"] = Hostile()
    torch.save(checkpoint, "bad.ckpt")
    with pytest.raises(ValueError, match="bad.ckpt holds more than tensors and plain values, and reading it could run"):
        fit(Module(), MultigridCallback(), plugins=[AtomicCheckpointIO()], ckpt_path="bad.ckpt")
    with pytest.raises(ValueError, match="file://.*bad.ckpt holds more than"):
        io.load_checkpoint(f"file://{tmp_path}/bad.ckpt")
    assert sorted(os.listdir()) == ["bad.ckpt", "good.ckpt"]


@pytest.mark.parametrize("place", ["data", "directory"])
def test_a_checkpoint_with_other_bytes_than_were_written_is_refused(place, tmp_path):
    path = tmp_path / "a.ckpt"
    io.save_checkpoint(CHECKPOINT, path)
    written = bytearray(path.read_bytes())
    at = written.index(CHECKPOINT["state_dict"]["w"].numpy().tobytes()) if place == "data" else 0
    written[at] ^= 1
    path.write_bytes(written)
    with pytest.raises(ValueError, match=r"a\.ckpt is damaged: it has other bytes than were written \("):
        io.load_checkpoint(path)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_checkpoint_without_checksums_is_read_where_none_are_asked_for(zipped, tmp_path):
    """The old format of torch has none."""
    path = tmp_path / "a.ckpt"
    asked = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(not zipped)
    try:
        torch.save(CHECKPOINT, path, _use_new_zipfile_serialization=zipped)
        assert same(io.load_checkpoint(path), CHECKPOINT)
    finally:
        torch.serialization.set_crc32_options(asked)


# --- In a training ---


def test_the_command_line_uses_it_unless_the_config_has_another(monkeypatch):
    trainers = []
    monkeypatch.setattr(L.Trainer, "fit", lambda self, *_, **__: trainers.append(self))

    def io_of(*args):
        boring = "lightning.pytorch.demos.boring_classes.Boring"
        run_command(["fit", f"--model={boring}Model", f"--data={boring}DataModule", "--trainer.accelerator=cpu", *args])
        return trainers[-1].strategy.checkpoint_io

    assert type(io_of()) is AtomicCheckpointIO
    assert type(io_of("--trainer.plugins=lightning_multigrid.AtomicCheckpointIO")) is AtomicCheckpointIO
    assert type(io_of("--trainer.plugins=lightning.pytorch.plugins.io.AsyncCheckpointIO")) is not AtomicCheckpointIO
