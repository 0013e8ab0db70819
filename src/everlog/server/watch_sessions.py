"""Watch sessions: what a reader subscribed to, and how far it got.

Owns POST /v0/watch and the table of sessions, which lives in memory only. A session outlives its streams for
a while, so that a client that lost its connection resumes there; the streams are in `watch_stream`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from everlog.server.app import App, Call, query_flag
from everlog.server.auth import Key
from everlog.server.bodies import WatchBody, check_counts, decode
from everlog.server.errors import from_engine, limit_reached
from everlog.server.fan_out import ReadOptions, options_of
from everlog.server.key_caps import KeyCap
from everlog.server.watch_journal import FrameJournal
from everlog.server.watch_starts import Pattern, Resolution, Resolved, check_entries
from everlog.topics import Commit, TopicState

SESSION_TTL_MS: Final = 300_000
HEARTBEAT_MS_MIN: Final = 1000
HEARTBEAT_MS_MAX: Final = 60_000
NS_PER_MS: Final = 1_000_000
_json = msgspec.json.Encoder()


class Position(msgspec.Struct):
    """How far a session got in a topic: `seq` of the instance `epoch`, whose head was `head_seq`."""

    seq: int
    epoch: int
    head_seq: int
    options: ReadOptions


class Session:
    """One subscription; `owner` is the stream that was opened last, which stores the positions."""

    __slots__ = (
        "consumers",
        "heartbeat_ms",
        "idle_since_ns",
        "journal",
        "key",
        "options",
        "owner",
        "patterns",
        "positions",
        "streams",
        "wid",
    )

    def __init__(
        self,
        wid: str,
        key: Key | None,
        positions: dict[str, Position],
        options: ReadOptions,
        heartbeat_ms: int,
        patterns: tuple[Pattern, ...] = (),
    ) -> None:
        self.consumers: dict[str, str] = {}
        """By topic: the consumer whose cursor the watch began at."""
        self.patterns = patterns
        self.journal = FrameJournal() if patterns else None
        self.wid = wid
        self.key = key
        self.positions = positions
        self.options = options
        self.heartbeat_ms = heartbeat_ms
        self.streams = 0
        self.owner: object = None
        self.idle_since_ns = 0


class WatchSessions:
    """The table of sessions."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._sessions: dict[str, Session] = {}
        # Those without a stream, in the order in which they lost it: the oldest can go first.
        self._idle: dict[str, Session] = {}
        self._of_keys = KeyCap("watch_sessions", app.settings.max_watch_sessions_per_key)

    def __len__(self) -> int:
        return len(self._sessions)

    # --- Lifetime -------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Drop the sessions that had no stream for too long."""
        latest_ns = self._app.now_ns() - SESSION_TTL_MS * NS_PER_MS
        while self._idle:
            session = next(iter(self._idle.values()))
            if session.idle_since_ns > latest_ns:
                return
            self._drop(session)

    def find(self, wid: str) -> Session | None:
        """The session of this name, if it is still there."""
        return self._sessions.get(wid)

    def stream_opened(self, session: Session) -> None:
        """A session with a stream is kept."""
        session.streams += 1
        self._idle.pop(session.wid, None)

    def stream_closed(self, session: Session) -> None:
        """From the end of its last stream on a session can be resumed for a while."""
        session.streams -= 1
        if session.streams == 0:
            self._mark_idle(session)

    def _mark_idle(self, session: Session) -> None:
        session.idle_since_ns = self._app.now_ns()
        self._idle[session.wid] = session

    # --- POST /v0/watch ----------------------------------------------------------------------------------

    def create(self, call: Call) -> None:
        """POST /v0/watch."""
        self.sweep()
        body = decode(call, WatchBody)
        check_counts(body)
        check_entries(call.key, body.topics)
        Resolution(
            self._app,
            call.key,
            body.topics,
            options_of(body, is_strong=body.consistency == "strong"),
            is_lenient=query_flag(call.query(), "lenient", False),
            found=partial(self._resolved, call, body),
            guarded=partial(self._app.guarded, call),
        ).run()

    def _resolved(self, call: Call, body: WatchBody, resolved: Resolved) -> None:
        """Open the session, if there may be one more."""
        most = self._app.settings.max_watch_sessions
        if most and len(self._sessions) >= most:
            message = f"there are {len(self._sessions)} watch sessions; let some expire"
            raise limit_reached(message, "max_watch_sessions", most)
        self._of_keys.check(call.key, ("",), lambda _: False)
        session = self._open(call.key, body, resolved)
        engine, states = self._app.ready_engine(), {}
        floors = []
        for name, start in resolved.starts.items():
            states[name] = start.state
            if not (floor := engine.floor_commit(name)).done:
                floors.append(floor)
        when_all_done(floors, partial(self._answer, call, session, states))

    def _open(self, key: Key | None, body: WatchBody, resolved: Resolved) -> Session:
        positions = {
            name: Position(start.seq, start.state.epoch, start.state.head_seq, start.options)
            for name, start in resolved.starts.items()
        }
        wid = "wid_" + secrets.token_urlsafe(16)
        options = options_of(body, is_strong=body.consistency == "strong")
        heartbeat_ms = self._heartbeat_ms(body.heartbeat_ms)
        session = Session(wid, key, positions, options, heartbeat_ms, resolved.patterns)
        session.consumers = {
            name: start.consumer for name, start in resolved.starts.items() if start.consumer is not None
        }
        self._sessions[wid] = session
        self._of_keys.created(key, wid)
        self._mark_idle(session)
        return session

    def _drop(self, session: Session) -> None:
        del self._idle[session.wid], self._sessions[session.wid]
        self._of_keys.deleted(session.wid)

    def _heartbeat_ms(self, wanted_ms: int) -> int:
        least_ms = self._app.settings.test_min_heartbeat_ms or HEARTBEAT_MS_MIN
        return min(max(wanted_ms, least_ms), HEARTBEAT_MS_MAX)

    def _answer(
        self, call: Call, session: Session, states: dict[str, TopicState], failed: Commit | None
    ) -> None:
        if failed is not None and failed.error is not None:
            if session.wid in self._idle:
                self._drop(session)
            self._app.refuse(call, from_engine(failed.error, None))
            return
        seqs = {name: position.seq for name, position in session.positions.items()}
        answer = {
            "wid": session.wid,
            "stream_url": f"/v0/watch/{session.wid}",
            "session_ttl_ms": SESSION_TTL_MS,
            "topics": positions_answer(seqs, states),
            "performance": msgspec.Raw(self._app.performance(call)),
        }
        self._app.answer(call, _json.encode(answer))


def positions_answer(seqs: dict[str, int], states: dict[str, TopicState]) -> dict[str, dict[str, int]]:
    """Where a reader begins in each topic, as it is answered."""
    return {
        name: {
            "from_seq": seq,
            "head_seq": states[name].head_seq,
            "earliest_seq": states[name].earliest_seq,
        }
        for name, seq in seqs.items()
    }


def when_all_done(commits: list[Commit], callback: Callable[[Commit | None], None]) -> None:
    """Call back once, when every commit is done, with one that failed if any did."""
    waiting = next((commit for commit in commits if not commit.done), None)
    if waiting is not None:
        waiting.on_done(lambda _: when_all_done(commits, callback))
    else:
        callback(next((commit for commit in commits if commit.error is not None), None))
