"""The search itself: the same verdict as trying all orders, and reports that name what cannot be ordered."""

from __future__ import annotations

from itertools import chain, combinations, permutations
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.histories.checker import Illegal, NotLinearizable, Operation, Search, Undecided, check


class Push(NamedTuple):
    """Append a letter; the answer is its place, None without one."""

    letter: str
    place: int | None = None
    is_query: bool = False


class Look(NamedTuple):
    """The whole text."""

    text: str
    is_query: bool = True


class TextModel:
    """A text that grows."""

    def initial(self) -> str:
        return ""

    def step(self, state: str, operation: Operation) -> str:
        action = operation.action
        if isinstance(action, Look):
            if action.text != state:
                raise Illegal(f"the text is {state!r}, not {action.text!r}")
            return state
        if action.place not in (None, len(state)):
            raise Illegal(f"the next place is {len(state)}, not {action.place}")
        return state + action.letter


def is_linearizable(operations: list[Operation]) -> bool:
    """Try every order of every choice of the operations without an answer."""
    answered = [each for each in operations if each.end is not None]
    opened = [each for each in operations if each.end is None]
    choices = chain.from_iterable(combinations(opened, size) for size in range(len(opened) + 1))
    return any(_explains(order) for choice in choices for order in permutations([*answered, *choice]))


def _explains(order: tuple[Operation, ...]) -> bool:
    model, state = TextModel(), ""
    for at, operation in enumerate(order):
        last = operation.end if operation.end is not None else operation.lapse
        if last is not None and any(
            later.end is not None and later.end < operation.call for later in order[at:]
        ):
            return False
        if any(_last(later) < operation.call for later in order[at + 1 :]):
            return False
        try:
            state = model.step(state, operation)
        except Illegal:
            return False
    return True


def _last(operation: Operation) -> float:
    last = operation.end if operation.end is not None else operation.lapse
    return float("inf") if last is None else last


@st.composite
def histories(draw: st.DrawFn) -> list[Operation]:
    """Up to five operations with any answers at any moments."""
    operations = []
    for number in range(draw(st.integers(1, 5))):
        call = draw(st.integers(0, 8))
        last = call + draw(st.integers(0, 5))
        is_open = draw(st.booleans()) and draw(st.booleans())
        if draw(st.booleans()):
            place = None if is_open else draw(st.integers(0, 2))
            action: Push | Look = Push("abcde"[number], place)
        else:
            letters = draw(st.permutations("abc"))
            action = Look("".join(letters[: draw(st.integers(0, 3))]))
        lapse = draw(st.sampled_from((None, last))) if is_open else None
        operations.append(Operation(number, f"c{number}", call, None if is_open else last, action, lapse))
    return operations


@given(histories())
def test_the_verdict_is_that_of_trying_all_orders(operations: list[Operation]) -> None:
    try:
        check(TextModel(), operations, "text")
        verdict = True
    except NotLinearizable:
        verdict = False
    assert verdict == is_linearizable(operations)


def test_a_report_names_the_operation_the_reason_and_what_ran_beside_it() -> None:
    operations = [
        Operation(1, "writer", 0, 10, Push("a", 0)),
        Operation(2, "other", 15, 40, Push("b", 1)),
        Operation(3, "reader", 20, 30, Look("")),
    ]
    with pytest.raises(NotLinearizable) as caught:
        check(TextModel(), operations, "text")
    report = str(caught.value)
    assert "[20 .. 30] reader: Look(text=''" in report
    assert "after a: the text is 'a', not ''" in report
    assert "at the same time:\n  [15 .. 40] other: Push(letter='b'" in report
    assert "answered just before:\n  [0 .. 10] writer: Push(letter='a'" in report


def test_an_operation_without_an_answer_explains_a_later_read_until_it_lapses() -> None:
    opened = Operation(1, "writer", 0, None, Push("a"), lapse=10)
    nothing, later = Operation(2, "reader", 12, 13, Look("")), Operation(3, "reader", 14, 15, Look("a"))
    check(TextModel(), [opened, later], "text")
    check(TextModel(), [opened, nothing], "text")
    with pytest.raises(NotLinearizable):
        check(TextModel(), [opened, nothing, later], "text")


def test_a_search_that_grows_too_large_is_given_up_aloud() -> None:
    pushes = [Operation(number, "w", 0, None, Push(str(number))) for number in range(8)]
    search = Search(TextModel(), "text", configurations_max=50)
    with pytest.raises(Undecided, match="more than 50 states"):
        search.run([*pushes, Operation(9, "r", 1, 2, Look("none of them"))])
