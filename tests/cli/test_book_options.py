"""Options of commands that build books: what they mean, and what is refused."""

from __future__ import annotations

import pytest

from everlog.cli.book_options import book_settings, parse_bars, parse_duration_ns
from everlog.errors import InvalidConfig
from everlog.market import BookSettings


def test_bars_are_a_kind_and_a_size() -> None:
    assert parse_bars("time:1000") == ("time", 1_000_000_000.0)
    assert parse_bars("volume:2.5") == ("volume", 2.5)
    for text in ("time", "volume:-1", "volume:x", "weight:1"):
        with pytest.raises(InvalidConfig, match="--bars is"):
            parse_bars(text)


def test_books_of_one_mode_pass_over_the_other() -> None:
    assert book_settings("panic", "fail", None) == BookSettings()
    assert book_settings("panic", "fail", "l3").other_modes == "skip"
    with pytest.raises(InvalidConfig, match="must be l2 or l3"):
        book_settings("panic", "fail", "l4")


def test_durations_have_a_number_and_a_unit() -> None:
    assert [parse_duration_ns(text) for text in ("1ns", "1.5s", "2m")] == [1, 1_500_000_000, 120_000_000_000]
    for text in ("", "5", "s", "0s", "-1s", "1 s", "1d"):
        with pytest.raises(InvalidConfig, match="is no duration"):
            parse_duration_ns(text)
