"""Decimal text and scaled integers, against Python's exact decimals."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.market.decimals import decimals_of, parse_scaled, render_scaled, scale_of

U64_MAX = 2**64 - 1
I64_MIN = -(2**63)


@given(value=st.integers(I64_MIN, U64_MAX), scale=st.integers(0, 18))
def test_rendered_text_is_exact_and_parses_back(value: int, scale: int) -> None:
    text = render_scaled(value, scale)
    assert Decimal(text) == Decimal(value).scaleb(-scale)
    assert parse_scaled(text, scale) == value
    assert decimals_of(text) <= scale


@given(
    sign=st.sampled_from(["", "-"]),
    whole=st.integers(0, 10**6),
    fraction=st.text("0123456789", max_size=22),
    scale=st.integers(0, 18),
)
def test_digits_beyond_the_scale_are_cut_off(sign: str, whole: int, fraction: str, scale: int) -> None:
    text = f"{sign}{whole}.{fraction}"
    assert parse_scaled(text, scale) == max(min(int(Decimal(text) * 10**scale), U64_MAX), I64_MIN)


@pytest.mark.parametrize("text", ["--1", "-", "+1", "abc", "", ".", "1e5", "1.2.3", "0x10", "\uff11", "1 2"])
def test_a_plus_or_garbage_gives_zero(text: str) -> None:
    assert parse_scaled(text, 2) == 0


def test_too_large_a_number_saturates() -> None:
    assert parse_scaled("99999999999999999999", 0) == U64_MAX
    assert parse_scaled("18446744073709551615", 0) == U64_MAX
    assert parse_scaled("-99999999999999999999", 0) == I64_MIN


def test_an_event_takes_the_largest_number_of_decimals_without_trailing_zeros() -> None:
    assert scale_of(["1.5000", "2.25", "7"]) == 2
    assert scale_of([]) == 0
    assert decimals_of("0." + "1" * 30) == 18
