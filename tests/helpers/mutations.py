"""Mutated files: what downloads, editors and scripts do to a list, and what an attacker would try."""

import random

import pytest

from lightning_multigrid.sources.manifest import Manifest

# What has a meaning in some format, at its limits, or breaks an encoding.
_TOKENS = [
    *(b"\n", b"\r\n", b"\r", b"\t", b" ", b",", b";", b'"', b'""', b"'", b"#", b"[", b"]", b"{", b"}", b":", b"-"),
    *(b".", b"\0", b"\xff", b"\xef\xbb\xbf", "\u2028é漢".encode(), b"\xed\xa0\x80", b"\\ud800", b"\\u0000"),
    *(b"\x1a", b"\x1b[0m", b"../", b"../../etc/passwd", b"/etc/passwd", b"/", b"//", b"~", b"..", b"file:///"),
    *(b"c999", b"c092 1 2;"),
    *(b"-1", b"1e9", b"nan", b"inf", b"999999999999", b"9" * 5000, b"0x1", b"1_0", "٣".encode(), b"null", b"true"),
    *(b"a" * 5000, b"[" * 100_000, b'"' * 501, b"a" * 200_000),
]  # fmt: skip


def mutate(content: bytes, rng: random.Random) -> bytes:
    """One to four random edits."""
    for _ in range(rng.randint(1, 4)):
        start = rng.randint(0, len(content))
        end = min(len(content), start + rng.choice([0, 1, 1, 2, 10, 100]))
        tokens = rng.choice(_TOKENS), rng.choice(_TOKENS)
        put = rng.choice([b"", *tokens, bytes([rng.randrange(256)]), content[start:end] * 2])
        kind = rng.random()
        if kind < 0.1:
            content = content[:start]
        elif kind < 0.2:
            lines = content.splitlines(keepends=True)
            rng.shuffle(lines)
            content = b"".join(lines)
        else:
            content = content[:start] + put + content[end:]
    return content


def fuzzed(many: int) -> pytest.MarkDecorator:
    """Gives a test `numbers`, some seeds of `mutate`; and many others as a slow proof.

    `pytest -m slow -n 0 -k mutated` runs all of these.
    """
    marks = [pytest.mark.slow, pytest.mark.timeout(7200)]
    others = pytest.param(range(100, 100 + many), marks=marks, id=f"{many} mutated")
    return pytest.mark.parametrize("numbers", [pytest.param(range(100), id="some"), others])


def check_rows(manifest: Manifest) -> None:
    """What holds for every manifest that was read, whatever the file."""
    assert len(manifest) >= 1
    for index in range(len(manifest)):
        path = manifest.path(index)
        assert path.startswith(manifest.root.rstrip("/") + "/")
        assert "/../" not in path
        assert "\0" not in path
        assert all(0 <= label < manifest.num_classes for label in manifest.labels(index))
        assert set(manifest.labels_between(index, 0.0, 5.0)) <= set(manifest.labels(index))
        if not manifest.multi_label:
            assert len(manifest.labels(index)) == manifest.labelled
    assert "\n" not in repr(manifest)
