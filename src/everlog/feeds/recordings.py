"""Recorded frames: files with one line a frame, as collectors write them.

Owns three kinds of lines: `<ns> <frame>`; `<seconds>: <frame>`, with `<address> <-> <seconds>` where a
connection began and `<address> <- <seconds>: <text>` where something was sent; and
`<address> -> <seconds>: <body>` of answers of REST.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from everlog.errors import InvalidSource
from everlog.market.venues.archives import open_members

_PLAIN: Final = re.compile(rb"(\d{16,20}) (?=[\[{])")
_RECEIVED: Final = re.compile(rb"(\d+\.?\d*): ")
_ADDRESSED: Final = re.compile(rb"(\S+) (<->|<-|->) (\d+\.?\d*)(?:: |$)")


class RecordedFrame(NamedTuple):
    """One line: `kind` is frame, sent, connected or rest; `address` is set where the line has one."""

    kind: str
    received_ns: int
    body: bytes
    address: str = ""


END_NS: Final = 2**63
"""Times are before this, in the year 2262."""
_KINDS: Final = {b"<->": "connected", b"<-": "sent", b"->": "rest"}


def read_frames(path: Path) -> Iterator[RecordedFrame]:
    """Yield the lines of a recording in order; compressed files are unpacked."""
    with open_members(str(path)) as members:
        for member in members:
            for number, line in member.lines():
                text = line.rstrip(b"\r")
                if text:
                    yield parse_line(text, member.label, number)


def parse_line(text: bytes, label: str, number: int) -> RecordedFrame:
    """Return what a line of a recording is; one of another kind raises InvalidSource."""
    one = _parsed(text)
    if one is not None and one.received_ns < END_NS:
        return one
    raise InvalidSource(
        f"{label}:{number}: the line is neither a frame nor a mark of a recording: {text[:60]!r}",
        label,
        number,
    )


def _parsed(text: bytes) -> RecordedFrame | None:
    if found := _PLAIN.match(text):
        body = text[found.end() :]
        kind = "rest" if body.startswith(b'{"lastUpdateId"') else "frame"
        return RecordedFrame(kind, int(found[1]), body)
    if found := _RECEIVED.match(text):
        return RecordedFrame("frame", _ns(found[1]), text[found.end() :])
    if found := _ADDRESSED.match(text):
        address = found[1].decode("utf-8", "backslashreplace")
        return RecordedFrame(_KINDS[found[2]], _ns(found[3]), text[found.end() :], address)
    return None


def _ns(seconds: bytes) -> int:
    whole, _, fraction = seconds.partition(b".")
    return int(whole) * 10**9 + int(fraction.ljust(9, b"0")[:9])
