"""The audits find each kind of loss and repetition, and report nothing else."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from everlog.api_types import RawDiff, RawRecord
from everlog.bridge import TopicToQueue, TopicToQueueSettings
from everlog.bridge import audit_bridge as audit_bridge_module
from everlog.bridge import audit_topic as audit_topic_module
from everlog.bridge.audit_bridge import BridgeAudit, audit_bridge
from everlog.bridge.audit_queue import QueueAudit, audit_queue
from everlog.bridge.audit_topic import Account, TopicAudit, audit_topic
from everlog.bridge.state import QueueToTopicState, StateFile
from everlog.client import Client, NewRecord, Tombstone
from everlog.errors import QueueNotFound
from everlog.fs import OsFs
from everlog.queue import Queue, WriterConfig, layout
from tests.support.bridges import SEGMENT_SIZE, fill, forward, numbers
from tests.support.queues import overwrite


def append(client: Client, topic: str, count: int, tag: str | None = None) -> None:
    """Append records to a topic."""
    client.append_many(topic, [NewRecord(number, tag) for number in range(count)])


def balanced(audit: TopicAudit) -> TopicAudit:
    """The audit, after its sum was checked."""
    parts = (audit.live, audit.deleted, audit.evicted, audit.expired, audit.holes, audit.unexplained)
    assert audit.assigned == sum(parts)
    return audit


# --- Topics ----------------------------------------------------------------------------------------------


def test_live_evicted_and_deleted_records_are_distinguished(client: Client, topic: str) -> None:
    append(client, topic, 2500)
    client.put_topic(topic, {"cap_records": 1500})
    append(client, topic, 10)
    client.delete_records(topic, before_seq=1100)
    audit = balanced(audit_topic(client, topic))
    assert audit.is_sound
    assert (audit.assigned, audit.live, audit.evicted, audit.deleted) == (2510, 1411, 1010, 89)


def test_a_deleted_beginning_is_explained(client: Client, topic: str) -> None:
    append(client, topic, 2500)
    client.delete_records(topic, before_seq=1201)
    audit = balanced(audit_topic(client, topic))
    assert (audit.live, audit.deleted, audit.is_sound) == (1300, 1200, True)


def test_records_deleted_in_the_middle_are_explained(client: Client, topic: str) -> None:
    append(client, topic, 10)
    append(client, topic, 300, "x")
    append(client, topic, 10)
    client.delete_records(topic, match="x")
    audit = balanced(audit_topic(client, topic))
    assert (audit.live, audit.deleted, audit.holes, audit.is_sound) == (20, 300, 0, True)


def test_stretches_add_up(client: Client, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_topic_module, "ACCOUNT_SEQS", 1)
    for number in range(5):
        append(client, topic, 1000, "x" if number % 2 else None)
    client.delete_records(topic, match="x")
    client.put_topic(topic, {"cap_records": 2500})
    audit = balanced(audit_topic(client, topic))
    assert (audit.live, audit.deleted, audit.evicted, audit.is_sound) == (2500, 2000, 500, True)


def test_jobs_that_are_done_are_deleted(client: Client) -> None:
    client.put_topic("jobs", {"type": "queue", "durability": "fsync"})
    append(client, "jobs", 10)
    done = [job.seq for job in client.claim("jobs", "w", 5).claimed]
    client.ack("jobs", "w", done[1:])
    audit = balanced(audit_topic(client, "jobs"))
    assert (audit.live, audit.deleted, audit.is_sound) == (6, 4, True)


def test_an_empty_topic_is_sound(client: Client, topic: str) -> None:
    assert balanced(audit_topic(client, topic)) == TopicAudit(topic, runs=[])


def account_of(client: Client, topic: str, count: int) -> Account:
    """An account of a topic with so many records, for pages that a test makes up."""
    append(client, topic, count)
    return Account(client, client.topic(topic))


def page(*records: tuple[int, int], tombstone: Tombstone | None = None) -> RawDiff:
    """A page of records (seq, time)."""
    return RawDiff([RawRecord(*record) for record in records], 10, 10, 1, True, tombstone)


def test_live_records_that_cannot_be_read_are_unexplained(client: Client, topic: str) -> None:
    account = account_of(client, topic, 4)
    account.add_page(page((1, 1), (2, 1), (4, 1)))
    account.end()
    audit = balanced(account.audit)
    assert (audit.live, audit.unexplained, audit.is_sound) == (3, 1, False)
    assert "counts 4 live records, 3 can be read" in audit.runs[-1].problem


def test_records_evicted_without_a_tombstone_are_unexplained(client: Client, topic: str) -> None:
    client.put_topic(topic, {"cap_records": 3})
    for told, unexplained in ((Tombstone(1, 7, "cap", 8, 10), 0), (None, 7)):
        name = f"{topic}.{unexplained}"
        client.put_topic(name, {"cap_records": 3})
        account = account_of(client, name, 10)
        account.add_page(page((8, 1), (9, 1), (10, 1), tombstone=told))
        account.end()
        audit = balanced(account.audit)
        assert (audit.live, audit.evicted, audit.unexplained) == (3, 7 - unexplained, unexplained)
        assert audit.is_sound == (unexplained == 0)


def test_records_out_of_order_are_found(client: Client, topic: str) -> None:
    account = account_of(client, topic, 4)
    account.add_page(page((1, 5), (2, 4), (1, 6), (3, 6), (4, 6)))
    account.end()
    assert account.audit.disordered == 2
    assert not account.audit.is_sound


def test_a_topic_that_is_recreated_meanwhile_is_not_sound(client: Client, topic: str) -> None:
    account = account_of(client, topic, 10)
    client.delete_topic(topic)
    append(client, topic, 4)
    account.end()
    audit = account.audit
    assert (audit.unexplained, audit.is_sound) == (6, False)
    assert "was the topic recreated" in audit.runs[-1].problem


# --- Queues ----------------------------------------------------------------------------------------------


def test_a_whole_queue_is_sound_and_a_trimmed_one_too(tmp_path: Path) -> None:
    fill(tmp_path, numbers(0, 3000))
    assert audit_queue(str(tmp_path)) == QueueAudit(str(tmp_path), assigned=3000, live=3000, runs=[])
    (tmp_path / layout.segment_name(0)).unlink()
    audit = audit_queue(str(tmp_path))
    per_segment = (SEGMENT_SIZE - layout.SEG_DATA_OFFSET) // 128
    assert (audit.assigned, audit.deleted, audit.live) == (3000, per_segment, 3000 - per_segment)
    assert audit.is_sound


def test_a_damaged_message_is_found_and_the_rest_is_counted(tmp_path: Path) -> None:
    fill(tmp_path, numbers(0, 100))
    overwrite(tmp_path / layout.segment_name(0), layout.SEG_DATA_OFFSET + 50 * 128 + 64, b"\xff")
    audit = audit_queue(str(tmp_path))
    assert (audit.assigned, audit.live, audit.damaged) == (100, 99, 1)
    assert audit.runs[0].first_seq == 50
    assert not audit.is_sound


def test_a_segment_missing_in_the_middle_is_not_explained(tmp_path: Path) -> None:
    fill(tmp_path, numbers(0, 3000))
    (tmp_path / layout.segment_name(2)).unlink()
    audit = audit_queue(str(tmp_path))
    per_segment = (SEGMENT_SIZE - layout.SEG_DATA_OFFSET) // 128
    assert (audit.assigned, audit.unexplained) == (3000, per_segment)


def test_an_empty_queue_is_sound(tmp_path: Path) -> None:
    fill(tmp_path, [])
    assert audit_queue(str(tmp_path)).is_sound


# --- Bridges ---------------------------------------------------------------------------------------------


def out(client: Client, path: Path) -> BridgeAudit:
    """The audit of the bridge out of a queue, after its sum was checked."""
    audit = audit_bridge(client, str(path), "b")
    assert audit.forwarded == audit.present + audit.gone + audit.unexplained
    return audit


def test_what_was_forwarded_is_present_or_gone_since(tmp_path: Path, client: Client, topic: str) -> None:
    fill(tmp_path, numbers(0, 95))
    forward(client, tmp_path, topic, batch_records=10)
    client.append(topic, "of another writer")
    assert (out(client, tmp_path).present, out(client, tmp_path).is_sound) == (95, True)
    client.delete_records(topic, before_seq=26)
    audit = out(client, tmp_path)
    assert (audit.present, audit.gone, audit.is_sound) == (70, 25, True)
    client.delete_topic(topic)
    assert out(client, tmp_path).unexplained == 95


def again(client: Client, topic: str, first_seq: int, last_seq: int) -> None:
    """Append a batch as the bridge would have done."""
    records = list(client.read(topic))
    marker = {"first_seq": first_seq, "last_seq": last_seq, "count": last_seq - first_seq + 1}
    new = [NewRecord(number, node=records[0].node) for number in range(first_seq, last_seq + 1)]
    new[0].meta = {"bridge": marker}
    client.append_many(topic, new)


def test_a_batch_that_is_there_twice_is_found(tmp_path: Path, client: Client, topic: str) -> None:
    fill(tmp_path, numbers(0, 20))
    forward(client, tmp_path, topic, batch_records=10)
    again(client, topic, 5, 9)
    audit = out(client, tmp_path)
    assert (audit.duplicates, audit.present, audit.is_sound) == (5, 20, False)
    assert "again at seq 21" in audit.runs[0].problem


def test_a_batch_that_never_came_is_found(tmp_path: Path, client: Client, topic: str) -> None:
    fill(tmp_path, numbers(0, 20))
    forward(client, tmp_path, topic, batch_records=10)
    file = StateFile(OsFs(), str(tmp_path), "b", QueueToTopicState)
    state = file.load()
    assert state is not None and state.plan is not None
    further = msgspec.structs.replace(state.plan, first_seq=25, last_seq=29, count=5)
    file.store(msgspec.structs.replace(state, generation=state.generation + 1, forwarded=25, plan=further))
    audit = out(client, tmp_path)
    assert (audit.forwarded, audit.present, audit.unexplained) == (30, 20, 10)


def test_a_batch_under_way_counts_for_neither_side(tmp_path: Path, client: Client, topic: str) -> None:
    fill(tmp_path, numbers(0, 20))
    forward(client, tmp_path, topic)
    file = StateFile(OsFs(), str(tmp_path), "b", QueueToTopicState)
    state = file.load()
    assert state is not None and state.plan is not None
    ahead = msgspec.structs.replace(state.plan, first_seq=20, last_seq=24, count=5, end=(9, 64))
    file.store(msgspec.structs.replace(state, generation=state.generation + 1, forwarded=20, plan=ahead))
    assert (out(client, tmp_path).under_way, out(client, tmp_path).is_sound) == (5, True)
    again(client, topic, 20, 24)
    audit = out(client, tmp_path)
    assert (audit.forwarded, audit.present, audit.is_sound) == (20, 20, True)


def back(client: Client, path: Path, topic: str) -> BridgeAudit:
    """Bring a topic across and audit that."""
    writer = WriterConfig(segment_size=SEGMENT_SIZE, retention=False)
    settings = TopicToQueueSettings(str(path), topic, "b", once=True, writer=writer)
    TopicToQueue(client, settings).run()
    return audit_bridge(client, str(path), "b")


def test_records_in_a_queue_are_recognised(tmp_path: Path, client: Client, topic: str) -> None:
    append(client, topic, 1500)
    audit = back(client, tmp_path, topic)
    assert (audit.forwarded, audit.present, audit.is_sound) == (1500, 1500, True)
    client.put_topic(topic, {"cap_records": 100})
    append(client, topic, 300)
    audit = back(client, tmp_path, topic)
    assert (audit.forwarded, audit.present, audit.gaps, audit.is_sound) == (1600, 1600, 1, True)
    (tmp_path / layout.segment_name(0)).unlink()
    audit = audit_bridge(client, str(tmp_path), "b")
    per_segment = (SEGMENT_SIZE - layout.SEG_DATA_OFFSET) // 128
    assert (audit.gone, audit.is_sound) == (per_segment, True)


def test_an_audit_looks_beyond_its_window_where_records_are_gone(
    tmp_path: Path, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_bridge_module, "WINDOW", 10)
    append(client, topic, 500)
    back(client, tmp_path, topic)
    client.delete_records(topic, before_seq=401)
    audit = audit_bridge(client, str(tmp_path), "b")
    assert (audit.forwarded, audit.present, audit.is_sound) == (500, 500, True)
    client.delete_topic(topic)
    append(client, topic, 50)
    audit = back(client, tmp_path, topic)
    assert (audit.forwarded, audit.present, audit.gaps, audit.is_sound) == (550, 550, 1, True)


def test_a_record_twice_or_never_in_a_queue_is_found(tmp_path: Path, client: Client, topic: str) -> None:
    append(client, topic, 3000)
    back(client, tmp_path / "good", topic)
    stamps = []
    with Queue.open_subscriber(tmp_path / "good", None) as reader:
        stamps = [(view.type_id, bytes(view), view.timestamp_ns) for view in reader]
    bad = stamps[:10] + stamps[9:20] + stamps[21:]
    with Queue.open_publisher(tmp_path / "bad", segment_size=SEGMENT_SIZE, retention=False) as writer:
        for type_id, payload, timestamp_ns in bad:
            writer.append(type_id, payload, timestamp_ns)
    (tmp_path / "bad" / "bridges").mkdir()
    (tmp_path / "good" / "bridges" / "b.state").rename(tmp_path / "bad" / "bridges" / "b.state")
    audit = audit_bridge(client, str(tmp_path / "bad"), "b")
    assert (audit.duplicates, audit.unexplained, audit.present) == (1, 1, 2999)
    assert [run.first_seq for run in audit.runs] == [10, 21]


def test_there_must_have_been_a_bridge(tmp_path: Path, client: Client) -> None:
    fill(tmp_path, [])
    with pytest.raises(QueueNotFound, match="no bridge 'b' has run"):
        audit_bridge(client, str(tmp_path), "b")
