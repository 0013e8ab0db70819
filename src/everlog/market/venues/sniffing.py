"""What a file looks like, from its first bytes: so that the wrong format is named, not its first bad row.

Owns the signs by which formats are known, and which files of an archive are imported. Reads nothing but the
beginning of a file; whether its rows are sound is the importer's to find out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from everlog.errors import InvalidSource
from everlog.market.venues.archives import BYTE_ORDER_MARK, Member

LOOKED_AT_BYTES: Final = 1 << 12
"""More than the first line of every format that is known."""

_OTHER_KINDS: Final = (
    (b"PAR1", "a Parquet file"),
    (b"\xff\xfe", "text in UTF-16, to be converted to UTF-8 first"),
    (b"\xfe\xff", "text in UTF-16, to be converted to UTF-8 first"),
    (b"%PDF", "a PDF document"),
    (b"ARROW1", "an Arrow file"),
    (b"\xff\xd8\xff", "a picture"),
    (b"\x89PNG", "a picture"),
    (b"<", "an HTML or XML document"),
    (b"\x1f\x8b", "gzip data inside of compressed data"),
    (b"\x28\xb5\x2f\xfd", "zstd data inside of compressed data"),
    (b"PK\x03\x04", "a zip archive inside of an archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive inside of an archive"),
)
_HEADERS: Final = (
    (frozenset({"exchange", "symbol", "is_snapshot", "local_timestamp"}), "tardis-book"),
    (frozenset({"exchange", "symbol", "id", "side", "local_timestamp"}), "tardis-trades"),
    (frozenset({"exchange", "symbol", "local_timestamp", "bid_price", "ask_price"}), "tardis-quotes"),
    (frozenset({"exchange", "symbol", "local_timestamp", "bids[0].price"}), "tardis-snapshots"),
    (frozenset({"exchange", "symbol", "local_timestamp"}), "a Tardis file of another kind"),
    (frozenset({"agg_trade_id", "transact_time"}), "binance-agg-trades"),
    (frozenset({"id", "price", "qty", "time", "is_buyer_maker"}), "binance-trades"),
    (frozenset({"timestamp", "percentage", "depth", "notional"}), "binance-book-depth"),
    (frozenset({"open_time", "open", "close_time", "volume"}), "binance-klines"),
    (frozenset({"ApplSeqNum", "ChannelNo"}), "szse"),
    (frozenset({"ts_event", "rtype"}), "DBN that was written as CSV"),
)
_BINARY: Final = ((b"DBN", "dbn"), (b"\x00\x0cS", "itch"))
"""A day of ITCH begins with the length of its first message, a system event, and its kind."""
_CAPTURED: Final = re.compile(r"\d{16,20} [\[{]|\d+\.\d+: |\S+ (?:<->|<-|->) \d")
_BINANCE: Final = re.compile(r"\d+(?:\.\d+)?")
LOBSTER_BOOK: Final = "the LOBSTER order book of a message file"
_LOBSTER_TIME: Final = re.compile(r"\d{1,5}(?:\.\d+)?")
_INTEGER: Final = re.compile(r"-?\d+")
_LOBSTER_FIELDS: Final = (6, 7)
"""Newer files name the market participant in a seventh."""
_LEVEL_FIELDS: Final = 4
_COMPANIONS: Final = re.compile(
    r"(?:^\.|^__MACOSX/|/\.)|(?:\.(?:txt|md|pdf|html?|sha\d+|md5)$)"
    r"|^(?:manifest|metadata|condition|symbology)(?:\.\w+)?\.json$",
    re.IGNORECASE,
)
"""Files that come with the data: of systems, descriptions, checksums, and those of Databento's archives."""


def looks_like(start: bytes) -> str | None:
    """Return the format, or in words what else it is; None if nothing is known of files that begin so."""
    if not start:
        return None
    for sign, name in _BINARY:
        if start.startswith(sign):
            return name
    text = start.removeprefix(BYTE_ORDER_MARK).lstrip()
    for sign, kind in _OTHER_KINDS:
        if start.startswith(sign) or text.startswith(sign):
            return kind
    if b"\0" in start:
        return "binary data of an unknown kind"
    line = text.partition(b"\n")[0].decode("utf-8", "replace")
    if _CAPTURED.match(line):
        return "capture"
    if line.startswith("{"):
        return "bybit" if re.search(r'"topic"\s*:\s*"orderbook', line) else _json_kind(line)
    fields = [field.strip().strip('"').strip() for field in line.split(",")]
    for names, kind in _HEADERS:
        if names <= set(fields):
            return kind
    return _without_header(fields)


def _json_kind(line: str) -> str | None:
    return None if re.search(r'"type"\s*:\s*"(?:snapshot|delta)"', line) else "JSON of another kind"


def _without_header(fields: list[str]) -> str | None:
    """Files of Binance spot, and LOBSTER's: messages begin with time and type, books are integers."""
    if kind := _binance_kind(fields):
        return kind
    if len(fields) in _LOBSTER_FIELDS and _LOBSTER_TIME.fullmatch(fields[0]) and fields[1] in set("1234567"):
        return "lobster" if all(map(_INTEGER.fullmatch, fields[1:6])) else None
    if len(fields) % _LEVEL_FIELDS == 0 and all(map(_INTEGER.fullmatch, fields)):
        return LOBSTER_BOOK
    return None


def _binance_kind(fields: list[str]) -> str | None:
    """Files of spot have no header: a truth in the last columns, or the twelve columns of klines."""
    if fields[-1].lower() in ("true", "false"):
        truths = sum(field.lower() in ("true", "false") for field in fields)
        columns = len(fields) - truths
        return {5: "binance-trades", 6: "binance-agg-trades"}.get(columns) if truths <= 2 else None
    is_kline = len(fields) == 12 and all(map(_BINANCE.fullmatch, fields))
    return "binance-klines" if is_kline and float(fields[6]) > float(fields[0]) > 10**11 else None


def chosen_members(members: Sequence[Member], format_name: str, notes: list[str]) -> list[Member]:
    """Return the files to import; refuse what is plainly another format.

    An archive may hold other files beside the data: they are left out, and named in `notes`.
    """
    chosen, left_out = [], []
    for member in members:
        reason = _why_not(member, format_name)
        if reason is None:
            chosen.append(member)
        else:
            left_out.append((member, reason))
    for member, reason in left_out:
        in_archive = member.label != member.path
        if not in_archive or not any(other.path == member.path for other in chosen):
            raise InvalidSource(f"{member.label} {reason}", member.label)
        notes.append(f"{member.label} {reason}; it was left out")
    return chosen


def _why_not(member: Member, format_name: str) -> str | None:
    """Return why the file is not imported, None if it is."""
    if member.label != member.path and _COMPANIONS.search(member.label.removeprefix(f"{member.path}!")):
        return "is not market data"
    start = member.peek(LOOKED_AT_BYTES)
    if not start.removeprefix(BYTE_ORDER_MARK).strip():
        return "is empty, without even a header; fetch it again, or leave it out"
    kind = looks_like(start)
    if kind is None or kind == format_name or (kind == LOBSTER_BOOK and format_name == "lobster"):
        return None
    if " " in kind:
        return f"is {kind}, not {format_name}"
    return f"looks like {kind}, not {format_name}: import it as {kind}"
