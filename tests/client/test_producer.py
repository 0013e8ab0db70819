"""The producer: everything arrives once and in order, or the program hears of it; memory is bounded."""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.api_types import Appended
from everlog.client import ApiFailed, BufferFull, Client, Producer, ProducerFailed, RetryPolicy
from everlog.client.producer import MAX_RECORD_BYTES
from everlog.errors import Closed, InvalidConfig, InvalidRecord, RecordTooLarge
from everlog.testing import server
from tests.support.effort import effort
from tests.support.http_cases import PATIENCE_S
from tests.support.tcp_peers import FaultProxy, ScriptedServer, http_answer

FAST = RetryPolicy(first_pause_s=0.001, longest_pause_s=0.01)
NOT_FOUND = http_answer(404, b'{"error":{"code":"topic_not_found","message":"no"}}')
FULL = http_answer(422, b'{"error":{"code":"topic_full","message":"full"}}')


def values(client: Client, topic: str) -> list[Any]:
    return [record.data for record in client.read(topic)]


# --- Delivery --------------------------------------------------------------------------------------------


def test_records_arrive_in_order_with_everything_they_carry(plain: Client) -> None:
    delivered: list[Appended] = []
    with Producer(plain, "t", batch_records=7, on_delivered=delivered.append) as producer:
        for number in range(100):
            producer.send({"n": number}, tag=f"t{number}", node="n", meta={"k": number})
        producer.send_many(["x", None])
        producer.flush()
        assert producer.delivered == 102
        assert producer.buffered_bytes == 0
    records = list(plain.read("t"))
    assert [record.data for record in records] == [*({"n": number} for number in range(100)), "x", None]
    assert [(record.tag, record.node, record.meta) for record in records[:2]] == [
        ("t0", "n", {"k": 0}),
        ("t1", "n", {"k": 1}),
    ]
    assert sum(batch.count for batch in delivered) == 102
    assert max(batch.count for batch in delivered) == 7


def test_a_record_that_waits_alone_is_sent_after_the_linger_time(plain: Client) -> None:
    is_delivered = threading.Event()
    with Producer(plain, "t", linger_s=0.01, on_delivered=lambda _: is_delivered.set()) as producer:
        producer.send(1)
        assert is_delivered.wait(PATIENCE_S)


def test_what_happens_to_an_object_after_it_was_given_changes_nothing(plain: Client) -> None:
    data = {"n": 1}
    with Producer(plain, "t", linger_s=10) as producer:
        producer.send(data)
        data["n"] = 2
    assert values(plain, "t") == [{"n": 1}]


