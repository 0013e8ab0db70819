"""POST diff: read from a cursor, and wait for records if there are none.

Owns one read from the request to its answer: cold segments are loaded in the background, and a reader that is
caught up waits until the topic changes, is deleted, or the time is over.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from everlog.server.app import App, Call
from everlog.server.bodies import DiffBody
from everlog.server.errors import from_engine
from everlog.topics import Commit, Diff, Tombstone
from everlog.topics.filters import Filter

WAIT_MS_MAX: Final = 30_000
NS_PER_MS: Final = 1_000_000
_json = msgspec.json.Encoder()


class LongPoll:
    """One POST diff."""

    def __init__(self, app: App, call: Call, body: DiffBody, filter: Filter | None = None) -> None:
        self._app = app
        self._call = call
        self._body = body
        self._filter = filter
        self._from_seq = body.from_seq
        self._from_time_ms = body.from_time_ms
        self._earlier: Diff | None = None
        self._is_gone = False
        self._wait_ms = min(body.wait_ms, WAIT_MS_MAX)
        self._until_ns = 0
        self._timer: asyncio.TimerHandle | None = None

    def read(self) -> None:
        """Read once; answer, fetch what is cold, or wait."""
        body, engine = self._body, self._app.ready_engine()
        if self._is_gone:
            return
        if self._from_time_ms is not None:
            self._from_seq = engine.first_of_time(self._call.name, self._from_time_ms)
            self._from_time_ms = None
        diff = engine.diff(
            self._call.name,
            self._from_seq,
            body.limit,
            node=() if body.node is None else body.node,
            include_tags=body.include_tags,
            include_meta=body.include_meta,
            max_batch_bytes=body.max_batch_bytes,
            filter=self._filter,
            block=False,
            after=self._earlier,
        )
        if diff.incomplete:
            # The rest is read from where this one stopped: to start again could need more segments than
            # there is memory for, and then each fetch would throw out what the next read begins with.
            self._earlier = diff
            diff.commit.on_done(self._fetched)
        elif diff.paused:
            self._earlier = diff
            self._app.on_gone(self._call, self._stop)
            self._app.loop.call_soon(self._go_on)
        elif self._wait_ms and not diff.delivered and diff.tombstone is None and diff.caught_up:
            self._from_seq, self._earlier = diff.next_from_seq, None
            self._park()
        else:
            self._answer_when(diff)

    def _answer_when(self, diff: Diff) -> None:
        """Answer as soon as what was read may be shown."""
        app, call = self._app, self._call
        app.answer_when(call, diff.commit, lambda: (render_diff(app, call, diff), 200))

    def _go_on(self) -> None:
        self._app.guarded(self._call, self.read)
        self._app.turn_soon()

    def _stop(self) -> None:
        self._is_gone = True

    def _fetched(self, commit: Commit) -> None:
        if commit.error is not None:
            self._app.refuse(self._call, from_engine(commit.error, self._call.name))
        else:
            self._app.guarded(self._call, self.read)

    def _park(self) -> None:
        app, call = self._app, self._call
        call.has_waited = True
        app.ready_engine().on_change(call.name, self._woken)
        # The loop counts whole milliseconds from the last one that was over: its timers are up to one early.
        self._timer = app.loop.call_later((self._wait_ms + 1) / 1000, self._woken)
        app.parked.add(self._woken)
        app.on_gone(call, self._forget)
        self._until_ns = self._until_ns or app.now_ns() + self._wait_ms * NS_PER_MS
        self._wait_ms = 0  # the next read is the answer

    def _woken(self) -> None:
        self._forget()
        if self._filter is not None:
            # What came may not match: then the wait goes on.
            self._wait_ms = max(0, self._until_ns - self._app.now_ns()) // NS_PER_MS
        self._app.guarded(self._call, self.read)
        self._app.turn_soon()  # for what the read may have found to be too old

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._app.parked.discard(self._woken)
        if self._app.engine is not None:
            self._app.engine.forget_change(self._call.name, self._woken)


def render_diff(app: App, call: Call, diff: Diff, more: bytes = b"") -> bytes:
    """The answer of a read; the records are in it as the kernel rendered them. `more` are further fields."""
    extra = b',"records_scanned":%d' % diff.scanned
    if diff.cold_segments_read:
        extra += b',"cold_segments_read":%d' % diff.cold_segments_read
    answer = (
        b'{"topic":%b,"records":%b,"next_from_seq":%d,"head_seq":%d,"earliest_seq":%d,"caught_up":%b,'
        b'"tombstone":%b,"lag":%d%b,"performance":%b}'
    ) % (
        _json.encode(call.name),
        diff.records,
        diff.next_from_seq,
        diff.head_seq,
        diff.earliest_seq,
        b"true" if diff.caught_up else b"false",
        render_tombstone(diff.tombstone),
        diff.lag,
        more,
        app.performance(call, extra),
    )
    return answer


def render_tombstone(tombstone: Tombstone | None) -> bytes:
    """A gap as it is sent to the reader."""
    if tombstone is None:
        return b"null"
    return (
        b'{"gap_from":%d,"gap_to":%d,"reason":"%b","missed_estimate":%d,"earliest_seq":%d,"head_seq":%d}'
    ) % (
        tombstone.gap_from,
        tombstone.gap_to,
        tombstone.reason.encode(),
        tombstone.missed_estimate,
        tombstone.earliest_seq,
        tombstone.head_seq,
    )
