"""The routes of job queues: claim, ack, nack, extend.

Owns what these answers look like; the engine decides what is in them, `claim_windows` when claims are served.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from everlog.errors import BatchTooLarge, EverlogError
from everlog.server.app import App, Call, Route
from everlog.server.auth import Scope
from everlog.server.bodies import AckBody, ClaimBody, ExtendBody, NackBody, check_counts, decode
from everlog.server.claim_windows import ClaimWindows
from everlog.server.errors import ApiError, invalid
from everlog.server.forwarded import when_forwarded
from everlog.topics import Claimed, ClaimRequest, Durability, Engine, Settled
from everlog.topics.jobs.claims import SEQS_MAX, check_node

_json: Final = msgspec.json.Encoder()


class QueueRoutes:
    """Handlers of everything below a queue but its stream."""

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
        body = decode(call.request, ClaimBody)
        check_counts(body)
        check_node(body.node)
        claimer = _CallClaimer(self, call, body)
        when_forwarded(self.app, call, call.name, claimer.claim)

    def ack(self, call: Call) -> None:
        """POST /v0/topics/:topic/ack."""
        body = decode(call.request, AckBody)
        settled = self._settle(
            body, lambda: self._engine.ack(call.name, body.node, body.seqs, body.lease_ids)
        )
        self.app.answer_when(call, settled.commit, partial(self._ack_answer, call, settled))

    def _ack_answer(self, call: Call, settled: Settled) -> tuple[bytes, int]:
        waited_ms = (self.app.now_ns() - call.started_ns) / 1e6
        is_synced = bool(settled.done) and self._engine.durability_of(call.name) is Durability.FSYNC
        times = b',"wal_append_ms":%.3f' % (0.0 if is_synced else waited_ms)
        if is_synced:
            times += b',"fsync_ms":%.3f' % max(waited_ms, 0.001)
        return self._settled_answer(call, settled, b"acked", times), 200

    def nack(self, call: Call) -> None:
        """POST /v0/topics/:topic/nack."""
        body = decode(call.request, NackBody)
        check_counts(body)
        settled = self._settle(
            body,
            lambda: self._engine.nack(
                call.name, body.node, body.seqs, body.lease_ids, delay_ms=body.delay_ms
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
        return b'{"topic":%b,"%b":%b,"skipped":%b,"ready":%d,"in_flight":%d,"performance":%b}' % (
            _json.encode(call.name),
            verb,
            _json.encode(settled.done),
            _json.encode(settled.skipped),
            settled.ready,
            settled.in_flight,
            self.app.performance(call, times),
        )

    def extend(self, call: Call) -> None:
        """POST /v0/topics/:topic/extend."""
        body = decode(call.request, ExtendBody)
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
        answer = b'{"topic":%b,"extended":%b,"skipped":%b,"deadlines":%b,"performance":%b}' % (
            _json.encode(call.name),
            _json.encode(settled.done),
            _json.encode(settled.skipped),
            _json.encode(deadlines),
            self.app.performance(call),
        )
        return answer, 200


class _CallClaimer:
    """One POST claim on its way through a pass."""

    __slots__ = ("_body", "_call", "_is_answered", "_routes")

    def __init__(self, routes: QueueRoutes, call: Call, body: ClaimBody) -> None:
        self._routes = routes
        self._call = call
        self._body = body
        self._is_answered = False

    def request(self) -> ClaimRequest:
        """See `Claimer.request`."""
        return ClaimRequest(self._body.node, self._body.max, self._body.lease_ms)

    def served(self, claimed: Claimed) -> None:
        """See `Claimer.served`."""
        self._is_answered = True
        self._routes.app.answer_when(self._call, claimed.commit, partial(self._answer, claimed))

    def refused(self, error: EverlogError) -> None:
        """See `Claimer.refused`."""
        self._is_answered = True
        self._routes.app.guarded(self._call, partial(_raise, error))

    def claim(self) -> None:
        """Join a pass; if the client goes away before it begins, nothing is leased to it."""
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
