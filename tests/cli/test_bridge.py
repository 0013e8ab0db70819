"""`everlog bridge` against a real server: what its commands do, print and serve."""

from __future__ import annotations

import json
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from everlog.client import Client
from tests.support.bridges import fill, messages, numbers
from tests.support.command_lines import Terminal, TopicCommands, started
from tests.support.processes import eventually
from tests.support.server_processes import running_server


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server that all tests of this file share; each uses its own names."""
    with running_server(tmp_path_factory.mktemp("server"), "--memory") as server:
        yield server.url


@pytest.fixture
def bridge(url: str) -> TopicCommands:
    """The commands about bridges."""
    return TopicCommands(url, "bridge")


def test_a_queue_goes_to_a_topic_and_from_there_to_another_queue(
    tmp_path: Path, bridge: TopicCommands
) -> None:
    fill(tmp_path / "a", [*numbers(0, 50), b"\xff"], type_id=9)
    out = bridge.json(
        "queue-to-topic", "--queue", tmp_path / "a", "--topic", "chain", "--once", "--batch", 20
    )
    assert (out["forwarded"], out["batches"], out["last_seq"], out["lag"]) == (51, 3, 50, 0)
    back = bridge.json("topic-to-queue", "--queue", tmp_path / "b", "--topic", "chain", "--once", "--type", 9)
    assert (back["bridge"], back["direction"], back["forwarded"]) == ("chain", "topic-to-queue", 51)
    arrived = [(message.type_id, message.payload) for message in messages(tmp_path / "b")]
    assert arrived == [(message.type_id, message.payload) for message in messages(tmp_path / "a")]


def test_people_get_a_report(tmp_path: Path, bridge: TopicCommands) -> None:
    fill(tmp_path, numbers(0, 3))
    report = bridge("queue-to-topic", "--queue", tmp_path, "--topic", "told", "--name", "n", "--once")
    assert "n (queue-to-topic)" in report
    assert "3 records in 1 batch" in report


def test_what_cannot_work_is_one_error(tmp_path: Path, bridge: TopicCommands) -> None:
    nothing = ("queue-to-topic", "--queue", tmp_path / "none", "--topic", "t", "--once")
    assert bridge.error(*nothing)["code"] == "queue_not_found"
    fill(tmp_path / "q", [b"\xff"])
    refused = ("queue-to-topic", "--queue", tmp_path / "q", "--topic", "t", "--once", "--format", "json")
    assert bridge.error(*refused)["code"] == "invalid_record"
    absent = ("topic-to-queue", "--queue", tmp_path / "r", "--topic", "no-such-topic", "--once")
    assert bridge.error(*absent)["code"] == "topic_not_found"


def metric(address: str, name: str) -> float | None:
    """A number that the metrics say; None if they do not."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f"everlog_bridge_{name}{{"):
                return float(line.rpartition(" ")[2])
    return None


def test_a_running_bridge_serves_its_metrics_and_ends_well_by_a_signal(tmp_path: Path, url: str) -> None:
    fill(tmp_path / "q", numbers(0, 10))
    port_file = tmp_path / "metrics"
    arguments = ("--queue", tmp_path / "q", "--topic", "live", "--url", url, "--metrics-port-file", port_file)
    with started("everlog", "bridge", "queue-to-topic", *arguments, "--json") as command:
        eventually("there are metrics", port_file.exists)
        address = port_file.read_text().strip()
        eventually("records are across", lambda: metric(address, "forwarded_records_total") == 10)
        fill(tmp_path / "q", numbers(10, 12))
        eventually("the others too", lambda: metric(address, "forwarded_records_total") == 12)
        assert metric(address, "connected") == 1
        eventually("nothing is behind", lambda: metric(address, "lag_bytes") == 0)
        assert metric(address, "last_seq") == 11
        code, printed, errors = command.end(signal.SIGTERM)
    assert (code, errors) == (0, "")
    assert json.loads(printed)["forwarded"] == 12


def test_a_person_sees_how_it_goes(tmp_path: Path, url: str) -> None:
    fill(tmp_path, numbers(0, 10))
    arguments = ("--queue", tmp_path, "--topic", "shown", "--url", url)
    with Terminal("everlog", "bridge", "queue-to-topic", *arguments) as terminal:
        terminal.until(r"forwarded 10 .*lag 0 B")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.wait() == 0
        assert "10 records in 1 batch" in terminal.shown


def test_the_key_comes_from_the_environment(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPICS_API_KEYS", "secret")
    fill(tmp_path, numbers(0, 2))
    with running_server(tmp_path_factory.mktemp("guarded"), "--memory", key="secret") as server:
        commands = TopicCommands(server.url, "bridge")
        wanted = ("queue-to-topic", "--queue", tmp_path, "--topic", "t", "--once")
        assert commands.error(*wanted)["code"] == "unauthorized"
        monkeypatch.setenv("EVERLOG_KEY", "secret")
        assert commands.json(*wanted)["forwarded"] == 2
        with Client(server.url, "secret") as client:
            assert client.topic("t").count == 2
