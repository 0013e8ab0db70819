"""A server with few file descriptors: idle clients cannot take those that the log needs."""

import contextlib
import json
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.support.http_cases import PATIENCE_S, HttpClient

DESCRIPTORS = 128


def test_idle_connections_do_not_keep_the_log_from_rotating(tmp_path: Path) -> None:
    limited = ["sh", "-c", f'ulimit -n {DESCRIPTORS} && exec "$@"', "sh"]
    serve = [sys.executable, "-m", "everlog", "serve", "--port", "0", "--port-file", str(tmp_path / "port")]
    process = subprocess.Popen([*limited, *serve, "--data-dir", str(tmp_path / "data")])
    with contextlib.ExitStack() as opened:
        opened.callback(process.wait)
        opened.callback(process.kill)
        deadline = time.monotonic() + PATIENCE_S
        while not (tmp_path / "port").exists():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        host, port = (tmp_path / "port").read_text().split(":")
        client = HttpClient((host, int(port)))
        while client.request("GET", "/v0/ready").status != 200:
            assert time.monotonic() < deadline
        for _ in range(2 * DESCRIPTORS):
            opened.enter_context(socket.create_connection((host, int(port)), PATIENCE_S))
        record = json.dumps({"records": [{"data": "x" * 1_000_000}]}).encode()
        for number in range(150):  # more than one log file and one checkpoint of each shard
            reply = client.request("POST", f"/v0/topics/t{number % 4}", record)
            assert reply.status in (200, 201), reply.text
        assert client.request("GET", "/v0/ready").status == 200
        lines = client.request("GET", "/v0/metrics").text.splitlines()
        errors = [line for line in lines if line.startswith("topics_storage_errors_total{")]
        assert errors, "each kind is shown from the start"
        assert [line for line in errors if not line.endswith(" 0.0")] == []
