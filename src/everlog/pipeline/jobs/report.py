"""What a run of a job says at its end, for people and for programs.

Owns that shape only.
"""

from __future__ import annotations

from typing import Any

import msgspec


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
