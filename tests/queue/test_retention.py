"""Spec 7: which readers count, what may be deleted, what still fits."""

from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.clock import NS_PER_S, TestClock
from everlog.errors import CorruptMetadata
from everlog.queue.reader_meta import ReaderPosition
from everlog.queue.retention import (
    Liveness,
    ReaderLiveness,
    WallClockLiveness,
    capacity_allows,
    counting_readers,
    deletable_end,
    minimum_position,
    offset_limit,
)

SEGMENT_SIZE = 1024
NOW_NS = 1_700_000_000 * NS_PER_S
TTL_NS = 30 * NS_PER_S

names = st.sampled_from("abcde")
offsets = st.integers(1, SEGMENT_SIZE // 64).map(lambda n: 64 * n)
ages_ns = st.sampled_from([-NS_PER_S, 0, TTL_NS - 1, TTL_NS, TTL_NS + 1, 10 * TTL_NS, NOW_NS])
reader_positions = st.builds(
    lambda segment, offset, age_ns: ReaderPosition(segment, offset, NOW_NS - age_ns, 1),
    st.integers(0, 12),
    offsets,
    ages_ns,
)
reader_sets = st.dictionaries(names, reader_positions)


def at(segment: int, offset: int = 64, heartbeat_ns: int = NOW_NS) -> ReaderPosition:
    return ReaderPosition(segment, offset, heartbeat_ns, 1)


def count(
    readers: Mapping[str, ReaderPosition | CorruptMetadata],
    head: tuple[int, int] = (10, 64),
    max_reader_lag_bytes: int = 2**40,
    liveness: Liveness | None = None,
) -> dict[str, ReaderPosition]:
    return counting_readers(
        readers,
        liveness or WallClockLiveness(NOW_NS, TTL_NS),
        head_segment=head[0],
        head_offset=head[1],
        segment_size=SEGMENT_SIZE,
        max_reader_lag_bytes=max_reader_lag_bytes,
    )


# --- Who counts ------------------------------------------------------------------------------------------


@given(reader_sets, st.integers(0, 12), offsets, st.integers(0, 12 * SEGMENT_SIZE))
def test_a_reader_counts_exactly_if_it_is_fresh_and_not_too_far_behind(
    readers: dict[str, ReaderPosition], head_segment: int, head_offset: int, max_lag: int
) -> None:
    expected = {}
    for name, reader in readers.items():
        fresh = reader.heartbeat_ns == 0 or NOW_NS - reader.heartbeat_ns <= TTL_NS
        lag = (head_segment * SEGMENT_SIZE + head_offset) - (reader.segment_id * SEGMENT_SIZE + reader.offset)
        if fresh and lag <= max_lag:
            expected[name] = reader
    assert count(readers, (head_segment, head_offset), max_lag) == expected


@pytest.mark.parametrize(("lag_bytes", "counts"), [(640, True), (641, False), (-64, True)])
def test_a_lag_equal_to_the_limit_still_counts(lag_bytes: int, counts: bool) -> None:
    position = 10 * SEGMENT_SIZE + 64 - lag_bytes
    reader = at(position // SEGMENT_SIZE, position % SEGMENT_SIZE)
    assert bool(count({"a": reader}, max_reader_lag_bytes=640)) is counts


@pytest.mark.parametrize(("age_ns", "counts"), [(TTL_NS, True), (TTL_NS + 1, False), (-TTL_NS, True)])
def test_a_heartbeat_exactly_the_ttl_old_still_counts(age_ns: int, counts: bool) -> None:
    assert bool(count({"a": at(1, heartbeat_ns=NOW_NS - age_ns)})) is counts


def test_a_heartbeat_of_zero_never_expires() -> None:
    assert count({"a": at(1, heartbeat_ns=0)})
    clock = TestClock()
    liveness = ReaderLiveness(clock, TTL_NS)
    for _ in range(3):
        assert count({"a": at(1, heartbeat_ns=0)}, liveness=liveness)
        clock.advance_ns(100 * TTL_NS)


def test_a_corrupt_meta_aborts_the_pass() -> None:
    readers: dict[str, ReaderPosition | CorruptMetadata] = {
        "a": at(1),
        "b": CorruptMetadata("b.meta: both slots have a wrong checksum"),
    }
    with pytest.raises(CorruptMetadata, match=r"b\.meta"):
        count(readers)


# --- The worker's clock ----------------------------------------------------------------------------------


def test_the_worker_drops_a_reader_only_after_its_heartbeat_stayed_unchanged_for_the_ttl() -> None:
    clock = TestClock()
    liveness = ReaderLiveness(clock, TTL_NS)
    readers = {"a": at(1)}
    assert liveness.live(readers) == {"a"}
    clock.advance_ns(TTL_NS)
    assert liveness.live(readers) == {"a"}
    clock.advance_ns(1)
    assert liveness.live(readers) == set()


def test_a_changed_heartbeat_resets_the_timer_and_revives_a_dropped_reader() -> None:
    clock = TestClock()
    liveness = ReaderLiveness(clock, TTL_NS)
    for heartbeat_ns in (1, 2, 1):  # backwards counts as a change too: its clock may have jumped
        assert liveness.live({"a": at(1, heartbeat_ns=heartbeat_ns)}) == {"a"}
        clock.advance_ns(TTL_NS)
        assert liveness.live({"a": at(1, heartbeat_ns=heartbeat_ns)}) == {"a"}
        clock.advance_ns(1)
        assert liveness.live({"a": at(1, heartbeat_ns=heartbeat_ns)}) == set()


@pytest.mark.parametrize("wall_ns", [0, NOW_NS + 1000 * TTL_NS])
def test_a_jump_of_the_wall_clock_does_not_kill_a_reader(wall_ns: int) -> None:
    clock = TestClock(NOW_NS)
    liveness = ReaderLiveness(clock, TTL_NS)
    assert liveness.live({"a": at(1)}) == {"a"}
    clock.set_wall_ns(wall_ns)
    assert liveness.live({"a": at(1)}) == {"a"}


def test_a_heartbeat_that_is_old_when_first_seen_counts_for_one_more_ttl() -> None:
    clock = TestClock(NOW_NS)
    liveness = ReaderLiveness(clock, TTL_NS)
    old = {"a": at(1, heartbeat_ns=NOW_NS - 1000 * TTL_NS)}
    assert liveness.live(old) == {"a"}
    clock.advance_ns(TTL_NS + 1)
    assert liveness.live(old) == set()


def test_a_reader_that_left_and_came_back_starts_anew() -> None:
    clock = TestClock()
    liveness = ReaderLiveness(clock, TTL_NS)
    assert liveness.live({"a": at(1)}) == {"a"}
    clock.advance_ns(TTL_NS + 1)
    assert liveness.live({}) == set()
    assert liveness.live({"a": at(1)}) == {"a"}


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3 * TTL_NS), st.dictionaries(names, st.integers(0, 2)), st.integers(0, 2**62)
        ),
        max_size=12,
    )
)
def test_the_workers_liveness_matches_the_full_history(
    passes: list[tuple[int, dict[str, int], int]],
) -> None:
    clock = TestClock()
    liveness = ReaderLiveness(clock, TTL_NS)
    history: list[tuple[int, dict[str, int]]] = []
    for step_ns, heartbeats, wall_ns in passes:
        clock.advance_ns(step_ns)
        clock.set_wall_ns(wall_ns)
        history.append((clock.monotonic_ns(), heartbeats))
        readers = {name: at(1, heartbeat_ns=heartbeat_ns) for name, heartbeat_ns in heartbeats.items()}
        assert liveness.live(readers) == {name for name in heartbeats if live_by_history(name, history)}


