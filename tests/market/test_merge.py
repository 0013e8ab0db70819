"""Messages of many queues in the order of time, against a plain sorted()."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.errors import InvalidConfig
from everlog.market import merge as merging
from everlog.market.merge import TimeOrder, merge
from everlog.market.protocol import TRADE, BookEventType, BookFlags, MessageFlags, TypeId
from everlog.market.replay import Replay
from everlog.queue import Queue
from tests.support.book_twins import l2_record
from tests.support.effort import effort

PLAIN, MARKED = 1, 1 | int(BookFlags.MARKS_EVENT_ENDS)


class Sent(NamedTuple):
    """A message as it is written; `header_flags` None is a trade."""

    receive_ns: int
    exchange_ns: int
    header_flags: int | None
    is_last: bool

    def payload(self, number: int) -> bytes:
        if self.header_flags is None:
            trade = np.zeros(1, TRADE)
            trade["timestamp_ns"], trade["trade_id"] = self.exchange_ns, number
            return trade.tobytes()
        times = (self.receive_ns, self.exchange_ns)
        levels = [(number + 1, 1)] * (number % 3)
        return l2_record(BookEventType.DIFF, levels, [], flags=self.header_flags, times_ns=times)

    def is_end(self) -> bool:
        return self.header_flags != MARKED or self.is_last


TIMES = st.integers(0, 12) | st.just(2**64 - 1)
SENT = st.builds(Sent, TIMES, TIMES, st.sampled_from([PLAIN, MARKED, MARKED, None]), st.booleans())


def write(path: Path, messages: list[Sent]) -> Replay:
    with Queue.open_publisher(path, segment_size=1 << 12) as writer:
        for number, one in enumerate(messages):
            kind = TypeId.TRADE if one.header_flags is None else TypeId.BOOK_EVENT
            flags = MessageFlags.LAST_OF_EVENT if one.is_last else 0
            payload = np.frombuffer(one.payload(number), np.uint8)
            ends, stamps = np.array([len(payload)], np.uint64), np.array([one.receive_ns], np.uint64)
            writer.append_packed(kind, payload, ends, stamps, np.array([flags], np.uint16))
    return Replay(str(path))


def in_order(queues: list[list[Sent]], by: str) -> list[tuple[int, int]]:
    """The sources and numbers of all messages, by a plain sort."""
    keyed = []
    for source, messages in enumerate(queues):
        latest, event = 0, []
        for number, one in enumerate(messages):
            exchange = one.exchange_ns or one.receive_ns
            latest = max(latest, exchange if by == TimeOrder.EXCHANGE else one.receive_ns)
            event.append(number)
            if one.is_end() or number == len(messages) - 1:
                keyed += [(latest, source, member) for member in event]
                event = []
    return [(source, number) for _, source, number in sorted(keyed)]


@pytest.mark.parametrize("by", list(TimeOrder))
@given(
    queues=st.lists(st.lists(SENT, max_size=30), max_size=5),
    batch=st.sampled_from([1, 3, 8, 1000]),
    at_once=st.sampled_from([2, 1 << 18]),
)
@settings(max_examples=effort(60), deadline=None)
def test_messages_come_in_the_order_of_a_plain_sort_with_their_bytes(
    by: str, queues: list[list[Sent]], batch: int, at_once: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(merging, "ROUND_MESSAGES_MAX", at_once)
        replays = [write(Path(folder) / str(place), messages) for place, messages in enumerate(queues)]
        found = []
        for one in merge(replays, by, batch):
            numbers = zip(one.source.tolist(), one.seq.tolist(), strict=True)
            for at, ((source, seq), payload) in enumerate(zip(numbers, one.packed, strict=True)):
                sent = queues[source][seq]
                assert bytes(payload) == sent.payload(seq)
                assert one.timestamp_ns[at] == sent.receive_ns
                assert bool(one.flags[at] & MessageFlags.LAST_OF_EVENT) == sent.is_last
                found.append((source, seq))
    assert found == in_order(queues, by)


def test_an_event_that_never_ends_is_cut_and_holds_nothing_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "EVENT_MESSAGES_MAX", 8)
    endless = [Sent(number, 0, MARKED, False) for number in range(40)]
    replays = [write(tmp_path / "a", endless), write(tmp_path / "b", [Sent(20, 0, PLAIN, False)])]
    sources = [source for one in merge(replays, batch_messages=4) for source in one.source.tolist()]
    assert len(sources) == 41 and 16 <= sources.index(1) <= 24


def test_filters_of_a_source_hold_and_a_queue_may_be_there_twice(tmp_path: Path) -> None:
    replay = write(tmp_path / "q", [Sent(number, 0, PLAIN, False) for number in range(10)])
    early, all_of_it = replay.between(2, 5), replay
    found = [(s, q) for one in merge([early, all_of_it]) for s, q in zip(one.source, one.seq, strict=True)]
    wanted = [(0, 2), (0, 3), (0, 4), *((1, number) for number in range(10))]
    assert found == sorted(wanted, key=lambda row: (row[1], row[0]))


@pytest.mark.parametrize(("by", "batch"), [("arrival", 1), ("receive", 0)])
def test_an_order_or_a_size_that_is_none_is_refused(by: str, batch: int) -> None:
    with pytest.raises(InvalidConfig):
        list(merge([], by, batch))
