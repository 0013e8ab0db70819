"""Records from plain Python values."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from everlog.errors import InvalidRecord
from everlog.topics import NewRecord, record_of
from tests.support.engines import START_MS, EngineHarness


@pytest.mark.parametrize(
    "value", [None, True, 0, -1.5, "text\n\u2028ü", [1, [2]], {"k": {"l": None}}, "", {}]
)
def test_a_value_comes_back_as_it_went_in(value: Any) -> None:
    harness = EngineHarness(None)
    harness.append("t", record_of(value, tag="tag", node="node", meta={"m": value}))
    assert harness.items("t", include_tags=True) == [
        {"$seq": 1, "$ts": START_MS, "$node": "node", "$tag": "tag", "meta": {"m": value}, "data": value}
    ]


@pytest.mark.parametrize("value", [object(), {1j: 2}, {object(): 1}])
def test_a_value_that_json_does_not_know_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRecord):
        record_of(value)
    with pytest.raises(InvalidRecord):
        record_of(1, meta={"m": value})


def test_parts_of_a_decoded_request_need_no_copy() -> None:
    parts = msgspec.json.decode(b'[{"a": 1}, {"b": 2}]', type=list[msgspec.Raw])
    harness = EngineHarness(None)
    harness.append("t", NewRecord(parts[0], meta=parts[1]))
    assert [(item["data"], item["meta"]) for item in harness.items("t")] == [({"a": 1}, {"b": 2})]


@pytest.mark.parametrize("tag", [7, b"bytes", "\ud800"])
def test_a_tag_that_is_no_text_is_refused(tag: Any) -> None:
    harness = EngineHarness(None)
    with pytest.raises(InvalidRecord):
        harness.engine.append("t", [NewRecord(b"1", tag=tag)])
