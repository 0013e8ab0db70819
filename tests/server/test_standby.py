"""`everlog standby`: an open, read-only server that follows what a primary ships."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everlog.client import Client
from everlog.objects import open_store
from everlog.server.serve import TopicsServer
from everlog.server.settings import ServerSettings
from tests.support.command_lines import run
from tests.support.object_stores import moto_server
from tests.support.processes import eventually
from tests.support.server_clients import EventStream, JsonSocket, PlainClient
from tests.support.server_processes import ServerProcess, running_server

SOON = ("--interval", "0.05")


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where primaries that are started now ship to."""
    url = f"file://{tmp_path}/bucket"
    monkeypatch.setenv("TOPICS_BACKUP_URL", url)
    monkeypatch.setenv("TOPICS_BACKUP_INTERVAL_MS", "50")
    for name in ("primary", "copy"):
        (tmp_path / name).mkdir()
    return url


@pytest.fixture
def primary(tmp_path: Path, url: str) -> Iterator[ServerProcess]:
    with running_server(tmp_path / "primary") as server:
        with Client(server.url) as client:
            client.append("t", "first", config={"durability": "fsync"})
            eventually("a base is shipped", lambda: bool(list(tmp_path.glob("bucket/base/*"))))
        yield server


@pytest.fixture
def standby(tmp_path: Path, url: str, primary: ServerProcess) -> Iterator[ServerProcess]:
    with running_server(tmp_path / "copy", "--from", url, *SOON) as server:
        yield server


def values(url: str, topic: str = "t") -> list[Any]:
    with Client(url) as client:
        if topic not in [state.topic for state in client.topics()]:
            return []
        found = client.diff(topic, limit=1000)
        records = found.records
        while not found.caught_up:  # a read ends before a gap
            found = client.diff(topic, found.next_from_seq, limit=1000)
            records += found.records
        return [record.data for record in records]


def test_reads_of_a_standby_follow_its_primary(primary: ServerProcess, standby: ServerProcess) -> None:
    with Client(primary.url) as writer, Client(standby.url) as reader:
        assert values(standby.url) == ["first"]
        writer.append("t", "second")
        writer.append("other", 1)
        eventually("both are there", lambda: (values(standby.url), values(standby.url, "other"))
                   == (["first", "second"], [1]))  # fmt: skip
        shown, there = reader.topic("t"), writer.topic("t")
        assert (shown.head_seq, shown.count, shown.bytes) == (there.head_seq, there.count, there.bytes)
        assert [state.topic for state in reader.topics()] == ["other", "t"]
        writer.delete_records("t", before_seq=2)
        writer.delete_topic("other")
        eventually("both deletes are there", lambda: values(standby.url) == ["second"]
                   and [state.topic for state in reader.topics()] == ["t"])  # fmt: skip
        assert reader.health().status == "ok"
        assert reader.ready().topics == 1
        assert reader.metrics()["topics"] == 1


def test_watches_of_a_standby_get_what_is_shipped_later(
    primary: ServerProcess, standby: ServerProcess
) -> None:
    with (
        Client(primary.url) as writer,
        PlainClient(standby.url) as asking,
        JsonSocket(standby.url) as socket,
    ):
        watched = asking.ask("POST", "/watch", {"topics": {"t": {"from_seq": 0}, "new*": {"from_seq": 0}}})
        assert watched.status == 200, watched
        with EventStream(standby.url, watched.json["stream_url"]) as stream:
            frames = (frame for frame in stream.frames() if frame.event in ("record", "topic-deleted"))
            assert _data_of(next(frames)) == ["first"]
            socket.send(op="subscribe", topic="t", from_seq=0)
            assert socket.until("record")[-1]["records"][0]["data"] == "first"
            for number in range(3):  # each in a shipment, and so in a view, of its own
                writer.append("t", number)
                assert _data_of(next(frames)) == [number]
                assert socket.until("record")[-1]["records"][0]["data"] == number
            writer.append("new-topic", "hello")
            assert _data_of(next(frames)) == ["hello"]
            writer.delete_topic("t")
            assert next(frames).event == "topic-deleted"
            socket.until("topic_deleted")


def _data_of(frame: Any) -> list[Any]:
    return [record["data"] for record in frame.data["records"]]


def test_a_long_poll_at_a_standby_waits_for_the_next_shipment(
    primary: ServerProcess, standby: ServerProcess
) -> None:
    with Client(primary.url) as writer, PlainClient(standby.url) as reader:
        writer.append("other", 1)  # a view in between wakes no one
        writer.append("t", "second")
        answer = reader.diff("t", from_seq=1, wait_ms=20_000)
        assert [record["data"] for record in answer.json["records"]] == ["second"]


WRITES = [
    ("POST", "/topics/t", {"records": [{"data": 1}]}),
    ("POST", "/topics/unknown", {"records": [{"data": 1}]}),
    ("POST", "/topics/ephemeral", {"records": [{"data": 1}]}),
    ("PUT", "/topics/t", {}),
    ("DELETE", "/topics/t", None),
    ("POST", "/topics/t/delete", {"before_seq": 1}),
    ("POST", "/topics/t/claim", {"node": "n"}),
    ("POST", "/topics/t/ack", {"node": "n", "seqs": [1]}),
    ("POST", "/topics/t/nack", {"node": "n", "seqs": [1]}),
    ("POST", "/topics/t/extend", {"node": "n", "seqs": [1]}),
    ("GET", "/topics/t/work?node=n", None),
    ("PUT", "/topics/t/consumers/c", {}),
    ("POST", "/topics/t/consumers/c/commit", {"seq": 1}),
    ("POST", "/topics/t/consumers/c/read", {"commit": 1}),
    ("PUT", "/routers/r", {"source": "t", "dest": "u"}),
    ("PUT", "/schedules/s", {"topic": "t", "cron": "* * * * *", "record": {"data": 1}}),
    ("POST", "/topics/t/pause", None),
]


