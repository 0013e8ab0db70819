"""From a topic to a queue: each record once and in order, whatever part of a batch a crash leaves."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.bridge import Format, PayloadFormat, Progress, TopicToQueue, TopicToQueueSettings
from everlog.bridge.audit_bridge import audit_bridge
from everlog.bridge.layouts import (
    GAP_TYPE_ID,
    RECORD_TYPE_ID,
    GapMessage,
    GapReason,
    decode_gap,
    encode_gap,
    gap_reason,
    seq_digits,
)
from everlog.bridge.state import QueuePlan, StateFile, TopicToQueueState
from everlog.bridge.topic_to_queue import NewMessage, append
from everlog.client import ApiFailed, Client, NewRecord
from everlog.errors import Corrupt, InvalidConfig, InvalidRecord, UnsupportedVersion
from everlog.fs import OsFs
from everlog.market.protocol import TRADE, TypeId
from everlog.queue import Queue, WriterConfig
from tests.support.bridges import SEGMENT_SIZE, fill, forward, messages, numbers
from tests.support.processes import eventually

WRITER = WriterConfig(segment_size=SEGMENT_SIZE, retention=False)


def bring(client: Client, path: Path, topic: str, **settings: object) -> Progress:
    """Bring a topic across, once."""
    wanted = {"queue": str(path), "topic": topic, "name": "b", "once": True, "writer": WRITER} | settings
    return TopicToQueue(client, TopicToQueueSettings(**wanted)).run()  # type: ignore[arg-type]


def append_numbers(client: Client, topic: str, start: int, stop: int) -> None:
    """Append numbers to a topic."""
    client.append_many(topic, [NewRecord(number) for number in range(start, stop)])


def state_of(path: Path) -> TopicToQueueState:
    """What the bridge remembers."""
    state = StateFile(OsFs(), str(path), "b", TopicToQueueState).load()
    assert state is not None
    return state


def texts(path: Path) -> list[bytes]:
    """The payloads of a queue."""
    return [message.payload for message in messages(path)]


def test_records_become_messages_that_tell_their_time_and_seq(
    tmp_path: Path, client: Client, topic: str
) -> None:
    client.append(topic, {"a": [1, None]})
    client.append(topic, "text")
    progress = bring(client, tmp_path, topic)
    assert (progress.forwarded, progress.last_seq, progress.lag) == (2, 2, 0)
    found = messages(tmp_path)
    assert [message.payload for message in found] == [b'{"a":[1,null]}', b'"text"']
    assert {message.type_id for message in found} == {RECORD_TYPE_ID}
    records = list(client.read(topic))
    assert [message.timestamp_ns // 10**6 for message in found] == [record.ts_ms for record in records]
    assert [seq_digits(message.timestamp_ns) for message in found] == [1, 2]


def test_a_second_run_goes_on_where_the_first_one_ended(tmp_path: Path, client: Client, topic: str) -> None:
    append_numbers(client, topic, 0, 2500)
    assert bring(client, tmp_path, topic).forwarded == 2500
    assert bring(client, tmp_path, topic).forwarded == 0
    append_numbers(client, topic, 2500, 2600)
    assert bring(client, tmp_path, topic, batch_records=30).batches == 4
    assert texts(tmp_path) == numbers(0, 2600)


PAYLOADS = [b"\x00\x01", b"", b'{"plain":1}', b'{"plain":2}', bytes(range(256))]


def fill_stamped(path: Path, first_ns: int) -> list[NewMessage]:
    """Append messages of known times, types and flags, two of them with the same time."""
    wanted = [
        NewMessage(0x1234 + place, first_ns + place // 2 * 10**9, payload, place % 3)
        for place, payload in enumerate(PAYLOADS)
    ]
    with Queue.open_publisher(path, WRITER) as writer:
        append(writer, wanted)
    return wanted


def test_messages_come_back_with_their_times_types_and_flags(
    tmp_path: Path, client: Client, topic: str
) -> None:
    wanted = fill_stamped(tmp_path / "from", 7 * 10**9)
    forward(client, tmp_path / "from", topic)
    bring(client, tmp_path / "to", topic)
    assert written(tmp_path / "to") == wanted


def test_messages_of_two_queues_with_unordered_times_are_each_found_by_the_audit(
    tmp_path: Path, client: Client, topic: str
) -> None:
    for place, first_ns in enumerate((9 * 10**9, 3 * 10**9, 5 * 10**9)):
        fill_stamped(tmp_path / f"from-{place}", first_ns)
        forward(client, tmp_path / f"from-{place}", topic)
    client.append(topic, "of no queue", tag="x")
    client.delete_records(topic, match="x")
    bring(client, tmp_path / "to", topic, batch_records=4)
    audit = audit_bridge(client, str(tmp_path / "to"), "b")
    assert (audit.present, audit.is_sound) == (15, True)
    client.delete_records(topic, before_seq=7)
    audit = audit_bridge(client, str(tmp_path / "to"), "b")
    assert (audit.present, audit.is_sound) == (15, True), "messages of deleted records are explained"


def test_a_restored_batch_that_a_crash_cut_off_goes_on_at_every_message(
    tmp_path: Path, client: Client, topic: str
) -> None:
    wanted = fill_stamped(tmp_path / "from", 7 * 10**9)
    forward(client, tmp_path / "from", topic)
    bring(client, tmp_path / "whole", topic)
    state = state_of(tmp_path / "whole")
    for arrived in range(len(wanted) + 1):
        cut = tmp_path / f"cut-{arrived}"
        with Queue.open_publisher(cut, WRITER) as writer:
            append(writer, wanted[:arrived])
        StateFile(OsFs(), str(cut), "b", TopicToQueueState).create(state)
        bring(client, cut, topic)
        assert written(cut) == wanted, arrived


def test_a_plan_of_an_earlier_version_is_checked_by_the_digits_of_seqs(
    tmp_path: Path, client: Client, topic: str
) -> None:
    append_numbers(client, topic, 0, 5)
    bring(client, tmp_path / "first", topic)
    state = state_of(tmp_path / "first")
    old = msgspec.structs.replace(state, plan=msgspec.structs.replace(state.plan, stamps=b""))
    kept = written(tmp_path / "first")[:3]
    for name, chosen in (("same", kept), ("other", [*kept[:2], kept[0]])):
        with Queue.open_publisher(tmp_path / name, WRITER) as writer:
            append(writer, chosen)
        StateFile(OsFs(), str(tmp_path / name), "b", TopicToQueueState).create(old)
    bring(client, tmp_path / "same", topic)
    assert texts(tmp_path / "same") == numbers(0, 5)
    with pytest.raises(Corrupt, match="another program has written"):
        bring(client, tmp_path / "other", topic)


def test_a_market_message_that_was_rendered_comes_back_as_json_with_its_time(
    tmp_path: Path, client: Client, topic: str
) -> None:
    trade = NewMessage(TypeId.TRADE, 7 * 10**9, bytes(TRADE.itemsize))
    with Queue.open_publisher(tmp_path / "from", WRITER) as writer:
        append(writer, [trade])
    forward(client, tmp_path / "from", topic)
    bring(client, tmp_path / "to", topic)
    (found,) = messages(tmp_path / "to")
    assert (found.type_id, found.timestamp_ns) == (RECORD_TYPE_ID, 7 * 10**9)
    assert json.loads(found.payload)["type"] == "trade"
    forward(client, tmp_path / "from", "bytes", name="bytes", form=Format.BASE64)
    bring(client, tmp_path / "exact", "bytes")
    assert written(tmp_path / "exact") == [trade]


def test_the_whole_record_can_be_the_payload(tmp_path: Path, client: Client, topic: str) -> None:
    client.append(topic, 1, tag="eu", node="n", meta={"k": "v"})
    bring(client, tmp_path, topic, form=PayloadFormat.RECORD, type_id=5)
    (message,) = messages(tmp_path)
    document = json.loads(message.payload)
    assert (document["$seq"], document["$tag"], document["$node"]) == (1, "eu", "n")
    assert (document["data"], document["meta"], message.type_id) == (1, {"k": "v"}, 5)


def test_base64_only_refuses_what_is_none_and_names_the_record(
    tmp_path: Path, client: Client, topic: str
) -> None:
    client.append(topic, "AAE=")
    client.append(topic, {"no": "base64"})
    with pytest.raises(InvalidRecord, match="record 2 of topic"):
        bring(client, tmp_path, topic, form=PayloadFormat.BASE64)
    bring(client, tmp_path / "other", topic, form=PayloadFormat.JSON)
    assert texts(tmp_path / "other") == [b'"AAE="', b'{"no":"base64"}']


def test_meta_that_only_looks_like_ours_does_no_harm(tmp_path: Path, client: Client, topic: str) -> None:
    client.append(topic, "no base64!", meta={"encoding": "base64", "type": 1})
    client.append(topic, "AAE=", meta={"encoding": "base64", "type": 1 << 20})
    client.append(topic, 3, meta={"source": "x", "seq": 1, "ts_ns": 5})
    client.append(topic, 4, meta={"source": 1, "seq": 1, "ts_ns": 5, "type": 1})
    bring(client, tmp_path, topic)
    found = messages(tmp_path)
    assert [message.payload for message in found] == [b'"no base64!"', b"\x00\x01", b"3", b"4"]
    assert [seq_digits(message.timestamp_ns) for message in found] == [1, 2, 3, 4]
    assert {message.type_id for message in found} == {RECORD_TYPE_ID}


def test_records_that_the_topic_lost_become_one_gap_message(
    tmp_path: Path, client: Client, topic: str
) -> None:
    append_numbers(client, topic, 0, 5)
    bring(client, tmp_path, topic)
    client.put_topic(topic, {"cap_records": 3})
    append_numbers(client, topic, 5, 20)
    progress = bring(client, tmp_path, topic)
    assert (progress.forwarded, progress.gaps) == (3, 1)
    found = messages(tmp_path)
    assert [message.payload for message in found if message.type_id != GAP_TYPE_ID] == [
        *numbers(0, 5),
        *numbers(17, 20),
    ]
    assert found[5].type_id == GAP_TYPE_ID
    assert decode_gap(found[5].payload) == GapMessage(6, 17, 12, GapReason.CAP)
    assert bring(client, tmp_path, topic).gaps == 0
    state = state_of(tmp_path)
    assert (state.records, state.gaps, state.plan.gap_cursor) == (5, 0, 17)


def test_deleted_records_leave_no_trace(tmp_path: Path, client: Client, topic: str) -> None:
    append_numbers(client, topic, 0, 10)
    client.delete_records(topic, before_seq=4)
    assert bring(client, tmp_path, topic).gaps == 0
    assert texts(tmp_path) == numbers(3, 10)


def test_a_topic_that_was_recreated_is_read_from_its_start(
    tmp_path: Path, client: Client, topic: str
) -> None:
    append_numbers(client, topic, 0, 10)
    bring(client, tmp_path, topic)
    client.delete_topic(topic)
    append_numbers(client, topic, 100, 103)
    assert bring(client, tmp_path, topic).gaps == 1
    found = messages(tmp_path)
    assert decode_gap(found[10].payload).reason is GapReason.RECREATED
    assert [message.payload for message in found[11:]] == numbers(100, 103)
    append_numbers(client, topic, 103, 105)
    bring(client, tmp_path, topic)
    assert texts(tmp_path)[11:] == numbers(100, 105)


def test_whatever_part_of_a_batch_got_in_the_rest_follows(tmp_path: Path, client: Client, topic: str) -> None:
    """Every point at which a crash can cut a batch off, gap and deleted seqs included."""
    client.put_topic(topic, {"cap_records": 8})
    append_numbers(client, topic, 0, 3)
    append_numbers(client, topic, 3, 20)
    client.append(topic, "marked", tag="x")
    append_numbers(client, topic, 20, 22)
    client.delete_records(topic, match="x")
    whole = tmp_path / "whole"
    bring(client, whole, topic)
    wanted = [(message.type_id, message.payload) for message in messages(whole)]
    state = state_of(whole)
    assert state.plan.count == len(wanted) == 8
    assert len(state.plan.runs) == 2
    for arrived in range(len(wanted) + 1):
        cut = tmp_path / f"cut-{arrived}"
        with Queue.open_publisher(cut, WRITER) as writer:
            append(writer, written(whole)[:arrived])
        StateFile(OsFs(), str(cut), "b", TopicToQueueState).create(state)
        progress = bring(client, cut, topic)
        assert [(message.type_id, message.payload) for message in messages(cut)] == wanted, arrived
        assert progress.gaps == (1 if arrived == 0 else 0)
        now = state_of(cut)
        assert now.counts(now.plan.count) == (7, 1), "what the audit calls forwarded"


def written(path: Path) -> list[NewMessage]:
    """The messages of a queue with everything that they were appended with."""
    with Queue.open_subscriber(path, None) as reader:
        flags = reader.read_batch().flags.tolist()
    return [
        NewMessage(message.type_id, message.timestamp_ns, message.payload, one)
        for message, one in zip(messages(path), flags, strict=True)
    ]


@given(
    runs=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), max_size=4),
    gap=st.booleans(),
    arrived=st.integers(-1, 20),
)
def test_the_cursor_of_a_plan_is_that_of_its_messages(
    runs: list[tuple[int, int]], gap: bool, arrived: int
) -> None:
    """The model: the list of cursors behind each message."""
    seq, cursors, exact = 10, [10], []
    if gap:
        seq += 3
        cursors.append(seq)
    for skipped, length in runs:
        exact.append((seq + skipped, length))
        cursors += range(seq + skipped, seq + skipped + length)
        seq += skipped + length - 1
    plan = QueuePlan(0, len(cursors) - 1, 10, seq + 7, exact, 13 if gap else None)
    if arrived >= plan.count:
        assert plan.cursor_after(arrived) == (seq + 7 if arrived > 0 else 10)
    else:
        assert plan.cursor_after(arrived) == cursors[max(0, arrived)]


def test_messages_of_another_writer_in_an_incomplete_batch_are_noticed(
    tmp_path: Path, client: Client, topic: str
) -> None:
    append_numbers(client, topic, 0, 5)
    bring(client, tmp_path / "first", topic)
    state = state_of(tmp_path / "first")
    fill(tmp_path / "second", numbers(0, 3))
    StateFile(OsFs(), str(tmp_path / "second"), "b", TopicToQueueState).create(state)
    with pytest.raises(Corrupt, match="another program has written"):
        bring(client, tmp_path / "second", topic)


def test_messages_of_another_writer_behind_the_batch_are_a_warning(
    tmp_path: Path, client: Client, topic: str
) -> None:
    append_numbers(client, topic, 0, 3)
    bring(client, tmp_path, topic)
    fill(tmp_path, [b"foreign"])
    append_numbers(client, topic, 3, 5)
    told: list[str] = []
    settings = TopicToQueueSettings(str(tmp_path), topic, "b", once=True)
    TopicToQueue(client, settings, warn=lambda code, message: told.append(code)).run()
    assert told == ["foreign_messages"]
    assert texts(tmp_path) == [*numbers(0, 3), b"foreign", *numbers(3, 5)]


def test_a_queue_that_lost_what_was_safe_is_not_written_to(
    tmp_path: Path, client: Client, topic: str
) -> None:
    append_numbers(client, topic, 0, 3)
    bring(client, tmp_path / "first", topic)
    later = msgspec.structs.replace(state_of(tmp_path / "first"), plan=QueuePlan(9, 1, 3, 4, [(4, 1)]))
    fill(tmp_path / "second", numbers(0, 3))
    StateFile(OsFs(), str(tmp_path / "second"), "b", TopicToQueueState).create(later)
    with pytest.raises(Corrupt, match="replaced or restored"):
        bring(client, tmp_path / "second", topic)


def test_a_bridge_follows_a_topic_that_comes_later(tmp_path: Path, client: Client) -> None:
    settings = TopicToQueueSettings(str(tmp_path), "comes-later", "b", writer=WRITER)
    bridge = TopicToQueue(client, settings)
    thread = threading.Thread(target=bridge.run)
    thread.start()
    try:
        eventually("it has looked", lambda: bridge.progress.retries > 0)
        append_numbers(client, "comes-later", 0, 4)
        eventually("they are across", lambda: bridge.progress.forwarded == 4)
    finally:
        bridge.stop.set()
        thread.join(30)
    assert not thread.is_alive()
    assert texts(tmp_path) == numbers(0, 4)


def test_once_needs_a_topic_and_the_end_is_a_place_to_begin(
    tmp_path: Path, client: Client, topic: str
) -> None:
    with pytest.raises(ApiFailed, match="never-was"):
        bring(client, tmp_path / "a", "never-was")
    append_numbers(client, topic, 0, 4)
    assert bring(client, tmp_path / "b", topic, start="latest").forwarded == 0
    append_numbers(client, topic, 4, 6)
    bring(client, tmp_path / "b", topic, start="latest")
    assert texts(tmp_path / "b") == numbers(4, 6)


def test_one_name_is_for_one_topic_and_one_direction(tmp_path: Path, client: Client, topic: str) -> None:
    append_numbers(client, topic, 0, 1)
    bring(client, tmp_path, topic)
    with pytest.raises(InvalidConfig, match="another --name"):
        bring(client, tmp_path, "another")
    with pytest.raises(InvalidConfig, match="other direction"):
        forward(client, tmp_path, topic)


@pytest.mark.parametrize("settings", [{"batch_records": 0}, {"batch_records": 4001}, {"type_id": 0xFFFF}])
def test_settings_that_cannot_work_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(InvalidConfig):
        TopicToQueueSettings("q", "t", "b", **settings)  # type: ignore[arg-type]


def test_the_layout_of_a_gap_is_pinned() -> None:
    payload = encode_gap(GapMessage(6, 17, 12, gap_reason("ttl")))
    assert payload.hex() == "01000200" + "00000000" + "06".ljust(16, "0") + "11".ljust(16, "0") + "0c".ljust(
        16, "0"
    )
    assert decode_gap(payload) == GapMessage(6, 17, 12, GapReason.TTL)
    assert gap_reason("something new") is GapReason.OTHER
    with pytest.raises(Corrupt):
        decode_gap(payload[:-1])
    with pytest.raises(UnsupportedVersion):
        decode_gap(b"\x02" + payload[1:])
