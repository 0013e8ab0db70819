"""A writer and its readers against a list: whatever is done in whatever order, the list is what they see.

The queue is small and the payload sizes are chosen around the end of the segment: records that fill it
exactly, that leave room for one header, that do not fit by one cell, and empty ones in the last header.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from everlog.errors import PayloadTooLarge, Unsupported
from everlog.queue import MessageView, QueueReader, QueueWriter
from tests.support.effort import effort
from tests.support.queues import open_reader, open_writer, read_all, sealed, stored_records
from tests.support.ring_twin import record_size

NAMES = ("alpha", "beta", "gamma")
names = st.sampled_from(NAMES)
counts = st.integers(0, 12)


class Entry(NamedTuple):
    """A message, and where it must lie."""

    seq: int
    timestamp_ns: int
    type_id: int
    payload: bytes
    segment_id: int
    offset: int


class ReaderModel:
    """A reader by its index in the list: what it reads next, and what it would resume at."""

    def __init__(self, reader: QueueReader) -> None:
        self.reader = reader
        self.next = 0
        self.committed = 0


def entry_of(view: MessageView) -> Entry:
    """Everything a view says."""
    return Entry(view.seq, view.timestamp_ns, view.type_id, bytes(view), view.segment_id, view.offset)


class QueueMachine(RuleBasedStateMachine):
    """The operations; every check is against `entries`."""

    @initialize(
        segment_size=st.sampled_from([128, 192, 256, 320, 512, 1024, 4096]),
        index_stride=st.integers(1, 4),
        index_flush_records=st.one_of(st.none(), st.integers(1, 5)),
    )
    def create(self, segment_size: int, index_stride: int, index_flush_records: int | None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="everlog-model-"))
        self.size = segment_size
        self.settings: dict[str, Any] = {
            "segment_size": segment_size,
            "index_stride": index_stride,
            "index_flush_records": index_flush_records,
            "retention": False,
        }
        self.entries: list[Entry] = []
        self.time_ns = 1000
        self.place = (0, 64)
        self.readers: dict[str, ReaderModel] = {}
        self.forgotten: dict[str, int] = {}
        self.writer: QueueWriter = open_writer(self.path, **self.settings)

    def teardown(self) -> None:
        if hasattr(self, "writer"):
            self.writer.close()
            for model in self.readers.values():
                model.reader.close()
            assert [message.seq for message in read_all(self.path)] == [entry.seq for entry in self.entries]
            self.check_segments()
            shutil.rmtree(self.path)

    def check_segments(self) -> None:
        """Every segment but the last is sealed and ends in a record or in padding at the very end."""
        last = self.entries[-1].segment_id if self.entries else 0
        for segment_id in range(last):
            assert sealed(self.path, segment_id)
            final = stored_records(self.path, segment_id)[-1]
            assert final.offset + record_size(final.header.commit_len - 1) > self.size - 64

    # -- the writer ----------------------------------------------------------------------------

    def expect(self, type_id: int, payload: bytes, timestamp_ns: int) -> None:
        """Note a message that was appended, and where it must have gone."""
        segment_id, offset = self.place
        if offset + record_size(len(payload)) > self.size:
            segment_id, offset = segment_id + 1, 64
        self.place = segment_id, offset + record_size(len(payload))
        self.entries.append(Entry(len(self.entries), timestamp_ns, type_id, payload, segment_id, offset))

    def draw_payload(self, data: st.DataObject) -> bytes:
        """A payload that reaches some interesting place."""
        room = self.size - self.place[1] - 64
        largest = self.size - 128
        kind = data.draw(
            st.sampled_from(["exact", "header left", "one cell over", "empty", "small", "largest", "any"])
        )
        length = {
            "exact": room - data.draw(st.integers(0, 63)),
            "header left": room - 64 - data.draw(st.integers(0, 63)),
            "one cell over": room + data.draw(st.integers(1, 64)),
            "empty": 0,
            "small": data.draw(st.integers(0, 70)),
            "largest": largest,
            "any": data.draw(st.integers(0, largest)),
        }[kind]
        return np.random.default_rng(len(self.entries)).bytes(max(0, min(length, largest)))

    def tick(self, step_ns: int) -> int:
        self.time_ns += step_ns
        return self.time_ns

    @rule(data=st.data(), step_ns=st.integers(0, 3), type_id=st.integers(0, 0xFFFE))
    def append(self, data: st.DataObject, step_ns: int, type_id: int) -> None:
        payload = self.draw_payload(data)
        stamp = self.tick(step_ns)
        assert self.writer.append(type_id, payload, stamp) == len(self.entries)
        self.expect(type_id, payload, stamp)

    @rule(data=st.data(), count=counts, step_ns=st.integers(0, 3))
    def append_many(self, data: st.DataObject, count: int, step_ns: int) -> None:
        stamp = self.tick(step_ns)
        first = len(self.entries)
        items = []
        for _ in range(count):
            items.append(self.draw_payload(data))
            self.expect(7, items[-1], stamp)
        assert self.writer.append_many(7, items, stamp) == first

    @rule(count=counts, size=st.integers(0, 200), data=st.data())
    def append_array(self, count: int, size: int, data: st.DataObject) -> None:
        size = min(size, self.size - 128)
        first = len(self.entries)
        raw = np.random.default_rng(first).bytes(max(1, count * size))
        items = [raw[place * size : (place + 1) * size] for place in range(count)]
        array = np.frombuffer(b"".join(items), f"V{size}") if size else np.zeros(count, "V0")
        stamps = [self.tick(data.draw(st.integers(0, 2))) for _ in items]
        assert self.writer.append_array(8, array, np.array(stamps, np.uint64)) == first
        for item, stamp in zip(items, stamps, strict=True):
            self.expect(8, item, stamp)

    @rule(data=st.data(), fails=st.booleans())
    def append_in_place(self, data: st.DataObject, fails: bool) -> None:
        payload = self.draw_payload(data)
        stamp = self.tick(1)

        def build(view: memoryview) -> None:
            view[:] = payload
            if fails:
                view[:] = b"\xff" * len(view)
                raise LookupError("builder")

        if fails:
            with pytest.raises(LookupError):
                self.writer.append_in_place(9, len(payload), build, stamp)
            if self.place[1] + record_size(len(payload)) > self.size:
                self.place = self.place[0] + 1, 64  # the roll has happened, the record has not
        else:
            assert self.writer.append_in_place(9, len(payload), build, stamp) == len(self.entries)
            self.expect(9, payload, stamp)

    @rule(extra=st.integers(1, 100))
    def append_too_large(self, extra: int) -> None:
        with pytest.raises(PayloadTooLarge):
            self.writer.append(1, bytes(self.size - 128 + extra))

    @rule(sync=st.booleans())
    def flush(self, sync: bool) -> None:
        (self.writer.flush_sync if sync else self.writer.flush_async)()

    @rule()
    def reopen_writer(self) -> None:
        epoch = self.writer.epoch
        self.writer.close()
        self.writer = open_writer(self.path, **self.settings)
        assert self.writer.epoch == epoch + 1
        here = self.writer.segment_id, self.writer.offset
        # A full segment is left at once, and so is one in which a failed builder left its bytes.
        assert here in (self.place, (self.place[0] + 1, 64))
        self.place = here

    @invariant()
    def the_writer_stands_where_the_model_says(self) -> None:
        if hasattr(self, "writer"):
            assert self.writer.next_seq == len(self.entries)
            assert (self.writer.segment_id, self.writer.offset) == self.place

    # -- the readers -----------------------------------------------------------------------------

    @rule(
        name=names,
        start=st.sampled_from(["resume-strict", "resume-snapshot", "resume-latest", "latest", "earliest"]),
    )
    def open_reader(self, name: str, start: str) -> None:
        if name in self.readers:
            self.readers.pop(name).reader.close()
        model = ReaderModel(open_reader(self.path, name, start))
        saved = self.forgotten.get(name)
        model.next = {"latest": len(self.entries), "earliest": 0}.get(start, saved or 0)
        model.committed = model.next if saved is None else saved
        self.forgotten[name] = model.committed
        self.readers[name] = model

    def pick(self, data: st.DataObject) -> ReaderModel:
        return self.readers[data.draw(st.sampled_from(sorted(self.readers)))]

    def check(self, model: ReaderModel, seen: list[Entry], limit: int) -> None:
        """What was read is what comes next in the list, all of it up to the limit."""
        assert seen == self.entries[model.next : model.next + limit]
        model.next += len(seen)

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), count=counts)
    def read_one_by_one(self, data: st.DataObject, count: int) -> None:
        model = self.pick(data)
        views = [model.reader.next() for _ in range(count)]
        self.check(model, [entry_of(view) for view in views if view is not None], count)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def iterate(self, data: st.DataObject) -> None:
        model = self.pick(data)
        self.check(model, [entry_of(view) for view in model.reader], len(self.entries))

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), count=counts)
    def drain(self, data: st.DataObject, count: int) -> None:
        model = self.pick(data)
        drained = model.reader.drain(count)
        expected = self.entries[model.next : model.next + count]
        assert [tuple(message) for message in drained] == [entry[:4] for entry in expected]
        model.next += len(drained)

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), count=st.integers(1, 12))
    def read_batch(self, data: st.DataObject, count: int) -> None:
        model = self.pick(data)
        batch = model.reader.read_batch(count)
        assert (len(batch) > 0) == (model.next < len(self.entries))
        seen = [entry_of(view) for view in batch]
        assert batch.seq.tolist() == [entry.seq for entry in seen]
        assert batch.timestamp_ns.tolist() == [entry.timestamp_ns for entry in seen]
        assert batch.length.tolist() == [len(entry.payload) for entry in seen]
        self.check(model, seen, len(seen))

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), count=counts, stop=st.integers(0, 12))
    def for_each(self, data: st.DataObject, count: int, stop: int) -> None:
        model = self.pick(data)
        seen: list[Entry] = []

        def handle(view: MessageView) -> bool:
            seen.append(entry_of(view))
            return len(seen) <= stop

        handled = model.reader.for_each_available(count, handle)
        assert handled == min(stop, len(seen))
        self.check(model, seen, min(count, stop + 1))

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def wait(self, data: st.DataObject) -> None:
        model = self.pick(data)
        assert model.reader.wait(0) is (model.next < len(self.entries))

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), by_time=st.booleans())
    def seek(self, data: st.DataObject, by_time: bool) -> None:
        model = self.pick(data)
        if by_time:
            target = data.draw(st.integers(995, self.time_ns + 5))
            found = [place for place, entry in enumerate(self.entries) if entry.timestamp_ns >= target]
            outcome = model.reader.seek_timestamp(target)
        else:
            target = data.draw(st.integers(0, len(self.entries) + 3))
            found = list(range(target, len(self.entries)))
            outcome = model.reader.seek_seq(target)
        assert outcome is bool(found)
        model.next = found[0] if found else len(self.entries)

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), durable=st.booleans())
    def commit(self, data: st.DataObject, durable: bool) -> None:
        model = self.pick(data)
        model.reader.commit(durable=durable)
        assert model.reader.committed_position == model.reader.position
        model.committed = model.next
        self.forgotten[model.reader.name or ""] = model.committed

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        self.pick(data).reader.heartbeat()

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def skip_nothing(self, data: st.DataObject) -> None:
        reader = self.pick(data).reader
        before = reader.position
        with pytest.raises(Unsupported, match="no damaged record"):
            reader.skip_corrupt()
        assert reader.position == before


QueueMachine.TestCase.settings = settings(max_examples=effort(45), stateful_step_count=40)
TestQueueAgainstAList = QueueMachine.TestCase
