"""What a program meets first: named errors, closed ports and clients, retries in the log, data frames."""

from __future__ import annotations

import asyncio
import logging
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import everlog
from everlog import AsyncClient, Client, errors
from everlog.api_types import Diff, Record, Records
from everlog.client import NewRecord, RetryPolicy, as_base64
from everlog.client.errors import ApiFailed, api_failed
from everlog.client.retrying import CONNECT_S
from tests.support.server_processes import running_server
from tests.support.tcp_peers import ScriptedServer, http_answer


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server for the tests of this file; each uses its own topics."""
    with running_server(tmp_path_factory.mktemp("server"), "--memory") as server:
        yield server.url


@pytest.fixture
def closed_port() -> Iterator[str]:
    """An address where nothing listens, and nothing can begin to."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


def test_what_a_server_refuses_is_caught_by_its_name(url: str) -> None:
    with Client(url) as client:
        with pytest.raises(everlog.TopicNotFound) as refused:
            client.topic("absent")
        with pytest.raises(everlog.RouterNotFound):
            client.router("absent")
        client.put_topic("named.log")
        with pytest.raises(everlog.NotAQueue):
            client.claim("named.log", "n")
    assert isinstance(refused.value, ApiFailed)
    assert (refused.value.status, refused.value.code) == (404, "topic_not_found")
    copy = pickle.loads(pickle.dumps(refused.value))
    assert (type(copy), copy.detail, str(copy)) == (
        type(refused.value),
        refused.value.detail,
        str(refused.value),
    )


@pytest.mark.parametrize("name", [name for name in everlog.__all__ if hasattr(errors, name)])
def test_every_code_leads_to_its_class(name: str) -> None:
    kind = getattr(everlog, name)
    if kind is everlog.EverlogError:
        return
    failed = api_failed(400, kind.code, "message", {"a": 1})
    assert isinstance(failed, kind)
    assert (failed.code, failed.detail, str(failed)) == (kind.code, {"a": 1}, "message")


def test_a_code_without_a_class_is_a_plain_failure() -> None:
    assert type(api_failed(400, "brand_new", "message")) is ApiFailed


def test_a_closed_port_is_reported_within_two_seconds(closed_port: str) -> None:
    began_s = time.monotonic()
    with Client(closed_port) as client, pytest.raises(ApiFailed) as failed:
        client.topics()
    assert failed.value.code == "unreachable"
    assert time.monotonic() - began_s < CONNECT_S + 1.0


def test_a_closed_port_is_reported_within_two_seconds_on_an_event_loop(closed_port: str) -> None:
    async def ask() -> None:
        async with AsyncClient(closed_port) as client:
            await client.topics()

    began_s = time.monotonic()
    with pytest.raises(ApiFailed, match="nothing listens there"):
        asyncio.run(ask())
    assert time.monotonic() - began_s < CONNECT_S + 1.0


def test_a_client_that_had_an_answer_waits_for_a_restart_as_long_as_its_deadline(closed_port: str) -> None:
    with ScriptedServer([http_answer(200, b'{"topics": []}')]) as server:
        client = Client(server.url, retry=RetryPolicy(deadline_s=1.0, first_pause_s=0.01, connect_s=0.0))
        client.topics()
    began_s = time.monotonic()
    with client, pytest.raises(ApiFailed):
        client.topics()
    assert time.monotonic() - began_s > 0.3


def _watch(client: Any) -> Any:
    return client.watch({"jobs": "earliest"})


def _work(client: Any) -> Any:
    return client.work("jobs", "w")


def test_a_retry_is_a_warning_in_the_log(closed_port: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "everlog.client")
    policy = RetryPolicy(deadline_s=1.0, first_pause_s=0.01, longest_pause_s=0.05)
    with Client(closed_port, retry=policy) as client, pytest.raises(ApiFailed):
        client.topics()
    levels = [record.levelno for record in caplog.records if record.name == "everlog.client"]
    assert levels[0] == logging.WARNING
    assert set(levels[1:]) == {logging.DEBUG}
    assert "trying again in" in caplog.records[0].message


def test_what_a_server_does_not_have_can_be_caught_by_names_of_the_package(url: str) -> None:
    with Client(url) as client:
        client.put_topic("named", {"type": "queue"})
        client.append("named", 1)
        client.put_consumer("named", "c")
        client.commit_consumer("named", "c", 1)
        for absent, kind in (
            (lambda: client.topic("none"), everlog.TopicNotFound),
            (lambda: client.job("named", 5), everlog.JobNotFound),
            (lambda: client.schedule("none"), everlog.ScheduleNotFound),
            (lambda: client.router("none"), everlog.RouterNotFound),
            (lambda: client.consumer("named", "none"), everlog.ConsumerNotFound),
            (lambda: client.commit_consumer("named", "c", 0), everlog.CursorBackwards),
        ):
            with pytest.raises(kind) as refused:
                absent()
            assert isinstance(refused.value, ApiFailed)