def test_every_write_to_a_standby_is_refused_with_the_address_of_the_primary(
    primary: ServerProcess, standby: ServerProcess
) -> None:
    with Client(primary.url) as client:
        client.append("ephemeral", 1, config={"durability": "ephemeral"})
        client.put_consumer("t", "c")
        eventually("it is there", lambda: _consumers(standby.url) == ["c"])
    with PlainClient(standby.url) as client:
        for method, path, body in WRITES:
            answer = client.ask(method, path, body)
            assert answer.status == 503, (method, path, answer)
            error = answer.json["error"]
            assert (error["code"], error["detail"]) == ("storage_failed", {"primary": primary.url})
        assert client.ask("POST", "/topics/t/consumers/c/read", {}).json["records"][0]["data"] == "first"
    with JsonSocket(standby.url) as socket:
        socket.send(op="publish", topic="t", records=[{"data": 1}], request_id=7)
        refused = socket.receive()
        assert (refused["op"], refused["code"]) == ("error", "storage_failed")
    assert values(standby.url) == ["first"]


def _consumers(url: str) -> list[str]:
    with Client(url) as client:
        return [each.name for each in client.consumers("t")]


def test_no_route_that_writes_is_left_open_at_a_standby() -> None:
    """A new route belongs into `WRITES`, or it only reads."""
    app = TopicsServer(ServerSettings(), memory=True).build_app(None)  # type: ignore[arg-type]
    reading = {path for (method, path), route in app.routes.items() if method != "GET" and not route.is_write}
    assert reading == {"/v0/topics/:name/diff", "/v0/topics/:name/consumers/:item/read", "/v0/watch"}


def test_a_standby_goes_on_when_its_primary_starts_again(
    primary: ServerProcess, standby: ServerProcess
) -> None:
    with JsonSocket(standby.url) as socket:
        socket.send(op="subscribe", topic="t", from_seq=0)
        assert socket.until("record")[-1]["records"][0]["data"] == "first"
        for ended in (primary.kill, primary.stop_cleanly):
            ended()
            primary.begin()
            primary.await_ready()
            with Client(primary.url) as client:
                client.append("t", f"after {ended.__name__}")
            assert socket.until("record")[-1]["records"][0]["data"] == f"after {ended.__name__}"
        with PlainClient(standby.url) as client:
            eventually(
                "the new address is known",
                lambda: client.ask("PUT", "/topics/x", {}).json["error"]["detail"]["primary"] == primary.url,
            )


def test_a_standby_is_promoted_and_another_one_follows_it(
    tmp_path: Path, url: str, primary: ServerProcess, standby: ServerProcess
) -> None:
    (tmp_path / "third").mkdir()
    with Client(primary.url) as client:
        client.append("t", "second")
        eventually("it is there", lambda: values(standby.url) == ["first", "second"])
    refused = run("everlog", "promote", tmp_path / "copy" / "data", "--from", url)
    assert refused.returncode == 1 and f"process {standby.command.process.pid} has" in refused.stderr
    with running_server(tmp_path / "third", "--from", url, *SOON) as third:
        standby.stop_cleanly()
        result = run("everlog", "promote", tmp_path / "copy" / "data", "--from", url)
        assert result.returncode == 0, result.stderr
        with running_server(tmp_path / "copy") as promoted, Client(promoted.url) as client:
            assert values(promoted.url) == ["first", "second"]
            client.append("t", "third")
            eventually("the other standby has it", lambda: values(third.url) == ["first", "second", "third"])
            with PlainClient(third.url) as asking:
                error = asking.ask("PUT", "/topics/x", {}).json["error"]
                assert error["detail"] == {"primary": promoted.url}


def test_a_standby_that_was_killed_starts_again_in_its_directory(
    primary: ServerProcess, standby: ServerProcess
) -> None:
    for number in range(3):
        standby.kill()
        with Client(primary.url) as client:
            client.append("t", number)
        standby.begin()
        standby.await_ready()
        eventually("it has all", lambda n=number: values(standby.url) == ["first", *range(n + 1)])  # type: ignore[misc]


def test_a_standby_follows_through_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with moto_server() as store:
        where = {"TOPICS_BACKUP_URL": store.url("followed"), "TOPICS_BACKUP_INTERVAL_MS": "50"}
        for name, value in (store.environment | where).items():
            monkeypatch.setenv(name, value)
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
        with running_server(tmp_path / "a") as primary, Client(primary.url) as client:
            client.append("t", 1)
            client.append("u", 1, config={"durability": "fsync"})
            eventually("there is a base", lambda: _is_backed_up(where["TOPICS_BACKUP_URL"]))
            with running_server(tmp_path / "b", "--from", where["TOPICS_BACKUP_URL"], *SOON) as standby:
                client.append("t", 2)
                eventually("it is there", lambda: values(standby.url) == [1, 2])


def _is_backed_up(url: str) -> bool:
    return any(open_store(url).list("base"))
