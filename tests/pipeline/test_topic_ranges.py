"""Ranges of a topic as the executors read them from a server."""

from __future__ import annotations

import json

from everlog import Client, testing
from everlog.client import NewRecord
from everlog.pipeline import topic_ranges
from everlog.pipeline.options import U64_MAX
from everlog.pipeline.picking import Filter, take_columns
from everlog.pipeline.topic_ranges import Lost, Place

EVERYTHING = Filter(0, U64_MAX, None)


def test_a_record_brings_its_meta_as_json_text_and_nothing_if_it_has_none() -> None:
    picked = EVERYTHING.columns()
    with testing.server() as url, Client(url) as client:
        client.append_many("t", [NewRecord(1, meta={"a": {"b": 1}}), NewRecord(2)])
        with Place(url, None).connect() as api:
            assert list(topic_ranges.read(api, "t", 1, 3, picked)) == [None]
    columns = take_columns(picked, ("data", "meta"))
    assert columns["data"].to_pylist() == ["1", "2"]
    assert columns["meta"].to_pylist() == ['{"a":{"b":1}}', None]


def test_records_that_need_the_full_decoder_are_the_same_as_others() -> None:
    tags = ["plain", 'quoted "', "back\\slash", "emoji 🙂", None]
    numbers = [1, 12345678901234567890, {"deep": [1.5, None]}, "text", [True]]
    records = [NewRecord(data, tag=tag) for tag, data in zip(tags, numbers, strict=True)]
    picked = EVERYTHING.columns()
    with testing.server() as url, Client(url) as client:
        client.append_many("t", records)
        with Place(url, None).connect() as api:
            for seq in range(1, 6):
                assert list(topic_ranges.read(api, "t", seq, seq + 1, picked)) == [None]
    columns = take_columns(picked, ("seq", "tag", "data"))
    assert columns["seq"].to_pylist() == [1, 2, 3, 4, 5]
    assert columns["tag"].to_pylist() == tags
    assert [json.loads(text) for text in columns["data"].to_pylist()] == numbers


def test_what_is_behind_a_gap_comes_after_it() -> None:
    picked = EVERYTHING.columns()
    with testing.server() as url, Client(url) as client:
        client.put_topic("t", {"cap_records": 3})
        client.append_many("t", [NewRecord(number) for number in range(1, 9)])
        with Place(url, None).connect() as api:
            found = []
            for lost in topic_ranges.read(api, "t", 1, 9, picked):
                found.append((lost, len(picked)))
    assert [lost for lost, _ in found] == [Lost(1, 6, "cap"), None]
    assert [count for _, count in found] == [0, 3], "nothing was picked before the gap was told"
    assert take_columns(picked, ("seq",))["seq"].to_pylist() == [6, 7, 8]
