"""The segments of a topic: what is promised is found again, damage is never taken for an end."""

from __future__ import annotations

import errno
import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from everlog.errors import Corrupt, Io
from everlog.fault_fs import FaultFs, PowerLoss
from everlog.native.topics.log import FrameBuffer, LogReplay, Sources, TopicLog
from everlog.topics.storage import layout
from everlog.topics.storage.segment_loading import (
    Cut,
    LoadedSegments,
    check_sealed,
    index_entries,
    load_segments,
    sound_count,
)
from everlog.topics.storage.segment_store import SegmentPart
from everlog.topics.storage.segments import SegmentLimits, SegmentSet, SegmentSources, write_piece
from everlog.topics.storage.tier import Tier, TopicTier
from tests.support.effort import effort
from tests.support.files import tree
from tests.topics.storage.segment_samples import (
    append_all,
    every_failure,
    every_power_loss,
    fault_fs,
    filled_tier,
    is_between,
    kept,
    load_records,
    open_tier,
    payloads,
    read_records,
    sample_records,
    segment_bytes,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

DATA, INDEX = SegmentPart.DATA, SegmentPart.INDEX


def check_segment(first_seq: int, index: Buffer, data: Buffer, name: str) -> None:
    """Compare a whole index with a whole data file, every checksum included; `Corrupt` on any mismatch."""
    check_sealed(index, memoryview(data).nbytes, name)
    entries = index_entries(index)
    sound = sound_count(first_seq, entries, data)
    if sound < len(entries):
        raise Corrupt(
            f"the record with seq {first_seq + sound} in {name} does not match its index entry or its "
            "checksum; restore both files of the segment from a backup"
        )


def path_of(tier: TopicTier, segment_id: int, part: SegmentPart) -> Path:
    return Path(tier.hot.describe(segment_id, part))


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def reload(tier: TopicTier, limits: SegmentLimits, durable_through_seq: int) -> SegmentSet:
    return SegmentSet.from_loaded(
        limits, load_segments(tier, durable_through_seq=durable_through_seq).segments
    )


# --- Appending and loading -------------------------------------------------------------------------------


@settings(max_examples=effort(60))
@given(
    st.lists(
        st.tuples(payloads, st.integers(0, 3), st.integers(0, 400), st.booleans()), min_size=1, max_size=6
    ),
    st.integers(1, 9),
    st.integers(1, 700),
)
@example([([b"x" * 100] * 9, 0, 0, False)], 9, 1)
def test_what_was_appended_is_loaded_and_the_limits_hold(
    tmp_path_factory: pytest.TempPathFactory,
    appends: list[tuple[list[bytes | None], int, int, bool]],
    max_events: int,
    max_bytes: int,
) -> None:
    limits = SegmentLimits(max_events=max_events, max_bytes=max_bytes, max_age_ms=300)
    tier = open_tier(tmp_path_factory.mktemp("topic"), cold=False)
    segments = SegmentSet(limits)
    expected: dict[int, bytes] = {}
    next_seq, now_ms = 1, 0
    for records, gap, passed_ms, restart in appends:
        next_seq, now_ms = next_seq + gap, now_ms + passed_ms
        append_all(tier, segments, next_seq, records, now_ms=now_ms)
        expected |= kept(next_seq, records)
        next_seq += len(records)
        loaded = load_segments(tier, durable_through_seq=next_seq - 1)
        assert loaded.cut is None
        assert read_records(tier, loaded) == expected
        assert [(each.first_seq, each.last_seq, each.data_bytes) for each in loaded.segments] == [
            (info.first_seq, info.last_seq, info.data_bytes) for info in segments.infos
        ]
        for info in segments.infos:
            assert info.count <= max_events
            assert info.data_bytes <= max_bytes or len([s for s in expected if info is segments.find(s)]) == 1
            assert info.live == sum(info.first_seq <= seq <= info.last_seq for seq in expected)
        if restart:
            segments = SegmentSet.from_loaded(limits, loaded.segments)
    for seq in range(next_seq + 1):
        found = segments.find(seq)
        assert (found is not None) >= (seq in expected)
        assert found is None or found.first_seq <= seq <= found.last_seq


def test_a_segment_is_sealed_when_it_is_full_or_old(tmp_path: Path) -> None:
    tier = open_tier(tmp_path)
    segments = SegmentSet(SegmentLimits(max_events=4, max_bytes=10_000, max_age_ms=1000))
    append_all(tier, segments, 1, sample_records(1, 3), now_ms=500)
    assert segments.active == segments.infos[0]
    assert segments.seal_due(1499) is None
    assert segments.seal_due(1500) == segments.infos[0]
    assert segments.infos[0].sealed
    append_all(tier, segments, 4, sample_records(4, 4), now_ms=1500)
    assert segments.seal_due(1500) is segments.infos[1]
    append_all(tier, segments, 8, [b"x" * 9_950], now_ms=1500)
    assert [info.first_seq for info in segments.infos] == [1, 4, 8]
    append_all(tier, segments, 9, [b"y" * 100], now_ms=1500)
    assert [info.first_seq for info in segments.infos] == [1, 4, 8, 9]


def test_without_an_age_limit_a_segment_never_grows_old(tmp_path: Path) -> None:
    tier = open_tier(tmp_path)
    segments = SegmentSet(SegmentLimits(max_age_ms=0))
    append_all(tier, segments, 1, sample_records(1, 3))
    assert segments.seal_due(10**15) is None


def test_seqs_that_are_in_a_segment_cannot_be_appended_again(tmp_path: Path) -> None:
    _, segments = filled_tier(tmp_path, 6, 4)
    with pytest.raises(ValueError, match="seq 6 is in a segment already"):
        segments.plan_stretches([(6, [50])], 0)


def test_a_segment_without_any_record_is_loaded(tmp_path: Path) -> None:
    tier = open_tier(tmp_path)
    segments = SegmentSet(SegmentLimits())
    append_all(tier, segments, 1, [None, None])
    (loaded,) = load_segments(tier, durable_through_seq=2).segments
    assert (loaded.first_seq, loaded.last_seq, loaded.data_bytes) == (1, 2, 0)


# --- Crashes and failures --------------------------------------------------------------------------------

LIMITS = SegmentLimits(max_events=5)
BEFORE = kept(1, sample_records(1, 7))
AFTER = BEFORE | kept(8, sample_records(8, 12))


def with_seven(root: Path) -> None:
    filled_tier(root, 7, 5)


def append_twelve(root: Path, fs: FaultFs) -> None:
    tier = open_tier(root, fs)
    append_all(tier, reload(tier, LIMITS, 7), 8, sample_records(8, 12))


def test_power_loss_at_any_call_keeps_what_was_promised_and_the_rest_can_be_appended_again(
    tmp_path: Path,
) -> None:
    cuts = 0
    for root, _ in every_power_loss(tmp_path, with_seven, append_twelve):
        tier = open_tier(root)
        first = load_segments(tier, durable_through_seq=7)
        found = read_records(tier, first)
        assert is_between(found, BEFORE, AFTER)
        again = load_segments(tier, durable_through_seq=7)
        assert again == LoadedSegments(first.segments, None)
        cuts += first.cut is not None
        segments = SegmentSet.from_loaded(LIMITS, again.segments)
        next_seq = segments.last_seq + 1
        append_all(tier, segments, next_seq, sample_records(next_seq, 20 - next_seq))
        assert load_records(tier, 19) == AFTER
    assert cuts


def test_power_loss_while_a_torn_tail_is_cut_loses_nothing_more(tmp_path: Path) -> None:
    def torn(root: Path) -> None:
        tier, _ = filled_tier(root, 7, 5)
        for part, size in ((DATA, 90), (INDEX, 47)):
            path = path_of(tier, 6, part)
            path.write_bytes(path.read_bytes() + b"\xaa" * size)

    def load(root: Path, fs: FaultFs) -> None:
        load_segments(open_tier(root, fs), durable_through_seq=7)

    for root, _ in every_power_loss(tmp_path, torn, load):
        assert load_records(open_tier(root), 7) == BEFORE


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_failed_call_is_reported_and_the_next_append_is_whole(tmp_path: Path, number: int) -> None:
    for root, _ in every_failure(tmp_path, number, with_seven, append_twelve):
        tier = open_tier(root)
        segments = reload(tier, LIMITS, 7)
        next_seq = segments.last_seq + 1
        append_all(tier, segments, next_seq, sample_records(next_seq, 20 - next_seq))
        assert load_records(tier, 19) == AFTER


@settings(max_examples=effort(60))
@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 40), st.booleans()), min_size=1, max_size=5),
    st.integers(0, 80),
    st.integers(0, 2**16),
)
def test_failed_appends_of_one_life_leave_nothing_that_a_crash_could_show(
    tmp_path_factory: pytest.TempPathFactory,
    attempts: list[tuple[int, int, bool]],
    loss_after: int,
    seed: int,
) -> None:
    """Attempts differ in length and in where segments begin; some fail, then power is lost."""
    root = tmp_path_factory.mktemp("topic")
    open_tier(root)
    fs = fault_fs(root, seed)
    tier = open_tier(root, fs)
    segments = SegmentSet(SegmentLimits(max_events=5, max_age_ms=10))
    fs.lose_power_at(fs.calls + 1 + loss_after)
    attempted, now_ms = 0, 0
    try:
        for count, fail_after, grow_old in attempts:
            now_ms += 20 * grow_old
            fs.fail_at(fs.calls + 1 + fail_after, errno.EIO)
            attempted = max(attempted, segments.last_seq + count)
            with suppress(Io):
                first_seq = segments.last_seq + 1
                append_all(tier, segments, first_seq, sample_records(first_seq, count), now_ms=now_ms)
    except PowerLoss:
        pass
    fs.restore()
    durable = segments.last_seq
    found = load_records(open_tier(root), durable)
    assert is_between(found, kept(1, sample_records(1, durable)), kept(1, sample_records(1, attempted)))


