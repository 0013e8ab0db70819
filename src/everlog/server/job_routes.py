"""The routes of job queues: claim, ack, nack, extend.

Owns what these answers look like, and when claims are served (`ClaimWindows`); the engine decides what is in
them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

import msgspec

from everlog.errors import BatchTooLarge, EverlogError
from everlog.server.app import App, Call, Route
from everlog.server.auth import Scope
from everlog.server.bodies import AckBody, ClaimBody, ExtendBody, NackBody, check_counts, decode
from everlog.server.errors import ApiError, invalid
from everlog.server.router_wait import when_forwarded
from everlog.server.streams import Timer, Timers
from everlog.topics import Claimed, ClaimRequest, Commit, Engine, Settled
from everlog.topics.jobs.claims import SEQS_MAX, check_node

_json: Final = msgspec.json.Encoder()


class Claimer(Protocol):
    """A request or a stream that wants jobs."""

    def request(self) -> ClaimRequest | None:
        """What it wants when its claim is served; None if nothing any more."""
        ...

    def served(self, claimed: Claimed) -> None:
        """Take the jobs, perhaps none; to be sent when `claimed.commit` is done."""
        ...

    def refused(self, error: EverlogError) -> None:
        """Take the error of its claim."""
        ...


class _Window:
    """The claimers since it was opened, in the order of arrival."""

    __slots__ = ("claimers", "timer")

    def __init__(self) -> None:
        self.claimers: dict[Claimer, None] = {}
        self.timer: Timer | None = None


class ClaimWindows:
    """Gathers the claims of a job queue with `claim_jitter_ms`.

    The first claimer opens a window, and all that come until it closes are served together. Without it every
    claimer is served at once.
    """

    def __init__(self, app: App, timers: Timers) -> None:
        self._app = app
        self._timers = timers
        self._open: dict[str, _Window] = {}

    def claim(self, name: str, claimers: list[Claimer]) -> None:
        """Serve these claimers now, or when the window of their job queue closes."""
        jitter_ms = self._app.ready_engine().claim_jitter_ms(name)
        if not jitter_ms:
            self._serve(name, claimers)
            return
        window = self._open.get(name)
        if window is None:
            window = self._open[name] = _Window()
            window.timer = self._timers.call_later(jitter_ms / 1000, lambda: self._close(name))
        window.claimers.update(dict.fromkeys(claimers))

    def leave(self, name: str, claimer: Claimer) -> None:
        """Remove a claimer that is disconnected."""
        window = self._open.get(name)
        if window is not None:
            window.claimers.pop(claimer, None)

    def _close(self, name: str) -> None:
        claimers = list(self._open.pop(name).claimers)
        self._serve(name, claimers)
        self._app.turn_soon()

    def _serve(self, name: str, claimers: list[Claimer]) -> None:
        """Lease jobs to all of them at once."""
        asked = [(claimer, request) for claimer in claimers if (request := claimer.request()) is not None]
        if not asked:
            return
        try:
            answers = self._app.ready_engine().claim_together(
                name, [request for _, request in asked], block=False
            )
        except EverlogError as error:
            for claimer, _ in asked:
                claimer.refused(error)
            return
        for (claimer, _), claimed in zip(asked, answers, strict=True):
            if claimed.incomplete and claimed.commit.done:
                # It has passed over many jobs that may not be claimed now, and goes on after a turn.
                self._app.loop.call_soon(self._fetched, name, claimer, claimed.commit)
            elif claimed.incomplete:
                claimed.commit.on_done(lambda commit, claimer=claimer: self._fetched(name, claimer, commit))  # type: ignore[misc]
            else:
                claimer.served(claimed)

    def _fetched(self, name: str, claimer: Claimer, commit: Commit) -> None:
        """The segment of the next jobs is in memory, or cannot be read."""
        if commit.error is not None:
            claimer.refused(commit.error)
        else:
            self._serve(name, [claimer])
        self._app.turn_soon()


class JobRoutes:
    """Handlers of everything below a job queue except its stream."""

    def __init__(self, app: App, windows: ClaimWindows) -> None:
        self.app = app
        self.windows = windows
        both = Scope.READ | Scope.WRITE
        app.add("POST", "/v0/topics/:name/claim", Route(both, self.claim))
        app.add("POST", "/v0/topics/:name/ack", Route(Scope.WRITE, self.ack))
        app.add("POST", "/v0/topics/:name/nack", Route(Scope.WRITE, self.nack))
        app.add("POST", "/v0/topics/:name/extend", Route(Scope.WRITE, self.extend))

    @property
    def _engine(self) -> Engine:
        return self.app.ready_engine()

    def claim(self, call: Call) -> None:
        """POST /v0/topics/:topic/claim."""
        if not call.request.body:
            raise invalid("a claim needs a body that names its node")
        body = decode(call, ClaimBody)
        check_counts(body)
        check_node(body.node)
        claimer = _CallClaimer(self, call, body)
        when_forwarded(self.app, call, call.name, claimer.claim)

    def ack(self, call: Call) -> None:
        """POST /v0/topics/:topic/ack."""
        body = decode(call, AckBody)
        settled = self._settle(
            body, lambda: self._engine.ack(call.name, body.node, body.seqs, body.lease_ids)
        )
        self.app.answer_when(call, settled.commit, partial(self._ack_answer, call, settled))

    def _ack_answer(self, call: Call, settled: Settled) -> tuple[bytes, int]:
        written_ns, synced_ns = self._engine.commit_times_ns(call.name) if settled.done else (0, 0)
        times = b',"wal_append_ms":%.3f' % (written_ns / 1e6)
        if synced_ns:
            times += b',"fsync_ms":%.3f' % (synced_ns / 1e6)
        return self._settled_answer(call, settled, b"acked", times), 200

    def nack(self, call: Call) -> None:
        """POST /v0/topics/:topic/nack."""
        body = decode(call, NackBody)
        check_counts(body)
        settled = self._settle(
            body,
            lambda: self._engine.nack(
                call.name,
                body.node,
                body.seqs,
                body.lease_ids,
                delay_ms=body.delay_ms,
                error=body.error,
            ),
        )
        self.app.answer_when(
            call, settled.commit, lambda: (self._settled_answer(call, settled, b"nacked"), 200)
        )

    def _settle(self, body: AckBody, step: Callable[[], Settled]) -> Settled:
        try:
            return step()
        except BatchTooLarge as error:
            detail = {"seqs": len(body.seqs), "max": SEQS_MAX}
            raise ApiError(400, error.code, str(error), detail) from None

    def _settled_answer(self, call: Call, settled: Settled, verb: bytes, times: bytes = b"") -> bytes:
        return b'{"topic":%b,"%b":%d,"skipped":%b,"ready":%d,"in_flight":%d,"performance":%b}' % (
            _json.encode(call.name),
            verb,
            len(settled.done),
            _json.encode(settled.skipped),
            settled.ready,
            settled.in_flight,
            self.app.performance(call, times),
        )

    def extend(self, call: Call) -> None:
        """POST /v0/topics/:topic/extend."""
        body = decode(call, ExtendBody)
        check_counts(body)
        settled = self._settle(
            body,
            lambda: self._engine.extend(
                call.name, body.node, body.seqs, body.lease_ids, lease_ms=body.lease_ms
            ),
        )
        self.app.answer_when(call, settled.commit, partial(self._extend_answer, call, settled))

    def _extend_answer(self, call: Call, settled: Settled) -> tuple[bytes, int]:
        deadlines = {str(seq): settled.deadline_ms for seq in settled.done}
        answer = b'{"topic":%b,"extended":%d,"skipped":%b,"deadlines":%b,"performance":%b}' % (
            _json.encode(call.name),
            len(settled.done),
            _json.encode(settled.skipped),
            _json.encode(deadlines),
            self.app.performance(call),
        )
        return answer, 200


class _CallClaimer:
    """One POST claim that waits to be served."""

    __slots__ = ("_body", "_call", "_is_answered", "_routes")

    def __init__(self, routes: JobRoutes, call: Call, body: ClaimBody) -> None:
        self._routes = routes
        self._call = call
        self._body = body
        self._is_answered = False

    def request(self) -> ClaimRequest:
        """What the body asks for."""
        return ClaimRequest(self._body.node, self._body.max, self._body.lease_ms)

    def served(self, claimed: Claimed) -> None:
        """Answer with the jobs once their leases are committed."""
        self._is_answered = True
        self._routes.app.answer_when(self._call, claimed.commit, partial(self._answer, claimed))

    def refused(self, error: EverlogError) -> None:
        """Answer with the error."""
        self._is_answered = True
        self._routes.app.guarded(self._call, partial(_raise, error))

    def claim(self) -> None:
        """Claim; if the client goes away before its window closes, nothing is leased to it."""
        routes, call = self._routes, self._call
        routes.windows.claim(call.name, [self])
        if not self._is_answered:
            routes.app.on_gone(call, lambda: routes.windows.leave(call.name, self))

    def _answer(self, claimed: Claimed) -> tuple[bytes, int]:
        answer = b'{"topic":%b,"claimed":[%b],"count":%d,"ready":%d,"performance":%b}' % (
            _json.encode(self._call.name),
            b",".join(claimed.jobs),
            claimed.count,
            claimed.ready,
            self._routes.app.performance(self._call),
        )
        return answer, 200


def _raise(error: EverlogError) -> None:
    raise error
