"""JSON as the clients write it: what comes back is what was given, or the caller hears of it."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.client import NewRecord, Producer
from everlog.client.encoding import encode
from everlog.errors import InvalidRecord

NOT_NUMBERS = (math.nan, math.inf, -math.inf)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@dataclasses.dataclass
class Quote:
    """A value of a program's own kind."""

    price: float
    note: bytes = b"\xcb\x7f\xf8"


@given(JSON_VALUES)
def test_a_value_comes_back_as_it_was_or_is_refused_for_a_number_that_json_lacks(value: Any) -> None:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        with pytest.raises(InvalidRecord):
            encode(value)
    else:
        assert json.loads(encode(value)) == value


@pytest.mark.parametrize("number", NOT_NUMBERS)
@pytest.mark.parametrize(
    ("shape", "place"),
    [
        (lambda number: number, "the value"),
        (lambda number: {"price": number}, "price"),
        (lambda number: {"levels": [1.0, (2.0, number)]}, r"levels\[1\]\[1\]"),
        (lambda number: [NewRecord({"a": None}), NewRecord({"a": number})], r"\[1\].data.a"),
        (Quote, "price"),
        (lambda number: {"price": number, "long": 2**80}, "price"),
    ],
)
def test_the_error_says_which_value_it_is(number: float, shape: Any, place: str) -> None:
    with pytest.raises(InvalidRecord, match=f"^{place} is {number}, which JSON does not have"):
        encode(shape(number))


@pytest.mark.parametrize("value", [None, {"a": None, "b": "null"}, Quote(1.5), {"long": 2**80, "a": None}])
def test_a_null_that_was_meant_is_no_reason_to_refuse(value: Any) -> None:
    assert encode(value) == msgspec.json.encode(value)


def test_clients_producers_and_sockets_refuse_it_before_anything_is_sent(client: Any, plain: Any) -> None:
    plain.append("t", 1)
    with pytest.raises(InvalidRecord, match=r"^records\[0\].data.price is nan"):
        client.append("t", {"price": math.nan})
    with pytest.raises(InvalidRecord, match=r"meta\.m is inf"):
        client.append("t", 1, meta={"m": math.inf})
    with Producer(plain, "t") as producer:
        with pytest.raises(InvalidRecord, match=r"^price is nan"):
            producer.send({"price": math.nan})
        producer.send(2)
        producer.flush()
    assert [record.data for record in plain.read("t")] == [1, 2]
