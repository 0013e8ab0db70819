"""Who holds which job of one queue: the projection of its lease events.

Owns the translation between the native table of leases and its events, and who waits for jobs. Pure: all
time is passed in, nothing is read from or written to anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import NamedTuple

from everlog.native import lease_table
from everlog.native.lease_table import LeaseTable


class Phase(IntEnum):
    """Where a job is that was given out at least once."""

    READY = lease_table.READY
    LEASED = lease_table.LEASED
    DELAYED = lease_table.DELAYED
    LEAVING = lease_table.LEAVING


class KeptLease(NamedTuple):
    """A job as a snapshot keeps it."""

    seq: int
    phase: int
    node: str
    lease_id: int
    until_ms: int
    deliveries: int


class LeaseState(LeaseTable):
    """The state of one queue."""

    __slots__ = ("dead_lettered", "waiters")

    def __init__(self) -> None:
        self.dead_lettered = 0
        self.waiters: dict[Callable[[], None], None] = {}

    def replay(self, lease: KeptLease) -> None:
        """Take over what an event or a snapshot says of a job; an older lease never changes a newer one."""
        self.restore(*lease)

    def kept(self) -> Iterator[KeptLease]:
        """What a snapshot has to keep."""
        for seq, job in self.jobs.items():
            # One that is leaving has its end in the log behind the snapshot, or stays and is claimable.
            phase = lease_table.READY if job.phase == lease_table.LEAVING else job.phase
            yield KeptLease(seq, phase, job.node, job.lease_id, job.until_ms, job.deliveries)

    def retain(self, is_live: Callable[[int], bool]) -> None:
        """Forget the jobs that are not there any more; the end of a replay."""
        self.drop([seq for seq in self.jobs if not is_live(seq)])

    def wake(self) -> None:
        """Tell everyone who waits for jobs or for room that there may be some; each is told once."""
        waiters, self.waiters = self.waiters, {}
        for waiter in waiters:
            waiter()
