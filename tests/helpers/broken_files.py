"""Makes files that can't be read as videos."""

from tests.helpers.videos import numbered_frames, write_video


def broken_files(folder):
    """Writes a file of each kind; returns their names, with that of one that does not exist."""
    good = write_video(folder / "good.mp4", numbered_frames(30)).read_bytes()
    kinds = {
        "empty.mp4": b"",
        "text.mp4": b"Not a video.\n" * 100,
        "cut at the tail.mp4": good[: len(good) * 2 // 3],
        "cut at the head.mp4": good[len(good) // 3 :],
        "zeros.mp4": bytes(5000),
        "script.mp4": b"ffconcat version 1.0\nfile good.mp4\n",
        "playlist.mp4": b"#EXTM3U\n#EXTINF:1,\ngood.mp4\n#EXT-X-ENDLIST\n",
    }
    for name, content in kinds.items():
        (folder / name).write_bytes(content)
    (folder / "folder.mp4").mkdir()
    (folder / "good.mp4").unlink()
    return [*kinds, "folder.mp4", "gone.mp4"]
