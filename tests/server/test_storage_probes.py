"""Readiness and health while the disk fails: 503 with the reason, reads go on, and no paths."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

from everlog.fault_fs import FaultFs
from everlog.server.probe_routes import ProbeRoutes
from tests.support.files import UnsyncedFs
from tests.support.stepped_servers import SteppedServer


def ask(server: SteppedServer, method: str, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
    """Send a request on the first connection and return the status and the body of its answer."""
    transport, connection = server.transports[0], server.connections[0]
    transport.written = b""
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(content)}\r\n"
    connection.data_received(head.encode() + b"Content-Type: application/json\r\n\r\n" + content)
    for _ in range(10):
        server.turn()
    status, _, rest = transport.written.partition(b"\r\n\r\n")
    return int(status.split()[1]), json.loads(rest)


def test_a_failed_sync_is_outcome_unknown_then_ready_is_503_with_the_reason_and_reads_go_on(
    tmp_path: Path,
) -> None:
    fs = FaultFs(tmp_path, 0, UnsyncedFs())
    server = SteppedServer(tmp_path / "data", fs=fs)  # type: ignore[arg-type]
    ProbeRoutes(server.app, dict)
    record = {"records": [{"data": 1}]}
    assert ask(server, "PUT", "/v0/topics/t", {"durability": "fsync"})[0] == 201
    assert ask(server, "POST", "/v0/topics/t", record)[0] == 200
    assert ask(server, "GET", "/v0/ready")[1] == {"status": "ready", "wal_replay_complete": True, "topics": 1}
    fs.fail_when("fdatasync", errno.EIO)
    status, unknown = ask(server, "POST", "/v0/topics/t", record)
    assert (status, unknown["error"]["code"]) == (500, "outcome_unknown")
    status, refused = ask(server, "POST", "/v0/topics/t", record)
    assert (status, refused["error"]["code"]) == (503, "storage_failed")
    assert "takes no writes until a restart" in refused["error"]["message"]
    status, ready = ask(server, "GET", "/v0/ready")
    assert (status, ready["error"]["code"]) == (503, "storage_failed")
    assert "EIO" in ready["error"]["message"]
    assert ready["error"]["detail"]["storage"]["closed_shards"] == {"0": "EIO"}
    health = ask(server, "GET", "/v0/health")[1]
    assert (health["status"], health["storage"]["errors"]) == ("ok", {"sync": 1})
    status, page = ask(server, "POST", "/v0/topics/t/diff", {"from_seq": 0})
    assert (status, [each["$seq"] for each in page["records"]]) == (200, [1])
    for body in (unknown, refused, ready, health):
        assert str(tmp_path) not in json.dumps(body)
    server.close()
