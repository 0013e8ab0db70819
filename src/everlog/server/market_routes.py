"""The routes about the market data in queues below the bus directory and in topics: markets and their books.

Owns the parameters. The work is done on the thread on which queues are looked at, a bounded piece a request.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from everlog.server.answers import MarketBook
from everlog.server.app import App, Call, Route, query_seq
from everlog.server.auth import Scope
from everlog.server.errors import invalid
from everlog.server.market_topics import TopicCopy, TopicSteps
from everlog.server.market_views import BookRequest, MarketViews, find_markets
from everlog.server.queue_routes import QueueRoutes

STEP_MS_DEFAULT: Final = 250
STEP_MS_MIN: Final = 10
STEP_MS_MAX: Final = 60_000
LEVELS_DEFAULT: Final = 20
LEVELS_MAX: Final = 100
SYMBOL_CHARS_MAX: Final = 100
TIME_MS_MAX: Final = 1 << 43
"""As nanoseconds it still fits into 63 bits."""


class MarketRoutes:
    """Handlers of everything below /v0/markets."""

    def __init__(self, app: App, queues: QueueRoutes) -> None:
        self._app = app
        self._queues = queues
        self._views = MarketViews()
        self._has_timer = False
        self._topics = TopicSteps(app, queues)
        app.add("GET", "/v0/markets", Route(Scope.READ, self.markets))
        app.add("GET", "/v0/markets/book", Route(Scope.READ, self.book))

    def markets(self, call: Call) -> None:
        """GET /v0/markets."""
        if topic := call.query().get("topic"):
            self._topics.look(call, topic, lambda copy, is_whole: find_markets(copy.path, is_whole=is_whole))
            self._close_later()
            return
        self._queues.check_key(call)
        path = self._queues.path_of(call.query().get("queue", ""))
        self._queues.look(call, partial(find_markets, path))

    def book(self, call: Call) -> None:
        """GET /v0/markets/book."""
        query = call.query()
        if topic := query.get("topic"):
            asked = _request("", query)
            self._topics.look(call, topic, partial(self._book_of_topic, asked))
        else:
            self._queues.check_key(call)
            asked = _request(self._queues.path_of(query.get("queue", "")), query)
            self._queues.look(call, partial(self._views.look, asked))
        self._close_later()

    def _book_of_topic(self, asked: BookRequest, copy: TopicCopy, is_whole: bool) -> MarketBook:
        book = self._views.look(asked._replace(path=copy.path, is_partial=copy.is_partial))
        return book if is_whole else msgspec.structs.replace(book, is_there=False)

    def _close_later(self) -> None:
        if not self._has_timer:
            self._has_timer = True
            self._app.loop.call_later(self._views.IDLE_S, self._close_idle)

    def _close_idle(self) -> None:
        """Let go of the queues whose books no page asks for any more."""
        self._has_timer = False
        if self._app.is_draining:
            return
        has_copies = self._topics.close_idle(self._views.IDLE_S)
        closing = self._queues.run(self._views.close_idle)
        closing.add_done_callback(lambda done: self._go_on(has_views=done.result() or has_copies))

    def _go_on(self, *, has_views: bool) -> None:
        if has_views and not self._app.is_draining:
            self._close_later()


def _request(path: str, query: dict[str, str]) -> BookRequest:
    symbol = query.get("symbol", "")
    if not 0 < len(symbol) <= SYMBOL_CHARS_MAX:
        raise invalid(f"symbol has {len(symbol)} characters; name a market by 1 to {SYMBOL_CHARS_MAX}")
    step_ms = query_seq(query, "step_ms", STEP_MS_DEFAULT)
    if not STEP_MS_MIN <= step_ms <= STEP_MS_MAX:
        raise invalid(f"step_ms is {step_ms}; {STEP_MS_MIN} to {STEP_MS_MAX} are possible")
    return BookRequest(
        path,
        symbol,
        query_seq(query, "venue_id", 0) if query.get("venue_id") else None,
        min(query_seq(query, "at_ms", 0), TIME_MS_MAX) if query.get("at_ms") else None,
        min(query_seq(query, "after_ms", 0), TIME_MS_MAX),
        step_ms,
        min(max(query_seq(query, "levels", LEVELS_DEFAULT), 1), LEVELS_MAX),
    )
