"""Parts that are merged are what one machine makes, to the byte, whatever happens on the way."""

import signal
import threading
import time

import pytest

from lightning_multigrid.decode.video_file import BrokenVideosError
from lightning_multigrid.prepare.parts import Part
from lightning_multigrid.prepare.prepare_videos import prepare
from lightning_multigrid.prepare.transcode import Encoding
from lightning_multigrid.sources.video_list import read_manifest
from tests.helpers.codings import damage
from tests.helpers.preparing import FAST, contents, start, videos


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A list of nine videos, of which some would share a name, one is broken, one listed twice, and one missing."""
    folder = tmp_path_factory.mktemp("parts") / "in"
    videos(folder, ["a.avi", "a.avi.mp4", "A.MP4", "run/b.mp4", "run/B.mp4", "c.mkv", "d.mp4", "e.mp4"])
    (folder / "broken.mp4").write_bytes(b"no video")
    names = ["a.avi", "a.avi.mp4", "broken.mp4", "A.MP4", "run/b.mp4", "a.avi", "run/B.mp4", "c.mkv", "gone.mp4"]
    (folder / "list.csv").write_text("".join(f"{name} {n}\n" for n, name in enumerate([*names, "d.mp4", "e.mp4"])))
    return read_manifest(folder / "list.csv")


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory):
    """What one machine writes."""
    folder = tmp_path_factory.mktemp("whole")
    prepare(source, folder, FAST)
    return contents(folder)


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2)])
def test_merged_parts_are_what_one_machine_makes(source, whole, tmp_path, order):
    for number in order:
        prepare(source, tmp_path, FAST, part=f"{number}/3")
        assert not (tmp_path / "manifest.safetensors").exists()
    merged = prepare(source, tmp_path, FAST, merge=True)
    assert contents(tmp_path) == whole
    assert (merged.made, merged.kept, len(merged.broken)) == (0, 8, 2)
    # Again, and as one machine would go on.
    prepare(source, tmp_path, FAST, merge=True)
    assert prepare(source, tmp_path, FAST).kept == 8
    assert contents(tmp_path) == whole


@pytest.mark.parametrize("stray", ["best-of-all", "0-of-3", "4-of-3", "1-of-2-of-3", "1-of-3 (copy)", "notes.txt"])
def test_what_else_lies_beside_the_parts_is_not_looked_at(source, whole, tmp_path, stray):
    (tmp_path / "parts" / stray).mkdir(parents=True)
    with pytest.raises(ValueError, match="Run the parts first"):
        prepare(source, tmp_path, FAST, merge=True)
    assert prepare(source, tmp_path, FAST).made == 8
    assert contents(tmp_path) == whole


def test_more_parts_than_videos_and_one_part(source, whole, tmp_path):
    for parts in (1, 20):
        folder = tmp_path / str(parts)
        summaries = [prepare(source, folder, FAST, part=f"{number + 1}/{parts}") for number in range(parts)]
        assert sum(summary.made for summary in summaries) == 8
        prepare(source, folder, FAST, merge=True)
        assert contents(folder) == whole


def test_a_merge_decodes_nothing(source, tmp_path, monkeypatch):
    for number in (1, 2):
        prepare(source, tmp_path, FAST, part=f"{number}/2")

    def refuse(*arguments, **keywords):
        raise AssertionError("a video is decoded")

    monkeypatch.setattr("lightning_multigrid.decode.full_decode.FullDecode.__init__", refuse)
    prepare(source, tmp_path, FAST, merge=True)


def test_what_is_missing_is_named_and_how_to_get_it(source, whole, tmp_path):
    with pytest.raises(ValueError, match=r"9 of the 10 videos are not in .* Run the parts first: .*`--part K/N`"):
        prepare(source, tmp_path, FAST, merge=True)
    for number in (2, 3):
        prepare(source, tmp_path, FAST, part=f"{number}/5")
    with pytest.raises(ValueError, match=r"`--part K/5` instead of `--merge` for K = 1,4,5, and then this one"):
        prepare(source, tmp_path, FAST, merge=True)
    prepare(source, tmp_path, FAST, part="1/2")  # another division, which needs only one part more
    with pytest.raises(ValueError, match=r"`--part K/2` instead of `--merge` for K = 2,"):
        prepare(source, tmp_path, FAST, merge=True)
    with pytest.raises(ValueError, match="with these settings"):
        prepare(source, tmp_path, Encoding(preset="ultrafast", crf=30), merge=True)
    assert prepare(source, tmp_path, FAST, part="2/2").kept > 0  # what was made for the other division
    prepare(source, tmp_path, FAST, merge=True)
    assert contents(tmp_path) == whole


def test_a_broken_source_that_was_repaired_joins_when_its_part_runs_again(tmp_path):
    source = videos(tmp_path / "in", ["a.mp4", "b.mp4", "c.mp4"])
    good = (tmp_path / "in" / "b.mp4").read_bytes()
    (tmp_path / "in" / "b.mp4").write_bytes(good[:500])
    for number in (1, 2):
        prepare(source, tmp_path / "out", FAST, part=f"{number}/2")  # `max_bad_fraction` is for all videos
    assert len(prepare(source, tmp_path / "out", FAST, merge=True, max_bad_fraction=0.5).broken) == 1
    with pytest.raises(BrokenVideosError, match="1 of the 3 videos can't be used"):
        prepare(source, tmp_path / "out", FAST, merge=True)
    (tmp_path / "in" / "b.mp4").write_bytes(good)
    with pytest.raises(ValueError, match=r"1 of the 3 videos are not in .* for K = 2,"):
        prepare(source, tmp_path / "out", FAST, merge=True)
    prepare(source, tmp_path / "out", FAST, part="2/2")
    assert prepare(source, tmp_path / "out", FAST, merge=True).broken == {}
    prepare(source, tmp_path / "whole", FAST)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_damaged_videos_are_merged_only_if_the_parts_kept_them(tmp_path):
    source = videos(tmp_path / "in", ["a.mp4", "b.mp4"])
    path = tmp_path / "in" / "b.mp4"
    damage(path, path, packet=5)
    for keep, number in ((False, 1), (True, 2)):
        with pytest.raises(ValueError, match="Run"):  # what was left out may be kept now
            prepare(source, tmp_path / "out", FAST, merge=True, keep_damaged=keep)
        for part in ("1/2", "2/2"):
            prepare(source, tmp_path / "out", FAST, part=part, keep_damaged=keep)
        settings = {"keep_damaged": keep, "max_bad_fraction": 0.5}
        merged = prepare(source, tmp_path / "out", FAST, merge=True, **settings)
        assert merged.kept == number
        prepare(source, tmp_path / str(keep), FAST, **settings)
        assert contents(tmp_path / "out") == contents(tmp_path / str(keep))


@pytest.mark.parametrize("part", ["0/4", "5/4", "x", "", "1/0", "1/4/2", "-1/4", "1.0/4", "1/" + "9" * 5000])
def test_a_part_that_there_is_not(part, source, tmp_path):
    with pytest.raises(ValueError, match=r"`part` must be K/N with K from 1 to N, .*Number the tasks of a job array"):
        prepare(source, tmp_path, FAST, part=part)
    assert list(tmp_path.iterdir()) == []


def test_a_part_is_not_merged(source, tmp_path):
    with pytest.raises(ValueError, match="`part` and `merge` exclude each other, got part='1/2'"):
        prepare(source, tmp_path, FAST, part="1/2", merge=True)


@pytest.mark.parametrize("parts", [1, 2, 7, 64])
def test_each_video_is_in_one_part(parts):
    for place in range(200):
        assert sum(Part(number, parts).has(place) for number in range(1, parts + 1)) == 1


# --- Several at once ---


def wait_until_held(folder, run):
    while not (folder / "lock").exists() and run.poll() is None:
        time.sleep(0.01)
    time.sleep(0.1)


def test_a_part_is_held_once_and_other_parts_go_on(source, tmp_path):
    """While part 1 waits for a worker, others try."""
    held, go_on = threading.Event(), threading.Event()

    def wait(now):
        held.set()
        assert go_on.wait(60)

    first = threading.Thread(target=lambda: prepare(source, tmp_path, FAST, part="1/2", progress=wait))
    first.start()
    try:
        assert held.wait(60)
        assert prepare(source, tmp_path, FAST, part="2/2").made == 4
        for arguments in ({"part": "1/2"}, {}, {"merge": True}):
            with pytest.raises(ValueError, match=r"Another `prepare` is at work in .* Wait for it to end"):
                prepare(source, tmp_path, FAST, **arguments)
    finally:
        go_on.set()
        first.join()
    prepare(source, tmp_path, FAST, merge=True)


def test_a_killed_part_holds_nothing(source, whole, tmp_path):
    run = start(source.origin, tmp_path, workers=1, part="1/2")
    wait_until_held(tmp_path, run)
    run.send_signal(signal.SIGKILL)
    run.communicate()
    for number in (1, 2):
        prepare(source, tmp_path, FAST, part=f"{number}/2")
    prepare(source, tmp_path, FAST, merge=True)
    assert contents(tmp_path) == whole