def test_a_plan_that_was_written_but_not_applied_is_undone_by_the_next(tmp_path: Path) -> None:
    """The next one may begin segments elsewhere: nothing may overlap, no sealed file may be too long."""
    tier = open_tier(tmp_path)
    segments = SegmentSet(SegmentLimits(max_events=5, max_age_ms=10))
    append_all(tier, segments, 1, sample_records(1, 3))
    plan = segments.plan_stretches([(4, [60] * 5)], 5)
    assert [(piece.segment_id, piece.first_seq, piece.count) for piece in plan.pieces] == [
        (1, 4, 2),
        (6, 6, 3),
    ]
    for piece in plan.pieces:
        data, index = segment_bytes(piece.first_seq, sample_records(piece.first_seq, 5), piece.data_offset)
        write_piece(tier.hot, piece, data, index)
    append_all(tier, segments, 4, sample_records(4, 5), now_ms=20)
    assert tier.hot.list() == [1, 4]
    assert load_records(tier, 8) == kept(1, sample_records(1, 8))


def test_a_segment_that_was_created_but_not_applied_goes_also_after_another_failure(tmp_path: Path) -> None:
    open_tier(tmp_path)
    fs = fault_fs(tmp_path)
    tier = open_tier(tmp_path, fs)
    segments = SegmentSet(LIMITS)
    fs.fail_when("fdatasync", errno.EIO, path="seg-0000000000000006")
    with pytest.raises(Io):
        append_all(tier, segments, 1, sample_records(1, 12))
    assert (segments.last_seq, tier.hot.list()) == (5, [1, 6])
    fs.fail_when("rename", errno.EIO)
    with pytest.raises(Io):
        append_all(tier, segments, 8, sample_records(8, 5))
    assert tier.hot.list() == [1, 6]
    append_all(tier, segments, 8, sample_records(8, 5))
    assert tier.hot.list() == [1, 8]
    assert load_records(tier, 12) == kept(1, sample_records(1, 5)) | kept(8, sample_records(8, 5))


