"""The bounded channel from sidecar threads to the hot thread: section 5.6."""

from __future__ import annotations

import os
import threading
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.bus import HandOff
from everlog.errors import InvalidConfig


def test_a_hand_off_holds_sixteen_items_by_default() -> None:
    hand_off: HandOff[int] = HandOff()
    assert [hand_off.offer(number) for number in range(17)] == [True] * 16 + [False]
    assert hand_off.drain() == list(range(16))


def test_draining_an_empty_hand_off_returns_at_once_with_nothing() -> None:
    assert HandOff[int]().drain() == []


def test_a_hand_off_needs_room_for_one_item() -> None:
    with pytest.raises(InvalidConfig, match="capacity is 0"):
        HandOff[int](0)


@given(
    capacity=st.integers(min_value=1, max_value=4),
    steps=st.lists(st.sampled_from(["offer", "drain"]), max_size=40),
)
def test_a_hand_off_behaves_like_a_bounded_first_in_first_out_list(capacity: int, steps: list[str]) -> None:
    hand_off: HandOff[int] = HandOff(capacity)
    model: deque[int] = deque()
    for number, step in enumerate(steps):
        if step == "offer":
            accepted = len(model) < capacity
            assert hand_off.offer(number) is accepted
            if accepted:
                model.append(number)
        else:
            assert hand_off.drain() == list(model)
            model.clear()
        assert len(hand_off) == len(model)


def test_many_senders_never_exceed_the_capacity_and_lose_nothing() -> None:
    per_sender, senders = 2000, 4
    hand_off: HandOff[tuple[int, int]] = HandOff(8)

    def send(sender: int) -> None:
        for number in range(per_sender):
            while not hand_off.offer((sender, number)):
                os.sched_yield()

    threads = [threading.Thread(target=send, args=(sender,)) for sender in range(senders)]
    for thread in threads:
        thread.start()
    received: list[tuple[int, int]] = []
    while len(received) < per_sender * senders:
        assert len(hand_off) <= hand_off.capacity
        received += hand_off.drain()
        os.sched_yield()
    for thread in threads:
        thread.join()
    for sender in range(senders):
        assert [number for who, number in received if who == sender] == list(range(per_sender))


def test_the_last_free_place_goes_to_one_of_many_senders(monkeypatch: pytest.MonkeyPatch) -> None:
    class SlowLength(deque[int]):
        """Lets another thread run between the count and what is done about it."""

        def __len__(self) -> int:
            length = super().__len__()
            never.wait(0.01)
            return length

    never = threading.Event()  # waiting for it is the pause
    hand_off: HandOff[int] = HandOff(1)
    monkeypatch.setattr(hand_off, "_items", SlowLength())
    accepted: list[bool] = []
    threads = [
        threading.Thread(target=lambda number=number: accepted.append(hand_off.offer(number)))
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(accepted) == [False, False, False, True]
