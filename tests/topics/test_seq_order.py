"""Batches that wait for different shards: visible in the order of their seqs, whichever is ready first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from everlog.topics.commits import SeqOrder


class Published:
    """An entry that remembers when it was published."""

    def __init__(self, number: int, shown: list[int]) -> None:
        self.number = number
        self._shown = shown

    def publish(self) -> None:
        """Note that it is visible."""
        self._shown.append(self.number)


@given(
    st.lists(st.booleans(), max_size=8).flatmap(
        lambda committed: st.tuples(st.just(committed), st.permutations(range(len(committed))))
    )
)
def test_entries_are_published_in_the_order_in_which_they_joined(case: tuple[list[bool], list[int]]) -> None:
    committed, sequence = case
    shown: list[int] = []
    order = SeqOrder(1)
    entries = [Published(number, shown) for number in range(len(committed))]
    for entry in entries:
        order.join(entry)
    decided: set[int] = set()
    for number in sequence:
        decided.add(number)
        (order.on_commit if committed[number] else order.on_abort)(entries[number])
        first_open = next((each for each in range(len(committed)) if each not in decided), len(committed))
        assert shown == [each for each in range(first_open) if committed[each]]


def test_one_that_came_before_there_was_an_order_is_published_at_once() -> None:
    shown: list[int] = []
    order = SeqOrder(5)
    waiting = Published(2, shown)
    order.join(waiting)
    order.on_commit(Published(1, shown))
    assert shown == [1]
    order.on_abort(Published(0, shown))
    order.on_commit(waiting)
    assert shown == [1, 2]