def live_by_history(name: str, history: list[tuple[int, dict[str, int]]]) -> bool:
    """Walk back to when the present heartbeat was first seen without interruption."""
    now_ns, heartbeats = history[-1]
    since_ns = now_ns
    for seen_ns, earlier in reversed(history):
        if earlier.get(name) != heartbeats[name]:
            break
        since_ns = seen_ns
    return heartbeats[name] == 0 or now_ns - since_ns <= TTL_NS


# --- What may go -----------------------------------------------------------------------------------------


@given(st.none() | reader_sets, st.integers(0, 20), st.none() | st.integers(0, 20))
def test_deletable_are_the_segments_below_the_slowest_reader_the_head_and_the_newest_record(
    counting: dict[str, ReaderPosition] | None,
    head_segment: int,
    keep_from: int | None,
) -> None:
    def may_go(segment_id: int, readers: Iterable[ReaderPosition]) -> bool:
        needed = any(reader.segment_id <= segment_id for reader in readers)
        kept = keep_from is not None and segment_id >= keep_from
        return segment_id < head_segment and not needed and not kept

    expected = [] if counting is None else [i for i in range(21) if may_go(i, counting.values())]
    assert list(range(deletable_end(counting, head_segment=head_segment, keep_from=keep_from))) == expected


def test_without_a_readers_directory_nothing_is_deleted() -> None:
    assert deletable_end(None, head_segment=5) == 0


