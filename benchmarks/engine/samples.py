"""The records that are appended, and the check that they come back. Owns no measuring.

Every payload is exactly 64 bytes of compact JSON and carries a number. A ring of batches is made
before the clock starts, so that making records is not measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, islice

import msgspec

from everlog.topics import Diff, Engine, NewRecord

PAYLOAD_BYTES = 64
# Few enough to stay in the processor's cache, as records do that a server has just decoded.
RING_RECORDS = 5000

Batch = list[NewRecord]


class WrongRecord(Exception):
    """The engine gave back something else than what was appended."""


def payload(number: int) -> bytes:
    """A JSON object of exactly 64 bytes that carries `number`."""
    head = b'{"number":%d,"text":"' % number
    return head + b"x" * (PAYLOAD_BYTES - len(head) - 2) + b'"}'


def expected_number(seq: int) -> int:
    """What number the record `seq` of a topic that was filled from `batches` carries."""
    return (seq - 1) % RING_RECORDS


def batches(size: int) -> Iterator[Batch]:
    """Endless batches of `size` records without tags, out of a ring that is made now.

    The ring must be a whole number of batches.
    """
    if RING_RECORDS % size:
        raise ValueError(f"{RING_RECORDS} records are not a whole number of batches of {size}")
    ring = [NewRecord(payload(number)) for number in range(RING_RECORDS)]
    return cycle([ring[start : start + size] for start in range(0, RING_RECORDS, size)])


def tagged_batches(size: int, tags: int) -> Iterator[Batch]:
    """Endless batches whose records carry `tags` different tags in turn; 0 means a new one each."""
    if tags:
        ring = [NewRecord(payload(number % RING_RECORDS), tag_name(number)) for number in range(tags)]
        doubled = ring * (2 + size // tags)
        start = 0
        while True:
            yield doubled[start : start + size]
            start = (start + size) % tags
    number = 0
    while True:
        numbers = range(number, number + size)
        yield [NewRecord(payload(number % RING_RECORDS), tag_name(number)) for number in numbers]
        number += size


def tag_name(number: int) -> str:
    """The tag that stands for a number."""
    return f"tag-{number:08d}"


def fill(engine: Engine, topic: str, source: Iterator[Batch], count: int) -> None:
    """Append `count` records (rounded up to whole batches) and wait until all are kept."""
    appended = 0
    answer = None
    for batch in source:
        answer = engine.append(topic, batch)
        engine.write()
        engine.poll()
        appended += len(batch)
        if appended >= count:
            break
    if answer is not None:
        engine.wait_for(answer.commit)


def check_diff(diff: Diff, first_seq: int) -> None:
    """Decode a response and compare every record with what `batches` put there."""
    records = msgspec.json.decode(diff.records)
    for seq, record in zip(range(first_seq, first_seq + diff.delivered), records, strict=True):
        if record["$seq"] != seq or record["data"]["number"] != expected_number(seq):
            raise WrongRecord(f"record {seq} came back as {record}")


def read_all(engine: Engine, topic: str, count: int, limit: int) -> int:
    """Read a topic from the first to the last record; return how many calls that took."""
    seq = calls = 0
    while seq < count:
        diff = engine.diff(topic, seq, limit)
        if not diff.delivered:
            raise WrongRecord(f"nothing behind seq {seq} of {count}")
        seq = diff.next_from_seq
        calls += 1
    return calls


def check_ends(engine: Engine, topic: str, count: int) -> None:
    """Compare the first and the last records of a topic that was filled from `batches`."""
    state = engine.state(topic)
    if (state.count, state.head_seq) != (count, count):
        raise WrongRecord(f"{state.count} records up to seq {state.head_seq}; {count} were appended")
    for first_seq in (1, max(1, count - 99)):
        check_diff(engine.diff(topic, first_seq - 1, 100), first_seq)


def take(source: Iterator[Batch], count: int) -> list[Batch]:
    """The next `count` batches, made now."""
    return list(islice(source, count))
