"""The mark of a copy: what it says, where the meta of its record goes, and how it is found again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from everlog.topics import Engine, NewRecord, TopicConfig
from everlog.topics.config import Durability
from everlog.topics.routing.definitions import Guarantee, RouterConfig
from everlog.topics.routing.exactly_once import Origin, key_in
from tests.support.engines import open_engine

ORIGIN = Origin("r", "s", 3, 4)


@pytest.mark.parametrize("meta", [None, b"{}", b'{"own":[1]}'])
def test_the_mark_is_beside_what_was_there(meta: bytes | None) -> None:
    found = json.loads(ORIGIN.meta(5, meta))
    mark = found.pop("_topics_router")
    assert found == json.loads(meta or b"{}")
    assert mark["idempotency_key"] == "router:r:3:4:5" == key_in(ORIGIN.meta(5, meta))


def test_the_mark_of_a_copy_of_a_copy_is_the_last_one() -> None:
    first = Origin("first", "a", 1, 1).meta(1, b'{"own":1}')
    assert set(json.loads(ORIGIN.meta(2, first))) == {"own", "_topics_router"}
    assert key_in(ORIGIN.meta(2, first)) == ORIGIN.key(2)


@pytest.mark.parametrize("meta", [b"[1]", b'"text"', json.dumps(dict.fromkeys(map(str, range(64)))).encode()])
def test_a_meta_that_has_no_room_moves_aside(meta: bytes) -> None:
    found = json.loads(ORIGIN.meta(5, meta))
    assert found["_topics_original_meta"] == json.loads(meta)
    assert set(found) == {"_topics_original_meta", "_topics_router"}


@pytest.mark.parametrize(
    "meta", [None, b"{}", b'{"_topics_router":1}', b'{"_topics_router":{}}', b'{"x":"_topics_router"}']
)
def test_a_record_without_a_mark_has_no_key(meta: bytes | None) -> None:
    assert key_in(meta) is None


def test_seqs_that_a_source_gives_out_again_are_new_records(tmp_path: Path) -> None:
    """An ephemeral source forgets everything, and begins again: what it gets then was never copied."""

    def opened() -> Engine:
        return open_engine(tmp_path)

    engine = opened()
    engine.wait_for(engine.put_topic("a", TopicConfig(durability=Durability.EPHEMERAL)).commit)
    router = RouterConfig(source="a", dest="b", guarantee=Guarantee.EXACTLY_ONCE)
    engine.wait_for(engine.put_router("r", router).commit)
    engine.append("a", [NewRecord(b'"before"')])
    assert engine.diff("b").delivered == 1
    engine.wait_for(engine.synced_commit("b"))
    engine.abandon()
    engine = opened()
    assert engine.append("a", [NewRecord(b'"after"')]).first_seq == 1
    assert [record["data"] for record in json.loads(engine.diff("b").records)] == ["before", "after"]
    engine.close()
