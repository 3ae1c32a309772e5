"""What is read at a URL is what the server holds, in few requests, or an error that says what it answered."""

import asyncio
import errno
import os
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from types import SimpleNamespace

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_multigrid.files import open_input, read_remote, remote_file, state_of
from lightning_multigrid.files.remote_file import RemoteFile, pieces_of, read_text_once
from tests.helpers.video_server import serving

DATA = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    (folder / "served").mkdir()
    with serving(folder / "served", folder / "told") as server:
        yield server


@pytest.fixture
def url(server, request, monkeypatch):
    """A file of its own for each test, on a server without faults that has not been asked anything."""
    monkeypatch.setattr(remote_file, "_WAITS", (0.0, 0.0, 0.0))
    name = f"{abs(hash(request.node.nodeid))}.mp4"
    (server.folder / name).write_bytes(DATA)
    server.fail()
    server.forget()
    return f"{server.url}/{name}"


def local(server, url):
    return server.folder / url.rpartition("/")[2]


SPANS = st.lists(st.tuples(st.integers(0, 1 << 27), st.integers(1, 1 << 20)), min_size=1, max_size=40)


@given(SPANS.map(lambda spans: [(start, start + size) for start, size in spans]))
def test_pieces_hold_all_spans_and_are_few(spans):
    pieces = pieces_of(spans)
    assert all(any(first <= start and end <= last for first, last in pieces) for start, end in spans)
    gaps = [after[0] - before[1] for before, after in pairwise(pieces)]
    assert all(gap > 1 << 20 for gap in gaps)
    assert len(pieces) <= 3 or min(gaps) > 1 << 24
    assert {pieces[0][0], pieces[-1][1]} == {min(start for start, _ in spans), max(end for _, end in spans)}


def test_ranges_are_those_of_the_file(server, url):
    file = RemoteFile(url)
    assert (file.size, file.read(3, 5), file.read(len(DATA) - 2, 9)) == (len(DATA), DATA[3:8], DATA[-2:])
    assert (file.read(len(DATA), 4), file.read(0, 0)) == (b"", b"")
    assert len(server.ranges) == 2


def test_what_will_be_read_is_asked_for_once(server, url):
    file = RemoteFile(url)
    file.will_read([(700, 710), (10, 20), (15, 30)])
    assert [file.read(10, 20), file.read(702, 3), file.read(100, 4)] == [DATA[10:30], DATA[702:705], DATA[100:104]]
    assert [line.split()[1] for line in server.ranges] == ["bytes=10-709"]
    file.close()
    assert file.read(10, 2) == DATA[10:12]
    assert len(server.ranges) == 2


def test_more_than_fits_into_memory_is_refused(url, monkeypatch):
    monkeypatch.setattr(remote_file, "_MOST_HELD", 100)
    with pytest.raises(OSError, match="a clip of it has 101 bytes, more than 100. Prepare the video"):
        RemoteFile(url).will_read([(0, 101)])


def test_a_process_asks_once_what_a_file_is(server, url):
    states = {state_of(url) for _ in range(3)}
    assert [state.size for state in states] == [len(DATA)]
    for _ in range(3):
        RemoteFile(url).read(0, 9)
    assert [line.split()[0] for line in server.asked] == ["HEAD", "GET", "GET", "GET"]


@pytest.mark.parametrize("fault", ["500", "503", "429", "cut", "short", "late"])
def test_faults_that_pass_are_not_seen(server, url, fault):
    file = RemoteFile(url)
    server.fail(fault)
    assert file.read(3, 5000) == DATA[3:5003]


@pytest.mark.parametrize(
    ("fault", "code", "said", "tries"),
    [
        ("503", errno.EIO, r"the server answers 503 \(Service Unavailable\), at 4 tries", 4),
        ("cut", errno.EIO, r"ClientPayloadError: .*, at 4 tries", 4),
        ("404", errno.ENOENT, r"the server answers 404 \(Not Found\)$", 1),
        ("403", errno.EACCES, r"the server answers 403 \(Forbidden\)$", 1),
        ("299", errno.EIO, r"the answer has 0 bytes of 5, at 4 tries", 4),
        ("whole", errno.EIO, r"the server gives no ranges of files\. Copy the videos to a disk$", 1),
    ],
)
def test_faults_that_stay_are_said(server, url, fault, code, said, tries):
    file = RemoteFile(url)
    server.forget()
    server.fail(*["ok" if place % 2 and tries > 1 else fault for place in range(7)])  # each try asks what it is first
    with pytest.raises(OSError, match=said) as raised:
        file.read(3, 5)
    assert raised.value.errno == code
    assert len(server.ranges) == tries


def test_a_server_that_is_gone_is_said(monkeypatch):
    monkeypatch.setattr(remote_file, "_WAITS", ())
    with pytest.raises(OSError, match="ClientConnectorError: Cannot connect to host 127.0.0.1:9"):
        state_of("http://127.0.0.1:9/a.mp4")


def test_a_server_that_hangs_is_said(server, url, monkeypatch):
    monkeypatch.setattr(remote_file, "_WAITS", ())
    monkeypatch.setattr(remote_file, "_SILENCE", 0.05)
    monkeypatch.setattr(remote_file, "_processes", [])
    server.fail("late", "late")
    with pytest.raises(OSError, match=r"the server does not answer within 0\.05 s"):
        state_of(url)


def test_a_file_that_changes_is_said_once_it_is_seen(server, url):
    file = RemoteFile(url)
    local(server, url).write_bytes(DATA[:20])
    with pytest.raises(OSError, match="it has changed while it was read"):
        file.read(3, 50)
    assert RemoteFile(url).size == 20


