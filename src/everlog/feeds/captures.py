"""Raw captures as history: recorded frames of a venue, decoded as the live feed decodes them.

Owns the importer of recordings (`everlog.feeds.recordings`, among them hftbacktest's line format) and the
table of all importers, which stands here because market data itself knows no live feed.
"""

from __future__ import annotations

import contextlib
import heapq
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar

import numpy as np

from everlog.errors import InvalidConfig, InvalidSource
from everlog.feeds.recordings import RecordedFrame, parse_line
from everlog.feeds.session import FeedSession, Flagged
from everlog.feeds.venue import UNREADABLE, Refusal
from everlog.feeds.venues import VENUES
from everlog.market.importing import FORMATS
from everlog.market.venues.archives import Member, open_members
from everlog.market.venues.interface import MULTI, EventBlock, ImportContext, Importer, find_date

BLOCK_MESSAGES: Final = 1 << 14
LOOKED_AT_BYTES: Final = 1 << 20
EARLY_MAX: Final = 100
GOES_BACK: Final = "the time goes back: lines are out of order or there twice; --allow-unordered keeps them"
T = TypeVar("T")


class Capture:
    """Importer of raw captures."""

    name = "capture"
    merges_files = False

    def groups(self, paths: Sequence[str]) -> list[list[str]]:
        """Return each file of frames with those of REST answers that belong to it."""
        return _joined(list(paths), [os.path.basename(path) for path in paths], map(_is_of_answers, paths))

    def events(self, members: Sequence[Member], context: ImportContext) -> Iterator[EventBlock]:
        """Yield what the live feed would have written, from the frames and answers of REST in the files."""
        names = [member.name for member in members]
        for group in _joined(list(members), names, map(_begins_with_answer, members)):
            yield from _Recording(group, context).events()


def _joined(files: list[T], names: Sequence[str], are_answers: Iterable[bool]) -> list[list[T]]:
    """Return a group for each file of frames; answers join the one whose name is most like theirs."""
    answers = [at for at, is_answer in enumerate(are_answers) if is_answer]
    frames = [at for at in range(len(files)) if at not in answers]
    if not frames:
        return [[file] for file in files]
    groups = {at: [files[at]] for at in frames}
    for own in answers:
        shared = [len(os.path.commonprefix([names[own], names[at]])) for at in frames]  # noqa: RUF071
        alike = frames[shared.index(max(shared))]
        groups[alike].append(files[own])
    return list(groups.values())


def _is_of_answers(path: str) -> bool:
    with open_members(path) as members:
        return len(members) == 1 and _begins_with_answer(members[0])


def _begins_with_answer(member: Member) -> bool:
    """Whether a recording holds answers of REST, with their addresses, in a file of their own."""
    first = member.peek(LOOKED_AT_BYTES).partition(b"\n")[0].rstrip(b"\r")
    try:
        one = parse_line(first, member.label, 1)
    except InvalidSource:
        return False
    return one.kind == "rest" and bool(one.address)


