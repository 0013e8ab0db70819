"""Ranges of a topic as the executors read them from a server."""

from __future__ import annotations

import json

from everlog import Client, testing
from everlog.client import NewRecord
from everlog.pipeline import topic_ranges
from everlog.pipeline.columns_from_frames import Columns, RecordFilter
from everlog.pipeline.options import U64_MAX
from everlog.pipeline.topic_ranges import ServerAddress
from everlog.seq_ranges import Gap, SeqRange

EVERYTHING = RecordFilter(0, U64_MAX, None)


def read(url: str, wanted: SeqRange, *names: str) -> list[Columns | Gap]:
    """Read a range of topic `t`."""
    with ServerAddress(url, None).connect() as api:
        return list(topic_ranges.read(api, "t", wanted, EVERYTHING, names))


def test_a_record_brings_its_meta_as_json_text_and_nothing_if_it_has_none() -> None:
    with testing.server() as url, Client(url) as client:
        client.append_many("t", [NewRecord(1, meta={"a": {"b": 1}}), NewRecord(2)])
        (columns,) = read(url, SeqRange(1, 3), "data", "meta")
    assert not isinstance(columns, Gap)
    assert columns["data"].to_pylist() == ["1", "2"]
    assert columns["meta"].to_pylist() == ['{"a":{"b":1}}', None]


def test_records_that_need_the_full_decoder_are_the_same_as_others() -> None:
    tags = ["plain", 'quoted "', "back\\slash", "emoji 🙂", None]
    numbers = [1, 12345678901234567890, {"deep": [1.5, None]}, "text", [True]]
    records = [NewRecord(data, tag=tag) for tag, data in zip(tags, numbers, strict=True)]
    with testing.server() as url, Client(url) as client:
        client.append_many("t", records)
        for seq, (tag, number) in enumerate(zip(tags, numbers, strict=True), start=1):
            (columns,) = read(url, SeqRange(seq, seq + 1), "seq", "tag", "data")
            assert not isinstance(columns, Gap)
            assert columns["seq"].to_pylist() == [seq]
            assert columns["tag"].to_pylist() == [tag]
            assert [json.loads(text) for text in columns["data"].to_pylist()] == [number]


def test_what_is_behind_a_gap_comes_after_it() -> None:
    with testing.server() as url, Client(url) as client:
        client.put_topic("t", {"cap_records": 3})
        client.append_many("t", [NewRecord(number) for number in range(1, 9)])
        gap, columns = read(url, SeqRange(1, 9), "seq")
    assert gap == Gap(1, 6, "cap")
    assert not isinstance(columns, Gap)
    assert columns["seq"].to_pylist() == [6, 7, 8]
