"""Appending: limits at and beyond the border, all or nothing, creation by a write, stored text."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from everlog.errors import (
    BatchTooLarge,
    InvalidRecord,
    InvalidRequest,
    LimitReached,
    RecordTooLarge,
    StorageFailed,
    TopicNotFound,
)
from everlog.topics import Discard, Durability, NewRecord, TopicConfig, record_of
from tests.support.engines import START_MS, EngineHarness, parse, records, sized

MIB = 1 << 20
META_BYTES = 16 << 10


@pytest.fixture(params=["fsync", "ephemeral"])
def harness(tmp_path: Path, request: pytest.FixtureRequest) -> EngineHarness:
    """A topic `t` whose frames go to the log, or to memory."""
    harness = EngineHarness(tmp_path)
    harness.put("t", durability=request.param)
    return harness


def test_seqs_are_contiguous_in_the_order_of_the_batch(harness: EngineHarness) -> None:
    first = harness.append("t", "a", "b", "c")
    second = harness.append("t", "d")
    assert (first.first_seq, first.last_seq, first.count, first.head_seq) == (1, 3, 3, 3)
    assert (second.first_seq, second.last_seq, second.count, second.head_seq) == (4, 4, 1, 4)
    assert harness.items("t") == [
        {"$seq": seq, "$ts": START_MS, "data": value} for seq, value in enumerate("abcd", start=1)
    ]


def test_an_append_without_records_is_refused(harness: EngineHarness) -> None:
    with pytest.raises(InvalidRequest):
        harness.engine.append("t", [])


def test_ten_thousand_records_fit_into_one_append_and_one_more_does_not(harness: EngineHarness) -> None:
    record = record_of(0)
    assert harness.append("t", *[record] * 10_000).last_seq == 10_000
    with pytest.raises(BatchTooLarge):
        harness.engine.append("t", [record] * 10_001)
    assert harness.state("t").head_seq == 10_000


@pytest.mark.parametrize(
    "largest",
    [
        sized(1, tag="t" * 256),
        sized(1, tag="ü" * 128),
        sized(1, node="n" * 128),
        sized(1, meta=b'{"k":"' + b"x" * (META_BYTES - 8) + b'"}'),
        record_of(1, meta={str(number): number for number in range(64)}),
        sized(MIB),
        sized(MIB - 10, meta=b'{"k":1234}'),
    ],
    ids=["tag", "tag in two-byte letters", "node", "meta bytes", "meta keys", "data", "data and meta"],
)
def test_a_record_at_every_limit_is_kept(harness: EngineHarness, largest: NewRecord) -> None:
    assert harness.append("t", largest).last_seq == 1
    assert len(harness.items("t")) == 1


@pytest.mark.parametrize(
    ("oversized", "error"),
    [
        (sized(3, tag="t" * 257), InvalidRecord),
        (sized(3, tag="ü" * 128 + "x"), InvalidRecord),
        (sized(3, node="n" * 129), InvalidRecord),
        (sized(3, meta=b'{"k":"' + b"x" * (META_BYTES - 7) + b'"}'), InvalidRecord),
        (record_of(1, meta={str(number): number for number in range(65)}), InvalidRecord),
        (sized(3, meta=b"[1]"), InvalidRecord),
        (sized(3, meta=b'"text"'), InvalidRecord),
        (NewRecord(b""), InvalidRecord),
        (NewRecord(b'"\xff"'), InvalidRecord),
        (sized(MIB + 1), RecordTooLarge),
        (sized(MIB - 9, meta=b'{"k":1234}'), RecordTooLarge),
    ],
)
def test_one_record_beyond_a_limit_refuses_the_whole_batch_and_takes_no_seq(
    harness: EngineHarness, oversized: NewRecord, error: type[Exception]
) -> None:
    with pytest.raises(error, match="record 1"):
        harness.engine.append("t", [record_of("fine"), oversized])
    assert harness.state("t").head_seq == 0
    assert harness.append("t", "next").first_seq == 1
    assert harness.values("t") == ["next"]


def test_the_node_of_the_batch_has_the_limit_of_a_node(harness: EngineHarness) -> None:
    assert harness.append("t", 1, node="n" * 128).last_seq == 1
    with pytest.raises(InvalidRecord):
        harness.engine.append("t", records([1]), node="n" * 129)


def test_blanks_between_tokens_are_not_stored_and_count_neither_as_bytes_nor_for_the_limit(
    harness: EngineHarness,
) -> None:
    padded = NewRecord(b' {\n"a" :\t[ 1 , "b c" ] }\r\n' + b" " * MIB, meta=b'{ "m" : 1 }')
    harness.append("t", padded)
    assert harness.diff("t").records == (
        b'[{"$seq":1,"$ts":%d,"meta":{"m":1},"data":{"a":[1,"b c"]}}]' % START_MS
    )
    assert harness.state("t").bytes == len(b'{"a":[1,"b c"]}') + len(b'{"m":1}')


def test_numbers_escapes_key_order_and_duplicate_keys_stay_as_sent(harness: EngineHarness) -> None:
    text = rb'{"b":1.50,"a":1E2,"b":"\u00fc\/","big":123456789012345678901234567890}'
    harness.append("t", NewRecord(text))
    assert text in harness.diff("t").records


def test_bytes_count_data_and_meta_but_neither_tag_nor_node(harness: EngineHarness) -> None:
    harness.append("t", sized(10, tag="tag", node="node", meta=b'{"k":1}'))
    assert harness.state("t").bytes == 17


def test_data_may_be_null_and_absent_fields_are_left_out(harness: EngineHarness) -> None:
    harness.append("t", None)
    assert parse(harness.diff("t", include_tags=True)) == [{"$seq": 1, "$ts": START_MS, "data": None}]


def test_empty_tags_and_nodes_count_as_absent(harness: EngineHarness) -> None:
    harness.append("t", record_of(1, tag="", node=""))
    assert set(parse(harness.diff("t", include_tags=True))[0]) == {"$seq", "$ts", "data"}


def test_the_node_of_a_record_wins_over_that_of_the_batch(harness: EngineHarness) -> None:
    harness.append("t", record_of(1, node="own"), record_of(2), node="batch")
    assert [item["$node"] for item in harness.items("t")] == ["own", "batch"]


def test_timestamps_never_go_back_when_the_wall_clock_does(harness: EngineHarness) -> None:
    harness.append("t", 1)
    harness.clock.set_wall_ns(harness.clock.wall_ns() - 5_000_000_000)
    harness.append("t", 2)
    assert [item["$ts"] for item in harness.items("t")] == [START_MS, START_MS]


# --- Creation by a write ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("create", "config"),
    [(None, None), (True, None), (None, TopicConfig(priority=3)), (True, TopicConfig(auto_create=False))],
)
def test_a_write_creates_an_absent_topic_unless_told_otherwise(
    tmp_path: Path, create: bool | None, config: TopicConfig | None
) -> None:
    harness = EngineHarness(tmp_path)
    assert harness.append("new", 1, create=create, config=config).created
    assert not harness.append("new", 2, create=create, config=config).created
    assert harness.state("new").config == (config or TopicConfig()).resolved("new")


@pytest.mark.parametrize(
    ("create", "config"), [(False, None), (False, TopicConfig()), (None, TopicConfig(auto_create=False))]
)
def test_a_write_that_may_not_create_finds_no_topic(
    tmp_path: Path, create: bool | None, config: TopicConfig | None
) -> None:
    harness = EngineHarness(tmp_path)
    with pytest.raises(TopicNotFound):
        harness.engine.append("absent", records([1]), create=create, config=config)
    assert harness.engine.topics() == []


def test_the_config_of_a_write_has_no_effect_on_an_existing_topic(harness: EngineHarness) -> None:
    before = harness.state("t").config
    harness.append("t", 1, config=TopicConfig(cap_records=1, auto_create=False))
    assert harness.state("t").config == before


def test_a_batch_that_breaks_a_limit_creates_no_topic(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    with pytest.raises(RecordTooLarge):
        harness.engine.append("new", [sized(MIB + 1)])
    assert harness.engine.topics() == []


@pytest.mark.parametrize("durability", ["ephemeral", "disk"])
def test_a_refused_first_batch_creates_no_topic_and_holds_no_memory(tmp_path: Path, durability: str) -> None:
    harness = EngineHarness(tmp_path)
    config = TopicConfig(durability=Durability(durability), discard=Discard.REJECT, cap_bytes=10)
    sources = harness.engine._core.sources
    before = sources.add(None)
    for _ in range(3):
        with pytest.raises(RecordTooLarge):
            harness.engine.append("new", [sized(11)], config=config)
    assert harness.engine.topics() == []
    assert sources.add(None) == before + 1


# --- The quota of all topics -----------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["ephemeral", "disk"])
def test_exactly_the_total_byte_quota_is_allowed_and_one_byte_more_is_not(
    tmp_path: Path, durability: Any
) -> None:
    harness = EngineHarness(tmp_path, max_total_bytes=20)
    harness.put("a", durability=durability)
    harness.append("a", sized(12))
    with pytest.raises(LimitReached):
        harness.engine.append("b", [sized(9)])
    with pytest.raises(LimitReached):
        harness.engine.append("a", [sized(9)])
    assert [state.topic for state in harness.engine.topics()] == ["a"]
    assert harness.append("a", sized(8)).first_seq == 2


@pytest.mark.parametrize("give_back", ["delete", "evict", "expire", "delete topic", "failed write"])
def test_bytes_that_are_gone_count_no_longer_for_the_quota(tmp_path: Path, give_back: str) -> None:
    harness = EngineHarness(tmp_path, max_total_bytes=20)
    harness.put("a", cap_records=2, ttl_ms=1000)
    if give_back == "failed write":
        harness.disk.fail_when("pwrite", errno.EIO)
        with pytest.raises(StorageFailed):
            harness.append("b", sized(12))
    else:
        harness.append("a", sized(12))
    if give_back == "delete":
        harness.delete("a", before_seq=2)
    elif give_back == "evict":
        harness.append("a", sized(2), sized(2))
        harness.delete("a", before_seq=9)
    elif give_back == "expire":
        harness.advance_ms(1001)
        harness.state("a")
    elif give_back == "delete topic":
        harness.delete_topic("a")
    harness.append("c", sized(20))
    with pytest.raises(LimitReached):
        harness.engine.append("c", [sized(2)])


def test_the_quota_counts_what_a_restart_brings_back(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path, max_total_bytes=20)
    harness.append("a", sized(12), sized(4))
    harness.delete("a", before_seq=2)
    for again in (harness.crash, harness.restart):
        again()
        with pytest.raises(LimitReached):
            harness.engine.append("b", [sized(17)])
    harness.append("b", sized(16))