def test_empty_files_and_those_that_are_not_there(server, url):
    local(server, url).write_bytes(b"")
    assert RemoteFile(url).read(0, 9) == b""
    with pytest.raises(FileNotFoundError, match="the server answers 404"):
        open_input(f"{server.url}/none.mp4")


@pytest.mark.parametrize("url", ["file:///etc/hostname", "memory://a", "s3+x://a"])
def test_no_other_protocol_is_read(url):
    with pytest.raises(OSError, match="its URL is at .*://; https://, http://, s3://, hf:// are read"):
        open_input(url)


def test_a_copy_is_whole_has_no_name_and_is_made_once(server, url, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(remote_file, "_PIECE", 1000)
    copies = [open_input(url, whole=True) for _ in range(2)]
    assert [copy.read(0, copy.size) for copy in copies] == [DATA, DATA]
    assert list(tmp_path.iterdir()) == []
    assert len(server.ranges) == 11
    local(server, url).write_bytes(DATA[1:])
    assert open_input(url, whole=True).read(0, 9) == DATA[1:10]
    assert copies[0].read(0, 9) == DATA[:9]


def test_a_copy_of_a_file_that_changes_meanwhile_is_none(server, url, monkeypatch):
    read = RemoteFile.read

    def and_change(file, position, size):
        data = read(file, position, size)
        os.utime(local(server, url), (1, 1))
        return data

    monkeypatch.setattr(RemoteFile, "read", and_change)
    with pytest.raises(OSError, match="it has changed while it was copied"):
        open_input(url, whole=True)


def test_a_copy_needs_a_place(url, monkeypatch):
    monkeypatch.setattr(remote_file.shutil, "disk_usage", lambda folder: SimpleNamespace(free=9))
    with pytest.raises(OSError, match=rf"its {len(DATA)} bytes don't fit into .*, which has 9 free. Set TMPDIR"):
        open_input(url, whole=True)


def test_lists_are_read_by_another_process(server, url):
    loops = fsspec.asyn.loop[0]
    assert read_remote(url) == DATA
    assert (len(server.asked), fsspec.asyn.loop[0]) == (2, loops)
    with pytest.raises(OSError, match=r"the server answers 404 \(Not Found\)"):
        read_remote(f"{server.url}/none.csv")


def test_the_largest_list(url, monkeypatch):
    assert read_text_once(url) == DATA
    monkeypatch.setattr(remote_file, "_LARGEST_TEXT", 100)
    with pytest.raises(OSError, match=f"the list has {len(DATA)} bytes, more than 100"):
        read_text_once(url)


def test_a_fork_opens_connections_of_its_own(server, url):
    """The parent's can't be used there; and it goes on with them."""
    file = RemoteFile(url)
    assert file.read(0, 3) == DATA[:3]
    child = os.fork()
    if not child:
        try:
            right = file.read(4, 3) == DATA[4:7] and RemoteFile(url).read(8, 3) == DATA[8:11]
            os._exit(0 if right else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert file.read(12, 3) == DATA[12:15]
    ports = {line.split()[3] for line in server.asked}
    assert len(ports) == 2


def test_the_users_own_settings_of_fsspec_stay(monkeypatch):
    monkeypatch.setitem(fsspec.config.conf, "https", {"headers": {"Authorization": "Bearer x"}})
    monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": {"max_pool_connections": 3}})
    assert remote_file._options("https")["headers"] == {"Authorization": "Bearer x", "Accept-Encoding": "identity"}
    assert remote_file._options("s3")["config_kwargs"]["max_pool_connections"] == 3


@pytest.fixture
def redirecting():
    """A server of this machine that redirects to the host in the path, and what it was asked there."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.headers["Host"].partition(":")[0], self.path))
            self.send_response(200 if self.path == "/secret" else 302)
            self.send_header("Content-Length", "3" if self.path == "/secret" else "0")
            if self.path != "/secret":
                self.send_header("Location", f"http://{self.path[1:]}:{self.server.server_port}/secret")
            self.end_headers()
            self.wfile.write(b"abc" if self.path == "/secret" and self.command == "GET" else b"")

        do_HEAD = do_GET
        log_message = print

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield server.server_port, asked
        server.shutdown()


@pytest.mark.parametrize(
    ("reach_of_server", "to", "followed"),
    [(2, "127.0.0.1", False), (1, "127.0.0.1", False), (0, "127.0.0.1", True), (2, "localhost", True)],
)
def test_a_server_cannot_send_this_machine_to_itself(redirecting, monkeypatch, reach_of_server, to, followed):
    """A root far away, which `localhost` stands for, must not choose what is asked here; to itself it may redirect."""
    port, asked = redirecting
    reach = remote_file._reach

    async def as_if(host):
        return reach_of_server if host == "localhost" else await reach(host)

    monkeypatch.setattr(remote_file, "_reach", as_if)
    monkeypatch.setattr(remote_file, "_processes", [])
    url = f"http://localhost:{port}/{to}"
    if followed:
        assert state_of(url).size == 3
    else:
        with pytest.raises(OSError, match=r"the server redirects to 127\.0\.0\.1, an address of this machine or its n"):
            state_of(url)
    assert ((to, "/secret") in asked) == followed


@pytest.mark.parametrize(
    ("host", "reach"),
    [
        ("127.0.0.1", 0),
        ("::1", 0),
        ("::ffff:127.0.0.1", 0),
        ("169.254.169.254", 0),
        ("0.0.0.0", 0),
        ("10.1.2.3", 1),
        ("192.168.0.1", 1),
        ("9.9.9.9", 2),
    ],
)
def test_how_far_an_address_can_be_reached_from(host, reach):
    assert asyncio.run(remote_file._reach(host)) == reach
