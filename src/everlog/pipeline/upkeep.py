"""Upkeep of a table while a job fills it: small files are joined, and files that nothing needs are removed.

A job that follows a source commits small files for ever. Here is when they are joined, and how much at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from deltalake.exceptions import DeltaError

from everlog.errors import InvalidConfig, ObjectStoreFailed
from everlog.pipeline.lake import COMPACT_BYTES, VACUUM_KEEP, LakeTable

VACUUM_EVERY: Final = 10
"""Files are removed after so many times of joining: it lists the whole table."""

DAY: Final = "date"
NEAR: Final = ("symbol", "ts")
"""The order of rows in the files of a day that is over, if the table has these columns."""


@dataclass(frozen=True, slots=True)
class UpkeepPolicy:
    """How a table is kept in shape between commits."""

    every: int = 100
    """Small files are joined after so many commits; 0: never."""
    target_bytes: int = COMPACT_BYTES
    """Files of this size are left alone, so a row is rewritten a bounded number of times."""
    keep: timedelta = VACUUM_KEEP
    """Versions of the table that stay readable."""

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be."""
        if self.every < 0 or self.target_bytes < 1:
            raise InvalidConfig(
                f"upkeep every {self.every} commits to files of {self.target_bytes} bytes cannot be; give at "
                "least 0 and 1"
            )


class Upkeep:
    """The upkeep of a table during a run; a failure of it stops no job, and the next time does it."""

    def __init__(self, table: LakeTable, policy: UpkeepPolicy) -> None:
        self._table = table
        self._policy = policy
        self._days: set[str] = set()
        self._commits = 0
        self.joined = 0
        """How often small files were joined."""

    def after_commit(self, days: Iterable[str]) -> None:
        """Do what is due after a commit that added rows to these days."""
        self._days.update(days)
        self._commits += 1
        every = self._policy.every
        if not every or self._commits % every:
            return
        # Another program may change the table meanwhile; then its commit wins and ours is tried again later.
        with suppress(DeltaError, ObjectStoreFailed):
            self._join()
            self.joined += 1
            if self.joined % VACUUM_EVERY == 0:
                self._table.vacuum(self._policy.keep)

    def _join(self) -> None:
        """Join small files; bring the rows of days that are over into an order that readers profit from."""
        self._table.compact(self._policy.target_bytes)
        newest = max(self._days, default="")
        has_order = {*NEAR} <= {*(self._table.columns() or ())}
        for day in sorted(self._days - {newest}):
            if has_order:
                self._table.compact(self._policy.target_bytes, NEAR, {DAY: day})
            self._days.discard(day)
