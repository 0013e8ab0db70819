"""`everlog audit`: its tables, its JSON, and exit code 1 for anything unexplained."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from everlog.api_types import RawDiff
from everlog.bridge import audit_topic
from everlog.cli.main import app
from everlog.client import Client, NewRecord
from everlog.queue import layout
from everlog.testing import server
from tests.support.bridges import fill, forward, numbers
from tests.support.command_lines import TopicCommands
from tests.support.queues import overwrite


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """One server that all tests of this file share; each uses its own names."""
    with server() as where:
        yield where


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    """A client of it."""
    with Client(url) as made:
        yield made


@pytest.fixture
def audit(url: str) -> TopicCommands:
    """The commands about audits."""
    return TopicCommands(url, "audit")


def queue_audit(*arguments: object, code: int = 0) -> str:
    """`everlog audit queue`, which needs no server; its output."""
    result = CliRunner().invoke(app, ["audit", "queue", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.stdout


def test_a_sound_topic_is_a_row_and_exit_code_0(audit: TopicCommands, client: Client) -> None:
    client.append_many("sound", [NewRecord(number) for number in range(5)])
    shown = audit("topic", "sound").splitlines()
    assert shown[0] == "audit of 1 topic"
    assert shown[1].split()[:4] == ["topic", "assigned", "live", "deleted"]
    assert shown[2].split() == ["sound", "5", "5", "0", "0", "0", "0", "0", "0", "sound"]
    assert "sound" in {each["topic"] for each in audit.json("topic")["topics"]}


def test_unexplained_seqs_are_told_with_exit_code_1(
    audit: TopicCommands, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.append_many("torn", [NewRecord(1) for _ in range(300)])
    read = audit_topic.read_sources

    def forgetful(*arguments: Any, **options: Any) -> RawDiff:
        """As if the records from seq 11 on could not be read."""
        page = read(*arguments, **options)
        return msgspec.structs.replace(page, records=page.records[:10])

    monkeypatch.setattr(audit_topic, "read_sources", forgetful)
    shown, errors = audit.run("topic", "torn", code=1)
    assert shown.splitlines()[2].split()[-3:] == ["290", "0", "error"]
    assert errors.startswith("error: topic torn: seqs 1 to 300: the server counts 300 live records, 10 can")
    document = audit.json("topic", "torn", code=1)
    assert (document["is_sound"], document["topics"][0]["unexplained"]) == (False, 290)


def test_a_topic_that_is_not_there_is_an_error(audit: TopicCommands) -> None:
    assert audit.error("topic", "nothing")["code"] == "topic_not_found"


def test_every_queue_below_a_root_is_audited(tmp_path: Path) -> None:
    fill(tmp_path / "a", numbers(0, 10))
    fill(tmp_path / "b", numbers(0, 20))
    rows = [line.split() for line in queue_audit(tmp_path).splitlines()[2:]]
    assert [(row[1], row[2], row[-1]) for row in rows] == [("10", "10", "sound"), ("20", "20", "sound")]
    overwrite(tmp_path / "b" / layout.segment_name(0), layout.SEG_DATA_OFFSET + 64, b"\xff")
    document = json.loads(queue_audit(tmp_path, "--json", code=1))
    assert [each["damaged"] for each in document["queues"]] == [0, 1]
    (tmp_path / "empty").mkdir()
    queue_audit(tmp_path / "empty", code=1)


def test_the_bridges_of_a_queue_are_audited(tmp_path: Path, audit: TopicCommands, client: Client) -> None:
    fill(tmp_path, numbers(0, 30))
    forward(client, tmp_path, "bridged")
    document = audit.json("bridge", "--queue", tmp_path)
    (found,) = document["bridges"]
    assert (found["bridge"], found["forwarded"], found["present"], found["is_sound"]) == ("b", 30, 30, True)
    client.delete_topic("bridged")
    shown, _ = audit.run("bridge", "--queue", tmp_path, "--name", "b", code=1)
    assert shown.splitlines()[2].split() == ["b", "30", "0", "0", "0", "0", "0", "30", "error"]


def test_a_queue_without_bridges_is_an_error(tmp_path: Path, audit: TopicCommands) -> None:
    fill(tmp_path, [])
    assert "no bridge has run" in audit.error("bridge", "--queue", tmp_path)["message"]
