"""Replay of a log file: whole batches or nothing, holes, what is skipped, and damage at every byte."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.native.topics.log import LogFrame, LogReplay, Sources, TopicLog
from tests.native.topic_log_twin import (
    APPEND,
    CONTINUES,
    HAS_META,
    TwinRecord,
    blob,
    log_frame,
    read_frame,
    replay,
)

TOPIC, OTHER, UNKNOWN = 7, 7 + 256, 99
"""TOPIC and OTHER share a place in the replay's memory of logs."""
CONTROL = 7


def append_frame(seq: int, *, topic: int = TOPIC, tag: bytes = b"", continues: bool = False) -> bytes:
    """An Append frame with some node, meta and data."""
    record = TwinRecord(seq, 1000 + seq, b'{"n":%d}' % seq, tag, b"node", b'{"m":1}' if seq % 2 else None)
    return record.log_frame(topic, CONTINUES if continues else 0)


def control_frame(continues: bool = False) -> bytes:
    return log_frame(CONTROL, CONTINUES if continues else 0, TOPIC, 0, 5, data=b"control")


def new_logs() -> dict[int, TopicLog]:
    return {TOPIC: TopicLog(TOPIC), OTHER: TopicLog(OTHER)}


def run_all(walk: LogReplay) -> list[LogFrame]:
    """Run to the end; the control frames on the way."""
    controls = []
    while (frame := walk.run()) is not None:
        controls.append(frame)
    return controls


def check_against_twin(raw: bytes) -> None:
    """Replay `raw` natively and in Python and compare everything that can be seen."""
    expected = replay(raw)
    logs = new_logs()
    walk = LogReplay(raw, 0, 3, logs)
    controls = run_all(walk)
    assert (walk.position, walk.outcome) == (expected.position, expected.outcome)
    assert [tuple(frame) for frame in controls] == [
        tuple(frame) for _, frame in expected.frames if frame.type != APPEND
    ]
    placed: dict[int, dict[int, tuple[int, int, int, bool]]] = {TOPIC: {}, OTHER: {}}
    skipped = 0
    next_seq = {TOPIC: 1, OTHER: 1}
    for offset, frame in expected.frames:
        if frame.type != APPEND:
            continue
        if frame.topic_id not in placed or frame.seq < next_seq[frame.topic_id]:
            skipped += 1
            continue
        placed[frame.topic_id][frame.seq] = (3, offset, frame.size, True)
        next_seq[frame.topic_id] = frame.seq + 1
    assert walk.skipped == skipped
    assert walk.appended == sum(len(places) for places in placed.values())
    for topic_id, places in placed.items():
        log = logs[topic_id]
        assert log.next_seq == next_seq[topic_id]
        assert log.live_count == len(places)
        assert {seq: log.place(seq) for seq in places} == places


SMALL_FILE = b"".join(
    [
        append_frame(1, tag=b"a"),
        control_frame(continues=True),
        append_frame(2, continues=True),
        append_frame(3, tag=b"b"),
        append_frame(1, topic=OTHER),
        append_frame(4, continues=True),
        control_frame(),
    ]
)


def test_records_of_all_topics_are_placed_where_their_frames_lie() -> None:
    check_against_twin(SMALL_FILE)
    assert replay(SMALL_FILE).outcome == "end"
    assert len(replay(SMALL_FILE).frames) == 7


def test_a_file_cut_at_any_byte_gives_the_whole_batches_before() -> None:
    for length in range(len(SMALL_FILE)):
        check_against_twin(SMALL_FILE[:length])


def test_a_preallocated_file_torn_at_any_byte_gives_the_whole_batches_before() -> None:
    for length in range(len(SMALL_FILE)):
        check_against_twin(SMALL_FILE[:length] + bytes(len(SMALL_FILE) - length + 64))


def test_a_damaged_byte_anywhere_ends_the_replay_before_its_batch() -> None:
    for place in range(len(SMALL_FILE)):
        damaged = bytearray(SMALL_FILE)
        damaged[place] ^= 0x41
        check_against_twin(bytes(damaged))


def test_an_incomplete_batch_is_the_torn_tail() -> None:
    first = append_frame(1)
    raw = first + append_frame(2, continues=True) + append_frame(3, continues=True)
    logs = new_logs()
    walk = LogReplay(raw, 0, 1, logs)
    assert run_all(walk) == []
    assert (walk.position, walk.outcome, walk.appended) == (len(first), "torn", 1)
    assert logs[TOPIC].next_seq == 2
    assert walk.run() is None


FRAMES = st.builds(
    append_frame,
    st.integers(1, 12),
    topic=st.sampled_from([TOPIC, OTHER, UNKNOWN]),
    tag=st.sampled_from([b"", b"a", b"ab"]),
    continues=st.booleans(),
) | st.builds(control_frame, st.booleans())


@given(st.lists(FRAMES, max_size=20), st.binary(max_size=60), st.integers(0, 3))
def test_any_sequence_of_frames_gives_what_the_twin_gives(
    frames: list[bytes], tail: bytes, zeros: int
) -> None:
    check_against_twin(b"".join(frames) + bytes(zeros * 4) + tail)


@given(st.binary(max_size=300))
def test_any_bytes_end_the_replay_without_harm(raw: bytes) -> None:
    check_against_twin(raw)


