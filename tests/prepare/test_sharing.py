"""Several machines make what one makes, to the byte, whatever happens on the way."""

import threading

import pytest

from lightning_multigrid.decode.video_file import BrokenVideosError
from lightning_multigrid.prepare import prepare, prepare_videos
from lightning_multigrid.prepare.processes import run_tasks
from lightning_multigrid.sources.video_list import VideoList
from tests.helpers.preparing import FAST, contents, videos


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A list of seven videos, of which one is broken, one listed twice, and one missing."""
    folder = tmp_path_factory.mktemp("shared") / "in"
    videos(folder, ["a.avi", "run/b.mp4", "run/c.mp4", "d.mkv", "e.mp4"])
    (folder / "broken.mp4").write_bytes(b"no video")
    names = ["a.avi", "broken.mp4", "run/b.mp4", "a.avi", "run/c.mp4", "d.mkv", "gone.mp4", "e.mp4"]
    (folder / "list.csv").write_text("".join(f"{name} {n}\n" for n, name in enumerate(names)))
    return VideoList(folder / "list.csv").read()


def test_a_broken_source_that_was_repaired_joins(tmp_path):
    source = videos(tmp_path / "in", ["a.mp4", "b.mp4", "c.mp4"])
    good = (tmp_path / "in" / "b.mp4").read_bytes()
    (tmp_path / "in" / "b.mp4").write_bytes(good[:500])
    with pytest.raises(BrokenVideosError, match="1 of the 3 videos can't be used"):
        prepare(source, tmp_path / "out", FAST)
    (tmp_path / "in" / "b.mp4").write_bytes(good)
    summary = prepare(source, tmp_path / "out", FAST)
    assert (summary.made, summary.there, summary.broken) == (1, 2, {})


def test_several_share_a_folder_and_none_waits(source, tmp_path, monkeypatch):
    """One is held before its first video, while another one makes all, and writes the list."""
    whole = prepare(source, tmp_path / "whole", FAST, max_bad_fraction=0.5)
    held, go_on, late, output = threading.Event(), threading.Event(), [], tmp_path / "out"

    def wait(*given):
        if threading.current_thread() is first:
            held.set()
            assert go_on.wait(60)
        return run_tasks(*given)

    monkeypatch.setattr(prepare_videos, "run_tasks", wait)
    first = threading.Thread(target=lambda: late.append(prepare(source, output, FAST, max_bad_fraction=0.5)))
    first.start()
    try:
        assert held.wait(60)
        assert prepare(source, output, FAST, max_bad_fraction=0.5).made == whole.made
        assert contents(output) == contents(tmp_path / "whole")
    finally:
        go_on.set()
        first.join()
    assert (late[0].made, late[0].there) == (0, whole.made)
    assert contents(output) == contents(tmp_path / "whole")
