"""Reading: cursors, clamps, filters, flags, tombstones, and being woken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everlog.errors import InvalidRequest, TopicNotFound
from everlog.topics import record_of
from tests.support.engines import START_MS, EngineHarness, parse, records, sized

MIB = 1 << 20


@pytest.fixture(params=["log", "segment", "memory"])
def harness(tmp_path: Path, request: pytest.FixtureRequest) -> EngineHarness:
    """An engine whose records are in the log, partly in segments, or in memory."""
    if request.param == "memory":
        return EngineHarness(None)
    return CheckpointedStage(tmp_path) if request.param == "segment" else EngineHarness(tmp_path)


class CheckpointedStage(EngineHarness):
    """Brings every second batch, with the one before it, into segments."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, segment_max_events=3)
        self._batches = 0

    def append(self, name: str, *values: Any, **options: Any) -> Any:
        answer = super().append(name, *values, **options)
        self._batches += 1
        if self._batches % 2 == 0:
            self.checkpoint()
        return answer


# --- Cursors and clamps ----------------------------------------------------------------------------------


def test_the_cursor_is_exclusive_and_the_answer_leads_to_the_head(harness: EngineHarness) -> None:
    harness.append_each("t", "abc")
    page = harness.diff("t", 1)
    assert [item["data"] for item in parse(page)] == ["b", "c"]
    assert (page.next_from_seq, page.head_seq, page.earliest_seq, page.lag) == (3, 3, 1, 0)
    assert page.caught_up
    assert page.tombstone is None


def test_a_cursor_at_the_head_is_a_normal_tail(harness: EngineHarness) -> None:
    harness.append_each("t", "ab")
    page = harness.diff("t", 2)
    assert (page.records, page.tombstone, page.caught_up) == (b"[]", None, True)


def test_an_empty_topic_is_caught_up_at_once(harness: EngineHarness) -> None:
    harness.put("t")
    page = harness.diff("t")
    assert (page.records, page.next_from_seq, page.head_seq, page.earliest_seq) == (b"[]", 0, 0, 1)
    assert page.caught_up


def test_a_limit_stops_the_page_and_the_cursor_goes_on_from_there(harness: EngineHarness) -> None:
    harness.append_each("t", "abcde")
    page = harness.diff("t", 0, limit=2)
    assert (page.delivered, page.next_from_seq, page.lag, page.caught_up) == (2, 2, 3, False)
    assert harness.seqs("t") == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(("limit", "delivered"), [(0, 256), (1, 1), (999, 999), (1000, 1000), (1001, 1000)])
def test_the_limit_is_256_unless_given_and_at_most_1000(limit: int, delivered: int) -> None:
    harness = EngineHarness(None)
    harness.append("t", *range(1100))
    assert harness.diff("t", limit=limit).delivered == delivered


@pytest.mark.parametrize(
    ("max_batch_bytes", "delivered"),
    [(300, 3), (299, 2), (100, 1), (99, 1), (1, 1), (0, 10), (8 * MIB, 10)],
)
def test_a_page_ends_before_the_record_that_would_pass_its_bytes_but_has_one_at_least(
    max_batch_bytes: int, delivered: int
) -> None:
    harness = EngineHarness(None)
    harness.append("t", *[sized(93, meta=b'{"k":1}')] * 10)
    page = harness.diff("t", max_batch_bytes=max_batch_bytes)
    assert (page.delivered, page.next_from_seq) == (delivered, delivered)