def test_a_closed_client_says_so(url: str) -> None:
    client = Client(url)
    client.append("closing", 1)
    client.close()
    client.close()
    for use in (
        client.topics,
        client.socket,
        lambda: next(client.read("closing")),
        lambda: client.exchange("GET", "/"),
    ):
        with pytest.raises(everlog.Closed, match="make another one"):
            use()

    async def use_closed() -> None:
        other = AsyncClient(url)
        await other.close()
        with pytest.raises(everlog.Closed):
            other.socket()
        await other.topics()

    with pytest.raises(everlog.Closed):
        asyncio.run(use_closed())


@pytest.mark.timeout(60)
@pytest.mark.parametrize("begin", [_watch, _work])
def test_an_iteration_ends_when_another_thread_closes_its_client(
    url: str, begin: Callable[[Any], Any]
) -> None:
    client = Client(url)
    client.put_topic("jobs", {"type": "queue"})
    client.append("jobs", 1)
    items = begin(client)
    next(items)  # it is open, and nothing more comes
    closing = threading.Timer(0.05, client.close)
    closing.start()
    with pytest.raises(everlog.Closed, match="make another one"):
        list(items)
    closing.join()

    async def main() -> None:
        other = AsyncClient(url)
        items = begin(other)
        await anext(items)
        closing = asyncio.create_task(other.close())
        with pytest.raises(everlog.Closed, match="make another one"):
            _ = [item async for item in items]
        await closing

    with Client(url) as plain:
        plain.append("jobs", 2)
    asyncio.run(main())


@pytest.mark.parametrize("data", [b"\xff\x00", bytearray(b"a"), memoryview(b"a")])
def test_bytes_are_refused_unless_the_program_says_how_they_are_sent(
    url: str, data: bytes | bytearray | memoryview
) -> None:
    topic = f"bytes.{type(data).__name__}"
    with Client(url) as client:
        with pytest.raises(everlog.InvalidRecord, match="as_base64"):
            client.append(topic, data)
        with pytest.raises(everlog.InvalidRecord, match="record 1"):
            client.append_many(topic, [NewRecord(1), NewRecord(data)])
        with pytest.raises(everlog.TopicNotFound):
            client.topic(topic)
        client.append(topic, as_base64(data))
        assert [record.data for record in client.read(topic)] == [as_base64(data)]


def test_a_read_is_a_data_frame(url: str) -> None:
    with Client(url) as client:
        client.append("frames", {"a": 1}, tag="x")
        client.append("frames", "text", node="n")
        diff = client.diff("frames", include_tags=True)
    frame = diff.to_pandas()
    assert list(frame.columns) == ["seq", "time", "node", "tag", "data", "meta"]
    assert (list(frame["seq"]), list(frame["data"])) == ([1, 2], [{"a": 1}, "text"])
    assert str(frame["time"].dt.tz) == "UTC"
    other = diff.to_polars()
    assert other["data"].to_list() == ['{"a":1}', '"text"']
    assert (other["tag"].to_list(), other["node"].to_list()) == (["x", None], [None, "n"])
    empty = Diff("t", [], 0, 0, 1, True, None, 0)
    assert (len(empty.to_pandas()), len(empty.to_polars())) == (0, 0)
    assert len(Records("t", diff.records, 0, 2, 2).to_pandas()) == 2


def test_a_topic_is_a_data_frame_beyond_one_page_and_never_without_its_gaps(url: str) -> None:
    with Client(url) as client:
        client.append_many("whole", [NewRecord(number) for number in range(25)])
        reading = client.read("whole", limit=10)
        assert repr(reading).startswith("<records of 'whole'")
        assert "&lt;records of" in reading._repr_html_()
        assert next(reading).seq == 1
        assert reading.to_pandas()["seq"].tolist() == list(range(2, 26))
        assert len(client.read("whole", limit=10).to_polars()) == 25
        assert [record.seq for record in client.read("whole", start=24)] == [24, 25]
        client.put_topic("whole", {"cap_records": 5})
        with pytest.raises(everlog.RecordsLost):
            client.read("whole", start=1).to_pandas()
        with pytest.raises(everlog.InvalidRequest, match="no rows for gaps"):
            client.read("whole", start=1, gaps="yield").to_pandas()
        following = client.read("whole", follow=True)
        assert next(following).seq == 21
        following.close()
        assert list(following) == []


def test_a_record_shows_what_it_has() -> None:
    assert repr(Record(7, 1000, {"a": 1})) == "Record(seq=7, ts_ms=1000, data={'a': 1})"
    assert "tag='x'" in repr(Record(7, 1000, 1, tag="x"))