class _Recording:
    """One connection: its frames, and the answers of REST in the same or in other files."""

    def __init__(self, members: Sequence[Member], context: ImportContext) -> None:
        self._members = members
        self._label = members[0].label
        self._context = context
        self._venue = context.options.venue or _guessed_venue(members)
        if self._venue not in VENUES:
            raise InvalidConfig(f"--venue is {self._venue!r}; captures are of {', '.join(VENUES)}")
        wanted = context.options.symbol
        self._session = FeedSession(
            VENUES[self._venue](), [] if wanted is None else [wanted], takes_all=wanted is None
        )
        self._session.connected(0, is_continued=False)
        self._waiting: list[tuple[Flagged, int]] = []
        self._early: list[RecordedFrame] = []
        """Answers of REST before the first frame, which names the symbol."""
        self._first_ns: int | None = None
        self._unplaced = 0

    def events(self) -> Iterator[EventBlock]:
        """Yield blocks of events, then leave the names and the notes."""
        streams = [self._lines(member) for member in self._members]
        for one in heapq.merge(*streams, key=lambda one: one.received_ns) if streams[1:] else streams[0]:
            if self._first_ns is None:
                self._first_ns = one.received_ns
            self._context.tally.rows += one.kind in ("frame", "rest") and bool(one.body)
            self._waiting += [(message, one.received_ns) for message in self._taken(one)]
            self._session.to_send.clear()
            self._session.snapshots_wanted.clear()
            if len(self._waiting) >= BLOCK_MESSAGES:
                yield self._block()
        self._finish()
        if self._waiting:
            yield self._block()

    def _lines(self, member: Member) -> Iterator[RecordedFrame]:
        """Yield the lines of a file in order; others are rejected.

        Where a missing frame does not show by itself, one that cannot be decoded stands for such a line.
        """
        latest_ns, context = 0, self._context
        for number, line in member.lines():
            text = line.rstrip(b"\r")
            if not text:
                continue
            reason, one = "", RecordedFrame("frame", latest_ns, b"")
            try:
                one = parse_line(text, member.label, number)
            except InvalidSource as error:
                reason = str(error)
            if one.received_ns < latest_ns and not context.options.allow_unordered:
                reason, one = GOES_BACK, RecordedFrame("frame", latest_ns, b"")
            if reason:
                context.rejects.reject(member.label, number, reason, text[:200].decode("latin-1"))
            context.tally.unordered += one.received_ns < latest_ns
            latest_ns = max(latest_ns, one.received_ns)
            if not reason or not self._session.shows_losses:
                yield one

    def _taken(self, one: RecordedFrame) -> list[Flagged]:
        session = self._session
        if one.kind == "frame":
            messages = session.frame(one.body, one.received_ns)
            early, self._early = (self._early, []) if session.symbols else ([], self._early)
            return messages + [message for answer in early for message in self._anchored(answer, one)]
        if one.kind == "connected":
            return session.connected(one.received_ns, is_continued=bool(session.counts["frames"]))
        if one.kind == "rest" and not session.symbols and "symbol=" not in one.address:
            if len(self._early) < EARLY_MAX:
                self._early.append(one)
            return []
        return self._anchored(one, one) if one.kind == "rest" else []

    def _anchored(self, answer: RecordedFrame, now: RecordedFrame) -> list[Flagged]:
        symbol = self._symbol_of(answer)
        if symbol is None:
            self._unplaced += 1
            return []
        return self._session.snapshot(symbol, answer.body, now.received_ns)

    def _symbol_of(self, one: RecordedFrame) -> str | None:
        """Return whose book an answer is: as its address says, or the one that it can continue."""
        states = self._session.symbols
        if "symbol=" in one.address:
            symbol = one.address.partition("symbol=")[2].partition("&")[0]
            return symbol if self._session.state_of(symbol) is not None else None
        if len(states) == 1:
            return next(iter(states))
        try:
            update_id = self._session.venue.decode_snapshot("", one.body).update_id
        except UNREADABLE:
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
        session, tally, label = self._session, self._context.tally, self._label
        options, first = self._context.options, self._members[0]
        date = find_date(first.name, options) or find_date(first.path, options) or _day(self._first_ns)
        self._unplaced += len(self._early)
        names = [name for name, state in session.symbols.items() if state.last_received_ns]
        if session.counts["frames"] and not names:
            wanted = "market data" if options.symbol is None else f"frame of {options.symbol!r}"
            raise InvalidSource(f"{label} holds no {wanted} of {self._venue}; is --venue right?", label)
        symbol = names[0] if len(names) == 1 else MULTI
        tally.name(venue=self._venue, symbol=symbol, date=date, stream="raw")
        tally.symbols |= {(self._venue, name) for name in names}
        states = session.symbols.values()
        tally.gaps += sum(state.counts["gaps"] for state in states)
        unanchored = sum(len(state.buffer) + state.counts["unanchored"] for state in states)
        tally.dropped_rows += unanchored
        tally.notes += [
            f"{label}: it has no book of {name}; in this queue that of an earlier import stands"
            for name in names
            if not session.symbols[name].counts["snapshots"] and self._context.holds(self._venue, name)
        ]
        for count, what in (
            (session.counts["bad_frames"], "frames could not be decoded; each is a gap"),
            (session.counts["other_symbols"], "frames of other symbols were left out"),
            (sum(state.counts["repeated"] for state in states), "updates and trades were there twice"),
            (sum(state.counts["superseded"] for state in states), "updates are older than the book of REST"),
            (unanchored, "updates had no book that they could change"),
            (sum(state.counts["bad_snapshots"] for state in states), "answers of REST could not be decoded"),
            (self._unplaced, "answers of REST fit to none or several of the symbols; name one with --symbol"),
        ):
            if count:
                tally.notes.append(f"{label}: {count} {what}")


def _guessed_venue(members: Sequence[Member]) -> str:
    """Return whose code understands most of the first frames; diffs of futures name the one before."""
    starts = [member.peek(LOOKED_AT_BYTES) for member in members]
    understood: Counter[str] = Counter()
    has_frames = False
    for line in (line for start in starts for line in start.rpartition(b"\n")[0].split(b"\n")):
        with contextlib.suppress(InvalidSource):
            one = parse_line(line.rstrip(b"\r"), "", 0)
            has_frames |= one.kind == "frame"
            for name, venue in VENUES.items() if one.kind == "frame" else ():
                with contextlib.suppress(*UNREADABLE):
                    understood[name] += sum(
                        not isinstance(item, Refusal) for item in venue().decode(one.body)
                    )
    if has_frames and not understood.total():
        raise InvalidSource(
            f"{members[0].label}: its first frames hold no market data of {', '.join(VENUES)}; if they "
            "are of one of these, name it with --venue",
            members[0].label,
        )
    likely = max(VENUES, key=lambda name: understood[name])
    is_futures = likely == "binance" and any(b'"pu":' in start for start in starts)
    return "binance-futures" if is_futures else likely


def _day(first_ns: int | None) -> str:
    return "" if first_ns is None else str(np.datetime64(first_ns, "ns").astype("datetime64[D]"))


IMPORTERS: Final[dict[str, Importer]] = {**FORMATS, Capture.name: Capture()}
"""All importers by the names they have on the command line."""
