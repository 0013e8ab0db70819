"""Decimal text and scaled integers, against Python's exact decimals."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.errors import InvalidConfig
from everlog.market.decimals import decimals_of, parse_scaled, render_scaled, rescale, scale_of

U64_MAX = 2**64 - 1


@given(value=st.integers(0, U64_MAX), scale=st.integers(0, 18))
def test_rendered_text_is_exact_and_parses_back(value: int, scale: int) -> None:
    text = render_scaled(value, scale)
    assert Decimal(text) == Decimal(value).scaleb(-scale)
    assert parse_scaled(text, scale) == value
    assert decimals_of(text) <= scale


@given(whole=st.integers(0, 10**6), fraction=st.text("0123456789", max_size=22), scale=st.integers(0, 18))
def test_digits_beyond_the_scale_are_cut_off(whole: int, fraction: str, scale: int) -> None:
    exact = Decimal(f"{whole}.{fraction}") * 10**scale
    assert parse_scaled(f"{whole}.{fraction}", scale) == min(int(exact), U64_MAX)


@pytest.mark.parametrize("text", ["-1", "+1", "abc", "", ".", "1e5", "1.2.3", "0x10", "\uff11", "1 2"])
def test_a_sign_or_garbage_gives_zero(text: str) -> None:
    assert parse_scaled(text, 2) == 0


def test_too_large_a_number_saturates() -> None:
    assert parse_scaled("99999999999999999999", 0) == U64_MAX
    assert parse_scaled("18446744073709551615", 0) == U64_MAX


def test_an_event_takes_the_largest_number_of_decimals_without_trailing_zeros() -> None:
    assert scale_of(["1.5000", "2.25", "7"]) == 2
    assert scale_of([]) == 0
    assert decimals_of("0." + "1" * 30) == 18


def test_rescaling_cuts_off_downward_and_saturates_upward() -> None:
    assert rescale(np.array([1234], np.uint64), 3, 1).tolist() == [12]
    assert rescale(np.array([12, U64_MAX], np.uint64), 1, 3).tolist() == [1200, U64_MAX]
    assert rescale(np.array([12], np.uint64), 1, 1).tolist() == [12]
    with pytest.raises(InvalidConfig):
        rescale(np.array([1], np.uint64), 0, 19)
