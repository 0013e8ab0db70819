"""When a batch is acknowledged, against a plain model of what a power loss at any moment may take back."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.api_types import Durability
from everlog.topics import ack_policy
from everlog.topics.ack_policy import CEILING_LOW, SEQ_RESERVATION

classes = st.sampled_from([Durability.MEMORY, Durability.DISK, Durability.FSYNC])


@dataclass
class Log:
    """A topic whose batches are written at once and synced now and then.

    Frames are (kind, value) in the order of the log; `synced` of them survive a power loss.
    """

    durability: Durability
    frames: list[tuple[str, int]] = field(default_factory=list)
    synced: int = 0
    head: int = 0
    floor: int = 1
    shown_head: int = 0
    shown_floor: int = 1
    waiting: list[tuple[int, int]] = field(default_factory=list)

    def logged(self, kind: str, upto: int | None = None) -> int:
        """The highest value of a kind in the first `upto` frames; all by default."""
        return max((value for name, value in self.frames[:upto] if name == kind), default=0)

    def append(self, count: int, evicted: int) -> None:
        """Append a batch that evicts `evicted` records."""
        self.head += count
        self.floor = min(self.floor + evicted, self.head + 1)
        ceiling = ack_policy.next_ceiling(self.durability, self.head, self.logged("ceiling"))
        if ceiling:
            self.frames.append(("ceiling", ceiling))
        reserved = ack_policy.next_reserved_floor(
            self.durability, self.floor, self.logged("reserved"), self.head + 1 - self.floor, self.head + 1
        )
        self.frames += [("seq", self.head), ("floor", self.floor), ("reserved", reserved)]
        durable_ceiling = self.logged("ceiling", self.synced)
        waits = ack_policy.needs_sync(self.durability, self.head, durable_ceiling)
        waits |= ack_policy.floor_needs_sync(
            self.durability, self.floor, self.logged("reserved", self.synced)
        )
        if waits or self.waiting:
            self.waiting.append((self.head, self.floor))
        else:
            self.shown_head, self.shown_floor = self.head, self.floor

    def sync(self) -> None:
        """Everything written so far is on disk, and what waited for that is shown."""
        self.synced = len(self.frames)
        if self.waiting:
            self.shown_head, self.shown_floor = self.waiting[-1]
        self.waiting = []

    def check_power_loss(self) -> None:
        """What was shown may not be contradicted by a start from the synced frames."""
        head, floor = self.logged("seq", self.synced), self.logged("floor", self.synced)
        ceiling, reserved = self.logged("ceiling", self.synced), self.logged("reserved", self.synced)
        if self.durability is Durability.FSYNC:
            assert self.shown_head <= head
        if self.durability is Durability.DISK:
            assert self.shown_head <= max(head, ceiling), "a seq that was shown would be given out again"
            assert self.shown_floor <= max(1, floor, reserved), "records that were shown as gone come back"


@given(
    durability=classes,
    steps=st.lists(st.one_of(st.none(), st.tuples(st.integers(1, 400), st.integers(0, 90)))),
)
def test_a_power_loss_takes_back_nothing_that_was_acknowledged(
    durability: Durability, steps: list[tuple[int, int] | None]
) -> None:
    log = Log(durability)
    for step in steps:
        if step is None:
            log.sync()
        else:
            log.append(*step)
        log.check_power_loss()


@given(last_seq=st.integers(1, 10_000), ceiling=st.integers(0, 11_000))
def test_only_disk_reserves_seqs_and_never_too_late(last_seq: int, ceiling: int) -> None:
    for durability in (Durability.EPHEMERAL, Durability.MEMORY, Durability.FSYNC):
        assert ack_policy.next_ceiling(durability, last_seq, ceiling) == 0
    found = ack_policy.next_ceiling(Durability.DISK, last_seq, ceiling)
    assert found in (0, last_seq + SEQ_RESERVATION)
    assert (found == 0) == (ceiling - last_seq >= CEILING_LOW)


@given(
    durability=classes,
    floor=st.integers(1, 1000),
    logged=st.integers(1, 1200),
    live=st.integers(0, 5000),
)
def test_a_reserved_floor_covers_the_floor_and_little_more(
    durability: Durability, floor: int, logged: int, live: int
) -> None:
    next_seq = floor + live
    found = ack_policy.next_reserved_floor(durability, floor, logged, live, next_seq)
    assert found >= floor
    if durability is not Durability.DISK:
        assert found == floor
    elif floor <= logged:
        assert found == logged
    else:
        assert found <= min(next_seq, floor + SEQ_RESERVATION, floor + live // 8)


@pytest.mark.parametrize(
    ("durability", "append", "sweep", "delete"),
    [
        (Durability.EPHEMERAL, False, False, False),
        (Durability.MEMORY, False, False, False),
        (Durability.DISK, True, True, False),
        (Durability.FSYNC, True, True, True),
    ],
)
def test_what_waits_for_a_sync_without_a_reservation(
    durability: Durability, append: bool, sweep: bool, delete: bool
) -> None:
    assert ack_policy.needs_sync(durability, 1, 0) is append
    assert ack_policy.sweep_needs_sync(durability) is sweep
    assert ack_policy.delete_needs_sync(durability) is delete
