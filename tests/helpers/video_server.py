"""A server on the loopback that gives ranges of files as it is told to: late, cut, or not at all.

It is a process of its own (this file is its script), so that tests may count what theirs opens.
What it does is in files of its folder's neighbour `.told`: each request takes the first line of `faults`, and is
written to `log`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from urllib.parse import unquote

_lock = Lock()


class Server:
    """A running server: where it is, what it serves, and what it was asked."""

    def __init__(self, folder: Path, told: Path) -> None:
        self.url, self.folder, self._told = "", folder, told

    def fail(self, *faults: str) -> None:
        """Answers the next requests so: a status, `cut`, `late` (0.2 s), `short`, `whole` or `ok`."""
        (self._told / "faults").write_text("\n".join(faults))

    @property
    def asked(self) -> list[str]:
        """The requests since the last `forget`: the method, the range, the path, and the port of the connection."""
        return (self._told / "log").read_text().splitlines()

    @property
    def ranges(self) -> list[str]:
        return [line for line in self.asked if line.startswith("GET")]

    def forget(self) -> None:
        (self._told / "log").write_text("")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder, told = Path(), Path()

    def log_message(self, *_) -> None:
        pass

    def _fault(self) -> str:
        with _lock:
            asked = self.headers.get("Range", "-")
            with (self.told / "log").open("a") as log:
                log.write(f"{self.command} {asked} {self.path} {self.client_address[1]}\n")
            faults = (self.told / "faults").read_text().splitlines()
            (self.told / "faults").write_text("\n".join(faults[1:]))
            return faults[0] if faults else "ok"

    def do_GET(self) -> None:
        fault, path = self._fault(), self.folder / unquote(self.path.partition("?")[0]).lstrip("/")
        if fault.isdigit() or not path.is_file():
            self.send_response(int(fault) if fault.isdigit() else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if fault == "late":
            time.sleep(0.2)
        data, found, span = path.read_bytes(), path.stat(), self.headers.get("Range")
        start, end = 0, len(data)
        if span and fault != "whole":
            first, _, last = span.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last) + 1, len(data))
        body = data[start:end]
        body = body[: len(body) // 2] if fault == "short" else body
        self.send_response(206 if span and fault != "whole" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Range", f"bytes {start}-{start + len(body) - 1}/{len(data)}")
        self.send_header("ETag", f'"{found.st_mtime_ns}"')
        self.send_header("Last-Modified", formatdate(found.st_mtime, usegmt=True))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[: len(body) // 2] if fault == "cut" else body)
        if fault == "cut":
            self.close_connection = True

    do_HEAD = do_GET


@contextmanager
def serving(folder: Path, told: Path):
    """Serves a folder for a `with`."""
    told.mkdir()
    server = Server(folder, told)
    server.fail()
    server.forget()
    command = [sys.executable, __file__, str(folder), str(told)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        server.url = process.stdout.readline().strip()
        try:
            yield server
        finally:
            process.terminate()


if __name__ == "__main__":
    _Handler.folder, _Handler.told = map(Path, sys.argv[1:])
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.daemon_threads = True
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()
