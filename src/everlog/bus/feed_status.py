"""What the connections of live capture say of themselves, as one small file beside the queue of each.

Owns its name, its fields and its bounds. `everlog.feeds` writes it every second; the command line and a
server that shows the bus read it, and need nothing of the capture itself.
"""

from __future__ import annotations

import os
from typing import Final

import msgspec

from everlog.errors import InvalidConfig

STATUS_FILE: Final = "status.json"
STATUS_BYTES_MAX: Final = 4 << 20
FEEDS_MAX: Final = 500


class SymbolStatus(msgspec.Struct):
    """One symbol, as `everlog feed status` shows it."""

    is_live: bool
    counts: dict[str, int]
    last_received_ns: int
    lag_ms: float


class FeedStatus(msgspec.Struct, kw_only=True):
    """One connection, as its process last wrote it."""

    name: str
    venue: str
    pid: int
    updated_ns: int
    connection_id: int
    is_connected: bool
    frames_per_s: float
    clock_offset_ms: float | None
    counts: dict[str, int]
    refusals: list[str]
    symbols: dict[str, SymbolStatus]


def read_statuses(root: str | os.PathLike[str]) -> list[FeedStatus]:
    """Return what the connections of a bus last wrote, by name; what cannot be read is left out."""
    folder = os.path.join(root, "streams", "raw")
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        raise InvalidConfig(
            f"{os.fspath(root)} is not the root of a bus with feeds: it has no folder streams/raw"
        ) from None
    found = (_read(os.path.join(folder, name, STATUS_FILE)) for name in names)
    return [status for status in found if status is not None][:FEEDS_MAX]


def _read(path: str) -> FeedStatus | None:
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(STATUS_BYTES_MAX), type=FeedStatus)
    except (OSError, msgspec.DecodeError):
        return None