def test_without_a_counting_reader_everything_below_the_head_may_go() -> None:
    assert deletable_end({}, head_segment=5) == 5


def test_the_newest_segment_that_holds_a_record_stays() -> None:
    assert deletable_end({}, head_segment=5, keep_from=4) == 4


def test_the_segment_a_reader_stands_on_stays_even_if_it_has_read_it_to_the_end() -> None:
    counting = {"a": at(3, SEGMENT_SIZE), "b": at(4)}
    assert deletable_end(counting, head_segment=5) == 3


def test_a_reader_beyond_the_head_does_not_free_the_head() -> None:
    assert deletable_end({"a": at(8)}, head_segment=5) == 5


# --- What still fits -------------------------------------------------------------------------------------


@given(reader_sets)
def test_the_minimum_position_is_that_of_the_slowest_reader(readers: dict[str, ReaderPosition]) -> None:
    places = sorted(reader.segment_id * SEGMENT_SIZE + reader.offset for reader in readers.values())
    assert minimum_position(readers, SEGMENT_SIZE) == (places[0] if places else None)


def test_no_counting_reader_is_no_limit() -> None:
    assert minimum_position({}, SEGMENT_SIZE) is None
    assert minimum_position(None, SEGMENT_SIZE) is None
    assert capacity_allows(999, 64, None, SEGMENT_SIZE, max_bytes=1, max_segments=1)
    assert offset_limit(999, None, SEGMENT_SIZE, max_bytes=1) == SEGMENT_SIZE


@pytest.mark.parametrize(("offset_after", "fits"), [(320, True), (384, False)])
def test_the_head_after_the_record_may_be_max_bytes_ahead_and_no_more(offset_after: int, fits: bool) -> None:
    position = 2 * SEGMENT_SIZE + 128
    assert capacity_allows(3, offset_after, position, SEGMENT_SIZE, 1024 + 192, None) is fits


@pytest.mark.parametrize(("head_segment_after", "fits"), [(4, True), (5, False)])
def test_the_segments_from_the_slowest_reader_to_the_head_are_at_most_max_segments(
    head_segment_after: int, fits: bool
) -> None:
    position = 2 * SEGMENT_SIZE + 128
    assert capacity_allows(head_segment_after, 128, position, SEGMENT_SIZE, None, 3) is fits


@given(
    st.integers(0, 12),
    offsets,
    st.integers(0, 13 * SEGMENT_SIZE),
    st.none() | st.integers(1, 8 * SEGMENT_SIZE),
    st.none() | st.integers(1, 8),
)
def test_capacity_follows_both_inequalities(
    head_segment: int, head_offset: int, position: int, max_bytes: int | None, max_segments: int | None
) -> None:
    bytes_fit = max_bytes is None or head_segment * SEGMENT_SIZE + head_offset - position <= max_bytes
    segments_fit = max_segments is None or head_segment - position // SEGMENT_SIZE + 1 <= max_segments
    fits = capacity_allows(head_segment, head_offset, position, SEGMENT_SIZE, max_bytes, max_segments)
    assert fits is (bytes_fit and segments_fit)


@given(st.integers(0, 12), st.integers(0, 13 * SEGMENT_SIZE), st.none() | st.integers(1, 8 * SEGMENT_SIZE))
def test_the_offset_limit_is_the_last_end_offset_that_capacity_allows(
    segment_id: int, position: int, max_bytes: int | None
) -> None:
    limit = offset_limit(segment_id, position, SEGMENT_SIZE, max_bytes)
    allowed = [
        offset
        for offset in range(SEGMENT_SIZE + 1)
        if capacity_allows(segment_id, offset, position, SEGMENT_SIZE, max_bytes, None)
    ]
    assert limit == max(allowed, default=0)
