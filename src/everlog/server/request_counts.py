"""How many requests each route has answered, with which status, and how long they and the loop took.

Owns these counters and the access log. One request costs a few additions: the bounds of all histograms are
powers of two of nanoseconds.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from everlog import tracing
from everlog.tracing import TraceContext

if TYPE_CHECKING:
    from everlog.server.app import Call

OTHER: Final = "other"
"""The route of requests that have none, and the method of requests with an unknown one."""
METHODS: Final = frozenset(("GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"))
_FIRST_BIT: Final = 17  # 131 microseconds
_LAST_BIT: Final = 34  # 17 seconds
_NS_PER_S: Final = 1_000_000_000
BOUNDS_US: Final = tuple((1 << bits) / 1000 for bits in range(_LAST_BIT + 1))
"""What `Durations.counts` lie below, in microseconds."""
_NAMES: Final = {"topics": "topic", "routers": "router", "watch": "wid", "schedules": "schedule"}
_ITEMS: Final = {"consumers": "consumer", "jobs": "seq"}
TRACEPARENT: Final = tracing.TRACEPARENT.encode()
access_log = logging.getLogger("everlog.access")


class TracedDuration(NamedTuple):
    """A duration of a request whose trace can be looked at."""

    trace_id: str
    duration_s: float
    at_s: float


class Durations:
    """A histogram of durations, with the last traced one of each bucket."""

    __slots__ = ("_by_bits", "_traced", "total_ns")

    def __init__(self) -> None:
        self._by_bits = [0] * 65
        self._traced: dict[int, TracedDuration] = {}
        self.total_ns = 0

    def note(self, duration_ns: int) -> None:
        """Count one."""
        self._by_bits[duration_ns.bit_length()] += 1
        self.total_ns += duration_ns

    @property
    def counts(self) -> list[int]:
        """How many lie between two of `BOUNDS_US`; at the end those beyond the last."""
        return [*self._by_bits[: _LAST_BIT + 1], sum(self._by_bits[_LAST_BIT + 1 :])]

    def keep(self, duration_ns: int, trace_id: str) -> None:
        """Remember the trace of one that was counted."""
        bits = min(max(duration_ns.bit_length(), _FIRST_BIT), _LAST_BIT + 1)
        seconds = duration_ns / _NS_PER_S
        self._traced[bits] = TracedDuration(trace_id, seconds, datetime.now(UTC).timestamp())

    def traced(self) -> list[TracedDuration | None]:
        """The last traced one of each bucket of `cumulative`."""
        return [self._traced.get(bits) for bits in range(_FIRST_BIT, _LAST_BIT + 2)]

    def add(self, other: Durations) -> None:
        """Count all of another histogram."""
        self._traced |= other._traced
        self._by_bits = [own + more for own, more in zip(self._by_bits, other._by_bits, strict=True)]
        self.total_ns += other.total_ns

    def cumulative(self) -> list[tuple[str, float]]:
        """How many took up to each bound, in seconds."""
        found: list[tuple[str, float]] = []
        count = sum(self._by_bits[:_FIRST_BIT])
        for bits in range(_FIRST_BIT, _LAST_BIT + 1):
            count += self._by_bits[bits]
            found.append((repr((1 << bits) / _NS_PER_S), count))
        return [*found, ("+Inf", sum(self._by_bits))]

    @property
    def total_s(self) -> float:
        """All of them together."""
        return self.total_ns / _NS_PER_S


class RouteCounts:
    """The answers of one method of one route."""

    __slots__ = ("durations", "method", "route", "statuses")

    def __init__(self, route: str, method: str) -> None:
        self.route = route
        self.method = method
        self.statuses: Counter[int] = Counter()
        self.durations = Durations()


def shown_route(path: str) -> str:
    """A path as people know it: with `:topic` for the name of a topic, and so on."""
    parts = path.split("/")
    if len(parts) > 3 and parts[3] == ":name":
        parts[3] = f":{_NAMES.get(parts[2], 'name')}"
    if len(parts) > 5 and parts[5] == ":item":
        parts[5] = f":{_ITEMS.get(parts[4], 'item')}"
    return "/".join(parts)


class RequestCounts:
    """All routes, and the steps of the loop."""

    def __init__(self, *, is_logged: bool = False) -> None:
        self.steps = Durations()
        self._waited = Durations()
        """Of the requests that waited for records or jobs."""
        self._routes: dict[tuple[str, str], RouteCounts] = {}
        self._is_logged = is_logged

    def of(self, path: str | None, method: str) -> RouteCounts:
        """The counters of a route; `path` is None for a request that has none."""
        route = OTHER if path is None else shown_route(path)
        method = method if method in METHODS else OTHER
        counts = self._routes.get((route, method))
        if counts is None:
            counts = self._routes[route, method] = RouteCounts(route, method)
        return counts

    def note(self, call: Call, status: int, now_ns: int) -> None:
        """Count an answer."""
        request = call.exchange.request
        meaning = request.target.meaning
        counts: RouteCounts = self.of(None, request.method) if meaning is None else meaning.counts
        duration_ns = now_ns - call.started_ns
        counts.statuses[status] += 1
        counts.durations.note(duration_ns)
        if call.has_waited:
            self._waited.note(duration_ns)
        has_trace = TRACEPARENT in request.headers
        if has_trace or self._is_logged or tracing.API in sys.modules:  # few requests, or none
            trace = tracing.of_headers(request.headers) if has_trace else None
            self._note_trace(call, counts, status, duration_ns, trace)

    def _note_trace(
        self, call: Call, counts: RouteCounts, status: int, duration_ns: int, trace: TraceContext | None
    ) -> None:
        if trace is not None and trace.is_sampled:
            counts.durations.keep(duration_ns, trace.trace_id)
        if tracing.is_exported():
            _record_span(call, counts.route, status, duration_ns, trace)
        if self._is_logged:
            _log(call, counts.route, status, duration_ns, trace)

    def prompt_counts(self) -> list[int]:
        """Those that did not wait for records or jobs, as `Durations.counts`."""
        every = Durations()
        for counts in self._routes.values():
            every.add(counts.durations)
        return [all_ - waited for all_, waited in zip(every.counts, self._waited.counts, strict=True)]

    def routes(self) -> Iterator[RouteCounts]:
        """Those that have answered anything, by route and method."""
        for _, counts in sorted(self._routes.items()):
            yield counts


def _record_span(call: Call, route: str, status: int, duration_ns: int, trace: TraceContext | None) -> None:
    method = call.exchange.request.method
    attributes: dict[str, str | int] = {
        "http.request.method": method,
        "http.route": route,
        "http.response.status_code": status,
    }
    if call.name:
        attributes["messaging.destination.name"] = call.name
    end_ns = int(datetime.now(UTC).timestamp() * _NS_PER_S)
    parent = None if trace is None else trace.text
    tracing.record_span(
        f"{method} {route}", attributes, parent, end_ns - duration_ns, end_ns, failed=status >= 500
    )


def _log(call: Call, route: str, status: int, duration_ns: int, trace: TraceContext | None) -> None:
    """Write one line: never the query, which may hold a key, and of a key its name alone."""
    request = call.exchange.request
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "method": request.method,
        "path": request.path.decode("latin-1"),
        "route": route,
        "status": status,
        "duration_ms": round(duration_ns / 1e6, 3),
        "key": None if call.key is None else call.key.shown,
        "request_bytes": len(request.body),
        **({} if trace is None else {"trace_id": trace.trace_id}),
    }
    access_log.info("%s", msgspec.json.encode(line).decode())
