"""Spec 5.1: path components and dates."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from everlog.errors import InvalidName
from everlog.queue.names import check_component


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
