"""Ranges of a topic as the executors read them from a server."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from everlog import Client, testing
from everlog.client import NewRecord
from everlog.pipeline import topic_ranges
from everlog.pipeline.columns_from_frames import Columns, RecordFilter
from everlog.pipeline.options import U64_MAX
from everlog.pipeline.topic_ranges import ServerAddress
from everlog.seq_ranges import Gap, Position, SeqRange

EVERYTHING = RecordFilter(0, U64_MAX, None)


def read(url: str, wanted: SeqRange, *names: str, instance: str | None = None) -> list[Columns | Gap]:
    """Read a range of topic `t`."""
    with ServerAddress(url, None).connect() as api:
        return list(topic_ranges.read(api, "t", wanted, EVERYTHING, names, instance))


def test_records_of_a_recreated_topic_are_not_taken_for_those_of_the_old_one() -> None:
    with testing.server() as url, Client(url) as client:
        client.append_many("t", [NewRecord(number) for number in range(30)])
        live, instance = topic_ranges.live_span(client, "t")
        assert live == SeqRange(1, 31)
        client.delete_topic("t")
        client.append_many("t", [NewRecord(number) for number in range(40)])
        assert topic_ranges.live_span(client, "t")[1] not in (instance, None)
        assert read(url, SeqRange(11, 31), "seq", instance=instance) == [Gap(11, 31, "recreated")]


def test_two_servers_at_one_address_do_not_have_the_same_instance() -> None:
    found = []
    for _ in range(2):
        with testing.server() as url, Client(url) as client:
            client.append_many("t", [NewRecord(1)])
            found.append(topic_ranges.live_span(client, "t"))
    assert found[0][0] == found[1][0] and found[0][1] != found[1][1]


POSITIONS = st.builds(Position, st.integers(0, 9), st.sampled_from([None, "a", "b"]))


@given(before=POSITIONS, now=POSITIONS)
def test_a_position_goes_on_only_in_its_own_instance_and_not_behind_its_end(
    before: Position, now: Position
) -> None:
    are_known = before.instance is not None and now.instance is not None
    is_other = are_known and before.instance != now.instance
    assert before.is_replaced_by(now) == (is_other or now.seq < before.seq)
    first = before.next_in(now, 0)
    if not before.is_replaced_by(now):
        assert first == before.seq
    else:
        assert first == (now.seq if are_known and not is_other else 0)


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
