"""The report of a run, and the settings that all runs into one place share."""

from __future__ import annotations

import os
from typing import Any, TypeVar

import msgspec

from everlog.errors import InvalidConfig
from everlog.fs import OsFs, replace_file

Stored = TypeVar("Stored", bound=msgspec.Struct)


class RunReport(msgspec.Struct, kw_only=True):
    """One run: which job, over what, and what it did."""

    job: str
    source: str
    table: str
    rows: int = 0
    gaps: int = 0
    batches: int = 0
    files: int = 0
    version: int | None = None
    seconds: float = 0.0
    offsets: dict[str, Any] = {}

    def to_json(self) -> str:
        """Return it as one JSON document."""
        return msgspec.json.encode(self).decode()

    def progress(self) -> str:
        """Return how far the run is, as one line."""
        rate = self.rows / self.seconds if self.seconds else 0
        return f"commit {self.batches}: {self.rows:,} rows in {self.files:,} files, {rate:,.0f} rows/s"


def print_progress(report: RunReport) -> None:
    """Print how far a run is, a line after each commit: `archive_queue(..., shown=print_progress)`."""
    print(report.progress(), flush=True)


def stored_settings(path: str, wanted: Stored, fixed: tuple[str, ...]) -> Stored:
    """Return the settings that the first run stored at `path`; refuse a run that differs in a `fixed` one."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        with open(path, "rb") as file:
            stored = msgspec.json.decode(file.read(), type=type(wanted))
    except FileNotFoundError:
        replace_file(OsFs(), path, msgspec.json.encode(wanted))
        return wanted
    for name in fixed:
        if getattr(stored, name) != getattr(wanted, name):
            raise InvalidConfig(
                f"{os.path.dirname(path)} was made with another {name} ({getattr(stored, name)}); use the "
                f"same {name}, or another place"
            )
    return stored
