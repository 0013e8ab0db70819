"""When a batch may be acknowledged, and what is reserved so that few batches need a sync of their own. Pure.

An acknowledged batch is visible, so a crash may not undo what its class promises:

    ephemeral   nothing outlives the process: acknowledged at once
    memory      survives a crash of the process: acknowledged when written
    disk        a seq or a floor that was shown is never assigned again, even after a power loss:
                acknowledged when written if a synced reservation covers both, otherwise when synced
    fsync       survives a power loss: acknowledged when synced

A batch never overtakes an earlier one of its topic that waits for a sync; see `BatchEntry.require_sync`.
"""

from __future__ import annotations

from typing import Final

from everlog.api_types import Durability

SEQ_RESERVATION: Final = 256
CEILING_LOW: Final = SEQ_RESERVATION * 3 // 4
"""With fewer seqs left of a reservation the next one is logged: what is used up while it is synced."""


def needs_sync(durability: Durability, last_seq: int, ceiling_durable: int) -> bool:
    """Whether a batch that ends at `last_seq` waits for a sync, if seqs up to the ceiling are reserved."""
    if durability is Durability.DISK:
        return last_seq > ceiling_durable
    return durability is Durability.FSYNC


def floor_needs_sync(durability: Durability, floor: int, reserved_durable: int) -> bool:
    """Whether a batch that evicts up to `floor` waits for a sync, if floors up to the other are reserved."""
    return durability is Durability.DISK and floor > reserved_durable


def sweep_needs_sync(durability: Durability) -> bool:
    """Whether a floor that no batch moves (age, tighter caps) is shown only when it is synced."""
    return durability in (Durability.DISK, Durability.FSYNC)


def delete_needs_sync(durability: Durability) -> bool:
    """Whether a delete of records is acknowledged only when it is synced."""
    return durability is Durability.FSYNC


def next_ceiling(durability: Durability, last_seq: int, ceiling_logged: int) -> int:
    """The ceiling to log with a batch that ends at `last_seq`; 0 if enough seqs are reserved."""
    if durability is not Durability.DISK or ceiling_logged - last_seq >= CEILING_LOW:
        return 0
    return last_seq + SEQ_RESERVATION


def next_reserved_floor(
    durability: Durability, floor: int, reserved_logged: int, live_count: int, next_seq: int
) -> int:
    """The reserved floor to log with a batch that evicts up to `floor`.

    What is reserved is lost if the machine stops now, so it is at most an eighth of what the topic holds.
    """
    if durability is not Durability.DISK:
        return floor
    if floor <= reserved_logged:
        return reserved_logged
    return min(floor + min(SEQ_RESERVATION, live_count // 8), next_seq)
