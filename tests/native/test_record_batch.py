"""A batch of records is checked in full before anything changes: limits, texts, and what counts as absent."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.client.producer import MAX_META_KEYS
from everlog.errors import EverlogError, InvalidRecord, RecordTooLarge
from everlog.native.topics.log import FrameBuffer, RecordBatch, TopicLog, read_log_frame
from everlog.topics.records import NewRecord as EngineRecord
from everlog.topics.storage.layout import FLAG_BATCH_CONTINUES
from tests.native.topic_log_twin import HAS_META, HAS_NODE, HAS_TAG, NewRecord, blob

GOOD = NewRecord(b"1", "tag", "node", b"{}")
MIB = 1 << 20


def keys(count: int, nested: str = "[1,2,{}]") -> bytes:
    """An object of so many keys, with commas and quotes where they do not count."""
    return ("{" + ",".join(f'"k,\\"{{{n}": {nested}' for n in range(count)) + "}").encode()


def meta_of(size: int) -> bytes:
    return b'{"k":"' + b"x" * (size - 8) + b'"}'


def text_of(size: int) -> bytes:
    return b'"' + b"x" * (size - 2) + b'"'


BAD_RECORDS: list[tuple[Any, type[EverlogError], str]] = [
    (NewRecord(b""), InvalidRecord, "data is empty"),
    (NewRecord(b" \n\t\r"), InvalidRecord, "data is empty"),
    (NewRecord(b"\xff"), InvalidRecord, "data is not valid UTF-8"),
    (NewRecord(b'"\xed\xa0\x80"'), InvalidRecord, "data is not valid UTF-8"),
    (NewRecord(None), InvalidRecord, "data is a NoneType"),
    (NewRecord("text"), InvalidRecord, "data is a str"),
    (NewRecord(memoryview(b"abcd")[::2]), InvalidRecord, "data is a memoryview"),
    (NewRecord(b"1", "x" * 257), InvalidRecord, "tag has 257 bytes; at most 256"),
    (NewRecord(b"1", "ä" * 129), InvalidRecord, "tag has 258 bytes"),
    (NewRecord(b"1", "\ud800"), InvalidRecord, "tag cannot be written as UTF-8"),
    (NewRecord(b"1", b"bytes"), InvalidRecord, "tag is a bytes"),
    (NewRecord(b"1", 5), InvalidRecord, "tag is a int"),
    (NewRecord(b"1", None, "x" * 129), InvalidRecord, "node has 129 bytes; at most 128"),
    (NewRecord(b"1", None, "a\udfff"), InvalidRecord, "node cannot be written as UTF-8"),
    (NewRecord(b"1", None, 1.5), InvalidRecord, "node is a float"),
    (NewRecord(b"1", None, None, b""), InvalidRecord, "meta must be a JSON object"),
    (NewRecord(b"1", None, None, bytearray()), InvalidRecord, "meta must be a JSON object"),
    (NewRecord(b"1", None, None, b" [1]"), InvalidRecord, "meta must be a JSON object"),
    (NewRecord(b"1", None, None, b"null"), InvalidRecord, "meta must be a JSON object"),
    (NewRecord(b"1", None, None, keys(65)), InvalidRecord, "meta has 65 keys; at most 64"),
    (NewRecord(b"1", None, None, meta_of(16385)), InvalidRecord, "meta has more than 16384 bytes"),
    (NewRecord(b"1", None, None, b'{"\xff":1}'), InvalidRecord, "meta is not valid UTF-8"),
    (NewRecord(b"1", None, None, 7), InvalidRecord, "meta is a int"),
    (NewRecord(text_of(MIB + 1)), RecordTooLarge, "data and meta have 1048577 bytes"),
    (
        NewRecord(text_of(MIB - 99), None, None, meta_of(100)),
        RecordTooLarge,
        "data and meta have 1048577 bytes",
    ),
]


@pytest.mark.parametrize(("bad", "error", "message"), BAD_RECORDS)
def test_a_bad_record_is_named_and_nothing_changes(bad: Any, error: type[EverlogError], message: str) -> None:
    log, buffer = TopicLog(1), FrameBuffer()
    log.append(buffer, 1, 0, [GOOD], 5, 0, None, False)
    before = buffer.tobytes()
    with pytest.raises(error, match=f"^record 2: {message}"):
        log.append(buffer, 1, 0, [GOOD, GOOD, bad], 6, 0, None, False)
    assert buffer.tobytes() == before
    assert (log.next_seq, log.live_count, log.last_ts, log.tag_count) == (2, 1, 5, 1)


@pytest.mark.parametrize(
    "good",
    [
        NewRecord(b"1", "x" * 256, "y" * 128),
        NewRecord(b"1", "ä" * 128, "ä" * 64),
        NewRecord(b"1", None, None, keys(64)),
        NewRecord(b"1", None, None, meta_of(16384)),
        NewRecord(b"1", None, None, b" " * 20000 + meta_of(16384)),
        NewRecord(text_of(MIB)),
        NewRecord(text_of(MIB - 100), None, None, meta_of(100)),
        NewRecord(text_of(MIB) + b"\n" * 500),
        NewRecord(bytearray(b"[1]"), "", "", msgspec.Raw(b"{ }")),
        NewRecord(msgspec.Raw(b'{"a": "\\u0000"}')),
        NewRecord(memoryview(b"12")),
    ],
)
def test_records_at_the_limits_are_taken(good: NewRecord) -> None:
    log, buffer = TopicLog(1), FrameBuffer()
    bound = RecordBatch([good]).frame_bytes
    size = log.append(buffer, 1, 0, [good], 5, 0, None, False)
    assert len(buffer) <= bound
    frame = read_log_frame(buffer, 0)
    meta = (
        None
        if good.meta is None
        else json.dumps(json.loads(bytes(good.meta)), separators=(",", ":")).encode()
    )
    data = json.dumps(json.loads(bytes(good.data)), separators=(",", ":")).encode()
    assert frame.data == blob(data, meta)
    assert size == len(data) + len(meta or b"")
    assert frame.tag == (good.tag or "").encode()
    assert frame.node == (good.node or "").encode()
    wanted = (HAS_TAG if good.tag else 0) | (HAS_NODE if good.node else 0) | (HAS_META if meta else 0)
    assert frame.flags == wanted


def test_a_batch_is_checked_once_and_appended_later() -> None:
    records = [NewRecord(bytearray(b"[ 1 ]")), NewRecord(b"2", "t" * 100, "own")]
    batch = RecordBatch(records, "batch")
    assert len(batch) == batch.count == 2
    # The texts stay, whatever becomes of the records and the list.
    records[1].tag = records[1].node = records[1].data = None
    records.clear()
    log, buffer = TopicLog(1), FrameBuffer()
    assert log.append(buffer, 1, 0, batch, 5, 0, None, False) == 4
    first = read_log_frame(buffer, 0)
    second = read_log_frame(buffer, first.size)
    assert (first.node, first.data, second.node, second.tag) == (b"batch", b"[1]", b"own", b"t" * 100)


def test_a_node_of_the_batch_has_the_same_limit() -> None:
    with pytest.raises(InvalidRecord, match="node of the batch has 129 bytes"):
        RecordBatch([], "n" * 129)
    with pytest.raises(InvalidRecord, match="node of the batch cannot be written"):
        RecordBatch([GOOD], "\ud800")


def test_an_empty_batch_changes_nothing() -> None:
    log, buffer = TopicLog(1), FrameBuffer()
    assert log.append(buffer, 1, 0, [], 5, 0, None, False) == 0
    assert (len(buffer), log.next_seq) == (0, 1)
    assert RecordBatch([]).frame_bytes == 0


def test_a_record_whose_attributes_run_code_cannot_break_the_batch() -> None:
    records: list[Any] = []

    class Shrinking(NewRecord):
        @property
        def tag(self) -> None:
            records.clear()

        @tag.setter
        def tag(self, value: Any) -> None:
            pass

    records += [Shrinking(b"1"), NewRecord(b"2")]
    with pytest.raises(InvalidRecord, match="record 1: the list of records changed"):
        RecordBatch(records)
    with pytest.raises(AttributeError):
        RecordBatch([object()])


def test_frames_do_not_grow_a_buffer_that_is_being_looked_at() -> None:
    log, buffer = TopicLog(1), FrameBuffer(10)
    with memoryview(buffer), pytest.raises(BufferError):
        log.append(buffer, 1, 0, [NewRecord(text_of(100_000), "t")], 5, 0, None, False)
    assert (log.next_seq, len(buffer), log.tag_count) == (1, 0, 0)


VALUES = st.sampled_from(
    ["a,b", 'quote " and \\ and {', [1, [2, 3], {"x": 1, "y": 2}], {"a": {"b": [1, 2]}}, {}, 5]
)


@given(st.integers(0, 70), st.lists(VALUES, min_size=1, max_size=5), st.booleans())
def test_keys_of_meta_are_counted_at_the_top_only(count: int, values: list[Any], spread: bool) -> None:
    meta = {f'key,{number}"': values[number % len(values)] for number in range(count)}
    text = json.dumps(meta, indent=2 if spread else None).encode()
    if len(meta) <= MAX_META_KEYS:
        assert RecordBatch([NewRecord(b"1", meta=text)]).count == 1
    else:
        with pytest.raises(InvalidRecord, match=f"meta has {len(meta)} keys"):
            RecordBatch([NewRecord(b"1", meta=text)])


# --- Where the fields of a record lie ---------------------------------------------------------------------


class PlainRecord:
    """Its fields are in a dictionary."""

    def __init__(self, data: Any, tag: Any, node: Any, meta: Any) -> None:
        self.data, self.tag, self.node, self.meta = data, tag, node, meta


class ComputedRecord:
    """Its fields are made when they are asked for."""

    def __init__(self, data: Any, tag: Any, node: Any, meta: Any) -> None:
        self._fields = {"data": data, "tag": tag, "node": node, "meta": meta}

    def __getattr__(self, name: str) -> Any:
        return self._fields[name]


class DerivedRecord(NewRecord):
    """Slots of its base, and a dictionary besides."""


class HalfSlots(PlainRecord):
    """Only some fields are slots."""

    __slots__ = ("meta", "tag")


FIELDS = st.tuples(
    st.sampled_from([b"1", b"[1, 2]", bytearray(b'{"a": 1}'), msgspec.Raw(b'"x"'), '"ä ö"'.encode()]),
    st.none() | st.sampled_from(["", "t", "tag" * 30]),
    st.none() | st.sampled_from(["", "n", "ä"]),
    st.none() | st.sampled_from([b"{}", b'{"k": [1, 2]}', bytearray(b'{"k":1}')]),
)
KINDS: list[Any] = [NewRecord, EngineRecord, PlainRecord, ComputedRecord, DerivedRecord, HalfSlots]


@given(st.lists(st.tuples(st.sampled_from(KINDS), FIELDS), max_size=12), st.none() | st.just("batch"))
def test_records_of_any_class_give_the_same_frames(records: list[tuple[Any, Any]], node: str | None) -> None:
    buffers = FrameBuffer(), FrameBuffer()
    TopicLog(1).append(buffers[0], 1, 0, [kind(*fields) for kind, fields in records], 5, 0, node, False)
    TopicLog(1).append(buffers[1], 1, 0, [PlainRecord(*fields) for _, fields in records], 5, 0, node, False)
    assert buffers[0].tobytes() == buffers[1].tobytes()


def tag_of(record: Any) -> bytes:
    """The tag of the frame that a record becomes."""
    buffer = FrameBuffer()
    TopicLog(1).append(buffer, 1, 0, [record], 5, 0, None, False)
    return read_log_frame(buffer, 0).tag


def test_a_class_that_changes_is_looked_at_again() -> None:
    class Changing(NewRecord):
        __slots__ = ()

    record = Changing(b"1", "slot")
    assert tag_of(record) == b"slot"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Changing, "tag", property(lambda self: "computed"))
        assert tag_of(record) == b"computed"
    assert tag_of(record) == b"slot"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NewRecord, "tag", "of the class")
        assert tag_of(record) == b"of the class"
    assert tag_of(record) == b"slot"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Changing, "__getattribute__", lambda self, name: b"1" if name == "data" else None)
        assert tag_of(record) == b""
    assert tag_of(record) == b"slot"


def test_an_empty_slot_is_a_missing_attribute() -> None:
    record = NewRecord(b"1")
    del record.node
    with pytest.raises(AttributeError, match="node"):
        RecordBatch([NewRecord(b"1"), record])


# --- The quick look at a text -----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 47, 48, 64, 65])
def test_a_byte_that_matters_is_found_at_every_place(size: int) -> None:
    for place in range(size):
        for byte in (0x00, 0x09, 0x0A, 0x1F, 0x20, 0x21, 0x7F, 0x80, 0xC3, 0xFF):
            text = bytearray(b"1" * size)
            text[place] = byte
            in_string = b'"' + text + b'"'
            if byte >= 0x80:
                for bad in (bytes(text), in_string):
                    with pytest.raises(InvalidRecord, match="not valid UTF-8"):
                        RecordBatch([NewRecord(bad)])
                continue
            assert stored(in_string) == in_string, "nothing in a string is touched"
            if size > 1:
                assert stored(bytes(text)) == (text.replace(bytes([byte]), b"") if byte in b"\t\n " else text)


def stored(text: bytes) -> bytes:
    """What becomes of the data of a record."""
    buffer = FrameBuffer()
    TopicLog(1).append(buffer, 1, 0, [NewRecord(text)], 5, 0, None, False)
    return read_log_frame(buffer, 0).data


# --- Runs of entries --------------------------------------------------------------------------------------


BATCH_SIZES = [1, 14, 1, 1, 15, 33, 4031, 1, 4095, 2, 10_000]


@pytest.mark.parametrize("continues", [False, True])
def test_batches_of_any_size_fill_the_blocks_of_the_index(continues: bool) -> None:
    log, seq, offset = TopicLog(7), 0, 1000
    for ts, count in enumerate(BATCH_SIZES, 1):
        buffer = FrameBuffer()
        records = [NewRecord(b"%d" % number, "t" if number % 3 else None) for number in range(count)]
        payload = log.append(buffer, 3, offset, records, ts, 4, None, continues)
        assert payload == sum(len(record.data) for record in records)
        position = 0
        for number in range(count):
            seq += 1
            frame = read_log_frame(buffer, position)
            assert (frame.seq, frame.ts, frame.data, frame.topic_id) == (seq, ts, b"%d" % number, 7)
            assert bool(frame.flags & FLAG_BATCH_CONTINUES) == (continues or number + 1 < count)
            assert log.place(seq) == (3, offset + position, frame.size, True)
            position += frame.size
        assert position == len(buffer)
        offset += position
    assert (log.next_seq, log.live_count, log.last_ts) == (seq + 1, seq, 11)
    assert len(log.find_tag(b"t", False, seq + 1)) == sum(count - (count + 2) // 3 for count in BATCH_SIZES)
