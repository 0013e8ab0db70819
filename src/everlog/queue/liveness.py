"""Is the writer still there? Status and disconnect reasons, as a reader sees them.

Signals only: what to do about them is the application's decision.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum

from everlog.clock import Clock
from everlog.fs import Fs
from everlog.queue.control import ControlBlock
from everlog.queue.segment import segment_path
from everlog.queue.writer_lock import owner_alive, read_owner


class DisconnectReason(StrEnum):
    """Why a reader should consider itself cut off."""

    SEGMENT_MISSING = "segment-missing"
    HEARTBEAT_STALE = "heartbeat-stale"
    WRITER_LOCK_LOST = "writer-lock-lost"


@dataclass(frozen=True, slots=True)
class WriterStatus:
    """What is known of the writer now."""

    alive: bool
    last_heartbeat_ns: int
    ttl_ns: int


def writer_status(fs: Fs, clock: Clock, control: ControlBlock, ttl_ns: int) -> WriterStatus:
    """Alive: the lock's owner runs, or the heartbeat is set and not older than `ttl_ns`."""
    heartbeat_ns = control.writer_heartbeat_ns
    alive = _owner_runs(fs, control) or (heartbeat_ns != 0 and not _stale(clock, heartbeat_ns, ttl_ns))
    return WriterStatus(alive, heartbeat_ns, ttl_ns)


def detect_disconnect(
    fs: Fs, clock: Clock, control: ControlBlock, segment_id: int, ttl_ns: int
) -> DisconnectReason | None:
    """Return the first reason that holds, in the order of the enum; None: connected."""
    if not fs.exists(segment_path(os.path.dirname(control.path), segment_id)):
        return DisconnectReason.SEGMENT_MISSING
    heartbeat_ns = control.writer_heartbeat_ns
    stale = _stale(clock, heartbeat_ns, ttl_ns)
    if _owner_runs(fs, control):
        return DisconnectReason.HEARTBEAT_STALE if stale else None
    return DisconnectReason.WRITER_LOCK_LOST if heartbeat_ns == 0 or stale else None


def _owner_runs(fs: Fs, control: ControlBlock) -> bool:
    owner = read_owner(fs, os.path.dirname(control.path))
    return owner is not None and owner_alive(owner)


def _stale(clock: Clock, heartbeat_ns: int, ttl_ns: int) -> bool:
    # A heartbeat in the future (the clock was set back) counts as fresh.
    return clock.wall_ns() - heartbeat_ns > ttl_ns
