"""What the jobs of a lake last did, as small files in the lake: how far an archive is, what an audit found.

Owns their names, fields and bounds. Jobs write them, a server that shows a lake reads them; neither needs the
other, and a report that is missing or unreadable is none.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final, TypeVar

import msgspec

from everlog.fs import Fs, OsFs, replace_file

FOLDER: Final = "_reports"
REPORT_BYTES_MAX: Final = 1 << 20
STREAMS_MAX: Final = 100
"""How many streams a stored audit names, faulty ones first."""


class ArchiveProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far the last run of an archive is, or was when it ended."""

    source: str
    updated_ms: int
    is_running: bool
    """As it was written: a run that is killed cannot say that it ended."""
    rows: int
    commits: int
    files: int
    version: int | None
    seconds: float


class AuditedStream(msgspec.Struct, frozen=True, kw_only=True):
    """The account of one topic or queue in an audit."""

    name: str
    first_seq: int
    last_seq: int
    delivered: int
    gap: int
    deleted: int
    duplicate: int
    overlapping: int
    missing: int
    altered: int
    behind: int
    is_sound: bool


class AuditSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What the last audit of a table found."""

    updated_ms: int
    is_sound: bool
    unreadable: list[str]
    stream_count: int
    streams: list[AuditedStream]
    """Those with a fault first; at most `STREAMS_MAX`."""


Report = TypeVar("Report", ArchiveProgress, AuditSummary)
_NAMES: Final = {ArchiveProgress: "archive", AuditSummary: "audit"}


def write_report(lake: str, table: str, report: ArchiveProgress | AuditSummary, fs: Fs | None = None) -> None:
    """Store the last report of a table. A crash leaves the one before; a full disk stops no job."""
    path = _path(lake, table, type(report))
    with suppress(OSError):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        replace_file(fs or OsFs(), path, msgspec.json.encode(report), durable=False)


def report_key(table: str, kind: type[ArchiveProgress | AuditSummary]) -> str:
    """Return the name of a table's last report in the lake."""
    return f"{FOLDER}/{_NAMES[kind]}.{table}.json"


def read_report(lake: str, table: str, kind: type[Report]) -> Report | None:
    """Return the last report of a table; None if there is none that can be read."""
    try:
        with open(_path(lake, table, kind), "rb") as file:
            return msgspec.json.decode(file.read(REPORT_BYTES_MAX), type=kind)
    except (OSError, msgspec.DecodeError):
        return None


def _path(lake: str, table: str, kind: type[ArchiveProgress | AuditSummary]) -> str:
    return os.path.join(lake, report_key(table, kind))