@pytest.mark.parametrize(("max_batch_bytes", "delivered"), [(0, 4), (MIB, 4), (9 * MIB, 32), (2 * MIB, 8)])
def test_a_page_has_one_mebibyte_unless_told_otherwise_and_at_most_eight(
    max_batch_bytes: int, delivered: int
) -> None:
    harness = EngineHarness(None)
    harness.append("t", *[sized(MIB // 4)] * 40)
    assert harness.diff("t", max_batch_bytes=max_batch_bytes).delivered == delivered


@pytest.mark.parametrize("from_seq", [-1, 2**64])
def test_a_cursor_that_is_no_u64_is_refused(from_seq: int) -> None:
    harness = EngineHarness(None)
    harness.append("t", 1)
    with pytest.raises(InvalidRequest):
        harness.engine.diff("t", from_seq)


@pytest.mark.parametrize("options", [{"limit": -1}, {"max_batch_bytes": -1}])
def test_a_negative_limit_is_refused(options: dict[str, Any]) -> None:
    harness = EngineHarness(None)
    harness.append("t", 1)
    with pytest.raises(InvalidRequest):
        harness.engine.diff("t", **options)


def test_reading_never_creates_a_topic_and_a_bad_name_is_just_not_found(harness: EngineHarness) -> None:
    for name in ("absent", "", "-bad", "a/b", "n" * 300):
        with pytest.raises(TopicNotFound):
            harness.engine.diff(name)
        with pytest.raises(TopicNotFound):
            harness.engine.state(name)
    assert harness.engine.topics() == []


# --- Fields ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({}, {"$node", "meta", "data"}),
        ({"include_tags": True}, {"$node", "$tag", "meta", "data"}),
        ({"include_meta": False}, {"$node", "data"}),
        ({"include_data": False}, {"$node", "meta"}),
        ({"include_tags": True, "include_meta": False, "include_data": False}, {"$node", "$tag"}),
    ],
)
def test_the_reader_chooses_tags_meta_and_data(
    harness: EngineHarness, options: dict[str, bool], fields: set[str]
) -> None:
    harness.append_each("t", [record_of({"d": 1}, tag='t"g', node="nö\n", meta={"m": None})] * 3)
    whole = {
        "$seq": 1,
        "$ts": START_MS,
        "$node": "nö\n",
        "$tag": 't"g',
        "meta": {"m": None},
        "data": {"d": 1},
    }
    assert parse(harness.diff("t", **options))[0] == {
        key: value for key, value in whole.items() if key in fields | {"$seq", "$ts"}
    }


# --- Node filter -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "seqs"),
    [
        ("a", [2, 3, 4, 5]),
        (["a"], [2, 3, 4, 5]),
        (["a", "b"], [3, 4, 5]),
        ([], [1, 2, 3, 4, 5]),
        ("A", [1, 2, 3, 4, 5]),
        ("", [1, 2, 3, 4, 5]),
        ("ab", [1, 2, 3, 5]),
    ],
)
def test_own_records_are_left_out_and_matched_byte_by_byte(
    harness: EngineHarness, node: Any, seqs: list[int]
) -> None:
    harness.append_each("t", [record_of(1, node=each) for each in ("a", "b", None, "ab", "c")])
    page = harness.diff("t", node=node)
    while not page.caught_up and not page.delivered:
        page = harness.diff("t", page.next_from_seq, node=node)
    found = harness.items("t", node=node)
    assert [item["$seq"] for item in found] == seqs
    assert page.tombstone is None


def test_the_cursor_passes_filtered_records_and_only_caught_up_ends_the_reading(
    harness: EngineHarness,
) -> None:
    harness.append_each("t", [record_of(1, node="own")] * 5)
    assert harness.items("t", node="own") == []
    assert harness.diff("t", 4, node="own").next_from_seq == 5


def test_filtered_records_do_not_count_for_the_limit() -> None:
    harness = EngineHarness(None)
    harness.append("t", *[record_of(1, node="own")] * 5, *"ab")
    page = harness.diff("t", limit=1, node="own")
    assert [item["data"] for item in parse(page)] == ["a"]
    assert (page.next_from_seq, page.scanned) == (6, 6)


def test_a_topic_without_dedupe_node_echoes_a_readers_own_records(harness: EngineHarness) -> None:
    harness.put("t", dedupe_node=False)
    harness.append("t", record_of(1, node="own"))
    assert harness.diff("t", node="own").delivered == 1


# --- Tombstones ------------------------------------------------------------------------------------------


def test_a_reader_behind_the_cap_is_told_the_exact_gap(harness: EngineHarness) -> None:
    harness.put("t", cap_records=2)
    harness.append_each("t", range(5))
    page = harness.diff("t", 1)
    tombstone = page.tombstone
    assert tombstone is not None
    assert (tombstone.gap_from, tombstone.gap_to, tombstone.reason) == (2, 3, "cap")
    assert (tombstone.missed_estimate, tombstone.earliest_seq, tombstone.head_seq) == (2, 4, 5)
    assert parse(page)[0]["$seq"] == 4
    assert [harness.gap("t", from_seq) for from_seq in (0, 2, 3, 4)] == [
        (1, 3, "cap"),
        (3, 3, "cap"),
        None,
        None,
    ]


def test_a_reader_behind_expired_records_is_told_ttl(harness: EngineHarness) -> None:
    harness.put("t", ttl_ms=1000)
    harness.append_each("t", "ab")
    harness.advance_ms(600)
    harness.append("t", "c")
    harness.advance_ms(600)
    assert [harness.gap("t", from_seq) for from_seq in (0, 1, 2)] == [(1, 2, "ttl"), (2, 2, "ttl"), None]
    assert harness.values("t") == ["c"]


def test_a_gap_of_both_kinds_is_mixed_only_where_both_reach(harness: EngineHarness) -> None:
    harness.put("t", ttl_ms=1000, cap_records=3)
    harness.append_each("t", range(5))  # 1 and 2 are evicted
    harness.advance_ms(600)
    harness.append("t", 5)  # evicts 3
    harness.advance_ms(600)  # 4 and 5 expire
    reasons = [harness.gap("t", from_seq) for from_seq in range(6)]
    assert reasons == [
        (1, 5, "mixed"),
        (2, 5, "mixed"),
        (3, 5, "mixed"),
        (4, 5, "ttl"),
        (5, 5, "ttl"),
        None,
    ]


def test_the_cap_may_reach_further_than_the_age(harness: EngineHarness) -> None:
    harness.put("t", ttl_ms=1000, cap_records=2)
    harness.append_each("t", "ab")
    harness.advance_ms(1001)
    harness.state("t")
    harness.append_each("t", "cdef")
    assert [harness.gap("t", from_seq) for from_seq in (0, 1, 2, 4)] == [
        (1, 4, "mixed"),
        (2, 4, "mixed"),
        (3, 4, "cap"),
        None,
    ]