def test_several_threads_share_a_producer(plain: Client) -> None:
    with Producer(plain, "t", batch_records=13) as producer:
        threads = [
            threading.Thread(target=producer.send_many, args=([[name, number] for number in range(200)],))
            for name in "abc"
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    found = values(plain, "t")
    for name in "abc":
        assert [number for who, number in found if who == name] == list(range(200))


def test_a_program_that_just_ends_has_delivered_what_it_gave(url: str, plain: Client) -> None:
    program = f"from everlog import Producer; Producer({url!r}, 't', linger_s=60).send_many(range(5))"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)
    assert values(plain, "t") == [0, 1, 2, 3, 4]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3), st.lists, max_leaves=5
)
TOPICS = (f"t{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def shared() -> Any:
    with server() as url, Client(url) as client:
        yield client


@settings(max_examples=effort(30))
@given(
    st.lists(st.tuples(JSON, st.none() | st.text(min_size=1, max_size=3)), max_size=40),
    st.integers(1, 10),
    st.integers(1, 100),
)
def test_any_batching_gives_the_same_records(
    shared: Client, given_: list[tuple[Any, str | None]], batch_records: int, batch_bytes: int
) -> None:
    topic = next(TOPICS)
    shared.put_topic(topic)
    with Producer(
        shared,
        topic,
        batch_records=batch_records,
        batch_bytes=batch_bytes,
        max_buffered_bytes=2 * batch_bytes,
    ) as producer:
        for data, tag in given_:
            producer.send(data, tag=tag)
    assert [(record.data, record.tag) for record in shared.read(topic)] == given_


# --- Faults ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_connections_that_are_cut_lose_and_double_nothing(url: str, plain: Client, seed: int) -> None:
    acked = 0

    def count(appended: Appended) -> None:
        nonlocal acked
        acked += appended.count

    with (
        FaultProxy(url, seed, most_bytes=12_000) as proxy,
        Client(proxy.url, retry=FAST) as client,
        Producer(client, "t", batch_records=40, on_delivered=count) as producer,
    ):
        producer.send_many({"number": number, "text": "x" * 40} for number in range(2000))
        producer.flush()
        assert proxy.cuts > 5
    assert acked == 2000
    assert [data["number"] for data in values(plain, "t")] == list(range(2000))


def test_a_batch_that_is_refused_stops_the_producer_and_is_told_by_every_call() -> None:
    with ScriptedServer([NOT_FOUND, FULL]) as scripted:
        producer = Producer(scripted.url, "t", batch_records=2, linger_s=10)
        producer.send_many([1, 2])
        with pytest.raises(ProducerFailed, match=r"2 records .* full") as raised:
            producer.flush()
        assert raised.value.undelivered == 2
        assert isinstance(raised.value.__cause__, ApiFailed)
        with pytest.raises(ProducerFailed):
            producer.send(3)
        with pytest.raises(ProducerFailed):
            producer.close()


def test_a_failure_is_raised_at_the_end_of_the_block_unless_it_was_raised_before() -> None:
    with (
        ScriptedServer([NOT_FOUND, FULL]) as scripted,
        pytest.raises(ProducerFailed),
        Producer(scripted.url, "t") as producer,
    ):
        producer.send(1)


def test_an_error_of_the_block_is_not_hidden_by_that_of_the_producer() -> None:
    with ScriptedServer([NOT_FOUND, FULL]) as scripted:
        with pytest.raises(ZeroDivisionError) as raised, Producer(scripted.url, "t") as producer:
            producer.send(1)
            raise ZeroDivisionError
        assert "not delivered" in raised.value.__notes__[0]


def test_where_keys_are_not_remembered_nothing_is_tried_twice() -> None:
    with server() as url, Client(url) as client:
        client.put_topic("t", {"idempotency_window_ms": 0})
        body = client.exchange("GET", "/v0/topics/t").body
    with ScriptedServer([http_answer(200, body), b""], [b""]) as scripted:
        producer = Producer(scripted.url, "t")
        producer.send(1)
        with pytest.raises(ProducerFailed):
            producer.close()
        assert len(scripted.requests) == 2


# --- Bounds ----------------------------------------------------------------------------------------------


def test_without_room_a_record_waits_and_then_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Client(address, timeout_s=0.5, retry=RetryPolicy(deadline_s=0.5)) as client:
            producer = Producer(client, "t", batch_bytes=1000, max_buffered_bytes=5000)
            with pytest.raises(BufferFull, match=r"within 0\.05 s"):
                for _ in range(100):
                    producer.send("x" * 100, timeout_s=0.05)
                    assert producer.buffered_bytes <= 6000
            assert producer.buffered_bytes >= 3000
            with pytest.raises(ProducerFailed, match="no answer"):
                producer.close()


def test_room_comes_back_when_records_are_confirmed(plain: Client) -> None:
    most = 0
    with Producer(plain, "t", batch_bytes=1000, max_buffered_bytes=3000) as producer:
        for _ in range(500):
            producer.send("x" * 100)
            most = max(most, producer.buffered_bytes)
    assert plain.topic("t").count == 500
    assert 1000 <= most <= 3000 + 200


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"data": "x" * MAX_RECORD_BYTES}, RecordTooLarge),
        ({"data": 1, "tag": "x" * 257}, InvalidRecord),
        ({"data": 1, "node": "é" * 65}, InvalidRecord),
        ({"data": 1, "meta": {"k": "x" * 20_000}}, InvalidRecord),
        ({"data": 1, "meta": {str(key): 1 for key in range(65)}}, InvalidRecord),
    ],
)
def test_what_the_server_would_refuse_is_refused_before_it_is_in_a_batch(
    plain: Client, fields: dict[str, Any], error: type[Exception]
) -> None:
    with Producer(plain, "t") as producer:
        producer.send("before")
        with pytest.raises(error):
            producer.send(**fields)
        producer.send("after")
    assert values(plain, "t") == ["before", "after"]


@pytest.mark.parametrize(
    "options", [{"batch_records": 0}, {"batch_records": 10_001}, {"linger_s": -1}, {"max_buffered_bytes": 10}]
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        Producer("http://127.0.0.1:1", "t", **options)


def test_a_closed_producer_takes_nothing(plain: Client) -> None:
    producer = Producer(plain, "t")
    producer.close()
    producer.close()
    with pytest.raises(Closed):
        producer.send(1)
