"""Metrics of requests, connections and the loop, and the access log."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.client import Client
from everlog.server.request_counts import Durations, shown_route
from tests.support.server_processes import running_server

SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


def metrics(client: Client) -> dict[str, float]:
    """Every sample by its name and labels, as they are written."""
    answer = client.exchange("GET", "/v0/metrics")
    assert answer.status == 200
    return {
        f"{name}{{{labels}}}" if labels else name: float(value)
        for name, labels, value in SAMPLE.findall(answer.body.decode())
    }


def test_requests_are_counted_by_route_method_and_status(tmp_path: Path) -> None:
    with running_server(tmp_path) as server, Client(server.url) as client:
        for number in range(3):
            client.append("t", number)
        client.exchange("GET", "/v0/topics/none")
        client.exchange("GET", "/v0/nothing")
        client.exchange("PATCH", "/v0/topics")
        client.exchange("POST", "/v0/topics/t/consumers/c/read", b"{}", {"Content-Type": "application/json"})
        stream = client.watch("t")
        client.append("t", 3)
        next(stream)
        with client.socket() as socket:
            socket.ping()
            found = metrics(client)
        stream.close()
        total = "topics_http_requests_total"
        assert found[f'{total}{{method="POST",route="/v0/topics/:topic",status="200"}}'] == 3
        assert found[f'{total}{{method="POST",route="/v0/topics/:topic",status="201"}}'] == 1
        assert found[f'{total}{{method="GET",route="/v0/topics/:topic",status="404"}}'] == 1
        assert found[f'{total}{{method="GET",route="other",status="404"}}'] == 1
        assert found[f'{total}{{method="other",route="/v0/topics",status="405"}}'] == 1
        read = "/v0/topics/:topic/consumers/:consumer/read"
        assert found[f'{total}{{method="POST",route="{read}",status="404"}}'] == 1
        assert found[f'{total}{{method="GET",route="/v0/watch/:wid",status="200"}}'] == 1
        assert found[f'{total}{{method="GET",route="/v0/ws",status="101"}}'] == 1
        count = 'topics_http_request_seconds_count{route="/v0/topics/:topic"}'
        assert found[count] == 5
        assert found['topics_http_request_seconds_bucket{le="+Inf",route="/v0/topics/:topic"}'] == 5
        assert 0 < found['topics_http_request_seconds_sum{route="/v0/topics/:topic"}'] < 60
        for kind, wanted in (("sse", 1), ("ws", 1), ("work", 0)):
            assert found[f'topics_connections{{kind="{kind}"}}'] == wanted
        assert found['topics_connections{kind="http"}'] >= 1
        assert found["topics_loop_step_seconds_count"] > 0
        assert found["topics_checkpoint_seconds"] >= 0
        for name in ("process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"):
            assert found[name] > 0


def test_the_access_log_has_a_line_of_json_for_each_answer_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[[key]]\nname = "till"\nkey = "secret-of-till"\n')
    keys.chmod(0o600)
    monkeypatch.setenv("TOPICS_ACCESS_LOG", "1")
    monkeypatch.setenv("TOPICS_API_KEYS_FILE", str(keys))
    with running_server(tmp_path / "data", key="secret-of-till") as server:
        with Client(server.url, "secret-of-till") as client:
            client.append("t", 1)
            client.exchange("GET", "/v0/watch/wid_none?token=secret-of-till")
        _, _, text = server.stop()
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    first = next(line for line in lines if line["method"] == "POST")
    assert (first["path"], first["route"], first["status"]) == ("/v0/topics/t", "/v0/topics/:topic", 201)
    assert (first["key"], first["duration_ms"] >= 0) == ("till", True)
    assert any(line["path"] == "/v0/watch/wid_none" for line in lines)
    assert "secret-of-till" not in text


def test_there_is_no_access_log_unless_it_is_wanted(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        with Client(server.url) as client:
            client.append("t", 1)
        assert "/v0/topics/t" not in server.stop()[2]


@given(st.lists(st.integers(0, 2**40), max_size=50))
def test_a_histogram_counts_what_is_below_each_bound(durations: list[int]) -> None:
    histogram = Durations()
    for duration_ns in durations:
        histogram.note(duration_ns)
    *bounded, (name, everything) = histogram.cumulative()
    assert (name, everything) == ("+Inf", len(durations))
    for bound, count in bounded:
        assert count == sum(duration_ns < float(bound) * 1e9 for duration_ns in durations)
    assert histogram.total_ns == sum(durations)


def test_routes_are_named_as_in_the_reference() -> None:
    assert (
        shown_route("/v0/topics/:name/consumers/:item/read") == "/v0/topics/:topic/consumers/:consumer/read"
    )
    assert shown_route("/v0/routers/:name") == "/v0/routers/:router"
    assert shown_route("/v0/health") == "/v0/health"
