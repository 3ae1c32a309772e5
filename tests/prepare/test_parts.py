"""Parts, and a `prepare` after them, make what one machine makes, to the byte, whatever happens on the way."""

import threading

import pytest

from lightning_multigrid.decode.video_file import BrokenVideosError
from lightning_multigrid.prepare import prepare_videos
from lightning_multigrid.prepare.prepare_videos import prepare
from lightning_multigrid.prepare.processes import run_tasks
from lightning_multigrid.sources.video_list import VideoList
from tests.helpers.preparing import FAST, contents, videos


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A list of seven videos, of which one is broken, one listed twice, and one missing."""
    folder = tmp_path_factory.mktemp("parts") / "in"
    videos(folder, ["a.avi", "run/b.mp4", "run/c.mp4", "d.mkv", "e.mp4"])
    (folder / "broken.mp4").write_bytes(b"no video")
    names = ["a.avi", "broken.mp4", "run/b.mp4", "a.avi", "run/c.mp4", "d.mkv", "gone.mp4", "e.mp4"]
    (folder / "list.csv").write_text("".join(f"{name} {n}\n" for n, name in enumerate(names)))
    return VideoList(folder / "list.csv").read()


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory):
    """What one machine writes."""
    folder = tmp_path_factory.mktemp("whole")
    prepare(source, folder, FAST, max_bad_fraction=0.5)
    return contents(folder)


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2)])
def test_after_all_parts_nothing_is_left_to_do(source, whole, tmp_path, order):
    for number in order:
        prepare(source, tmp_path, FAST, part=f"{number}/3")
        assert not (tmp_path / "metadata.csv").exists()
    merged = prepare(source, tmp_path, FAST, max_bad_fraction=0.5)
    assert contents(tmp_path) == whole
    assert (merged.made, merged.there, len(merged.broken)) == (0, 5, 2)
    assert len(list(tmp_path.glob("report-*-of-3.csv"))) == 3


def test_more_parts_than_videos_another_division_and_the_rest_here(source, whole, tmp_path):
    summaries = [prepare(source, tmp_path, FAST, part=f"{number}/20") for number in range(1, 4)]
    made = sum(summary.made for summary in summaries)
    again = prepare(source, tmp_path, FAST, part="1/1")
    assert (again.made, again.there) == (5 - made, made)
    (tmp_path / "videos" / "e.mp4").unlink()
    assert prepare(source, tmp_path, FAST, max_bad_fraction=0.5).made == 1
    assert contents(tmp_path) == whole


def test_a_broken_source_that_was_repaired_joins(tmp_path):
    source = videos(tmp_path / "in", ["a.mp4", "b.mp4", "c.mp4"])
    good = (tmp_path / "in" / "b.mp4").read_bytes()
    (tmp_path / "in" / "b.mp4").write_bytes(good[:500])
    for number in (1, 2):
        prepare(source, tmp_path / "out", FAST, part=f"{number}/2")  # `max_bad_fraction` is for all videos
    with pytest.raises(BrokenVideosError, match="1 of the 3 videos can't be used"):
        prepare(source, tmp_path / "out", FAST)
    (tmp_path / "in" / "b.mp4").write_bytes(good)
    prepare(source, tmp_path / "out", FAST, part="2/2")
    summary = prepare(source, tmp_path / "out", FAST)
    assert (summary.made, summary.there, summary.broken) == (0, 3, {})


@pytest.mark.parametrize("part", ["0/4", "5/4", "x", "", "1/0", "1/4/2", "-1/4", "1.0/4", "1/" + "9" * 5000])
def test_a_part_that_there_is_not(part, source, tmp_path):
    with pytest.raises(ValueError, match=r"`part` must be K/N with K from 1 to N, .*Number the tasks of a job array"):
        prepare(source, tmp_path, FAST, part=part)
    assert list(tmp_path.iterdir()) == []


# --- Several at once ---


@pytest.mark.parametrize("part", [None, "1/2"])
def test_several_share_a_folder_and_none_waits(source, tmp_path, part, monkeypatch):
    """One is held before its first video, while another one makes all, and writes the list."""
    whole = prepare(source, tmp_path / "whole", FAST, max_bad_fraction=0.5)
    held, go_on, late, output = threading.Event(), threading.Event(), [], tmp_path / "out"

    def wait(*given):
        if threading.current_thread() is first:
            held.set()
            assert go_on.wait(60)
        return run_tasks(*given)

    monkeypatch.setattr(prepare_videos, "run_tasks", wait)

    options = {"part": part, "max_bad_fraction": 0.5}
    first = threading.Thread(target=lambda: late.append(prepare(source, output, FAST, **options)))
    first.start()
    try:
        assert held.wait(60)
        assert prepare(source, output, FAST, max_bad_fraction=0.5).made == whole.made
        assert contents(output) == contents(tmp_path / "whole")
    finally:
        go_on.set()
        first.join()
    assert (late[0].made, late[0].there) == (0, whole.made if part is None else late[0].there)
    assert contents(output) == contents(tmp_path / "whole")
