"""Storage failures of an engine: each is logged with its cause and path, counted, and shown while it lasts.

Owns what is known of them. Paths are in log lines only: what is shown to clients carries none.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections import Counter
from typing import Final, Literal, get_args

from everlog.clock import NS_PER_S, Clock
from everlog.errors import EverlogError

LOG_INTERVAL_NS: Final = 60 * NS_PER_S
"""The same failure is logged again after this time at the earliest."""
CURRENT_NS: Final = 10 * NS_PER_S
"""For so long a failure counts as lasting after it was seen last."""
UNTIL_SUCCESS: Final = frozenset(("backup", "relocation"))
"""Kinds that are tried again until they succeed, and last until then."""
WRITE_FAILURES: Final = frozenset(("write", "log_file"))
"""Kinds with which appends fail."""
FailureKind = Literal[
    "backup",
    "checkpoint",
    "corrupt_record",
    "log_file",
    "relocation",
    "segment_read",
    "sync",
    "synced_end",
    "write",
]
FAILURES: Final[tuple[FailureKind, ...]] = get_args(FailureKind)
_SEEN_MAX: Final = 1000
log = logging.getLogger("everlog.topics")


def errno_name(number: int | None) -> str:
    """The symbol of an error number, such as ENOSPC."""
    return "no errno" if number is None else errno.errorcode.get(number, f"errno {number}")


def cause_of(error: BaseException) -> str:
    """The symbol of an error's number, or else its code, such as `object_store_failed`."""
    number = getattr(error, "errno", None)
    return error.code if number is None and isinstance(error, EverlogError) else errno_name(number)


class StorageFailures:
    """What has failed, by kind. `report` may be called on any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._logged_ns: dict[tuple[str, str, str], int] = {}
        self._last: dict[str, tuple[int, str]] = {}
        self.counts: Counter[str] = Counter()

    def report(self, kind: FailureKind, error: BaseException, path: str) -> None:
        """Something went wrong at `path`; logged once per cause and minute."""
        name = cause_of(error)
        now_ns = self._clock.monotonic_ns()
        with self._mutex:
            self.counts[kind] += 1
            self._last[kind] = (now_ns, name)
            cause = (kind, name, path)
            is_known = now_ns - self._logged_ns.get(cause, now_ns - LOG_INTERVAL_NS) < LOG_INTERVAL_NS
            if not is_known:
                if len(self._logged_ns) >= _SEEN_MAX:
                    self._logged_ns.clear()
                self._logged_ns[cause] = now_ns
        if not is_known:
            log.error("storage failure (%s): %s: %s: %s", kind, path, name, error)

    def succeeded(self, kind: str) -> None:
        """What failed works again."""
        if kind in self._last:
            self._last.pop(kind, None)

    def current(self) -> dict[str, str]:
        """The failures that last, by kind, with the symbol of their cause."""
        now_ns = self._clock.monotonic_ns()
        return {
            kind: cause
            for kind, (at_ns, cause) in self._last.items()
            if now_ns - at_ns < CURRENT_NS or kind in UNTIL_SUCCESS
        }
