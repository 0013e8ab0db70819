"""Times of messages as a person writes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from everlog.errors import InvalidConfig

LATEST_NS: Final = 2**64 - 1
_BEGIN: Final = datetime.fromtimestamp(0, UTC)


def parse_time_ns(text: str | None, default_ns: int = 0) -> int:
    """Return a time: nanoseconds since 1970, or a date and time, which is UTC without a zone."""
    if text is None:
        return default_ns
    if text.isascii() and text.isdigit():
        return min(int(text), LATEST_NS)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidConfig(
            f"{text!r} is neither a time like 2026-11-18T12:00:00.5 nor nanoseconds since 1970"
        ) from None
    since = (when if when.tzinfo is not None else when.replace(tzinfo=UTC)) - _BEGIN
    return max(0, since // timedelta(microseconds=1) * 1000)
