"""The native job module against plain Python: which seqs come next, and the JSON of a job to the byte."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from everlog.native.topics.log import (
    CORRUPT,
    DELETED,
    DONE,
    FULL,
    MISSING,
    FrameBuffer,
    Sources,
    TopicLog,
    live_seqs,
    render_jobs,
)
from tests.native.topic_log_twin import NewRecord, TwinRecord, compact

TOPIC = 11
U64 = st.integers(0, 2**64 - 1)
texts = st.text(max_size=12)


def job_twin(record: TwinRecord, lease_id: int, deadline: int, deliveries: int) -> bytes:
    """A job as a worker gets it."""
    fields: list[tuple[str, Any]] = [
        ("$seq", record.seq),
        ("lease_id", f"lease_{lease_id:x}"),
        ("deadline", deadline),
        ("$ts", record.ts),
    ]
    if record.tag:
        fields.append(("$tag", record.tag.decode()))
    fields += [("deliveries", deliveries), ("data", json.loads(record.data))]
    if record.meta is not None:
        fields.append(("meta", json.loads(record.meta)))
    return json.dumps(dict(fields), separators=(",", ":"), ensure_ascii=False).encode()


def a_log(records: list[NewRecord], sources: Sources) -> tuple[TopicLog, int]:
    """A log of these records, in one source."""
    log, buffer = TopicLog(TOPIC), FrameBuffer()
    source = sources.add(None)
    log.append(buffer, source, 0, records, 5000, 0, None, False)
    sources.set(source, buffer.tobytes())
    return log, source


@given(
    st.lists(
        st.tuples(st.integers(-5, 5) | texts, texts, st.none() | st.dictionaries(texts, texts, max_size=2))
    ),
    U64,
    U64,
    U64,
)
def test_a_job_is_rendered_as_the_twin_says(
    drafts: list[tuple[object, str, dict[str, str] | None]], lease_id: int, deadline: int, deliveries: int
) -> None:
    lease_id = min(lease_id, 2**64 - 1 - len(drafts))
    records = [
        NewRecord(
            json.dumps(value, ensure_ascii=False).encode(),
            tag or None,
            "node",
            None if meta is None else json.dumps(meta, ensure_ascii=False).encode(),
        )
        for value, tag, meta in drafts
    ]
    if not records:
        return
    sources = Sources()
    log, _ = a_log(records, sources)
    seqs = list(range(1, len(records) + 1))
    jobs, outcome, _ = render_jobs(
        log, sources, seqs, [deliveries] * len(seqs), 0, lease_id, deadline, 1 << 40
    )
    assert outcome == DONE
    for place, (record, job) in enumerate(zip(records, jobs, strict=True)):
        meta = None if record.meta is None else compact(record.meta)
        twin = TwinRecord(place + 1, 5000, compact(record.data), (record.tag or "").encode(), b"node", meta)
        expected = json.loads(job_twin(twin, lease_id + place, deadline, deliveries))
        assert json.loads(job) == expected
        assert list(json.loads(job)) == list(expected)
        assert b"\n" not in job


def test_the_text_is_exact() -> None:
    sources = Sources()
    log, _ = a_log([NewRecord(b'{"a": 1.50}', "t", "n", b'{"m": 1}'), NewRecord(b"null")], sources)
    jobs, _, _ = render_jobs(log, sources, [1, 2], [3, 1], 0, 0xAB, 77, 1000)
    assert jobs == [
        b'{"$seq":1,"lease_id":"lease_ab","deadline":77,"$ts":5000,"$tag":"t","deliveries":3,"data":{"a":1.50},'
        b'"meta":{"m":1}}',
        b'{"$seq":2,"lease_id":"lease_ac","deadline":77,"$ts":5000,"deliveries":1,"data":null}',
    ]


def test_rendering_stops_where_it_cannot_go_on_and_says_why() -> None:
    sources = Sources()
    log, source = a_log([NewRecord(b"%d" % number) for number in range(5)], sources)
    seqs, counts = [1, 2, 3, 4, 5], [1] * 5

    def outcome(start: int = 0, max_bytes: int = 1 << 20) -> tuple[int, int, int]:
        jobs, why, missing = render_jobs(log, sources, seqs, counts, start, 1, 1, max_bytes)
        return len(jobs), why, missing

    assert outcome() == (5, DONE, 0)
    assert outcome(4) == (1, DONE, 0)
    assert outcome(max_bytes=200) == (2, FULL, 0)
    assert outcome(max_bytes=1) == (1, FULL, 0)
    log.kill(np.array([3], np.uint64))
    assert outcome() == (2, DELETED, 0)
    assert outcome(3) == (2, DONE, 0)
    sources.set(source, None)
    assert outcome() == (0, MISSING, source)
    sources.set(source, b"\x01" * 1000)
    assert outcome() == (0, CORRUPT, 0)


@given(st.sets(st.integers(1, 60)), st.integers(0, 70), st.integers(0, 70), st.integers(0, 30))
def test_the_next_live_seqs_are_those_of_a_list(dead: set[int], first: int, last: int, limit: int) -> None:
    sources = Sources()
    log, _ = a_log([NewRecord(b"1") for _ in range(60)], sources)
    log.kill(np.array(sorted(dead), np.uint64))
    live = [seq for seq in range(1, 61) if seq not in dead and first <= seq <= last]
    assert live_seqs(log, first, last, limit) == live[:limit]
