"""Raw captures as history: recorded frames of a venue, decoded as the live feed decodes them.

Owns the importer of recordings (`everlog.feeds.recordings`, among them hftbacktest's line format) and the
table of all importers, which stands here because market data itself knows no live feed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from everlog.errors import InvalidConfig, InvalidSource
from everlog.feeds.recordings import RecordedFrame, parse_line
from everlog.feeds.session import FeedSession, Flagged
from everlog.feeds.venues import VENUES
from everlog.market.importing import FORMATS
from everlog.market.venues.archives import Member
from everlog.market.venues.interface import MULTI, EventBlock, ImportContext, Importer, find_date

BLOCK_MESSAGES: Final = 1 << 14
LOOKED_AT_BYTES: Final = 1 << 16


class Capture:
    """Importer of raw captures."""

    name = "capture"
    merges_files = False

    def events(self, members: Sequence[Member], context: ImportContext) -> Iterator[EventBlock]:
        """Yield what the live feed would have written, from the frames and answers of REST in the files."""
        for member in members:
            yield from _File(member, context).events()


class _File:
    """One capture of one connection."""

    def __init__(self, member: Member, context: ImportContext) -> None:
        self._member = member
        self._context = context
        self._venue = context.options.venue or _guessed_venue(member)
        if self._venue not in VENUES:
            raise InvalidConfig(f"--venue is {self._venue!r}; captures are of {', '.join(VENUES)}")
        wanted = context.options.symbol
        self._session = FeedSession(
            VENUES[self._venue](), [] if wanted is None else [wanted], takes_all=wanted is None
        )
        self._session.connected(0, is_continued=False)
        self._waiting: list[tuple[Flagged, int]] = []
        self._latest_ns = self._unplaced = 0

    def events(self) -> Iterator[EventBlock]:
        """Yield blocks of events, then leave the names and the notes."""
        for number, line in self._member.lines():
            text = line.rstrip(b"\r")
            if not text:
                continue
            try:
                one = parse_line(text, self._member.label, number)
            except InvalidSource as error:
                self._context.rejects.reject(
                    self._member.label, number, str(error), text[:200].decode("latin-1")
                )
                continue
            if self._is_in_order(one, number, text):
                self._context.tally.rows += one.kind in ("frame", "rest")
                self._waiting += [(message, one.received_ns) for message in self._taken(one)]
                self._session.to_send.clear()
                self._session.snapshots_wanted.clear()
            if len(self._waiting) >= BLOCK_MESSAGES:
                yield self._block()
        self._finish()
        if self._waiting:
            yield self._block()

    def _is_in_order(self, one: RecordedFrame, number: int, text: bytes) -> bool:
        if one.received_ns >= self._latest_ns:
            self._latest_ns = one.received_ns
            return True
        if self._context.options.allow_unordered:
            self._context.tally.unordered += 1
            return True
        reason = "the time goes back: lines are out of order or there twice; --allow-unordered keeps them"
        self._context.rejects.reject(self._member.label, number, reason, text[:200].decode("latin-1"))
        return False

    def _taken(self, one: RecordedFrame) -> list[Flagged]:
        if one.kind == "frame":
            return self._session.frame(one.body, one.received_ns)
        if one.kind == "connected":
            return self._session.connected(one.received_ns, is_continued=bool(self._session.counts["frames"]))
        if one.kind != "rest":
            return []
        symbol = self._symbol_of(one)
        if symbol is None:
            self._unplaced += 1
            return []
        return self._session.snapshot(symbol, one.body, one.received_ns)

    def _symbol_of(self, one: RecordedFrame) -> str | None:
        """Return whose book an answer is: as its address says, or the one that it can continue."""
        states = self._session.symbols
        if "symbol=" in one.address:
            symbol = one.address.partition("symbol=")[2].partition("&")[0]
            return symbol if symbol in states else None
        if len(states) == 1:
            return next(iter(states))
        try:
            update_id = self._session.venue.decode_snapshot("", one.body).update_id
        except (ValueError, msgspec.DecodeError):
            return None
        fitting = [
            name
            for name, state in states.items()
            if any(diff.first_id <= update_id + 1 and update_id <= diff.last_id for diff in state.buffer)
        ]
        return fitting[0] if len(fitting) == 1 else None

    def _block(self) -> EventBlock:
        waiting, self._waiting = self._waiting, []
        payloads = [payload for (_, payload, _), _ in waiting]
        return EventBlock(
            np.array([kind for (kind, _, _), _ in waiting], dtype=np.uint16),
            np.frombuffer(b"".join(payloads), dtype=np.uint8),
            np.array([received_ns for _, received_ns in waiting], dtype=np.uint64),
            np.cumsum([len(payload) for payload in payloads]).astype(np.uint64),
            np.array([flags for *_, flags in (message for message, _ in waiting)], dtype=np.uint16),
        )

    def _finish(self) -> None:
        """Say what the capture is of, and what of it became no event."""
        session, tally, label = self._session, self._context.tally, self._member.label
        options = self._context.options
        date = find_date(self._member.name, options) or find_date(self._member.path, options) or ""
        names = [name for name, state in session.symbols.items() if state.last_received_ns]
        symbol = names[0] if len(names) == 1 else MULTI
        tally.name(venue=self._venue, symbol=symbol, date=date, stream="raw")
        tally.symbols |= {(self._venue, name) for name in names}
        states = session.symbols.values()
        tally.gaps += sum(state.counts["gaps"] for state in states)
        unanchored = sum(len(state.buffer) + state.counts["unanchored"] for state in states)
        tally.dropped_rows += unanchored
        for count, what in (
            (session.counts["bad_frames"], "frames could not be decoded; each is a gap"),
            (session.counts["other_symbols"], "frames of other symbols were left out"),
            (sum(state.counts["repeated"] for state in states), "updates and trades were there twice"),
            (sum(state.counts["superseded"] for state in states), "updates are older than the book of REST"),
            (unanchored, "updates had no book that they could change"),
            (self._unplaced, "answers of REST fit to none or several of the symbols; name one with --symbol"),
        ):
            if count:
                tally.notes.append(f"{label}: {count} {what}")


def _guessed_venue(member: Member) -> str:
    """Return which Binance it is: diffs of futures name the one before."""
    return "binance-futures" if b'"pu":' in member.peek(LOOKED_AT_BYTES) else "binance"


IMPORTERS: Final[dict[str, Importer]] = {**FORMATS, Capture.name: Capture()}
"""All importers by the names they have on the command line."""