def test_a_deleted_gap_is_silent(harness: EngineHarness) -> None:
    harness.append_each("t", range(5))
    harness.delete("t", before_seq=4)
    page = harness.diff("t")
    assert (page.tombstone, page.earliest_seq) == (None, 4)
    assert harness.seqs("t") == [4, 5]


def test_a_gap_that_was_evicted_in_front_and_deleted_behind_ends_at_the_first_live_record(
    harness: EngineHarness,
) -> None:
    harness.put("t", cap_records=4)
    harness.append_each("t", range(5))
    harness.delete("t", before_seq=4)
    assert harness.gap("t", 0) == (1, 3, "cap")
    assert harness.gap("t", 1) is None
    assert harness.seqs("t") == [4, 5]


def test_a_topic_whose_records_all_expired_says_so_up_to_its_head(harness: EngineHarness) -> None:
    harness.put("t", ttl_ms=10)
    harness.append_each("t", "ab")
    harness.advance_ms(11)
    page = harness.diff("t")
    assert harness.gap("t") == (1, 2, "ttl")
    assert (page.next_from_seq, page.earliest_seq, page.head_seq, page.caught_up) == (2, 3, 2, True)


def test_a_cursor_beyond_the_head_is_told_that_the_topic_was_recreated(harness: EngineHarness) -> None:
    harness.append_each("t", "abc")
    harness.delete_topic("t")
    harness.append("t", "new")
    page = harness.diff("t", 3)
    assert page.tombstone is not None
    assert (page.tombstone.gap_from, page.tombstone.gap_to, page.tombstone.reason) == (1, 1, "recreated")
    assert [item["data"] for item in parse(page)] == ["new"]


def test_a_recreated_topic_that_is_empty_has_an_empty_gap(harness: EngineHarness) -> None:
    harness.put("t")
    page = harness.diff("t", 7)
    assert page.tombstone is not None
    assert (page.tombstone.gap_from, page.tombstone.gap_to, page.tombstone.missed_estimate) == (1, 0, 0)
    assert (page.next_from_seq, page.caught_up) == (0, True)


def test_a_recreated_topic_with_a_floor_is_read_from_its_first_live_record(harness: EngineHarness) -> None:
    harness.put("t", cap_records=1)
    harness.append_each("t", "abc")
    page = harness.diff("t", 9)
    assert page.tombstone is not None
    assert (page.tombstone.gap_to, page.tombstone.reason, page.tombstone.earliest_seq) == (3, "recreated", 3)
    assert [item["$seq"] for item in parse(page)] == [3]


# --- Being woken -----------------------------------------------------------------------------------------


def test_a_waiter_is_called_once_when_records_become_visible(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", durability="fsync")
    calls: list[int] = []
    harness.engine.on_change("t", lambda: calls.append(harness.engine.state("t").head_seq))
    answer = harness.engine.append("t", records([1, 2]))
    harness.engine.write()
    assert calls == []
    harness.wait_for(answer.commit)
    assert calls == [2]
    harness.append("t", 3)
    assert calls == [2]


def test_deleting_the_topic_wakes_every_waiter_and_it_is_gone_by_then(harness: EngineHarness) -> None:
    harness.put("t")
    found: list[bool] = []

    for _ in range(2):
        harness.engine.on_change(
            "t", lambda: found.append("t" in [state.topic for state in harness.engine.topics()])
        )
    harness.delete_topic("t")
    assert found == [False, False]


def test_a_waiter_may_register_again_while_it_is_called(harness: EngineHarness) -> None:
    harness.put("t")
    calls: list[int] = []

    def again() -> None:
        calls.append(len(calls))
        harness.engine.on_change("t", again)

    harness.engine.on_change("t", again)
    harness.append("t", 1)
    harness.append("t", 2)
    assert calls == [0, 1]


def test_a_waiter_that_was_taken_back_is_not_called(harness: EngineHarness) -> None:
    harness.put("t")
    calls: list[str] = []

    def stays() -> None:
        calls.append("stays")

    def leaves() -> None:
        calls.append("leaves")

    for waiter in (stays, leaves, stays):
        harness.engine.on_change("t", waiter)
    harness.engine.forget_change("t", leaves)
    harness.engine.forget_change("absent", leaves)
    harness.append("t", 1)
    assert calls == ["stays"]


def test_waiting_for_an_absent_topic_finds_none(harness: EngineHarness) -> None:
    with pytest.raises(TopicNotFound):
        harness.engine.on_change("absent", lambda: None)


# --- Recency ---------------------------------------------------------------------------------------------


def test_reading_sets_the_time_of_the_last_read_unless_told_not_to(harness: EngineHarness) -> None:
    harness.append("t", 1)
    harness.engine.diff("t", touch=False)
    assert harness.engine.state("t", touch=False).last_read_ts is None
    harness.advance_ms(5)
    harness.diff("t")
    harness.advance_ms(5)
    assert harness.engine.state("t", touch=False).last_read_ts == START_MS + 5
    assert harness.engine.state("t").last_read_ts == START_MS + 10
