"""GET latest and GET histogram: a topic in short.

Owns these answers. Both may have to look at many records, and do so in steps between other requests.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final
from urllib.parse import parse_qsl

import msgspec

from everlog.server.app import App, Call, Route, query_seq
from everlog.server.auth import Scope
from everlog.server.errors import from_engine, invalid
from everlog.server.pages import PAGE_DEFAULT, PAGE_MAX, cursor_behind, name_in_cursor
from everlog.server.router_wait import when_forwarded
from everlog.topics import Commit
from everlog.topics.config import READ_BYTES_MAX
from everlog.topics.filters import compile_filter
from everlog.topics.summaries import Histogram

BUCKETS_DEFAULT: Final = 60
READS_PER_STEP: Final = 64
"""Records that are read one by one before other requests get their turn."""
_json = msgspec.json.Encoder()


class _Tagged(msgspec.Struct, rename={"seq": "$seq", "tag": "$tag"}):
    seq: int
    tag: str = ""


_tagged: Final = msgspec.json.Decoder(list[_Tagged])


class SummaryRoutes:
    """Handlers of /v0/topics/:topic/latest and /histogram."""

    def __init__(self, app: App) -> None:
        self._app = app
        app.add("GET", "/v0/topics/:name/latest", Route(Scope.READ, self.latest))
        app.add("GET", "/v0/topics/:name/histogram", Route(Scope.READ, self.histogram))

    def latest(self, call: Call) -> None:
        """GET /v0/topics/:topic/latest."""
        when_forwarded(self._app, call, call.name, LatestRead(self._app, call).run)

    def histogram(self, call: Call) -> None:
        """GET /v0/topics/:topic/histogram."""
        when_forwarded(self._app, call, call.name, partial(self._count, call))

    def _count(self, call: Call) -> None:
        query = call.query()
        from_ms, to_ms = (
            query_seq(query, name, 0) if query.get(name) else None for name in ("from_ms", "to_ms")
        )
        buckets = query_seq(query, "buckets", BUCKETS_DEFAULT)
        self._count_on(call, self._app.ready_engine().summaries.histogram(call.name, from_ms, to_ms, buckets))

    def _count_on(self, call: Call, histogram: Histogram) -> None:
        if not histogram.step():
            go_on = partial(self._count_on, call, histogram)
            self._app.loop.call_soon(self._app.guarded, call, go_on)
            return
        answer = {
            "topic": call.name,
            "from_ms": histogram.from_ms,
            "to_ms": histogram.to_ms,
            "buckets": histogram.buckets,
        }
        self._app.answer_with(call, self._app.ready_engine().floor_commit(call.name), answer)


class LatestRead:
    """One GET latest: first which record is the newest of each tag, then these records."""

    def __init__(self, app: App, call: Call) -> None:
        pairs = parse_qsl(call.request.target.query.decode("latin-1"), keep_blank_values=True)
        self._app = app
        self._call = call
        self._tags = sorted({value for name, value in pairs if name == "tag"})
        query = call.query()
        self._prefix = query.get("prefix")
        if bool(self._tags) == (self._prefix is not None):
            raise invalid("name tags (tag=a&tag=b), or a prefix of tags (prefix=p), and not both")
        if len(self._tags) > PAGE_MAX:
            raise invalid(f"{len(self._tags)} tags; name {PAGE_MAX} at most, or a prefix")
        self._limit = query_seq(query, "limit", PAGE_MAX if self._tags else PAGE_DEFAULT)
        if not 1 <= self._limit <= PAGE_MAX:
            raise invalid(f"limit is {self._limit}; it must be from 1 to {PAGE_MAX}")
        self._after = name_in_cursor(query.get("cursor"))
        self._next: str | None = None
        self._filter = compile_filter(_json.encode(["tag", "Glob", f"{self._prefix or ''}*"]))
        self._cursor = 0
        self._newest: dict[str, int] = {}
        self._todo: list[str] = []
        self._found: list[bytes] = []
        self._bytes = 0

    def run(self) -> None:
        """Find the tags, then read."""
        engine = self._app.ready_engine()
        engine.state(self._call.name)
        if self._prefix is None:
            self._begin_reading(self._tags)
            return
        self._find()

    def _find(self) -> None:
        """Go through the records with such tags; the later one of a tag replaces the earlier."""
        engine = self._app.ready_engine()
        diff = engine.diff(
            self._call.name,
            self._cursor,
            PAGE_MAX,
            include_tags=True,
            include_meta=False,
            include_data=False,
            filter=self._filter,
            block=False,
        )
        for record in _tagged.decode(diff.records):
            self._newest[record.tag] = record.seq
        self._cursor = diff.next_from_seq
        if diff.incomplete:
            diff.commit.on_done(partial(self._loaded, self._find))
        elif not diff.caught_up:
            self._soon(self._find)
        else:
            self._begin_reading(sorted(self._newest))

    def _begin_reading(self, tags: list[str]) -> None:
        wanted = [tag for tag in tags if self._after is None or tag > self._after]
        if len(wanted) > self._limit:
            self._next = cursor_behind(wanted[self._limit - 1])
        self._todo = wanted[: self._limit][::-1]
        self._read()

    def _read(self) -> None:
        """Read the newest record of each tag; it is looked up again, since it may just have been deleted."""
        engine, name = self._app.ready_engine(), self._call.name
        for _ in range(READS_PER_STEP):
            if not self._todo:
                self._app.answer_when(self._call, engine.floor_commit(name), self._answer)
                return
            seq = engine.summaries.newest_of_tag(name, self._todo[-1])
            if seq:
                diff = engine.diff(name, seq - 1, 1, include_tags=True, block=False)
                if diff.incomplete:
                    diff.commit.on_done(partial(self._loaded, self._read))
                    return
                self._found.append(diff.records[1:-1])
                self._bytes += len(diff.records)
            tag = self._todo.pop()
            if self._bytes > READ_BYTES_MAX and self._todo:
                self._next = cursor_behind(tag)
                self._todo.clear()
        self._soon(self._read)

    def _loaded(self, step: Callable[[], None], commit: Commit) -> None:
        if commit.error is not None:
            self._app.refuse(self._call, from_engine(commit.error, self._call.name))
        else:
            self._soon(step)

    def _soon(self, step: Callable[[], None]) -> None:
        self._app.loop.call_soon(self._app.guarded, self._call, step)
        self._app.turn_soon()

    def _answer(self) -> tuple[bytes, int]:
        more = b"" if self._next is None else b',"next_cursor":' + _json.encode(self._next)
        return b'{"topic":%b,"records":[%b]%b,"performance":%b}' % (
            _json.encode(self._call.name),
            b",".join(self._found),
            more,
            self._app.performance(self._call),
        ), 200