def test_missing_seqs_become_holes_and_old_ones_are_skipped() -> None:
    raw = b"".join(append_frame(seq) for seq in (2, 5, 3, 6))
    log = TopicLog(TOPIC, 2)
    walk = LogReplay(raw, 0, 1, {TOPIC: log})
    assert run_all(walk) == []
    assert (walk.appended, walk.skipped, walk.gaps) == (3, 1, [(TOPIC, 3, 4)])
    assert [log.is_live(seq) for seq in range(1, 8)] == [False, True, False, False, True, True, False]
    assert [log.timestamp(seq) for seq in range(2, 7)] == [1002, 1002, 1002, 1005, 1006]
    assert log.last_ts == 1006


def test_an_empty_log_starts_at_the_first_seq_it_meets() -> None:
    log = TopicLog(TOPIC)
    walk = LogReplay(append_frame(1 << 40), 0, 1, {TOPIC: log})
    walk.run()
    assert walk.gaps == [(TOPIC, 1, (1 << 40) - 1)]
    assert (log.base_seq, log.next_seq, log.live_count) == (1 << 40, (1 << 40) + 1, 1)


@pytest.mark.parametrize("seq", [1 << 40, (1 << 63) + 5, (1 << 64) - 1])
def test_a_seq_that_cannot_be_true_is_damage_and_costs_no_memory(seq: int) -> None:
    first = append_frame(1)
    raw = first + log_frame(APPEND, 0, TOPIC, seq, 0, data=b"1")
    logs = new_logs()
    walk = LogReplay(raw, 0, 1, logs)
    assert walk.run() is None
    assert (walk.outcome, walk.position) == ("corrupt", len(first))
    assert logs[TOPIC].next_seq == 2
    assert logs[TOPIC].index_memory_bytes < 4096


def test_logs_may_change_at_a_control_frame() -> None:
    raw = append_frame(1) + control_frame() + append_frame(2) + append_frame(1, topic=OTHER)
    first = TopicLog(TOPIC)
    logs = {TOPIC: first}
    walk = LogReplay(raw, 0, 1, logs)
    assert walk.run() is not None
    second = logs[TOPIC] = TopicLog(TOPIC)
    logs[OTHER] = TopicLog(OTHER)
    assert walk.run() is None
    assert (first.next_seq, second.base_seq, second.next_seq, logs[OTHER].next_seq) == (2, 2, 3, 2)


def test_a_replay_can_start_behind_frames_that_are_known() -> None:
    first = append_frame(1)
    log = TopicLog(TOPIC, 2)
    walk = LogReplay(first + append_frame(2), len(first), 1, {TOPIC: log})
    assert walk.run() is None
    assert (walk.appended, walk.skipped) == (1, 0)
    with pytest.raises(ValueError, match="cannot start at offset 9 of 3 bytes"):
        LogReplay(b"abc", 9, 1, {})


def test_replayed_records_can_be_found_by_tag_and_read() -> None:
    data = blob(b"[1,2]", b'{"k":0}')
    raw = log_frame(APPEND, HAS_META | 3, TOPIC, 1, 9, b"n", "tä".encode(), data)
    sources = Sources()
    source = sources.add(raw)
    log = TopicLog(TOPIC)
    LogReplay(raw, 0, source, {TOPIC: log}).run()
    assert log.find_tag("tä".encode(), False, 100).tolist() == [1]
    assert log.live_bytes == len(b"[1,2]") + len(b'{"k":0}')
    read = log.render(sources, 0, 1, 10, 0, (), True, True, True)
    assert read.json.decode() == '[{"$seq":1,"$ts":9,"$node":"n","$tag":"tä","meta":{"k":0},"data":[1,2]}]'


def test_a_value_that_is_no_log_is_refused() -> None:
    with pytest.raises(TypeError):
        LogReplay(append_frame(1), 0, 1, {TOPIC: "log"}).run()  # type: ignore[dict-item]


def test_a_long_batch_is_applied_in_one_piece() -> None:
    rng = random.Random(5)
    tags = [b"tag-%d" % rng.randrange(50) for _ in range(5000)]
    frames = [append_frame(seq, tag=tag, continues=seq < 5000) for seq, tag in enumerate(tags, start=1)]
    raw = b"".join(frames)
    log = TopicLog(TOPIC)
    assert LogReplay(raw[:-1], 0, 1, {TOPIC: log}).run() is None
    assert log.next_seq == 1
    assert LogReplay(raw, 0, 1, {TOPIC: log}).run() is None
    assert log.live_count == 5000
    wanted = [seq for seq, tag in enumerate(tags, start=1) if tag == b"tag-7"]
    assert log.find_tag(b"tag-7", False, 1 << 60).tolist() == wanted


def test_a_finished_replay_lets_its_buffer_go() -> None:
    raw = bytearray(append_frame(1))
    walk = LogReplay(raw, 0, 1, new_logs())
    with pytest.raises(BufferError):
        raw.clear()
    del walk
    raw.clear()


def test_the_twin_reads_what_it_writes() -> None:
    frame = read_frame(append_frame(3, tag=b"t"), 0)
    assert not isinstance(frame, str)
    assert (frame.seq, frame.tag, frame.node) == (3, b"t", b"node")
