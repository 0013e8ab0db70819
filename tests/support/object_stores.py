"""S3 servers on loopback as processes: moto for the API, versitygw for races."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.processes import eventually
from tests.support.versitygw import PROGRAM

BUCKET = "everlog-tests"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "everlog-tests",
    "AWS_SECRET_ACCESS_KEY": "everlog-tests-secret",
    "AWS_REGION": "us-east-1",
}
_MOTO = """
import logging, signal, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", int(sys.argv[1]), verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


class S3Server:
    """A server process with one bucket."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.endpoint = f"http://127.0.0.1:{port}"

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to reach it."""
        return {**CREDENTIALS, "EVERLOG_OBJECTS_ENDPOINT": self.endpoint}

    def url(self, prefix: str) -> str:
        """A URL below the bucket."""
        return f"s3://{BUCKET}/{prefix}"

    @contextmanager
    def paused(self) -> Iterator[None]:
        """It accepts connections and answers nothing, as long as the block lasts."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.resume()

    def resume(self) -> None:
        """It answers again."""
        self.process.send_signal(signal.SIGCONT)


@contextmanager
def moto_server(port: int = 0) -> Iterator[S3Server]:
    """Run moto: the API of S3 in memory. It does not decide races: it checks and writes without a lock."""
    command = [sys.executable, "-c", _MOTO, str(port)]
    with _running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        server = S3Server(process, int(process.stdout.readline()))
        _create_bucket(server.endpoint)
        yield server


@contextmanager
def versitygw_server(folder: Path) -> Iterator[S3Server]:
    """Run versitygw, a real S3 server, on a directory."""
    (folder / "data" / BUCKET).mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "ROOT_ACCESS_KEY": CREDENTIALS["AWS_ACCESS_KEY_ID"],
        "ROOT_SECRET_KEY": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
    }
    command = [str(PROGRAM), "--port", f"127.0.0.1:{port}", "posix", str(folder / "data")]
    with _running(command, env=environment, stdout=subprocess.DEVNULL) as process:
        server = S3Server(process, port)
        eventually("versitygw listens", lambda: _answers(port) or process.poll() is not None)
        assert process.poll() is None, f"{PROGRAM} ended"
        yield server


@contextmanager
def _running(command: list[str], **options: object) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, **options)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _create_bucket(endpoint: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=30)
    connection.request("PUT", f"/{BUCKET}")
    assert connection.getresponse().status == 200
    connection.close()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class _WithoutConditions(BaseHTTPRequestHandler):
    """Hands requests on to another server, without the conditions of a PUT."""

    protocol_version = "HTTP/1.1"
    endpoint = ""

    def _hand_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        dropped = ("if-none-match", "if-match", "host")
        headers = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
        connection = http.client.HTTPConnection(urlsplit(self.endpoint).netloc, timeout=30)
        connection.request(self.command, self.path, body, headers)
        response = connection.getresponse()
        content = response.read()
        self.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        connection.close()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _hand_on

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@contextmanager
def without_conditions(server: S3Server, port: int) -> Iterator[None]:
    """The same store at another port, as one that ignores If-Match and If-None-Match."""
    handler = type("Handler", (_WithoutConditions,), {"endpoint": server.endpoint})
    with ThreadingHTTPServer(("127.0.0.1", port), handler) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield
        finally:
            proxy.shutdown()
            thread.join()
