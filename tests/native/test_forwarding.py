"""Copying records between logs against plain Python: which ones are chosen, and every byte of a copy."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.native.topics.log import (
    Copied,
    FrameBuffer,
    LogReplay,
    Sources,
    TopicLog,
    copy_records,
    find_frames,
    meta_of,
    move_records,
    next_live,
    select_records,
)
from tests.native.topic_log_twin import APPEND, CONTINUES, HAS_META, TwinRecord, log_frame

SOURCE, DEST = 7, 8
U64_MAX = 2**64 - 1
CONTROL = 14

twins = st.lists(
    st.builds(
        TwinRecord,
        st.just(0),
        st.integers(1, 9),
        st.sampled_from((b"1", b'{"n":1}', b'"' + b"x" * 300 + b'"')),
        st.sampled_from((b"", b"a", b"ab", b"b", b"*")),
        st.sampled_from((b"", b"n1")),
        st.sampled_from((None, b"{}", b'{"m":2}')),
        st.booleans(),
    ),
    max_size=30,
).map(lambda records: [replace(record, seq=seq, ts=seq) for seq, record in enumerate(records, 1)])


def filled(records: list[TwinRecord], sources: Sources, topic_id: int = SOURCE) -> TopicLog:
    """A log with these records, whose frames lie in a source of their own."""
    log = TopicLog(topic_id)
    frames = b"".join(record.log_frame(topic_id, 0) for record in records)
    LogReplay(frames, 0, sources.add(frames), {topic_id: log}).run()
    log.kill(np.array([record.seq for record in records if not record.live], np.uint64))
    return log


def is_chosen(record: TwinRecord, tag: bytes | None, prefix: bool) -> bool:
    if tag is None or not record.live:
        return record.live
    return bool(record.tag) and (record.tag.startswith(tag) if prefix else record.tag == tag)


def runs_of(seqs: list[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for seq in seqs:
        if runs and sum(runs[-1]) == seq:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((seq, 1))
    return runs


@given(
    twins,
    st.integers(1, 32),
    st.integers(1, 32),
    st.sampled_from((None, b"a", b"", b"*")),
    st.booleans(),
    st.sampled_from((0, 1, 3, 100)),
    st.sampled_from((0, 10, 400, U64_MAX)),
)
def test_the_chosen_records_are_those_of_a_plain_loop(
    records: list[TwinRecord],
    first_seq: int,
    end_seq: int,
    tag: bytes | None,
    prefix: bool,
    max_count: int,
    max_bytes: int,
) -> None:
    sources = Sources()
    log = filled(records, sources)
    chosen: list[TwinRecord] = []
    stop = max(first_seq, end_seq)
    for record in records:
        if first_seq <= record.seq < end_seq and is_chosen(record, tag, prefix):
            size = sum(each.payload for each in chosen) + record.payload
            if len(chosen) == max_count or size > max_bytes:
                stop = record.seq
                break
            chosen.append(record)
    found = select_records(sources, log, first_seq, end_seq, tag, prefix, max_count, max_bytes)
    assert found.runs == runs_of([record.seq for record in chosen])
    assert (found.records, found.payload) == (len(chosen), sum(record.payload for record in chosen))
    assert (found.next_seq, found.missing_source, found.corrupt_seq) == (stop, 0, 0)
    assert found.frame_bytes >= sum(len(record.log_frame(DEST, 0)) for record in chosen)


@given(twins, st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_copies_are_the_frames_that_plain_python_writes(
    records: list[TwinRecord], keep_node: bool, keep_tag: bool, with_meta: bool, continues: bool
) -> None:
    sources = Sources()
    log, dest = filled(records, sources), TopicLog(DEST, 100)
    metas = [b'{"copy":%d}' % record.seq for record in records] if with_meta else None
    out, flags = FrameBuffer(), CONTINUES if continues else 0
    runs = [(1, len(records))] if records else []
    copied = copy_records(sources, log, runs, dest, out, 5, 0, 777, flags, keep_node, keep_tag, metas)
    expected = [
        replace(
            record,
            seq=100 + place,
            ts=777,
            node=record.node if keep_node else b"",
            tag=record.tag if keep_tag else b"",
            meta=record.meta if metas is None else metas[place],
        )
        for place, record in enumerate(records)
    ]
    frames = [record.log_frame(DEST, flags if record is not expected[-1] else 0) for record in expected]
    assert out.tobytes() == b"".join(frames)
    assert copied == Copied(len(records), sum(record.payload for record in expected), 0, 0)
    assert (dest.next_seq, dest.live_count) == (100 + len(records), len(records))
    tagged = [record.seq for record in expected if record.tag == b"a"]
    assert dest.find_tag(b"a", False, U64_MAX >> 1).tolist() == tagged
    offsets = [sum(map(len, frames[:place])) for place in range(len(frames))]
    assert [dest.place(record.seq)[:2] for record in expected] == [(5, offset) for offset in offsets]


def test_copying_stops_at_a_source_that_is_not_loaded_and_at_a_hole() -> None:
    sources = Sources()
    log = filled([TwinRecord(seq, seq, b"1", b"", b"", None) for seq in (1, 2)], sources)
    log.push_holes(1, 9)
    dest, out = TopicLog(DEST), FrameBuffer()
    copied = copy_records(sources, log, [(1, 3)], dest, out, 1, 0, 5, 0, True, True, None)
    assert (copied.records, copied.corrupt_seq) == (2, 3)
    sources.set(1, None)
    copied = copy_records(sources, log, [(2, 1)], dest, out, 1, 0, 5, 0, True, True, None)
    assert (copied.records, copied.missing_source) == (0, 1)
    assert select_records(sources, log, 1, 3, None, False, 9, 9).missing_source == 1
    assert select_records(sources, log, 1, 3, b"", True, 9, 9).next_seq == 3, "none of them has a tag"
    with pytest.raises(ValueError, match="offset"):
        copy_records(sources, log, [(1, 1)], dest, out, 1, 1 << 33, 5, 0, True, True, None)


@given(twins)
def test_moved_records_are_read_as_before(records: list[TwinRecord]) -> None:
    sources = Sources()
    log, dest = filled(records, sources, DEST), TopicLog(DEST)
    seq = 1
    while (live := next_live(log, seq)) < log.next_seq:
        dest.push_holes(live - seq, 1)
        seq = move_records(sources, log, live, log.next_seq, dest)
    wanted = [record for record in records if record.live]
    found = dest.render(sources, 0, len(records), 1000, 0, (), True, True, True)
    assert json.loads(found.json) == [record.rendered() for record in wanted]
    tagged = [record.seq for record in wanted if record.tag.startswith(b"a")]
    assert dest.find_tag(b"a", True, 1000).tolist() == tagged
    with pytest.raises(ValueError, match="cannot follow"):
        move_records(sources, log, dest.next_seq + 1, dest.next_seq + 2, dest)


@given(twins)
def test_metas_are_the_texts_that_were_stored(records: list[TwinRecord]) -> None:
    sources = Sources()
    log = filled(records, sources)
    assert [meta_of(sources, log, record.seq) for record in records] == [record.meta for record in records]
    assert meta_of(sources, log, len(records) + 1) is None


@given(st.lists(st.tuples(st.sampled_from((APPEND, CONTROL, 6)), st.integers(1, 9), st.binary(max_size=9))))
def test_frames_of_one_type_are_found_up_to_where_the_file_ends(
    frames: list[tuple[int, int, bytes]],
) -> None:
    texts = [
        log_frame(kind, HAS_META if kind == APPEND else 0, topic, 1, 2, data=bytes(4) + data)
        for kind, topic, data in frames
    ]
    file = b"".join(texts) + bytes(64)
    wanted = [(topic, bytes(4) + data) for kind, topic, data in frames if kind == CONTROL]
    assert find_frames(file, 0, CONTROL) == wanted
    assert find_frames(file[:-64] + texts[0][:20] if texts else b"", 0, CONTROL) == wanted
