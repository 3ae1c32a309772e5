"""Disks that are full or read-only: clear, whole, and the same command goes on."""

import json
import shutil
import subprocess
import sys

import pytest

from lightning_multigrid.prepare.prepare_videos import prepare
from lightning_multigrid.sources.video_list import read_manifest
from tests.helpers.preparing import FAST, videos

# On a disk in memory that grows by a step whenever it is full: every write is refused in its turn.
GROWING = """
import json, os, subprocess, sys
from pathlib import Path
from lightning_multigrid.files import OutputError
from lightning_multigrid.prepare import prepare
from lightning_multigrid.sources import read_manifest
from tests.helpers.preparing import FAST, check_whole, contents

source, disk, size, step, options = json.loads(sys.argv[1])

def mount(settings):
    subprocess.run(["mount", "-t", "tmpfs", "-o", settings, "none", disk], check=True)

manifest, whole, refused = read_manifest(source), Path(sys.argv[2]), []
mount(f"size={size}k")
for run in (*options, {}):
    while True:
        try:
            prepare(manifest, disk + "/out", FAST, **run)
            break
        except OutputError as error:
            refused.append(str(error))
        check_whole(Path(disk, "out"), contents(whole))
        assert not list(Path(disk).rglob(".lightning-multigrid-*")), "an unfinished file takes up space"
        size += step
        mount(f"remount,size={size}k")
    if run == {}:
        assert contents(Path(disk, "out")) == contents(whole)
mount("remount,ro")
try:
    prepare(manifest, disk + "/out", FAST, **options[0])
except OutputError as error:
    print(json.dumps([refused, str(error)]))
"""
needs_mounts = pytest.mark.skipif(
    not shutil.which("unshare") or subprocess.run(["unshare", "-rm", "true"], check=False).returncode != 0,
    reason="needs a file system of its own",
)


@needs_mounts
def test_a_disk_that_is_full_wherever_that_happens_and_then_read_only(tmp_path):
    names = [f"run/{place}.mp4" for place in range(3)]
    videos(tmp_path / "in", names)
    source = tmp_path / "in" / "list.csv"
    source.write_text("".join(f"{name} 0\n" for name in names))
    prepare(read_manifest(source), tmp_path / "whole", FAST)
    (tmp_path / "disk").mkdir()
    settings = json.dumps([str(source), str(tmp_path / "disk"), 8, 8, [{"part": "1/2"}, {"part": "2/2"}]])
    command = ["unshare", "-rm", sys.executable, "-c", GROWING, settings, str(tmp_path / "whole")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    refused, read_only = json.loads(run.stdout)
    assert len(refused) >= 5
    for error in refused:
        assert "No space left on device while writing to" in error
    assert "Read-only file system while writing to" in read_only
    assert "Check the disk and its permissions." in read_only
