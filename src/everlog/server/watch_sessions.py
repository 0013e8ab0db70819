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
from everlog.server.bodies import WatchBody, check_counts, decode_in_steps
from everlog.server.errors import limit_reached
from everlog.server.fan_out import ReadOptions, options_of
from everlog.server.key_caps import KeyCap
from everlog.server.step_calls import StepCall
from everlog.server.watch_journal import FrameJournal
from everlog.server.watch_starts import PART_TOPICS, Pattern, Resolution, positions_answer, start_parts
from everlog.topics import Commit
from everlog.topics.jobs.steps import Steps

SESSION_TTL_MS: Final = 300_000
HEARTBEAT_MS_MIN: Final = 1000
HEARTBEAT_MS_MAX: Final = 60_000
NS_PER_MS: Final = 1_000_000


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
        StepCall(self._app, call, self._create(call), partial(self._app.answer, call)).run()

    def _create(self, call: Call) -> Steps[bytes]:
        """Open a session in steps, and answer where each topic begins once that is committed."""
        body = yield from decode_in_steps(call, WatchBody)
        check_counts(body)
        resolution = Resolution(
            self._app,
            call.key,
            body.topics,
            options_of(body, is_strong=body.consistency == "strong"),
            is_lenient=query_flag(call.query(), "lenient", False),
        )
        resolved = yield from resolution.steps()
        positions: dict[str, Position] = {}
        floors: list[Commit] = []
        answers: list[bytes] = []
        for part in start_parts(resolved):
            engine = self._app.ready_engine()
            for name, start in part.items():
                state = start.state
                positions[name] = Position(start.seq, state.epoch, state.head_seq, start.options)
                if engine.has_topic(name) and not (floor := engine.floor_commit(name)).done:
                    floors.append(floor)
            answers.append(positions_answer(part))
            if len(part) == PART_TOPICS:
                yield None
        for floor in floors:
            if not floor.done:
                yield floor
            if floor.error is not None:
                raise floor.error
        session = self._open(call.key, body, positions, resolved.patterns)
        return (
            b'{"wid":"%b","stream_url":"/v0/watch/%b","session_ttl_ms":%d,"topics":{%b},"performance":%b}'
            % (
                session.wid.encode(),
                session.wid.encode(),
                SESSION_TTL_MS,
                b",".join(answers),
                self._app.performance(call),
            )
        )

    def _open(
        self, key: Key | None, body: WatchBody, positions: dict[str, Position], patterns: tuple[Pattern, ...]
    ) -> Session:
        """Open a session, if there may be one more."""
        most = self._app.settings.max_watch_sessions
        if most and len(self._sessions) >= most:
            message = f"there are {len(self._sessions)} watch sessions; let some expire"
            raise limit_reached(message, "max_watch_sessions", most)
        self._of_keys.check(key, ("",), lambda _: False)
        wid = "wid_" + secrets.token_urlsafe(16)
        options = options_of(body, is_strong=body.consistency == "strong")
        session = Session(wid, key, positions, options, self._heartbeat_ms(body.heartbeat_ms), patterns)
        session.consumers = {
            name: entry.consumer
            for name, entry in body.topics.items()
            if entry.consumer is not None and name in positions
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


def when_all_done(commits: list[Commit], callback: Callable[[Commit | None], None]) -> None:
    """Call back once, when every commit is done, with one that failed if any did."""
    waiting = next((commit for commit in commits if not commit.done), None)
    if waiting is not None:
        waiting.on_done(lambda _: when_all_done(commits, callback))
    else:
        callback(next((commit for commit in commits if commit.error is not None), None))
