"""From a queue to a topic: each message once and in order, whatever request or answer is lost."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from everlog.bridge import BatchInDoubt, Format, QueueToTopic, QueueToTopicSettings
from everlog.bridge.state import QueueToTopicState, StateFile, reader_name, state_path
from everlog.client import Client
from everlog.errors import CorruptMetadata, InvalidConfig, InvalidRecord, QueueNotFound, RecordTooLarge
from everlog.fs import OsFs
from everlog.queue import Queue, identity
from everlog.queue.layout import SEG_DATA_OFFSET
from everlog.queue.reader_meta import ReaderMetaFile, meta_path
from tests.support.bridges import ForgetfulClient, fill, forward, messages, numbers
from tests.support.processes import eventually, fresh_seed
from tests.support.tcp_peers import FaultProxy


def data_of(client: Client, topic: str) -> list[Any]:
    """What the topic holds."""
    return [record.data for record in client.read(topic, limit=1000)]


def stand_at_the_beginning(path: Path) -> None:
    """What a kill leaves between the answer of the server and the commit of the reader."""
    meta = ReaderMetaFile.open(OsFs(), str(path), reader_name("b"))
    meta.store(0, SEG_DATA_OFFSET, 1, durable=False)
    meta.close()


def test_json_goes_through_as_it_is_and_bytes_become_base64(
    tmp_path: Path, client: Client, topic: str
) -> None:
    fill(tmp_path, [b'{"a": [1, "x"]}', b"12.50", b"\x00\xff", b"", b'"text"'], type_id=7)
    progress = forward(client, tmp_path, topic)
    assert (progress.forwarded, progress.last_seq, progress.lag) == (5, 4, 0)
    records = list(client.read(topic))
    assert [record.data for record in records] == [{"a": [1, "x"]}, 12.5, "AP8=", "", "text"]
    source, stamps = identity.load(OsFs(), str(tmp_path)), [one.timestamp_ns for one in messages(tmp_path)]
    origins = [{"source": source, "seq": seq, "ts_ns": stamps[seq], "type": 7} for seq in range(5)]
    assert records[0].meta == {"bridge": {"first_seq": 0, "last_seq": 4, "count": 5}} | origins[0]
    assert [record.meta for record in records[1:]] == [
        origins[1],
        origins[2] | {"encoding": "base64"},
        origins[3] | {"encoding": "base64"},
        origins[4],
    ]
    assert {record.node for record in records} == {records[0].node}


def test_without_origin_only_base64_and_the_first_record_have_a_meta(
    tmp_path: Path, client: Client, topic: str
) -> None:
    fill(tmp_path, [b"1", b"\x00\xff", b"2"], type_id=7)
    forward(client, tmp_path, topic, origin=False)
    assert [record.meta for record in client.read(topic)] == [
        {"bridge": {"first_seq": 0, "last_seq": 2, "count": 3}},
        {"encoding": "base64", "type": 7},
        None,
    ]


def test_a_second_run_goes_on_where_the_first_one_ended(tmp_path: Path, client: Client, topic: str) -> None:
    fill(tmp_path, numbers(0, 25))
    assert forward(client, tmp_path, topic, batch_records=10).batches == 3
    assert forward(client, tmp_path, topic).forwarded == 0
    fill(tmp_path, numbers(25, 40))
    assert forward(client, tmp_path, topic, batch_records=10).forwarded == 15
    assert data_of(client, topic) == list(range(40))


def test_batches_are_bounded_by_bytes_and_by_segments(tmp_path: Path, client: Client, topic: str) -> None:
    texts = [json.dumps("x" * 500).encode() for _ in range(300)]
    fill(tmp_path, texts)
    progress = forward(client, tmp_path, topic, batch_bytes=10_000)
    assert progress.batches >= 300 * 502 // 10_000
    assert len(data_of(client, topic)) == 300


@pytest.mark.parametrize("lost", ["answers", "requests"])
def test_a_broken_connection_neither_loses_nor_repeats_though_the_server_forgets_keys(
    tmp_path: Path, url: str, client: Client, topic: str, lost: str
) -> None:
    fill(tmp_path, numbers(0, 30))
    with ForgetfulClient(url, **{f"lost_{lost}": 2}) as forgetful:  # type: ignore[arg-type]
        progress = forward(forgetful, tmp_path, topic, batch_records=10)
    assert (progress.forwarded, progress.retries) == (30, 2)
    assert progress.deduplicated == (2 if lost == "answers" else 0)
    assert data_of(client, topic) == list(range(30))


def test_a_batch_that_was_confirmed_but_not_committed_is_not_sent_again(
    tmp_path: Path, client: Client, topic: str
) -> None:
    fill(tmp_path, numbers(0, 10))
    forward(client, tmp_path, topic)
    stand_at_the_beginning(tmp_path)
    client.append(topic, "of another writer")
    again = forward(client, tmp_path, topic)
    assert (again.forwarded, again.deduplicated) == (10, 1)
    assert data_of(client, topic) == [*range(10), "of another writer"]


def test_a_commit_that_a_power_loss_took_back_does_not_repeat_confirmed_batches(
    tmp_path: Path, client: Client, topic: str
) -> None:
    fill(tmp_path, numbers(0, 30))
    forward(client, tmp_path, topic, batch_records=10)
    stand_at_the_beginning(tmp_path)
    assert forward(client, tmp_path, topic).forwarded == 10, "only the last batch can be in doubt"
    assert data_of(client, topic) == list(range(30))


def test_a_batch_that_came_and_is_gone_is_not_sent_again_while_the_server_knows_its_key(
    tmp_path: Path, url: str, client: Client, topic: str
) -> None:
    client.put_topic(topic, {"idempotency_window_ms": 600_000})
    fill(tmp_path, numbers(0, 10))
    forward(client, tmp_path, topic)
    client.delete_records(topic, before_seq=11)
    stand_at_the_beginning(tmp_path)
    assert forward(client, tmp_path, topic).deduplicated == 1
    assert data_of(client, topic) == []


@pytest.mark.parametrize(("choice", "found"), [("skip", 0), ("send", 10)])
def test_a_batch_in_doubt_stops_the_bridge_until_a_person_decides(
    tmp_path: Path, client: Client, topic: str, choice: str, found: int
) -> None:
    fill(tmp_path, numbers(0, 10))
    forward(client, tmp_path, topic)
    client.delete_records(topic, before_seq=11)
    stand_at_the_beginning(tmp_path)
    with pytest.raises(BatchInDoubt, match="--in-doubt send") as raised:
        forward(client, tmp_path, topic)
    assert (raised.value.first_seq, raised.value.last_seq) == (0, 9)
    forward(client, tmp_path, topic, in_doubt=choice)
    assert len(data_of(client, topic)) == found
    assert forward(client, tmp_path, topic).forwarded == 0


def test_a_topic_that_was_recreated_gets_the_batch_in_doubt(
    tmp_path: Path, client: Client, topic: str
) -> None:
    fill(tmp_path, numbers(0, 30))
    forward(client, tmp_path, topic, batch_records=10)
    client.delete_topic(topic)
    client.put_topic(topic, {"idempotency_window_ms": 1})
    client.append(topic, "new")
    stand_at_the_beginning(tmp_path)
    forward(client, tmp_path, topic)
    assert data_of(client, topic) == ["new", *range(20, 30)]


def test_what_only_the_strict_server_refuses_goes_as_base64(
    tmp_path: Path, client: Client, topic: str
) -> None:
    deep = b"[" * 127 + b"]" * 127
    shallow = b"[" * 100 + b"]" * 100
    fill(tmp_path, [b"1", deep, shallow])
    forward(client, tmp_path, topic)
    records = list(client.read(topic))
    assert [record.seq for record in records] == [1, 2, 3]
    assert ["encoding" in (record.meta or {}) for record in records] == [False, True, False]


def test_json_only_refuses_bytes_and_names_the_message(tmp_path: Path, client: Client, topic: str) -> None:
    fill(tmp_path, [b"1", b"\xff"])
    with pytest.raises(InvalidRecord, match="message 1 of type 0x0001"):
        forward(client, tmp_path, topic, form=Format.JSON)
    assert data_of(client, topic) == []


def test_a_message_too_large_for_a_record_stops_the_bridge(
    tmp_path: Path, client: Client, topic: str
) -> None:
    path = tmp_path / "large"
    with Queue.open_publisher(path, segment_size=4 << 20) as writer:
        writer.append(1, b"\xff" * (800 << 10))
    with pytest.raises(RecordTooLarge, match="message 0 of the queue has 819200 bytes"):
        forward(client, path, topic)


def test_a_bridge_follows_until_it_is_stopped(tmp_path: Path, client: Client, topic: str) -> None:
    fill(tmp_path, numbers(0, 5))
    bridge = QueueToTopic(client, QueueToTopicSettings(str(tmp_path), topic, "b"))
    thread = threading.Thread(target=bridge.run)
    thread.start()
    try:
        eventually("the first ones are across", lambda: bridge.progress.forwarded == 5)
        fill(tmp_path, numbers(5, 9))
        eventually("the others too", lambda: bridge.progress.forwarded == 9)
    finally:
        bridge.stop.set()
        thread.join(30)
    assert not thread.is_alive()
    assert data_of(client, topic) == list(range(9))


def test_a_bridge_that_cannot_reach_the_server_can_be_stopped(tmp_path: Path) -> None:
    fill(tmp_path, numbers(0, 5))
    with Client("http://127.0.0.1:9") as unreachable:
        bridge = QueueToTopic(unreachable, QueueToTopicSettings(str(tmp_path), "t", "b"))
        thread = threading.Thread(target=bridge.run)
        thread.start()
        eventually("it has tried", lambda: bridge.progress.retries > 0)
        bridge.stop.set()
        thread.join(30)
    assert not thread.is_alive()


def test_a_bridge_that_begins_at_the_end_leaves_out_what_was_there(
    tmp_path: Path, client: Client, topic: str
) -> None:
    fill(tmp_path, numbers(0, 5))
    assert forward(client, tmp_path, topic, start="latest").forwarded == 0
    fill(tmp_path, numbers(5, 8))
    forward(client, tmp_path, topic, start="latest")
    assert data_of(client, topic) == [5, 6, 7]


def test_one_name_is_for_one_topic(tmp_path: Path, client: Client, topic: str) -> None:
    fill(tmp_path, numbers(0, 1))
    forward(client, tmp_path, topic)
    with pytest.raises(InvalidConfig, match="another --name"):
        forward(client, tmp_path, "another")


def test_a_lost_state_is_not_taken_for_a_new_bridge(tmp_path: Path, client: Client, topic: str) -> None:
    fill(tmp_path, numbers(0, 1))
    forward(client, tmp_path, topic)
    Path(state_path(str(tmp_path), "b")).unlink()
    with pytest.raises(CorruptMetadata, match="is missing although"):
        forward(client, tmp_path, topic)
    Path(meta_path(str(tmp_path), reader_name("b"))).unlink()
    assert forward(client, tmp_path, topic).forwarded == 1


def test_there_must_be_a_queue(tmp_path: Path, client: Client) -> None:
    with pytest.raises(QueueNotFound):
        forward(client, tmp_path / "nothing", "t")


def test_a_topic_of_a_weak_class_is_a_warning(tmp_path: Path, client: Client) -> None:
    client.put_topic("weak", {"durability": "ephemeral"})
    fill(tmp_path, numbers(0, 1))
    told: list[str] = []
    settings = QueueToTopicSettings(str(tmp_path), "weak", "b", once=True)
    QueueToTopic(client, settings, warn=lambda code, message: told.append(code)).run()
    assert told == ["weak_topic"]


def test_a_class_can_be_wished_for(tmp_path: Path, client: Client) -> None:
    fill(tmp_path, numbers(0, 1))
    forward(client, tmp_path, "wished", durability="fsync")
    assert client.topic("wished").config.durability == "fsync"


def test_the_plan_names_what_is_under_way(tmp_path: Path, client: Client, topic: str) -> None:
    fill(tmp_path, numbers(0, 12))
    forward(client, tmp_path, topic, batch_records=5)
    state = StateFile(OsFs(), str(tmp_path), "b", QueueToTopicState).load()
    assert state is not None and state.plan is not None
    assert (state.forwarded, state.first_seq) == (10, 0)
    assert (state.plan.first_seq, state.plan.last_seq, state.plan.count) == (10, 11, 2)
    assert state.key(state.plan) == f"bridge:b:{state.identity}:10-11"


def test_connections_cut_at_any_byte_neither_lose_nor_repeat(
    tmp_path: Path, url: str, client: Client, topic: str
) -> None:
    fill(tmp_path, numbers(0, 200))
    seed = fresh_seed("cut bridge")
    with FaultProxy(url, seed, most_bytes=4000) as proxy, Client(proxy.url) as cut_off:
        forward(cut_off, tmp_path, topic, batch_records=10)
        assert proxy.cuts > 0
    assert data_of(client, topic) == list(range(200))
