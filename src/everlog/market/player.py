"""Recorded market data at its own speed: which messages are due now, and what a user may change meanwhile.

Owns the place in the recording. A `Pacer` says when a message is due, a merge in which order they come. It
publishes nothing and never waits: `take` returns what is due, `wait_s` how long until more is. Used by one
thread.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

import numpy as np

from everlog.clock import Clock, SystemClock
from everlog.errors import InvalidConfig
from everlog.market.book_set import BookSet, Market
from everlog.market.merge import MergedBatch, TimeOrder, merge
from everlog.market.opened import as_batch, chained, known_books
from everlog.market.openings import OpeningEvent, SeenMarket, opening_events
from everlog.market.pacing import Pacer, parse_speed, speed_text
from everlog.market.packing import gather_headers
from everlog.market.protocol import HEADER_BYTES, BookMode, TypeId
from everlog.market.replay import Replay
from everlog.market.times import LATEST_NS, parse_time_ns

TAKE_MESSAGES: Final = 4096
"""At most so many at a time, so that commands are looked at in between."""


class Player:
    """Plays the messages of replays from `start_ns` up to `end_ns`, in the order of time."""

    def __init__(
        self,
        replays: Sequence[Replay],
        *,
        speed: float = 1.0,
        start_ns: int = 0,
        end_ns: int = LATEST_NS,
        by: str = TimeOrder.RECEIVE,
        is_looping: bool = False,
        is_cold: bool = False,
        clock: Clock | None = None,
    ) -> None:
        """A start after the first message begins with events that carry the books of that time.

        `is_cold` begins without them. Times are those at which messages were received.
        """
        if not 0 <= start_ns <= end_ns:
            raise InvalidConfig(f"the time range {start_ns} to {end_ns} is empty or negative")
        self._replays = list(replays)
        self._start_ns, self._end_ns, self._by = start_ns, end_ns, by
        self._is_cold = is_cold
        self._pacer = Pacer(clock or SystemClock(), speed)
        self._batches: Generator[MergedBatch] | None = None
        self._batch: MergedBatch | None = None
        self._seen: dict[Market, SeenMarket] = {}
        self.is_looping = is_looping
        self.played = 0
        self.loops = 0
        self.position_ns = start_ns
        """The time of the last message that was taken, or the one that was sought."""
        self._go_to(start_ns)

    @property
    def is_done(self) -> bool:
        """Whether everything was taken and nothing more will come by itself."""
        return self._batch is None

    def take(self) -> MergedBatch | None:
        """Return messages that are due, in order; None if there are none now."""
        batch = self._batch
        count = 0 if batch is None else min(self._pacer.due_count(batch.key), TAKE_MESSAGES)
        if batch is None or not count:
            return None
        taken = batch.part(slice(0, count))
        self._batch = batch.part(slice(count, None)) if count < len(batch.key) else self._next()
        self.played += count
        self.position_ns = int(taken.key[-1])
        self._note_markets(taken)
        if self._batch is None and self.is_looping:
            self.loops += 1
            self._go_to(self._start_ns)
        return taken

    def _next(self) -> MergedBatch | None:
        return None if self._batches is None else next(self._batches, None)

    def wait_s(self) -> float | None:
        """Return how long until a message is due; None while it is paused or done."""
        return None if self._batch is None else self._pacer.wait_s(int(self._batch.key[0]))

    def close(self) -> None:
        """Let go of the sources."""
        if self._batches is not None:
            self._batches.close()
        self._batches = self._batch = None

    # --- What a user changes -------------------------------------------------------------------------------

    def command(self, text: str) -> dict[str, Any]:
        """Do what a line says, and return the status: see `COMMANDS`."""
        word, _, value = text.strip().partition(" ")
        action = COMMANDS.get(word)
        if action is None:
            raise InvalidConfig(f"{word!r} is no command; there are {', '.join(COMMANDS)}")
        action(self, value.strip())
        return self.status()

    def status(self) -> dict[str, Any]:
        """Return where it stands."""
        return {
            "state": "done" if self.is_done else "paused" if self._pacer.is_paused else "playing",
            "position_ns": self.position_ns,
            "speed": speed_text(self._pacer.speed),
            "loop": self.is_looping,
            "loops": self.loops,
            "messages": self.played,
        }

    def seek(self, timestamp_ns: int) -> None:
        """Go on with the first message at or after a time, and the books of that time."""
        if not self._start_ns <= timestamp_ns <= self._end_ns:
            raise InvalidConfig(
                f"{timestamp_ns} is outside of what is played, {self._start_ns} to {self._end_ns}"
            )
        self._go_to(timestamp_ns)

    def _loop(self, value: str) -> None:
        if value not in ("on", "off"):
            raise InvalidConfig(f"'loop {value}' is no command; 'loop on' or 'loop off'")
        self.is_looping = value == "on"

    # --- The place -----------------------------------------------------------------------------------------

    def _go_to(self, start_ns: int) -> None:
        """Stand before the first message at or after a time, with what brings a reader's books there."""
        self.close()
        opening = self._opening(start_ns)
        is_ranged = start_ns > 0 or self._end_ns < LATEST_NS
        chosen = [one.between(start_ns, self._end_ns) if is_ranged else one for one in self._replays]
        self._batches = merge(chosen, self._by)
        self._batch = self._next()
        self.position_ns = start_ns or (0 if self._batch is None else int(self._batch.key[0]))
        self._pacer.jump(self.position_ns)
        if opening and self._batch is not None:
            first = as_batch(opening, self.position_ns)
            self._batches = chained(self._batch, self._batches)
            self._batch = first

    def _opening(self, start_ns: int) -> list[OpeningEvent]:
        """Return events that bring the books of a reader to a time, whatever was published before."""
        advice = "begin earlier, or with --cold without the books"
        books = BookSet() if self._is_cold else known_books(self._replays, start_ns, advice)
        gone = [seen for market, seen in self._seen.items() if market not in books.books]
        self._seen.clear()
        return opening_events(books, gone, start_ns)

    def _note_markets(self, taken: MergedBatch) -> None:
        """Remember which markets were published: they are emptied when the place changes."""
        is_book = (taken.type_id == TypeId.BOOK_EVENT) & (taken.packed.lengths >= HEADER_BYTES)
        headers = gather_headers(taken.packed.take(is_book))
        keys = headers["venue_id"].astype(np.uint64) << np.uint64(32) | headers["market_id"]
        for key, place in zip(*(array.tolist() for array in np.unique(keys, return_index=True)), strict=True):
            if (market := Market(key >> 32, key & 0xFFFFFFFF)) not in self._seen:
                one = headers[place]
                self._seen[market] = SeenMarket(
                    market, BookMode(int(one["book_mode"])), int(one["stream_id"])
                )


COMMANDS: Final[dict[str, Callable[[Player, str], None]]] = {
    "pause": lambda player, _: player._pacer.pause(),
    "resume": lambda player, _: player._pacer.resume(),
    "speed": lambda player, value: player._pacer.set_speed(parse_speed(value)),
    "seek": lambda player, value: player.seek(parse_time_ns(value)),
    "loop": Player._loop,
    "status": lambda player, _: None,
}
"""What `Player.command` takes: a word, and behind `speed`, `seek` and `loop` a value."""
