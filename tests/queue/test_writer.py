"""Spec 2.1 and 2.2: what an append writes, where it goes, when it rolls and what it refuses."""

import array
import gc
import struct
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.clock import NS_PER_S, AnchoredClock, TestClock
from everlog.errors import Closed, InvalidTimestamp, InvalidTypeId, Io, PayloadTooLarge, Unsupported
from everlog.fault_fs import FaultFs
from everlog.queue import QueueWriter
from everlog.queue.layout import CTRL_NOTIFY_SEQ, CTRL_WRITE_OFFSET, CTRL_WRITER_HEARTBEAT_NS
from tests.support import ring_twin
from tests.support.effort import effort
from tests.support.files import UnsyncedFs
from tests.support.processes import eventually
from tests.support.queues import (
    SMALL,
    control_u32,
    control_u64,
    open_reader,
    open_writer,
    payloads,
    read_all,
    sealed,
    segment_file,
    segment_ids,
    stored_records,
)


def head(writer: QueueWriter) -> tuple[int, int, int]:
    """Where the writer stands."""
    return writer.segment_id, writer.offset, writer.next_seq


# -- seq, type and payload -------------------------------------------------------------------


def test_seq_starts_at_0_and_rises_by_one(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q") as writer:
        assert writer.next_seq == 0
        assert [writer.append(1, b"x") for _ in range(20)] == list(range(20))
    assert [message.seq for message in read_all(tmp_path / "q")] == list(range(20))


def test_seq_continues_across_restarts(tmp_path: Path) -> None:
    for start in range(0, 30, 3):
        with open_writer(tmp_path / "q") as writer:
            assert writer.next_seq == start
            assert writer.append_many(1, [b"a", b"b", b"c"]) == start
    assert [message.seq for message in read_all(tmp_path / "q")] == list(range(30))


@pytest.mark.parametrize(
    "payload",
    [
        b"bytes",
        bytearray(b"bytes"),
        memoryview(b"bytes"),
        array.array("B", b"bytes"),
        np.frombuffer(b"bytes", np.uint8),
    ],
)
def test_any_contiguous_buffer_is_a_payload(tmp_path: Path, payload: Any) -> None:
    with open_writer(tmp_path / "q") as writer:
        writer.append(1, payload)
        writer.append_many(1, [payload, payload])
    assert payloads(tmp_path / "q") == [b"bytes"] * 3


def test_the_bytes_of_a_record_are_those_of_the_specification(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q") as writer:
        writer.append(0x1002, b"hello", 1_234_567)
    data = segment_file(tmp_path / "q", 0).read_bytes()
    assert data[:64] == struct.pack("<IIII48x", 0x53454730, 2, 0, 0)
    checksum = zlib.crc32(struct.pack("<IB3xQQHHI32x", 0, 2, 0, 1_234_567, 0x1002, 0, 0) + b"hello")
    assert data[64:128] == struct.pack("<IB3xQQHHI32x", 6, 2, 0, 1_234_567, 0x1002, 0, checksum)
    assert data[128:] == b"hello" + bytes(SMALL - 133)


@pytest.mark.parametrize("type_id", [0, 1, 0x1000, 0xFFFE, np.uint16(7)])
def test_every_type_below_0xffff_is_allowed(tmp_path: Path, type_id: int) -> None:
    with open_writer(tmp_path / "q") as writer:
        writer.append(type_id, b"")
    assert [message.type_id for message in read_all(tmp_path / "q")] == [int(type_id)]


@pytest.mark.parametrize("type_id", [0xFFFF, 0x10000, -1, 2**70, 1.5, "1", None])
def test_any_other_type_is_refused_by_every_append(tmp_path: Path, type_id: Any) -> None:
    with open_writer(tmp_path / "q") as writer:
        appends: list[Callable[[], object]] = [
            lambda: writer.append(type_id, b"x"),
            lambda: writer.append_many(type_id, [b"x"]),
            lambda: writer.append_array(type_id, np.zeros(1)),
            lambda: writer.append_in_place(type_id, 1, lambda view: None),
        ]
        for append in appends:
            with pytest.raises(InvalidTypeId, match="0xFFFE"):
                append()
        assert head(writer) == (0, 64, 0)


@pytest.mark.parametrize("payload", ["text", None, 5, ["list"]])
def test_what_is_no_buffer_is_refused(tmp_path: Path, payload: Any) -> None:
    with open_writer(tmp_path / "q") as writer:
        with pytest.raises(TypeError, match="bytes-like object is required"):
            writer.append(1, payload)
        assert head(writer) == (0, 64, 0)
        assert writer.append(1, b"next") == 0


# -- timestamps ------------------------------------------------------------------------------


@pytest.mark.parametrize("timestamp_ns", [0, 1, 2**63, 2**64 - 1, np.uint64(77)])
def test_the_callers_timestamp_is_stored_as_it_is(tmp_path: Path, timestamp_ns: int) -> None:
    with open_writer(tmp_path / "q") as writer:
        writer.append(1, b"", timestamp_ns)
        writer.append_many(1, [b"", b""], timestamp_ns)
        writer.append_in_place(1, 0, lambda view: None, timestamp_ns)
        writer.append_array(1, np.zeros(2), int(timestamp_ns))
    assert {message.timestamp_ns for message in read_all(tmp_path / "q")} == {int(timestamp_ns)}


@pytest.mark.parametrize("timestamp_ns", [-1, 2**64, 1.5, "now"])
def test_a_timestamp_that_is_no_u64_is_refused_by_every_append(tmp_path: Path, timestamp_ns: Any) -> None:
    with open_writer(tmp_path / "q") as writer:
        appends: list[Callable[[], object]] = [
            lambda: writer.append(1, b"x", timestamp_ns),
            lambda: writer.append_many(1, [b"x"], timestamp_ns),
            lambda: writer.append_array(1, np.zeros(1), timestamp_ns),
            lambda: writer.append_in_place(1, 1, lambda view: None, timestamp_ns),
        ]
        for append in appends:
            with pytest.raises(InvalidTimestamp, match="2\\*\\*64-1"):
                append()
        assert head(writer) == (0, 64, 0)


def test_without_a_timestamp_the_wall_clock_is_read(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q") as writer:
        before_ns = time.time_ns()
        writer.append(1, b"")
        writer.append_many(1, [b""])
        writer.append_array(1, np.zeros(1))
        writer.append_in_place(1, 0, lambda view: None)
        after_ns = time.time_ns()
    stamps = [message.timestamp_ns for message in read_all(tmp_path / "q")]
    assert before_ns <= min(stamps) <= max(stamps) <= after_ns
    assert stamps == sorted(stamps)


def test_a_test_clock_is_read_for_every_append(tmp_path: Path) -> None:
    clock = TestClock(wall_ns=1000)
    with open_writer(tmp_path / "q", clock=clock) as writer:
        writer.append(1, b"")
        clock.advance_ns(5)
        writer.append_many(1, [b"", b""])
        clock.advance_ns(5)
        writer.append_array(1, np.zeros(1))
        clock.advance_ns(5)
        writer.append_in_place(1, 0, lambda view: clock.advance_ns(100))
    assert [message.timestamp_ns for message in read_all(tmp_path / "q")] == [1000, 1005, 1005, 1010, 1015]


@pytest.mark.parametrize("how", ["setting", "clock"])
def test_an_anchored_clock_runs_with_the_monotonic_clock(tmp_path: Path, how: str) -> None:
    options: dict[str, Any] = {"clock_mode": "anchored"} if how == "setting" else {"clock": AnchoredClock()}
    with open_writer(tmp_path / "q", **options) as writer:
        offset_ns = time.time_ns() - time.monotonic_ns()
        before_ns = time.monotonic_ns()
        writer.append(1, b"")
        after_ns = time.monotonic_ns()
    (message,) = read_all(tmp_path / "q")
    slack_ns = 50_000_000  # the two clocks drift apart and are not read at one instant
    assert before_ns + offset_ns - slack_ns <= message.timestamp_ns <= after_ns + offset_ns + slack_ns


def test_an_array_may_bring_one_timestamp_per_element(tmp_path: Path) -> None:
    stamps = np.array([9, 3, 2**64 - 1, 3], dtype=np.uint64)
    with open_writer(tmp_path / "q") as writer:
        writer.append_array(1, np.zeros(4), stamps)
        writer.append_array(1, np.zeros(4), stamps[::-1])
    seen = [message.timestamp_ns for message in read_all(tmp_path / "q")]
    assert seen == [*stamps.tolist(), *stamps[::-1].tolist()]


@pytest.mark.parametrize(
    "stamps",
    [
        np.zeros(3, np.uint64),
        np.zeros(2, np.int64),
        np.zeros(2, np.float64),
        np.zeros(2, np.uint32),
        np.zeros(2, ">u8"),
        np.zeros((2, 1), np.uint64),
        [1, 2],
        memoryview(np.zeros(2, np.float64)),
    ],
)
def test_timestamps_of_another_length_or_kind_are_refused(tmp_path: Path, stamps: Any) -> None:
    with open_writer(tmp_path / "q") as writer:
        with pytest.raises((InvalidTimestamp, Unsupported)):
            writer.append_array(1, np.zeros(2), stamps)
        assert head(writer) == (0, 64, 0)


# -- sizes and segment ends --------------------------------------------------------------------


def test_the_largest_payload_is_the_segment_size_less_128(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q") as writer:
        writer.append(1, bytes(SMALL - 128))
        assert head(writer) == (0, SMALL, 1)
        writer.append(1, bytes(SMALL - 128))
        assert head(writer) == (1, SMALL, 2)
    assert [len(payload) for payload in payloads(tmp_path / "q")] == [SMALL - 128] * 2


@pytest.mark.parametrize("length", [SMALL - 127, SMALL, 10 * SMALL])
def test_a_larger_payload_is_refused_without_side_effect_or_roll(tmp_path: Path, length: int) -> None:
    with open_writer(tmp_path / "q") as writer:
        writer.append(1, b"x")
        before, notified = head(writer), control_u32(tmp_path / "q", CTRL_NOTIFY_SEQ)
        appends: list[Callable[[], object]] = [
            lambda: writer.append(1, bytes(length)),
            lambda: writer.append(1, bytearray(length)),
            lambda: writer.append_many(1, [b"small", bytes(length)]),
            lambda: writer.append_array(1, np.zeros(2, f"V{length}")),
            lambda: writer.append_in_place(1, length, lambda view: pytest.fail("the builder must not run")),
        ]
        for append in appends:
            with pytest.raises(PayloadTooLarge, match=f"{length} bytes.*{SMALL - 128} bytes"):
                append()
        assert head(writer) == before
        assert control_u32(tmp_path / "q", CTRL_NOTIFY_SEQ) == notified
        assert writer.metrics.rolls == 0
    assert payloads(tmp_path / "q") == [b"x"]


@pytest.mark.parametrize("length", [2**32 - 1, 2**32, 2**63, 2**64 - 1])
def test_a_length_beyond_32_bits_is_refused(tmp_path: Path, length: int) -> None:
    with open_writer(tmp_path / "q") as writer:
        with pytest.raises(PayloadTooLarge):
            writer.append_in_place(1, length, lambda view: pytest.fail("the builder must not run"))
        assert head(writer) == (0, 64, 0)


def test_the_smallest_segment_holds_one_empty_payload(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", segment_size=128) as writer:
        for seq in range(10):
            assert writer.append(seq, b"") == seq
            assert (writer.segment_id, writer.offset) == (seq, 128)
        with pytest.raises(PayloadTooLarge):
            writer.append(1, b"x")
    assert [(m.seq, m.type_id, m.payload) for m in read_all(tmp_path / "q")] == [
        (i, i, b"") for i in range(10)
    ]


def test_a_segment_that_is_exactly_full_gets_no_padding(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", retention=False) as writer:
        writer.append(1, bytes(SMALL - 128))
        writer.append(1, b"next")
    (record,) = stored_records(tmp_path / "q", 0)
    assert record.header.commit_len == SMALL - 127
    assert sealed(tmp_path / "q", 0)


def test_the_smallest_padding_is_a_bare_header(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", retention=False) as writer:
        writer.append(1, bytes(SMALL - 192))
        assert writer.offset == SMALL - 64
        writer.append(1, b"next")
        assert head(writer) == (1, 192, 2)
    data = segment_file(tmp_path / "q", 0).read_bytes()
    assert data[-64:] == struct.pack("<IB3xQQHHI32x", 1, 2, 0, 0, 0xFFFF, 0, 0)
    assert sealed(tmp_path / "q", 0)


def test_an_empty_payload_takes_the_last_header(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", retention=False) as writer:
        writer.append(1, bytes(SMALL - 192))
        writer.append(1, b"")
        assert head(writer) == (0, SMALL, 2)
        writer.append(1, b"next")
    assert [record.header.type_id for record in stored_records(tmp_path / "q", 0)] == [1, 1]
    assert [message.seq for message in read_all(tmp_path / "q")] == [0, 1, 2]


def test_a_roll_pads_to_the_end_seals_and_publishes_the_next_segment(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", retention=False) as writer:
        writer.append(1, b"first")
        writer.append(1, bytes(SMALL - 128))
        assert (control_u32(tmp_path / "q", 132), control_u64(tmp_path / "q", CTRL_WRITE_OFFSET)) == (
            1,
            SMALL,
        )
        assert control_u32(tmp_path / "q", 128) % 2 == 0
    data = segment_file(tmp_path / "q", 0).read_bytes()
    padding = SMALL - 192
    assert data[192:256] == struct.pack("<IB3xQQHHI32x", padding - 63, 2, 0, 0, 0xFFFF, 0, 0)
    assert data[256:] == bytes(padding - 64)
    assert sealed(tmp_path / "q", 0)
    assert not sealed(tmp_path / "q", 1)


# -- in place ----------------------------------------------------------------------------------


def test_a_builder_fills_the_payload_in_the_mapping(tmp_path: Path) -> None:
    def build(view: memoryview) -> None:
        assert (len(view), view.readonly) == (5, False)
        view[:] = b"built"

    with open_writer(tmp_path / "q") as writer:
        assert writer.append_in_place(7, 5, build, 99) == 0
    (record,) = stored_records(tmp_path / "q", 0)
    assert record.payload == b"built"
    assert record.header[:6] == (6, 2, 0, 99, 7, 0)
    assert ring_twin.sound(segment_file(tmp_path / "q", 0).read_bytes(), record.offset)


def test_a_failing_builder_publishes_nothing(tmp_path: Path) -> None:
    def fail(view: memoryview) -> None:
        view[:] = b"\xff" * len(view)
        raise LookupError("builder")

    with open_writer(tmp_path / "q") as writer:
        writer.append(1, b"before")
        before = head(writer)
        words = (tmp_path / "q/control.meta").read_bytes()
        for length in (0, 1, 64, 500):
            with pytest.raises(LookupError, match="builder"):
                writer.append_in_place(1, length, fail)
        assert head(writer) == before
        assert (tmp_path / "q/control.meta").read_bytes()[:384] == words[:384]
        assert payloads(tmp_path / "q") == [b"before"]
        assert writer.append(1, b"after") == 1
    assert payloads(tmp_path / "q") == [b"before", b"after"]


@pytest.mark.parametrize("after", [b"", b"x", bytes(100)])
def test_bytes_of_an_aborted_builder_are_never_read_as_a_record(tmp_path: Path, after: bytes) -> None:
    """The builder leaves whole records, checksum and all, where the next headers will be."""
    forged = bytearray(SMALL)
    for offset in range(64, SMALL, 64):
        ring_twin.append(forged, offset, 99, 0, 1, b"")

    def forge(view: memoryview) -> None:
        view[:] = forged[64 : 64 + len(view)]
        raise LookupError("builder")

    with open_writer(tmp_path / "q") as writer:
        with pytest.raises(LookupError):
            writer.append_in_place(1, SMALL - 128, forge)
        writer.append(1, after)
        assert payloads(tmp_path / "q") == [after]
    with open_writer(tmp_path / "q") as writer:
        writer.append(1, b"end")
    assert payloads(tmp_path / "q") == [after, b"end"]


@pytest.mark.parametrize(
    "keep", [lambda view: view[1:], memoryview, lambda view: np.frombuffer(view, np.uint8)]
)
def test_a_builder_that_keeps_a_view_publishes_nothing(
    tmp_path: Path, keep: Callable[[memoryview], Any]
) -> None:
    kept: list[Any] = []
    with open_writer(tmp_path / "q") as writer:
        with pytest.raises(Unsupported, match="kept a view"):
            writer.append_in_place(1, 8, lambda view: kept.append(keep(view)))
        assert head(writer) == (0, 64, 0)
        with pytest.raises(Unsupported, match="let go"):
            writer.append(1, b"where the kept view still reaches")
        assert head(writer) == (0, 64, 0)
        kept.clear()
        assert writer.append_in_place(1, 8, lambda view: None) == 0
        assert writer.append(1, b"next") == 1


def test_the_view_of_a_builder_is_dead_afterwards(tmp_path: Path) -> None:
    kept: list[memoryview] = []
    with open_writer(tmp_path / "q") as writer:
        writer.append_in_place(1, 8, kept.append)
    with pytest.raises(ValueError, match="released"):
        kept[0][0] = 1


def test_a_builder_may_start_the_next_segment(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q") as writer:
        writer.append(1, bytes(800))
        writer.append_in_place(1, 200, lambda view: view.__setitem__(slice(None), b"y" * 200))
        assert (writer.segment_id, writer.offset) == (1, 64 + 320)
    assert payloads(tmp_path / "q") == [bytes(800), b"y" * 200]


# -- many --------------------------------------------------------------------------------------


def test_many_payloads_get_consecutive_seqs_and_one_notification(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q") as writer:
        before = control_u32(tmp_path / "q", CTRL_NOTIFY_SEQ)
        assert writer.append_many(3, (bytes([n]) for n in range(5))) == 0
        assert control_u32(tmp_path / "q", CTRL_NOTIFY_SEQ) == before + 1
        assert writer.append_many(3, []) == 5
        assert control_u32(tmp_path / "q", CTRL_NOTIFY_SEQ) == before + 1
    assert [(m.seq, m.type_id, m.payload) for m in read_all(tmp_path / "q")] == [
        (n, 3, bytes([n])) for n in range(5)
    ]


@pytest.mark.parametrize("bad", [bytes(SMALL), "text", None, memoryview(b"abcd")[::2]])
def test_one_bad_payload_among_many_publishes_none(tmp_path: Path, bad: Any) -> None:
    with open_writer(tmp_path / "q") as writer:
        with pytest.raises((PayloadTooLarge, TypeError, BufferError)):
            writer.append_many(1, [b"good", bad, b"good"])
        assert head(writer) == (0, 64, 0)
    assert payloads(tmp_path / "q") == []


def test_a_source_of_payloads_that_fails_publishes_none(tmp_path: Path) -> None:
    def source() -> Any:
        yield b"one"
        raise LookupError("source")

    with open_writer(tmp_path / "q") as writer:
        with pytest.raises(LookupError, match="source"):
            writer.append_many(1, source())
        assert head(writer) == (0, 64, 0)


@settings(max_examples=effort(40))
@given(sizes=st.lists(st.integers(0, 300), max_size=30))
def test_many_is_the_same_as_one_by_one(tmp_path_factory: pytest.TempPathFactory, sizes: list[int]) -> None:
    path = tmp_path_factory.mktemp("many")
    items = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
    with open_writer(path / "a", retention=False) as one, open_writer(path / "b", retention=False) as many:
        for item in items:
            one.append(1, item, 5)
        many.append_many(1, items, 5)
        assert head(one) == head(many)
        for segment_id in range(one.segment_id + 1):
            assert (
                segment_file(path / "a", segment_id).read_bytes()
                == segment_file(path / "b", segment_id).read_bytes()
            )


# -- arrays ------------------------------------------------------------------------------------

QUOTE = np.dtype([("price", "<f8"), ("size", "<u4"), ("side", "u1")])


def quotes(count: int) -> np.ndarray[Any, Any]:
    """A structured array with distinct elements."""
    result = np.zeros(count, QUOTE)
    result["price"] = np.arange(count) / 4
    result["size"] = np.arange(count)
    result["side"] = np.arange(count) % 2
    return result


def test_each_element_of_a_structured_array_becomes_a_message(tmp_path: Path) -> None:
    elements = quotes(100)
    with open_writer(tmp_path / "q") as writer:
        writer.append(1, b"first")
        assert writer.append_array(4, elements) == 1
        assert writer.next_seq == 101
    messages = read_all(tmp_path / "q")[1:]
    assert [message.payload for message in messages] == [element.tobytes() for element in elements]
    assert [message.seq for message in messages] == list(range(1, 101))


@pytest.mark.parametrize(
    "part",
    [slice(None), slice(None, None, -1), slice(1, None, 3), slice(5, 5), slice(-1, None)],
)
def test_a_strided_array_is_appended_in_its_own_order(tmp_path: Path, part: slice) -> None:
    elements = quotes(50)[part]
    with open_writer(tmp_path / "q") as writer:
        assert writer.append_array(4, elements) == 0
    assert payloads(tmp_path / "q") == [element.tobytes() for element in elements]


def test_a_field_and_a_repeated_element_can_be_appended(tmp_path: Path) -> None:
    elements = quotes(5)
    with open_writer(tmp_path / "q") as writer:
        writer.append_array(1, elements["price"])
        writer.append_array(1, np.broadcast_to(np.uint16(7), 3))
    expected = [price.tobytes() for price in elements["price"]] + [b"\x07\0"] * 3
    assert payloads(tmp_path / "q") == expected


def test_an_array_larger_than_a_stretch_without_the_gil_is_appended_whole(tmp_path: Path) -> None:
    numbers = np.arange(10_000, dtype="<u8")
    with open_writer(tmp_path / "q", segment_size=2**20) as writer:
        writer.append_array(1, numbers)
    assert b"".join(payloads(tmp_path / "q")) == numbers.tobytes()


@pytest.mark.parametrize("bad", [np.zeros((2, 2)), np.float64(1), np.zeros(()), 5, "text"])
def test_what_is_not_one_dimensional_is_refused(tmp_path: Path, bad: Any) -> None:
    with open_writer(tmp_path / "q") as writer:
        with pytest.raises((Unsupported, TypeError)):
            writer.append_array(1, bad)
        assert head(writer) == (0, 64, 0)


@pytest.mark.parametrize(
    "bad", [np.array([object(), "x"], dtype=object), np.zeros(2, [("a", "<u4"), ("b", object)])]
)
def test_an_array_of_objects_is_refused(tmp_path: Path, bad: Any) -> None:
    """Its elements are addresses in this process and mean nothing in another."""
    with open_writer(tmp_path / "q") as writer:
        with pytest.raises((Unsupported, TypeError)):
            writer.append_array(1, bad)
        assert head(writer) == (0, 64, 0)


# -- heartbeat, counters, the end ---------------------------------------------------------------


def test_open_append_and_heartbeat_give_a_sign_of_life(tmp_path: Path) -> None:
    clock = TestClock(wall_ns=50)
    with open_writer(tmp_path / "q", clock=clock) as writer:
        signs: list[Callable[[], object]] = [
            lambda: None,
            lambda: writer.append(1, b"x"),
            lambda: writer.append(1, b"x", 7),
            lambda: writer.append_many(1, [b"x"]),
            lambda: writer.append_array(1, np.zeros(1)),
            lambda: writer.append_in_place(1, 1, lambda view: None),
            writer.heartbeat,
        ]
        for sign in signs:
            sign()
            assert control_u64(tmp_path / "q", CTRL_WRITER_HEARTBEAT_NS) == clock.wall_ns()
            clock.advance_ns(3)


@pytest.mark.parametrize("retention", [True, False])
def test_an_idle_writer_gives_a_sign_of_life_every_second(tmp_path: Path, retention: bool) -> None:
    clock = TestClock()
    with open_writer(tmp_path / "q", clock=clock, retention=retention):
        for _ in range(3):
            clock.advance_ns(NS_PER_S)
            eventually(
                "a heartbeat",
                lambda: control_u64(tmp_path / "q", CTRL_WRITER_HEARTBEAT_NS) == clock.wall_ns(),
            )


def test_bytes_written_counts_whole_records_and_no_padding(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q") as writer:
        writer.append(1, b"x")
        assert (writer.metrics.bytes_written, writer.metrics.rolls) == (128, 0)
        writer.append(1, bytes(SMALL - 128))
        assert (writer.metrics.bytes_written, writer.metrics.rolls) == (128 + SMALL - 64, 1)
        writer.append(1, b"")
        assert (writer.metrics.bytes_written, writer.metrics.rolls) == (128 + SMALL, 2)
    with open_writer(tmp_path / "q") as writer:
        assert (writer.metrics.bytes_written, writer.metrics.rolls) == (0, 0)


def syncs_of(fs: FaultFs, name: str) -> int:
    """How often a file was to be synced."""
    return sum(call.name == "fsync" and call.path.endswith(name) for call in fs.log)


@pytest.mark.parametrize("deferred", [False, True])
def test_a_sync_that_fails_after_a_roll_is_counted_and_flush_sync_never_pretends(
    tmp_path: Path, deferred: bool
) -> None:
    """The kernel does not say what is missing on disk, so only a new writer, which looks, may flush again."""
    fs = FaultFs(tmp_path, inner=UnsyncedFs())
    with open_writer(tmp_path / "q", fs=fs, retention=False, defer_seal_sync=deferred) as writer:
        writer.append(1, bytes(800))
        fs.fail_when("fsync", 5, path="000000000.q")
        writer.append(1, bytes(800))
        eventually("the failed sync", lambda: writer.metrics.seal_errors == 1)
        assert writer.metrics.rolls == 1
        for _ in range(3):
            with pytest.raises(Io, match=r"cannot flush .* to disk: Input/output error"):
                writer.flush_sync()
        writer.append(1, b"appending goes on")
    with open_writer(tmp_path / "q", fs=fs, retention=False) as writer:
        writer.flush_sync()
        assert writer.metrics.seal_errors == 0
    assert payloads(tmp_path / "q") == [bytes(800), bytes(800), b"appending goes on"]


@pytest.mark.parametrize("deferred", [False, True])
def test_a_segment_that_was_left_is_synced_once(tmp_path: Path, deferred: bool) -> None:
    fs = FaultFs(tmp_path, inner=UnsyncedFs())
    with open_writer(tmp_path / "q", fs=fs, retention=False, defer_seal_sync=deferred) as writer:
        writer.append(1, bytes(800))
        before = syncs_of(fs, "000000000.q")
        writer.append(1, bytes(800))
        if not deferred:
            assert syncs_of(fs, "000000000.q") == before + 1, "before the append returns"
        eventually("the sync", lambda: syncs_of(fs, "000000000.q") == before + 1)
        writer.flush_sync()
    assert syncs_of(fs, "000000000.q") == before + 1


def test_a_closed_writer_refuses_everything_and_closes_again(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "q")
    writer.append(1, b"x")
    writer.close()
    writer.close()
    uses: list[Callable[[], object]] = [
        lambda: writer.append(1, b"x"),
        lambda: writer.append_many(1, [b"x"]),
        lambda: writer.append_array(1, np.zeros(1)),
        lambda: writer.append_in_place(1, 1, lambda view: None),
        writer.flush_sync,
        writer.flush_async,
        writer.heartbeat,
    ]
    for use in uses:
        with pytest.raises(Closed, match="closed"):
            use()
    assert (writer.next_seq, writer.segment_id) == (1, 0)


def test_closing_ends_the_writer_even_if_the_block_fails(tmp_path: Path) -> None:
    with pytest.raises(LookupError), open_writer(tmp_path / "q") as writer:
        writer.append(1, b"kept")
        raise LookupError
    with open_writer(tmp_path / "q") as writer:
        assert writer.next_seq == 1
    assert payloads(tmp_path / "q") == [b"kept"]


def test_a_forgotten_writer_says_so_and_frees_the_queue(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "q")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del writer
        gc.collect()
    assert [str(warning.message) for warning in caught] == [f"writer of {tmp_path / 'q'} was not closed"]
    open_writer(tmp_path / "q").close()


def test_the_properties_tell_where_the_writer_stands(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q") as writer:
        assert writer.path == str(tmp_path / "q")
        assert (writer.segment_size, writer.epoch, writer.config.index_stride) == (SMALL, 1, 4096)
        writer.append(1, b"x")
        assert head(writer) == (0, 192, 1)
    with open_writer(tmp_path / "q") as writer:
        assert writer.epoch == 2
        assert head(writer) == (0, 192, 1)
        assert segment_ids(tmp_path / "q")[0] == 0
        with open_reader(tmp_path / "q") as reader:
            assert reader.writer_epoch == 2
