"""Ranges of a topic as the executors read them from a server."""

from __future__ import annotations

from everlog import Client, testing
from everlog.client import NewRecord
from everlog.pipeline import topic_ranges
from everlog.pipeline.topic_ranges import Lost, Place


def test_a_record_brings_its_meta_as_json_text_and_nothing_if_it_has_none() -> None:
    with testing.server() as url, Client(url) as client:
        client.append_many("t", [NewRecord(1, meta={"a": {"b": 1}}), NewRecord(2)])
        with Place(url, None).connect() as api:
            pieces = list(topic_ranges.read(api, "t", 1, 3))
    records = [record for piece in pieces if not isinstance(piece, Lost) for record in piece]
    assert [(bytes(record.data), bytes(record.meta)) for record in records] == [
        (b"1", b'{"a":{"b":1}}'),
        (b"2", b""),
    ]
