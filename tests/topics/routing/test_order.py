"""Batches that wait for different shards: visible in the order of their seqs, whoever is ready first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from everlog.topics.routing.order import SeqOrder


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
        lambda kept: st.tuples(st.just(kept), st.permutations(range(len(kept))))
    )
)
def test_entries_are_published_in_the_order_in_which_they_joined(case: tuple[list[bool], list[int]]) -> None:
    kept, sequence = case
    shown: list[int] = []
    order = SeqOrder(1)
    entries = [Published(number, shown) for number in range(len(kept))]
    for entry in entries:
        order.join(entry)
    decided: set[int] = set()
    for number in sequence:
        decided.add(number)
        (order.met if kept[number] else order.lost)(entries[number])
        first_open = next((each for each in range(len(kept)) if each not in decided), len(kept))
        assert shown == [each for each in range(first_open) if kept[each]]


def test_one_that_came_before_there_was_an_order_is_published_at_once() -> None:
    shown: list[int] = []
    order = SeqOrder(5)
    waiting = Published(2, shown)
    order.join(waiting)
    order.met(Published(1, shown))
    assert shown == [1]
    order.lost(Published(0, shown))
    order.met(waiting)
    assert shown == [1, 2]
