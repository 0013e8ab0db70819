"""Spec 5.1: path components and dates."""

import calendar
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from everlog.errors import InvalidName
from everlog.queue.names import check_component, check_date


def component_is_allowed(value: str) -> bool:
    return value not in ("", ".", "..") and not set(value) & {"/", "\\", "\0"}


@given(st.text(alphabet=st.sampled_from("ab./\\\0 é-_"), max_size=6))
@example("")
@example(".")
@example("..")
@example("...")
def test_a_component_is_accepted_exactly_if_the_rules_allow_it(value: str) -> None:
    if component_is_allowed(value):
        assert check_component(value, "symbol") == value
    else:
        with pytest.raises(InvalidName):
            check_component(value, "symbol")


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        ("", "empty"),
        (".", "name directories"),
        ("..", "name directories"),
        ("a/b", "a slash"),
        ("a\\b", "a backslash"),
        ("a\0b", "a NUL"),
    ],
)
def test_a_refused_component_is_named_with_its_value_and_the_rule(value: str, rule: str) -> None:
    with pytest.raises(InvalidName, match=rule) as refused:
        check_component(value, "reader name")
    assert "reader name" in str(refused.value)
    assert not value or repr(value) in str(refused.value)


@given(st.dates())
def test_every_real_day_is_accepted(day: object) -> None:
    assert check_date(str(day)) == str(day)


@given(st.integers(0, 9999), st.integers(0, 14), st.integers(0, 33))
@example(2023, 2, 29)
@example(2024, 2, 29)
@example(1900, 2, 29)
@example(0, 1, 1)
def test_a_well_formed_date_is_accepted_exactly_if_the_calendar_has_it(
    year: int, month: int, day: int
) -> None:
    value = f"{year:04}-{month:02}-{day:02}"
    if year >= 1 and 1 <= month <= 12 and 1 <= day <= calendar.monthrange(year, month)[1]:
        assert check_date(value) == value
    else:
        with pytest.raises(InvalidName, match=re.escape(repr(value))):
            check_date(value)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "20240229",
        "2024-2-29",
        "24-02-29",
        "2024-02-29 ",
        " 2024-02-29",
        "2024-02-29\n",
        "2024/02/29",
        "2024-W09-4",
        "2024-060",
        "2024-02-29T00",
        "\u0662\u0660\u0662\u0664-02-29",
    ],
)
def test_a_date_is_written_exactly_as_year_month_day(value: str) -> None:
    with pytest.raises(InvalidName, match="YYYY-MM-DD"):
        check_date(value)
