"""A real browser, pages for it, and what the pages tell the test.

Owns finding and running Chromium: headless, with a profile of its own, and without a way to anything but
127.0.0.1. Pages are served here and report by POST to where they came from.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.processes import PATIENCE_S

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--disable-quic",
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


def find_browser() -> str | None:
    """The program, if one is installed."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


class Reports:
    """What a page has reported, in the order in which it did."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[Any] = queue.Queue()
        self.all: list[Any] = []

    def put(self, report: Any) -> None:
        """A page reports."""
        self._waiting.put(report)

    def next(self) -> Any:
        """The next report; fails if none comes."""
        try:
            report = self._waiting.get(timeout=PATIENCE_S)
        except queue.Empty:
            raise AssertionError(f"the page reported nothing more after {self.all}") from None
        self.all.append(report)
        return report

    def until(self, condition: Callable[[], bool]) -> None:
        """Take reports until something is true of them."""
        while not condition():
            self.next()

    def of(self, kind: str) -> list[Any]:
        """The reports of one kind that were taken so far."""
        return [report for report in self.all if report["kind"] == kind]


REPORTING = """
let sent = Promise.resolve();
function report(kind, fields) {
  const body = JSON.stringify({kind, ...fields});
  sent = sent.then(() => fetch('/report', {method: 'POST', body}));
}
window.onerror = (message) => report('broken', {message});
window.onunhandledrejection = (event) => report('broken', {message: String(event.reason)});
"""


@contextmanager
def served_page(
    script: Callable[[str], str], modules: Mapping[str, Path] | None = None
) -> Iterator[tuple[str, Reports]]:
    """Serve a page that runs a script, made for the origin of the page; gives that origin and the reports.

    `modules` are JavaScript files that the script may import, by their paths.
    """
    reports = Reports()
    content = b""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            module = (modules or {}).get(self.path)
            if module is not None:
                return self._answer(module.read_bytes(), "text/javascript; charset=utf-8")
            self._answer(content if self.path == "/" else b"", "text/html; charset=utf-8")

        def do_POST(self) -> None:
            reports.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self._answer(b"", "text/plain")

        def _answer(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        origin = f"http://127.0.0.1:{server.server_address[1]}"
        content = f"<!doctype html><script>{REPORTING}{script(origin)}</script>".encode()
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield origin, reports
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def browsing(program: str, url: str, profile: Path, *flags: str) -> Iterator[None]:
    """A browser that shows a page for as long as the block lasts."""
    process = subprocess.Popen(
        [program, *FLAGS, *flags, f"--user-data-dir={profile}", url],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(profile)},
        start_new_session=True,  # so that its helper processes can be ended with it, and nothing else
    )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Relay:
    """Stands between a client and a server, keeps what the client sends, and can cut every connection."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.received: list[bytes] = []
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            with self._lock:
                self._open += [client, server]
            for source, target, kept in ((client, server, self.received), (server, client, None)):
                threading.Thread(target=self._forward, args=(source, target, kept), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, kept: list[bytes] | None) -> None:
        try:
            while data := source.recv(65536):
                if kept is not None:
                    kept.append(data)
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def cut(self) -> None:
        """Cut every connection that is open."""
        with self._lock:
            ends, self._open = self._open, []
        for end in ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
            end.close()

    def close(self) -> None:
        """Cut everything and take nothing more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self._threads[0].join()
