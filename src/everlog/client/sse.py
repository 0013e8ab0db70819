"""Server-sent events: from pieces of bytes, cut anywhere, to events.

Owns the format; knows no topic and no connection.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

# Only the break is searched for: with the line before it in the pattern, every start of a line that is not
# complete yet would be tried, which takes seconds for a line of some hundred kilobytes.
_BREAK: Final = re.compile(rb"\r\n|\n|\r(?!\Z)")
_MARK: Final = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One event; `name` is `message` if the server gave it none."""

    name: str
    data: bytes
    event_id: str | None = None


class EventParser:
    """Takes pieces of a stream and gives the events that are complete. Comments are no events."""

    def __init__(self) -> None:
        self._rest = b""
        self._is_begun = False
        self._name = ""
        self._data: list[bytes] = []
        self._id: str | None = None

    def feed(self, piece: bytes) -> list[Event]:
        """The events that this piece completes."""
        text = self._rest + piece
        if not self._is_begun:
            if len(text) < len(_MARK) and _MARK.startswith(text):
                self._rest = text
                return []
            self._is_begun = True
            text = text.removeprefix(_MARK)
        events: list[Event] = []
        start = 0
        # A carriage return at the very end may be the first half of a line break: it waits for more.
        for found in _BREAK.finditer(text):
            self._take(text[start : found.start()], events)
            start = found.end()
        self._rest = text[start:]
        return events

    def _take(self, line: bytes, events: list[Event]) -> None:
        if not line:
            if self._data:
                events.append(Event(self._name or "message", b"\n".join(self._data), self._id))
            self._name, self._data, self._id = "", [], None
            return
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
        elif field == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
