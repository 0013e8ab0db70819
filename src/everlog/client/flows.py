"""How a request becomes steps, written once for both clients.

A flow is a generator that does no I/O. It yields steps (send this, pause, open that stream), receives the
outcome of each, and returns a result or emits values on its way. `Client` and `AsyncClient` carry the steps
out, one with blocking sockets, the other on an event loop. Owns the steps and the retries of one request;
`calls` describes the requests, `streams` what is iterated over.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from http import HTTPStatus
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

import msgspec

from everlog import tracing
from everlog.client.errors import ApiFailed
from everlog.client.retrying import Attempts, Reached, RetryPolicy
from everlog.client.wire import Answer, RequestWriter, ServerAddress, foreign, refusal

T = TypeVar("T")
U = TypeVar("U")
T_co = TypeVar("T_co", covariant=True)


class Send(NamedTuple):
    """Send a request and wait for its answer, which is the outcome.

    If `may_repeat`, a connection that the server closed while it was idle is replaced by a new one.
    """

    request: bytes
    timeout_s: float
    may_repeat: bool = False


class Pause(NamedTuple):
    """Let time pass."""

    duration_s: float


class Open(NamedTuple):
    """Open a stream; its head is the outcome, or the whole answer if it is not a success."""

    request: bytes
    timeout_s: float


class More(NamedTuple):
    """Wait for the next piece of the stream; it is empty at the end."""

    timeout_s: float


class Emit(NamedTuple):
    """Give a value to the iteration."""

    value: Any


Step = Send | Pause | Open | More | Emit
Flow = Generator[Step, Any, T]


class ClientContext(NamedTuple):
    """What all flows of a client share: how requests are written, retried and timed."""

    writer: RequestWriter
    policy: RetryPolicy
    timeout_s: float
    now_ns: Callable[[], int]
    reached: Reached

    @property
    def address(self) -> ServerAddress:
        """Where the server is."""
        return self.writer.address

    def attempts(self) -> Attempts:
        """The attempts of a new call."""
        return Attempts(self.policy, self.now_ns, self.reached)


class Described(Protocol[T_co]):
    """What a client method is made from: something whose steps lead to a result."""

    def steps(self, context: ClientContext) -> Flow[T_co]:
        """The steps, for the client with this context."""
        ...


class Steps(Generic[T]):
    """Several requests that lead to one result."""

    def __init__(self, steps: Callable[[ClientContext], Flow[T]]) -> None:
        self.steps = steps


class Stream(Generic[T_co]):
    """What emits values of type `T` until it ends or the caller stops iterating."""

    def __init__(self, steps: Callable[[ClientContext], Flow[None]]) -> None:
        self.steps = steps


def trace_line(traceparent: str) -> bytes:
    """The header of a request that belongs to a trace."""
    return b"traceparent: %b\r\n" % traceparent.encode()


class Call(Generic[T]):
    """One request, and the type that its answer is decoded as; `bytes` leaves it as it is.

    `may_repeat`: sending it again does no harm when it is unknown whether it was carried out. `wait_s` is how
    long the server may take by design.
    """

    __slots__ = ("body", "headers", "kind", "may_repeat", "method", "path", "wait_s")

    def __init__(
        self,
        method: str,
        path: str,
        kind: type[T],
        body: bytes | None = None,
        *,
        may_repeat: bool = True,
        wait_s: float = 0.0,
        headers: bytes = b"",
    ) -> None:
        self.method = method
        self.path = path
        self.kind = kind
        self.body = body
        self.may_repeat = may_repeat
        self.wait_s = wait_s
        self.headers = headers

    def steps(self, context: ClientContext) -> Flow[T]:
        """Send the request, again where that is right.

        A body is strict: the server refuses a member that it does not know instead of ignoring it.
        """
        path = self.path
        if self.body is not None:
            path += "&strict=true" if "?" in path else "?strict=true"
        traceparent = tracing.current()
        headers = self.headers if traceparent is None else self.headers + trace_line(traceparent)
        request = context.writer.request(self.method, path, self.body, headers)
        attempts = context.attempts()
        while True:
            try:
                answer: Answer = yield Send(
                    request, attempts.left_s(context.timeout_s) + self.wait_s, self.may_repeat
                )
                context.reached.is_known = True
                return self._result(context.writer, answer)
            except ApiFailed as error:
                pause_s = attempts.pause_s(error, self.may_repeat)
            yield Pause(pause_s)

    def reading(self, kind: type[U]) -> Call[U]:
        """The same request, with its answer decoded as another type."""
        return Call(
            self.method,
            self.path,
            kind,
            self.body,
            may_repeat=self.may_repeat,
            wait_s=self.wait_s,
            headers=self.headers,
        )

    def read(self, body: bytes) -> T:
        """The answer as a value; raises msgspec.MsgspecError if it is not of this type."""
        if self.kind is bytes:
            return cast(T, body)
        decoder = _decoders.get(self.kind)
        if decoder is None:
            decoder = _decoders[self.kind] = msgspec.json.Decoder(self.kind)
        answer: T = decoder.decode(body)
        return answer

    def decoded(self, address: ServerAddress, body: bytes, status: int = HTTPStatus.OK) -> T:
        """The answer as a value; raises ApiFailed if a server of another kind sent it."""
        try:
            return self.read(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise foreign(address, status, f"{self.method} {self.path}: {error}") from None

    def _result(self, writer: RequestWriter, answer: Answer) -> T:
        if not answer.is_success:
            raise refusal(writer, answer)
        return self.decoded(writer.address, answer.body, answer.status)


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
