"""The model of a topic: histories of a plain log are accepted, planted violations are rejected and named."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.histories.checker import NotLinearizable, Operation
from tests.histories.history import History, Part, Totals
from tests.histories.log_model import (
    CLEAN,
    KILLED,
    POWER,
    Append,
    Crash,
    Delete,
    Drop,
    Put,
    Read,
    Record,
    Records,
    Remove,
    digest,
)

TOPIC = Part("t")
CLIENTS = ("a", "b", "c", "d")


def data(number: int) -> int:
    """The digest of a record."""
    return digest(str(number).encode())


class PlainTopic:
    """A topic as a list, driven one operation at a time; each takes effect somewhere within its interval."""

    def __init__(self, seed: int, durability: str = "fsync") -> None:
        self.rng = random.Random(seed)
        self.durability = durability
        self.records: list[Record] = []
        self.pasts: list[list[Record]] = [[]]  # since the last start: what a power cut may bring back
        self.head = 0
        self.sent = 0
        self.time = 0
        self.keys: dict[str, int] = {}
        self.free_at = dict.fromkeys(CLIENTS, 0)  # when each client has got its last answer
        self.operations: list[Operation] = []
        self.do(Put(durability))

    def do(self, action: Any, *, is_answered: bool = True) -> None:
        """Record an operation whose moment is now; it began before and is answered after."""
        self.time += 10
        client = self.rng.choice(CLIENTS)
        call = max(self.free_at[client] + 1, self.time - self.rng.randrange(40))
        self.time = max(self.time, call)
        end = self.time + self.rng.randrange(40)
        self.free_at[client] = end
        number = len(self.operations)
        lapse = None if is_answered else end
        self.operations.append(Operation(number, client, call, end if is_answered else None, action, lapse))

    def append(self) -> None:
        """One batch; sometimes with a key that was used before, sometimes without an answer."""
        key = self.rng.choice((None, "k1", "k2"))
        if key in self.keys:
            self.do(Append((data(-1),), self.keys[key], key, is_deduped=True))
            return
        numbers = range(self.sent, self.sent + self.rng.randint(1, 3))
        self.sent = numbers.stop
        tags = tuple(self.rng.choice((None, "x", "x:1")) for _ in numbers)
        append = Append(tuple(map(data, numbers)), self.head + 1, key, tags=tags)
        outcome = self.rng.random()
        if outcome < 0.9:
            self.pasts.append(list(self.records))
            self.records += append.batch(self.head + 1)
            self.head += len(numbers)
            if key is not None:
                self.keys[key] = append.first_seq or 0
        if outcome < 0.8:
            self.do(append)
        else:
            self.do(replace(append, first_seq=None), is_answered=False)

    def read(self) -> None:
        """From anywhere, all that follows or a part of it."""
        from_seq = self.rng.choice((0, self.rng.randint(0, self.head)))
        above = [record for record in self.records if record.seq > from_seq]
        limit = self.rng.choice((2, 100))
        next_seq = above[limit - 1].seq if len(above) >= limit else self.head
        first = self.records[0].seq if self.records else self.head + 1
        self.do(Read(from_seq, Records(tuple(above[:limit])), next_seq, self.head, first))

    def delete(self) -> None:
        """A prefix, or what has a tag."""
        delete = self.rng.choice(
            (
                Delete(self.rng.randint(0, self.head + 1)),
                Delete(None, ("Eq", "x")),
                Delete(None, ("Glob", "x*")),
            )
        )
        gone = [record for record in self.records if delete.hits(record, self.head + 1)]
        self.pasts.append(list(self.records))
        self.records = [record for record in self.records if record not in gone]
        self.do(replace(delete, deleted=len(gone), head_seq=self.head))

    def crash(self) -> None:
        """All clients have stopped; what a class does not promise is gone."""
        self.time = max([self.time, *self.free_at.values()]) + 1
        how = self.rng.choice((KILLED, POWER, CLEAN))
        if self.durability == "ephemeral":
            self.records, self.head, self.keys = [], 0, {}
        elif how == POWER and self.durability == "disk":
            self.records = list(self.rng.choice([*self.pasts, self.records]))
            self.head += self.rng.choice((0, 7, 256))
            self.keys = {}
        elif how == POWER and self.durability == "memory":
            self.records = [record for record in self.records if self.rng.random() < 0.5]
            self.head = self.records[-1].seq if self.records else 0
            self.keys = {}
        elif self.durability == "memory":
            self.keys = {}
        self.do(Crash(how, Records(tuple(self.records)), self.head, 1, self.durability))
        self.free_at = dict.fromkeys(CLIENTS, max(self.free_at.values()))
        self.pasts = []

    def history(self) -> History:
        """What was recorded."""
        history = History()
        for each in self.operations:
            history.adopt(TOPIC, each)
        return history


def ran(seed: int, durability: str, steps: int = 40) -> PlainTopic:
    """A topic after some operations and a last read of everything."""
    topic = PlainTopic(seed, durability)
    for _ in range(steps):
        topic.rng.choices((topic.append, topic.read, topic.delete, topic.crash), (10, 8, 2, 1))[0]()
    topic.read()
    return topic


@given(st.integers(0, 2**32), st.sampled_from(("ephemeral", "memory", "disk", "fsync")))
def test_a_history_of_a_plain_log_is_accepted(seed: int, durability: str) -> None:
    topic = ran(seed, durability)
    assert topic.history().check().operations == len(topic.operations)


def verdict(*actions: Any) -> Totals:
    """Check operations that follow each other; those marked with a star in `actions` have no answer."""
    history = History()
    for number, action in enumerate(actions, 1):
        is_open = isinstance(action, Append | Delete) and getattr(action, "first_seq", 1) is None
        end = None if is_open else 10 * number + 5
        history.adopt(TOPIC, Operation(number, f"client {number}", 10 * number, end, action))
    return history.check()


def batch(*numbers: int, first: int | None = None, **fields: Any) -> Append:
    """An append of these numbers that was answered with `first`."""
    return Append(tuple(map(data, numbers)), first, **fields)


def seen(*pairs: tuple[int, int], head: int | None = None, from_seq: int = 0, **fields: Any) -> Read:
    """A read that found these numbers at these seqs."""
    records = Records(tuple(Record(seq, data(number)) for seq, number in pairs))
    last = pairs[-1][0] if pairs else 0
    head = last if head is None else head
    first = pairs[0][0] if pairs and from_seq == 0 else 1
    return Read(from_seq, records, head, head, **{"earliest_seq": first, **fields})


def crashed(durability: str, *pairs: tuple[int, int], head: int, how: str = KILLED) -> Crash:
    """A start that found these numbers at these seqs."""
    records = Records(tuple(Record(seq, data(number)) for seq, number in pairs))
    return Crash(how, records, head, 1, durability)


VIOLATIONS: dict[str, tuple[str, list[Any]]] = {
    "stale read": (
        "the head is 2, not 1",
        [batch(7, first=1), batch(8, first=2), seen((1, 7))],
    ),
    "lost append": (
        "the records up to 2 are 1..2",
        [batch(7, first=1), batch(8, first=2), seen((2, 8), head=2, earliest_seq=1)],
    ),
    "lost first append": (
        "records [1] are gone, and nothing deleted them",
        [batch(7, first=1), batch(8, first=2), seen((2, 8), head=2)],
    ),
    "another record at the seq": (
        "or have other hashes",
        [batch(7, first=1), batch(8, first=2), seen((1, 8), (2, 7))],
    ),
    "reordered appends": (
        "nothing explains the seqs from 1 to 1",
        [batch(7, first=2), batch(8, first=1)],
    ),
    "invented record": (
        "nothing explains the seqs from 2 to 2",
        [batch(7, first=1), seen((1, 7), (2, 9))],
    ),
    "seq given out again": (
        "seq 1 is given out again",
        [batch(7, first=1), batch(8, first=1)],
    ),
    "seq given out again after a kill": (
        "seq 2 is given out again",
        [batch(7, 8, first=1), crashed("disk", (1, 7), (2, 8), head=2), batch(9, first=2)],
    ),
    "keyed append applied twice": (
        "key 'k' stands for 1",
        [batch(7, first=1, key="k"), batch(7, first=2, key="k")],
    ),
    "keyed append applied twice by one retrying call": (
        "nothing explains the seqs from 2 to 2",
        [batch(7, first=1, key="k", attempts=3), seen((1, 7), (2, 7))],
    ),
    "key answered for a batch that was never sent": (
        "key 'k' was never used",
        [batch(7, first=1, key="k", is_deduped=True)],
    ),
    "fsync append lost by a power cut": (
        "missing [2]",
        [Put("fsync"), batch(7, first=1), batch(8, first=2), crashed("fsync", (1, 7), head=2, how=POWER)],
    ),
    "disk append lost by a kill": (
        "missing [2]",
        [batch(7, first=1), batch(8, first=2), crashed("disk", (1, 7), head=2)],
    ),
    "disk topic with a hole after a power cut": (
        "missing [1]",
        [batch(7, first=1), batch(8, first=2), crashed("disk", (2, 8), head=2, how=POWER)],
    ),
    "head of a disk topic fallen": (
        "the head is 1, not 2 to 258",
        [batch(7, first=1), batch(8, first=2), crashed("disk", (1, 7), head=1, how=POWER)],
    ),
    "class changed back by a power cut": (
        "the class is disk, was fsync",
        [batch(7, first=1), Put("fsync"), crashed("disk", (1, 7), head=1, how=POWER)],
    ),
    "lost although the class was raised before": (
        "missing [1]",
        [batch(7, first=1), Put("fsync"), crashed("fsync", head=1, how=POWER)],
    ),
    "ephemeral record that came back": (
        "an ephemeral topic has records",
        [Put("ephemeral"), batch(7, first=1), crashed("ephemeral", (1, 7), head=1)],
    ),
    "memory record that was never sent": (
        "records [1] were never sent",
        [Put("memory"), batch(7, first=1), crashed("memory", (1, 9), head=1, how=POWER)],
    ),
    "deleted record that came back": (
        "the first record is 2, not 1",
        [batch(7, 8, first=1), Delete(2, deleted=1, head_seq=2), seen((1, 7), (2, 8))],
    ),
    "deleted record that came back after a kill": (
        "unexpected [1]",
        [batch(7, 8, first=1), Delete(2, deleted=1), crashed("disk", (1, 7), (2, 8), head=2)],
    ),
    "wrong number of deleted records": (
        "1 records are to be deleted, not 0",
        [batch(7, 8, first=1), Delete(2, deleted=0)],
    ),
    "silent gap": (
        "nothing tells the reader that everything below 2 was evicted",
        [Put("disk", may_evict=True), batch(7, 8, first=1), seen((2, 8), head=2)],
    ),
    "gap announced over a record that is there": (
        "the reader was told that they are lost",
        [batch(7, 8, first=1), seen((2, 8), head=2, gap=(1, 1), earliest_seq=1)],
    ),
    "acknowledged job that came back": (
        "the first record is 2, not 1",
        [batch(7, 8, first=1), Remove((1,)), seen((1, 7), (2, 8))],
    ),
    "topic that came back": (
        "there is no topic",
        [batch(7, first=1), Drop(), seen((1, 7))],
    ),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_planted_violation_is_rejected_and_named(name: str) -> None:
    reason, actions = VIOLATIONS[name]
    with pytest.raises(NotLinearizable) as caught:
        verdict(*actions)
    assert reason in str(caught.value)
    assert "topic t: no order of the operations explains the answer to\n  [" in str(caught.value)


ALLOWED: dict[str, list[Any]] = {
    "an append without an answer that is there": [batch(7), seen((1, 7))],
    "an append without an answer that is not there": [Put("disk"), batch(7), seen(head=0), batch(8, first=1)],
    "a hole that an append without an answer has left": [batch(7), batch(8, first=2), seen((2, 8))],
    "a disk topic that lost its end with the power": [
        batch(7, first=1),
        batch(8, first=2),
        crashed("disk", (1, 7), head=258, how=POWER),
        batch(9, first=259),
    ],
    "a memory topic that lost everything with the power": [
        Put("memory"),
        batch(7, first=1),
        crashed("memory", head=0, how=POWER),
        batch(8, first=1),
    ],
    "an ephemeral topic after a kill": [
        Put("ephemeral"),
        batch(7, first=1),
        crashed("ephemeral", head=0),
        batch(8, first=1),
    ],
    "an evicted record and a reader that is told": [
        Put("disk", may_evict=True),
        batch(7, 8, first=1),
        seen((2, 8), head=2, gap=(1, 1)),
    ],
    "a key whose window is over": [
        batch(7, first=1, key="k", at_ms=0),
        batch(7, first=2, key="k", at_ms=120_001),
    ],
    "a keyed append whose first attempt was answered to the second": [
        batch(7, first=1, key="k", is_deduped=True, attempts=2)
    ],
    "a topic that was made anew": [batch(7, first=1), Drop(), batch(8, first=1), seen((1, 8))],
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_is_allowed_is_accepted(name: str) -> None:
    assert verdict(*ALLOWED[name]).operations == len(ALLOWED[name])


@given(st.integers(0, 2**32), st.sampled_from(("disk", "fsync")), st.data())
def test_a_read_with_any_other_record_is_rejected(seed: int, durability: str, draw: st.DataObject) -> None:
    topic = ran(seed, durability)
    reads = [
        at for at, each in enumerate(topic.operations) if getattr(each.action, "from_seq", None) is not None
    ]
    reads = [at for at in reads if topic.operations[at].action.records.items]
    if not reads:
        return
    at = draw.draw(st.sampled_from(reads))
    read = topic.operations[at].action
    items = list(read.records.items)
    place = draw.draw(st.integers(0, len(items) - 1))
    items[place] = items[place]._replace(digest=data(10**9))
    topic.operations[at] = replace(topic.operations[at], action=replace(read, records=Records(tuple(items))))
    with pytest.raises(NotLinearizable):
        topic.history().check()


@given(st.integers(0, 2**32), st.data())
def test_an_acknowledged_append_that_is_left_out_everywhere_is_missed(seed: int, draw: st.DataObject) -> None:
    topic = PlainTopic(seed)
    for _ in range(25):
        topic.rng.choices((topic.append, topic.read), (3, 2))[0]()
    topic.read()
    appends = [
        each
        for each in topic.operations
        if isinstance(each.action, Append) and each.end is not None and not each.action.is_deduped
    ]
    if not appends:
        return
    lost = draw.draw(st.sampled_from(appends)).action
    gone = {record.seq for record in lost.batch(lost.first_seq)}
    for at, each in enumerate(topic.operations):
        if isinstance(each.action, Read):
            kept = each.action.records.without(gone)
            topic.operations[at] = replace(each, action=replace(each.action, records=kept))
    if not any(
        isinstance(o.action, Read) and o.action.from_seq < min(gone) <= o.action.next_from_seq
        for o in topic.operations
    ):
        return
    with pytest.raises(NotLinearizable):
        topic.history().check()
