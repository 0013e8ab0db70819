"""The native CSV kernel against its plain twin, and its rules about rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from everlog.market.protocol import symbol_hash
from everlog.native.market.events import (
    CHOICE,
    DECIMAL,
    HASH,
    IDENTIFIER,
    PRICE,
    SIGNED,
    UNSIGNED,
    RowParser,
)
from tests.native.csv_twin import BAD_QUOTE, FIELD_COUNT, OK, TOO_LARGE, UNKNOWN_CHOICE, convert

Spec = tuple[int, int, list[tuple[bytes, int]]]


def parse(
    text: bytes, columns: list[Spec], fields: int
) -> tuple[Any, list[list[int]], list[list[int]], list[int]]:
    """Parse with room for every line; returns the result, values, extras and lines of the rows."""
    capacity = max(1, text.count(b"\n"))
    values = [np.zeros(capacity, dtype=np.uint64) for _ in columns]
    extras = [np.zeros(capacity, dtype=np.uint8) for _ in columns]
    lines = np.zeros(capacity, dtype=np.uint32)
    result = RowParser(columns, fields).parse(text, values, extras, lines)
    rows = result[0]
    return (
        result,
        [v[:rows].tolist() for v in values],
        [e[:rows].tolist() for e in extras],
        lines[:rows].tolist(),
    )


def one(text: str, kind: int) -> tuple[int, int, int]:
    """Parse a single field: (problem, value, extra)."""
    columns: list[Spec] = [(1, kind, [])]
    result, values, extras, _ = parse(f"x,{text},y\n".encode(), columns, 3)
    return (result[3], values[0][0], extras[0][0]) if result[3] == OK else (result[3], 0, 0)


numbers = st.one_of(
    st.from_regex(r"-?[0-9]{0,25}(\.[0-9]{0,25})?([eE][+-]?[0-9]{1,2})?", fullmatch=True),
    st.decimals(allow_nan=False, allow_infinity=False).map(str),
    st.integers(-(2**65), 2**65).map(str),
    st.text("0123456789.-+eE", max_size=12),
)


@given(text=numbers)
@example("1.500000000000000000000")
@example("18446744073709551615")
@example("18446744073709551616")
@example("18446744073709551615.5")
@example("0.1234567890123456789")
@example("12345678901234567890.000000000000000000000")
@example("1e-7")
@example("1.5e3")
@example("0.00000000000000000000000000001")
@example("100000000000000000000e-3")
@example("-37.63")
@example("-9223372036854775807")
@example("9223372036854775808")
@example("--1")
@example("-")
@example("-0")
@example("-0.0")
@example(".")
@example("")
@pytest.mark.parametrize("kind", [UNSIGNED, SIGNED, DECIMAL, PRICE, IDENTIFIER, HASH])
def test_numbers_are_read_as_the_plain_twin_reads_them(kind: int, text: str) -> None:
    problem, value, decimals = one(text, kind)
    expected = convert(text, kind)
    # A value with more digits than 64 bits hold may be refused although the cut-off one would fit.
    if kind in (DECIMAL, PRICE) and problem == TOO_LARGE and sum(c.isdigit() for c in text) > 19:
        return
    assert (problem, value, decimals) == expected


def test_an_identifier_is_a_number_a_hash_or_nothing() -> None:
    assert one("42", IDENTIFIER)[1] == 42
    assert one("", IDENTIFIER)[1] == 0
    assert one("a-b", IDENTIFIER)[1] == symbol_hash("a-b")
    assert one("42", HASH)[1] == symbol_hash("42")
    assert one("99999999999999999999", IDENTIFIER)[1] == symbol_hash("99999999999999999999")


def test_fields_are_trimmed_and_quotes_are_taken_off() -> None:
    columns: list[Spec] = [(0, UNSIGNED, []), (2, CHOICE, [(b"buy", 1), (b"sell", 2)])]
    text = b' 1 , x ,"buy"\r\n"2","",\t sell\n\n   \n3,,buy\n'
    result, values, extras, lines = parse(text, columns, 3)
    assert values[0] == [1, 2, 3]
    assert extras[1] == [1, 2, 1]
    assert lines == [0, 1, 4], "blank lines are no rows but are counted"
    assert result[1:4] == (len(text), 5, OK)


@pytest.mark.parametrize(
    ("row", "problem", "field"),
    [
        (b"1,2\n", FIELD_COUNT, 2),
        (b"1,2,buy,9\n", FIELD_COUNT, 4),
        (b"1,2,hold\n", UNKNOWN_CHOICE, 2),
        (b'"1,2,buy\n', BAD_QUOTE, 0),
    ],
)
def test_a_bad_row_stops_the_parser_before_it(row: bytes, problem: int, field: int) -> None:
    columns: list[Spec] = [(0, UNSIGNED, []), (2, CHOICE, [(b"buy", 1)])]
    good = b"7,x,buy\n"
    result, values, _, _ = parse(good + row + good, columns, 3)
    assert result == (1, len(good), 1, problem, field)
    assert values[0] == [7]


def test_a_line_without_its_end_is_not_consumed() -> None:
    result, values, _, _ = parse(b"1\n2\n34", [(0, UNSIGNED, [])], 1)
    assert values[0] == [1, 2]
    assert result[:3] == (2, 4, 2)


def test_arrays_that_are_too_short_are_refused() -> None:
    parser = RowParser([(0, UNSIGNED, [])], 1)
    with pytest.raises(ValueError, match="as long as row_lines"):
        parser.parse(b"1\n", [np.zeros(1, np.uint64)], [np.zeros(1, np.uint8)], np.zeros(2, np.uint32))