# --- Damage ----------------------------------------------------------------------------------------------


def test_every_flipped_bit_of_a_sealed_index_is_noticed(tmp_path: Path) -> None:
    """Places and sizes at once, times and flags when the frames are compared, deletions not at all."""
    tier, _ = filled_tier(tmp_path, 3, 2)
    path = path_of(tier, 1, INDEX)
    data = path_of(tier, 1, DATA).read_bytes()
    whole = path.read_bytes()
    assert len(whole) == 40
    deleted_bit = layout.INDEX_FLAGS * 8 + 6
    for bit in range(len(whole) * 8):
        flip(path, bit)
        if bit % (layout.INDEX_ENTRY_SIZE * 8) != deleted_bit:
            with pytest.raises(Corrupt):
                check_segment(1, path.read_bytes(), data, "the segment")
        field = bit // 8 % layout.INDEX_ENTRY_SIZE
        if field < layout.INDEX_TS or field > layout.INDEX_FLAGS:
            with pytest.raises(Corrupt, match=r"seg-0000000000000001\.data"):
                load_segments(tier, durable_through_seq=3)
        path.write_bytes(whole)
    assert load_records(tier, 3) == kept(1, sample_records(1, 3))


def test_every_flipped_bit_of_sealed_data_outside_the_marks_is_noticed(tmp_path: Path) -> None:
    tier, _ = filled_tier(tmp_path, 7, 5)
    data = bytearray(path_of(tier, 1, DATA).read_bytes())
    index = path_of(tier, 1, INDEX).read_bytes()
    check_segment(1, index, data, "the segment")
    marks = {int(entry["offset"]) + int(entry["size"]) - 1 for entry in index_entries(index)}
    for bit in range(len(data) * 8):
        if bit // 8 not in marks:
            data[bit // 8] ^= 1 << bit % 8
            with pytest.raises(Corrupt, match="the record with seq"):
                check_segment(1, index, data, "the segment")
            data[bit // 8] ^= 1 << bit % 8


def test_a_marked_record_passes_the_check(tmp_path: Path) -> None:
    tier, segments = filled_tier(tmp_path, 7, 5)
    for plan in segments.plan_marks(np.array([2, 4], dtype=np.uint64)):
        plan.write(tier)
    index, data = (path_of(tier, 1, part).read_bytes() for part in (INDEX, DATA))
    check_segment(1, index, data, "the segment")
    assert data.count(layout.SEGMENT_DELETED) >= 2


@pytest.mark.parametrize("part", [DATA, INDEX])
@pytest.mark.parametrize("change", [-21, -20, -1, 1, 20])
def test_a_sealed_file_of_another_length_is_corrupt_and_left_alone(
    tmp_path: Path, part: SegmentPart, change: int
) -> None:
    tier, _ = filled_tier(tmp_path, 7, 5)
    path = path_of(tier, 1, part)
    content = path.read_bytes()
    path.write_bytes(content[:change] if change < 0 else content + bytes(change))
    before = tree(tmp_path)
    with pytest.raises(Corrupt, match=r"seg-0000000000000001\.data.*restore"):
        load_segments(tier, durable_through_seq=7)
    assert tree(tmp_path) == before


def test_an_emptied_index_of_a_sealed_segment_is_corrupt(tmp_path: Path) -> None:
    tier, _ = filled_tier(tmp_path, 7, 5)
    path_of(tier, 1, INDEX).write_bytes(b"")
    with pytest.raises(Corrupt, match="has 0 bytes, no positive multiple of 20"):
        load_segments(tier, durable_through_seq=7)


@given(st.integers(0, 8 * 40 - 1), st.sampled_from([DATA, INDEX]))
def test_damage_in_the_newest_segment_is_cut_only_behind_the_promise(
    tmp_path_factory: pytest.TempPathFactory, bit: int, part: SegmentPart
) -> None:
    tier, _ = filled_tier(tmp_path_factory.mktemp("topic"), 4, 9)
    path = path_of(tier, 1, part)
    content = path.read_bytes()
    entries = index_entries(path_of(tier, 1, INDEX).read_bytes())
    starts = {DATA: int(entries["offset"][2]), INDEX: 40}
    flip(path, starts[part] * 8 + bit)
    is_mark = part is DATA and starts[DATA] + bit // 8 == entries["offset"][2] + entries["size"][2] - 1
    is_deletion = part is INDEX and bit % 160 == layout.INDEX_FLAGS * 8 + 6
    if is_mark or is_deletion:
        return
    first_bad = 4 if part is INDEX and bit >= 160 else 3
    if part is DATA or bit // 8 % 20 < layout.INDEX_FLAGS:
        # Times and places of the last entries are only checked behind the promise.
        loaded = load_segments(tier, durable_through_seq=2)
        assert loaded.cut is not None
        assert loaded.cut.first_seq == first_bad
        assert read_records(tier, loaded) == kept(1, sample_records(1, first_bad - 1))
        return
    path.write_bytes(content)
    flip(path, starts[part] * 8 + bit // 160 * 160)
    with pytest.raises(Corrupt, match=f"damaged from seq {first_bad} on, but a checkpoint has promised"):
        load_segments(tier, durable_through_seq=4)


def test_what_is_cut_is_reported(tmp_path: Path) -> None:
    tier, segments = filled_tier(tmp_path, 4, 9)
    info = segments.infos[0]
    data, index = segment_bytes(5, sample_records(5, 1), info.data_bytes)
    tier.hot.append(1, info.data_bytes, data[:-30], info.index_bytes, index)
    loaded = load_segments(tier, durable_through_seq=4)
    assert loaded.cut == Cut(5, 20, len(data) - 30)
    assert load_segments(tier, durable_through_seq=4) == LoadedSegments(loaded.segments, None)


@pytest.mark.parametrize("durable_through_seq", [0, 1])
def test_a_torn_time_of_a_seq_without_a_record_is_cut_behind_the_promise(
    tmp_path: Path, durable_through_seq: int
) -> None:
    tier = open_tier(tmp_path)
    append_all(tier, SegmentSet(SegmentLimits()), 1, [b"1", None, b"3"])
    path = path_of(tier, 1, INDEX)
    index = bytearray(path.read_bytes())
    index[20 + layout.INDEX_TS : 20 + layout.INDEX_FLAGS] = bytes(8)
    path.write_bytes(index)
    loaded = load_segments(tier, durable_through_seq=durable_through_seq)
    assert loaded.cut is not None
    assert loaded.cut.first_seq == 2


def test_a_newest_segment_with_nothing_in_it_is_removed_and_the_one_before_goes_on(tmp_path: Path) -> None:
    tier, _ = filled_tier(tmp_path, 7, 5)
    tier.hot.append(8, 0, b"torn", 0, b"half an entry")
    segments = reload(tier, LIMITS, 7)
    assert tier.hot.list() == [1, 6]
    assert segments.active is segments.infos[-1]
    append_all(tier, segments, 8, sample_records(8, 12))
    assert load_records(tier, 19) == AFTER


@pytest.mark.parametrize(
    ("lost", "part", "durable_through_seq"), [(1, INDEX, 0), (1, DATA, 0), (6, DATA, 0), (6, INDEX, 7)]
)
def test_a_lost_file_is_corrupt_and_nothing_is_removed(
    tmp_path: Path, lost: int, part: SegmentPart, durable_through_seq: int
) -> None:
    tier, _ = filled_tier(tmp_path, 7, 5)
    path = path_of(tier, lost, part)
    path.unlink()
    before = tree(tmp_path)
    with pytest.raises(Corrupt, match="is missing; restore it from a backup") as refusal:
        load_segments(tier, durable_through_seq=durable_through_seq)
    assert str(path) in str(refusal.value)
    assert tree(tmp_path) == before


def test_an_interrupted_creation_is_removed(tmp_path: Path) -> None:
    tier, _ = filled_tier(tmp_path, 7, 5)
    path_of(tier, 8, DATA).write_bytes(b"torn")
    assert load_records(tier, 7) == BEFORE
    assert not path_of(tier, 8, DATA).exists()


def test_a_lone_cold_data_file_counts_as_a_copy_only_beside_the_hot_segment(tmp_path: Path) -> None:
    tier, _ = filled_tier(tmp_path, 7, 5)
    cold = tier.store(Tier.COLD)
    cold.put(1, b"part of a copy", b"")
    Path(cold.describe(1, INDEX)).unlink()
    assert load_records(tier, 7) == BEFORE
    assert not Path(cold.describe(1, DATA)).exists()
    cold.put(50, b"part of a copy", b"")
    Path(cold.describe(50, INDEX)).unlink()
    with pytest.raises(Corrupt, match=r"cold.*seg-0000000000000050\.idx is missing"):
        load_segments(tier, durable_through_seq=7)


def test_overlapping_segments_are_corrupt(tmp_path: Path) -> None:
    tier, _ = filled_tier(tmp_path, 7, 5)
    tier.hot.put(5, *segment_bytes(5, sample_records(5, 1)))
    with pytest.raises(Corrupt, match=r"seg-0000000000000005\.data begins inside the segment before it"):
        load_segments(tier, durable_through_seq=7)


def test_the_newest_segment_with_a_cold_copy_is_sealed(tmp_path: Path) -> None:
    tier, segments = filled_tier(tmp_path, 7, 5)
    info = segments.infos[-1]
    tier.copy_to_cold(info.first_seq, info.data_bytes, info.index_bytes)
    again = reload(tier, LIMITS, 7)
    assert again.active is None
    append_all(tier, again, 8, sample_records(8, 12))
    assert load_records(tier, 19) == AFTER


# --- Deleting and dropping -------------------------------------------------------------------------------


@settings(max_examples=effort(60))
@given(st.lists(st.sets(st.integers(1, 30), min_size=1), min_size=1, max_size=5))
def test_marked_records_stay_deleted_and_segments_without_records_go(
    tmp_path_factory: pytest.TempPathFactory, deletions: list[set[int]]
) -> None:
    tier, segments = filled_tier(tmp_path_factory.mktemp("topic"), 22, 5)
    expected = kept(1, sample_records(1, 22))
    for seqs in deletions:
        expected = {seq: record for seq, record in expected.items() if seq not in seqs}
        for plan in segments.plan_marks(np.array(sorted(seqs), dtype=np.uint64)):
            dropped = segments.apply_marks(plan, plan.write(tier))
            if dropped is not None:
                tier.delete([dropped.first_seq])
        assert load_records(tier, 22) == expected
        for info in segments.infos:
            assert not info.busy
            assert info.live == sum(segments.find(seq) is info for seq in expected)
            assert info.live or not info.sealed or not any(info.first_seq <= s <= info.last_seq for s in seqs)
    assert [segment_id for segment_id, _ in tier.list()] == [info.first_seq for info in segments.infos]


def test_a_mark_is_refused_if_the_index_is_damaged(tmp_path: Path) -> None:
    tier, segments = filled_tier(tmp_path, 7, 5)
    flip(path_of(tier, 1, INDEX), 3)
    before = tree(tmp_path)
    (plan,) = segments.plan_marks(np.array([2], dtype=np.uint64))
    with pytest.raises(Corrupt, match="nothing can be deleted in it"):
        plan.write(tier)
    assert tree(tmp_path) == before


def test_marks_that_failed_to_sync_are_synced_by_the_next_attempt(tmp_path: Path) -> None:
    filled_tier(tmp_path, 7, 5)
    fs = fault_fs(tmp_path)
    tier = open_tier(tmp_path, fs)
    segments = reload(tier, LIMITS, 7)
    fs.fail_when("fdatasync", errno.EIO, path=".idx")
    (plan,) = segments.plan_marks(np.array([2], dtype=np.uint64))
    with pytest.raises(Io):
        plan.write(tier)
    segments.abandon(plan)
    (plan,) = segments.plan_marks(np.array([2], dtype=np.uint64))
    assert segments.apply_marks(plan, plan.write(tier)) is None
    fs.restore()
    assert 2 not in load_records(open_tier(tmp_path), 7)


@settings(max_examples=effort(30))
@given(st.integers(0, 25))
def test_exactly_the_segments_below_the_first_live_record_are_dropped(
    tmp_path_factory: pytest.TempPathFactory, first_live: int
) -> None:
    tier, segments = filled_tier(tmp_path_factory.mktemp("topic"), 22, 5)
    dropped = [info.first_seq for info in segments.drop_dead(first_live)]
    bounds = ((1, 5), (6, 10), (11, 15), (16, 20), (21, 22))
    assert dropped == [first for first, last in bounds if last < first_live]
    assert segments.drop_dead(first_live) == []
    tier.delete(dropped)
    tier.delete(dropped)
    assert [segment_id for segment_id, _ in tier.list()] == [info.first_seq for info in segments.infos]


def test_a_removal_that_failed_can_be_repeated(tmp_path: Path) -> None:
    filled_tier(tmp_path, 12, 5)
    fs = fault_fs(tmp_path)
    tier = open_tier(tmp_path, fs)
    segments = reload(tier, LIMITS, 12)
    dropped = [info.first_seq for info in segments.drop_dead(11)]
    fs.fail_when("unlink", errno.EIO, path="seg-0000000000000006")
    with pytest.raises(Io):
        tier.delete(dropped)
    tier.delete(dropped)
    assert tier.hot.list() == [11]


# --- What stays hot --------------------------------------------------------------------------------------


@settings(max_examples=effort(50))
@given(st.integers(0, 6), st.integers(0, 3000), st.integers(0, 9))
def test_the_newest_sealed_segments_stay_hot_and_the_stricter_bound_wins(
    tmp_path_factory: pytest.TempPathFactory, retain_segments: int, retain_bytes: int, limit: int
) -> None:
    tier, _ = filled_tier(tmp_path_factory.mktemp("topic"), 22, 4)
    limits = SegmentLimits(hot_retain_segments=retain_segments, hot_retain_bytes=retain_bytes)
    segments = reload(tier, limits, 22)
    sealed = [info for info in segments.infos if info.sealed]
    assert len(sealed) == 5
    stay = 0
    for number in range(1, 6):
        newest = sealed[-number:]
        size = sum(info.data_bytes + info.index_bytes for info in newest)
        if number <= retain_segments and (not retain_bytes or size <= retain_bytes):
            stay = number
    going = [info.first_seq for info in sealed[: len(sealed) - stay]][:limit]
    assert [plan.segment_id for plan in segments.plan_relocations(limit)] == going
    assert all(info.busy == (info.first_seq in going) for info in segments.infos)


def test_a_segment_that_is_being_moved_is_not_dropped(tmp_path: Path) -> None:
    _, segments = filled_tier(tmp_path, 12, 5)
    (plan,) = segments.plan_relocations()
    assert [info.first_seq for info in segments.drop_dead(11)] == [6]
    segments.abandon(plan)
    assert [info.first_seq for info in segments.drop_dead(11)] == [1]


# --- Loading for reads -----------------------------------------------------------------------------------


class Table:
    """Stands for `Sources`: ids and what is loaded."""

    def __init__(self) -> None:
        self.loaded: dict[int, bytes | None] = {}

    def add(self, buffer: Buffer | None) -> int:
        source = next(number for number in range(1, 1000) if number not in self.loaded)
        self.set(source, buffer)
        return source

    def set(self, source: int, buffer: Buffer | None) -> None:
        self.loaded[source] = None if buffer is None else bytes(memoryview(buffer))

    def remove(self, source: int) -> None:
        del self.loaded[source]


def sources_of(tier: TopicTier, segments: SegmentSet, **bounds: int) -> tuple[Table, SegmentSources]:
    table = Table()
    sources = SegmentSources(table, **bounds)
    for info in segments.infos:
        assert sources.add(tier, info) == info.source
    return table, sources


def whole(tier: TopicTier, segment_id: int) -> bytes:
    return tier.read(
        segment_id, DATA, 0, tier.store(tier.resolve(segment_id) or Tier.HOT).length(segment_id, DATA)
    )


@settings(max_examples=effort(50))
@given(
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=30), st.integers(1, 4), st.integers(1, 900)
)
def test_of_the_mapped_segments_the_least_recently_used_go_first(
    tmp_path_factory: pytest.TempPathFactory, uses: list[tuple[int, bool]], count_max: int, bytes_max: int
) -> None:
    tier, segments = filled_tier(tmp_path_factory.mktemp("topic"), 22, 4)
    table, sources = sources_of(tier, segments, mapped_count_max=count_max, mapped_bytes_max=bytes_max)
    model: list[int] = []
    for place, only_touch in uses:
        info = segments.infos[place]
        if only_touch:
            sources.touch(info.source)
            if place not in model:
                continue
        else:
            assert sources.load(info.source)
        model = [other for other in model if other != place] + [place]
        size = sum(segments.infos[other].data_bytes for other in model)
        while len(model) > 1 and (len(model) > count_max or size > bytes_max):
            size -= segments.infos[model.pop(0)].data_bytes
        assert sources.mapped_bytes == size
        assert {source for source, buffer in table.loaded.items() if buffer is not None} == {
            segments.infos[other].source for other in model
        }
        assert only_touch or table.loaded[info.source] == whole(tier, info.first_seq)


def test_a_segment_that_grew_is_mapped_again(tmp_path: Path) -> None:
    tier = open_tier(tmp_path)
    segments = SegmentSet(SegmentLimits())
    append_all(tier, segments, 1, sample_records(1, 3))
    table, sources = sources_of(tier, segments)
    info = segments.infos[0]
    assert sources.load(info.source)
    append_all(tier, segments, 4, sample_records(4, 3))
    sources.unload(info.source)
    assert table.loaded[info.source] is None
    assert sources.mapped_bytes == 0
    assert sources.load(info.source)
    assert table.loaded[info.source] == whole(tier, 1)


def moved_tier(root: Path) -> tuple[TopicTier, SegmentSet]:
    tier, segments = filled_tier(root, 22, 5)
    for plan in segments.plan_relocations(limit=9):
        plan.copy(tier)
        assert segments.apply_copied(plan) is not None
        plan.delete_hot(tier)
        segments.apply_moved(plan)
    return tier, segments


def test_cold_segments_are_fetched_and_the_cache_is_bounded(tmp_path: Path) -> None:
    tier, segments = moved_tier(tmp_path)
    first, second, third = (info for info in segments.infos[:3])
    bound = first.data_bytes + third.data_bytes
    table, sources = sources_of(tier, segments, fetched_bytes_max=bound)
    for info in (first, second, third):
        sources.touch(first.source)
        assert not sources.load(info.source)
        fetch = sources.plan_fetch(info.source)
        assert sources.attach(fetch, fetch.read())
        assert sources.load(info.source)
        assert table.loaded[info.source] == whole(tier, info.first_seq)
        assert sources.fetched_bytes <= bound
    assert [table.loaded[info.source] is not None for info in (first, second, third)] == [True, False, True]


def test_a_segment_larger_than_the_cache_is_still_served(tmp_path: Path) -> None:
    tier, segments = moved_tier(tmp_path)
    table, sources = sources_of(tier, segments, fetched_bytes_max=1)
    for info in segments.infos[:2]:
        fetch = sources.plan_fetch(info.source)
        assert sources.attach(fetch, fetch.read())
        assert table.loaded[info.source] == whole(tier, info.first_seq)
    assert table.loaded[segments.infos[0].source] is None


def test_what_was_fetched_for_a_segment_that_is_gone_is_not_attached(tmp_path: Path) -> None:
    tier, segments = moved_tier(tmp_path)
    table, sources = sources_of(tier, segments)
    info, other = segments.infos[:2]
    fetch = sources.plan_fetch(info.source)
    data = fetch.read()
    sources.remove(info.source)
    assert not sources.attach(fetch, data)
    assert sources.add(tier, other) == fetch.source
    assert not sources.attach(fetch, data)
    assert table.loaded[fetch.source] is None


def test_a_fetch_of_a_segment_that_has_grown_is_not_attached(tmp_path: Path) -> None:
    tier, segments = filled_tier(tmp_path, 4, 9)
    table, sources = sources_of(tier, segments)
    info = segments.infos[0]
    fetch = sources.plan_fetch(info.source)
    data = fetch.read()
    append_all(tier, segments, 5, sample_records(5, 2))
    assert not sources.attach(fetch, data)
    fetch = sources.plan_fetch(info.source)
    assert sources.attach(fetch, fetch.read())
    assert table.loaded[info.source] == whole(tier, 1)


def test_a_lost_cold_file_is_reported_by_the_fetch(tmp_path: Path) -> None:
    tier, segments = moved_tier(tmp_path)
    _, sources = sources_of(tier, segments)
    Path(tier.store(Tier.COLD).describe(1, DATA)).unlink()
    with pytest.raises(Corrupt, match=r"seg-0000000000000001\.data is missing"):
        sources.plan_fetch(segments.infos[0].source).read()


# --- With the native log ---------------------------------------------------------------------------------


class Given(NamedTuple):
    """A record as `TopicLog.append` takes it."""

    data: bytes
    tag: str | None = None
    node: str | None = None
    meta: bytes | None = None


def test_records_of_a_topic_log_are_rendered_from_their_segments(tmp_path: Path) -> None:
    table, log = Sources(), TopicLog(10)
    buffer = FrameBuffer()
    records = [
        Given(b"1"),
        Given(b"2", tag="red"),
        Given(b"3", node="here"),
        Given(b"4", meta=b'{"a":1}'),
        Given(b"5", "red", "there", b'{"b":2}'),
    ]
    log.append(buffer, table.add(None), 0, records, 1_700_000_000_000, layout.FLAG_DURABLE, None, False)
    in_log = table.add(buffer.tobytes())
    log = TopicLog(10)
    LogReplay(buffer.tobytes(), 0, in_log, {10: log}).run()
    before = log.render(table, 0, 5, 9, 1 << 20, (), True, True, True)
    assert before.delivered == 5
    log.kill(np.array([3], dtype=np.uint64))

    tier = open_tier(tmp_path)
    segments = SegmentSet(SegmentLimits(max_events=3))
    sources = SegmentSources(table, mapped_count_max=1)
    plan = segments.plan_stretches([(1, log.places(np.arange(1, 6, dtype=np.uint64))["size"])], 0)
    for piece in plan.pieces:
        data, index = FrameBuffer(), FrameBuffer()
        last_seq = piece.first_seq + piece.count - 1
        log.copy_to_segment(table, piece.first_seq, last_seq, piece.data_offset, data, index)
        check_segment(piece.first_seq, index, data, "the copy")
        write_piece(tier.hot, piece, data, index)
        info = segments.apply_append(plan, piece, len(data), index, 0)
        log.set_segment(piece.first_seq, index, sources.add(tier, info))
    table.remove(in_log)

    found: list[dict[str, object]] = []
    from_seq = 0
    while from_seq < 5:
        rendered = log.render(table, from_seq, 5, 9, 1 << 20, (), True, True, True)
        assert rendered.corrupt_seq == 0
        found += json.loads(rendered.json)
        from_seq = rendered.next_from_seq
        if rendered.missing_source:
            assert sources.load(rendered.missing_source)
    assert found == [record for record in json.loads(before.json) if record["$seq"] != 3]
    loaded = load_segments(tier, durable_through_seq=0)
    assert loaded.cut is None
    assert list(read_records(tier, loaded)) == [1, 2, 4, 5]
