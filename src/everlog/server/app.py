"""What a request means: who may do it, which route it is, and when its answer may be sent.

Owns the order of checks of the contract and the turn of the loop: all requests of one turn are
framed first, then written together, and each is answered when its commit is done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final
from urllib.parse import parse_qsl, unquote_to_bytes

from everlog.errors import EverlogError
from everlog.server.auth import Key, Scope, bearer_token
from everlog.server.errors import RETRY_SOON, ApiError, from_engine, limit_reached
from everlog.server.http import Exchange, Request
from everlog.server.http_messages import JSON_TYPE
from everlog.server.settings import ServerSettings
from everlog.topics import Commit, Engine

NS_PER_S: Final = 1_000_000_000
NO_SCOPE: Final = Scope(0)
SHORT_BODY_DIGITS: Final = 5
log = logging.getLogger("everlog.server")


class Call:
    """One request on its way through the application."""

    __slots__ = ("exchange", "holds_slot", "key", "name", "started_ns")

    def __init__(self, exchange: Exchange, started_ns: int) -> None:
        self.exchange = exchange
        self.started_ns = started_ns
        self.key: Key | None = None
        self.holds_slot = False
        self.name = ""

    @property
    def request(self) -> Request:
        """The request itself."""
        return self.exchange.request

    def query(self) -> dict[str, str]:
        """The query, decoded; of a repeated name the first one counts."""
        pairs = parse_qsl(self.request.query.decode("latin-1"), keep_blank_values=True)
        return dict(reversed(pairs))


class Route:
    """Who answers a method of a path, and what a key needs for it.

    One that `checks_key` looks at the key itself: its order of checks, or what counts as the key, is special.
    """

    __slots__ = ("checks_key", "handler", "is_probe", "scope")

    def __init__(
        self,
        scope: Scope,
        handler: Callable[[Call], None],
        *,
        is_probe: bool = False,
        checks_key: bool = False,
    ) -> None:
        self.scope = scope
        self.handler = handler
        self.is_probe = is_probe
        self.checks_key = checks_key


def query_flag(query: dict[str, str], name: str, default: bool) -> bool:
    """A boolean of the query; anything but true, 1, false and 0 counts as absent."""
    return {"true": True, "1": True, "false": False, "0": False}.get(query.get(name, ""), default)


class App:
    """The application behind the HTTP server. `engine` is None until recovery is over."""

    def __init__(
        self, settings: ServerSettings, loop: asyncio.AbstractEventLoop, now_ns: Callable[[], int]
    ) -> None:
        self.settings = settings
        self.loop = loop
        self.now_ns = now_ns
        self.started_ns = now_ns()
        self.engine: Engine | None = None
        self.replay_progress = 0.0
        self.is_draining = False
        self.parked: set[Callable[[], None]] = set()
        self.routes: dict[tuple[str, str], Route] = {}
        self._paths: set[str] = set()
        self._in_flight: dict[int, int] = {}
        self._turn_is_due = False
        self._timer: asyncio.TimerHandle | None = None

    # --- Routes ------------------------------------------------------------------------------------------

    def add(self, method: str, path: str, route: Route) -> None:
        """Answer a method of a path; `:name` in the path stands for one segment."""
        self.routes[method, path] = route
        self._paths.add(path)

    def check_head(self, request: Request) -> tuple[int, bytes] | None:
        """Refuse a request without a valid key before its body is read, if there is much to read.

        Others are refused when they are handled, with all headers that belong to the refusal.
        """
        if not self.settings.api_keys.enabled or request.method == "OPTIONS" or _is_short(request):
            return None
        path, _ = _pattern(request.path)
        route = self.routes.get(("GET", path))
        if (
            (route is not None and route.is_probe)
            or self._key_of(request) is not None
            or _takes_query_token(path)
        ):
            return None
        error = _unauthorised()
        return error.status, error.body()

    def handle(self, exchange: Exchange) -> None:
        """Answer a request, now or later."""
        call = Call(exchange, self.now_ns())
        self.guarded(call, partial(self._dispatch, call))
        self.turn_soon()

    def guarded(self, call: Call, step: Callable[[], None]) -> None:
        """Take a step of a call; whatever goes wrong in it is told to the client."""
        try:
            step()
        except ApiError as error:
            self.refuse(call, error)
        except EverlogError as error:
            self.refuse(call, from_engine(error, call.name or None))
        except Exception:
            log.exception("a request failed")
            self.refuse(call, ApiError(500, "internal", "the server made a mistake; its log tells more"))

    def _dispatch(self, call: Call) -> None:
        request = call.request
        method = "GET" if request.method == "HEAD" else request.method
        path, call.name = _pattern(request.path)
        if method == "OPTIONS" and path in self._paths:
            self._answer_options(call, path)
            return
        route = self.routes.get((method, path))
        self._authorise(call, route, path)
        if route is None:
            self._refuse_route(path, request.method)
            return
        if self.is_draining and not route.is_probe:
            raise ApiError(503, "shutting_down", "the server is shutting down", None, RETRY_SOON)
        if self.engine is None and not route.is_probe:
            detail = {"replay_progress": self.replay_progress}
            raise ApiError(503, "not_ready", "the log is being replayed; try again soon", detail, RETRY_SOON)
        route.handler(call)

    def _refuse_route(self, path: str, method: str) -> None:
        allowed = sorted(known for known, known_path in self.routes if known_path == path)
        if not allowed:
            raise ApiError(404, "not_found", "there is no such route")
        headers = ((b"Allow", ", ".join([*allowed, "OPTIONS"]).encode()),)
        raise ApiError(405, "method_not_allowed", f"{method} is not possible here", None, headers)

    # --- Keys --------------------------------------------------------------------------------------------

    def _authorise(self, call: Call, route: Route | None, path: str) -> None:
        settings = self.settings
        if not settings.api_keys.enabled:
            return
        if route is not None and (route.checks_key or (route.is_probe and not self._guarded(path))):
            return
        key = self._key_of(call.request)
        if key is None:
            raise _unauthorised()
        self._take_slot(call, key)
        needed = route.scope if route is not None else _scope_of_unknown(path)
        if not key.allows(needed):
            raise scope_missing(needed)
        is_topic_name = call.name and not path.startswith("/v0/watch/")
        if is_topic_name and not key.allows_name(call.name.encode()):
            raise ApiError(403, "forbidden", "this key may not use this name", {"topic": call.name})

    def _key_of(self, request: Request) -> Key | None:
        token = bearer_token(request.header(b"authorization"))
        return None if token is None else self.settings.api_keys.find(token)

    def _guarded(self, path: str) -> bool:
        return self.settings.probe_auth or path == "/v0/metrics"

    def _take_slot(self, call: Call, key: Key) -> None:
        limit = self.settings.max_inflight_per_key
        running = self._in_flight.get(key.number, 0)
        if limit and running >= limit:
            raise limit_reached(
                f"{running} requests of this key are in progress", "max_inflight_per_key", limit
            )
        self._in_flight[key.number] = running + 1
        call.key = key
        call.holds_slot = True
        self.on_gone(call, lambda: None)

    def on_gone(self, call: Call, callback: Callable[[], None]) -> None:
        """Call back if the client goes away before its answer."""

        def gone() -> None:
            self._free_slot(call)
            callback()

        call.exchange.on_gone = gone

    def _free_slot(self, call: Call) -> None:
        if call.holds_slot and call.key is not None:
            call.holds_slot = False
            self._in_flight[call.key.number] -= 1

    def require(self, call: Call, scope: Scope) -> None:
        """Refuse a call whose body turned out to need more than its route."""
        if call.key is not None and not call.key.allows(scope):
            raise scope_missing(scope)

    def ready_engine(self) -> Engine:
        """The engine; routes are reached only when there is one."""
        if self.engine is None:
            raise ApiError(503, "shutting_down", "the server is shutting down", None, RETRY_SOON)
        return self.engine

    # --- Answers -----------------------------------------------------------------------------------------

    def answer(self, call: Call, body: bytes, status: int = 200, content_type: bytes = JSON_TYPE) -> None:
        """Send an answer."""
        self._free_slot(call)
        call.exchange.respond(status, body, content_type, self.cors_headers(call))

    def refuse(self, call: Call, error: ApiError) -> None:
        """Send an error."""
        self._free_slot(call)
        call.exchange.respond(error.status, error.body(), headers=(*error.headers, *self.cors_headers(call)))

    def answer_when(self, call: Call, commit: Commit, render: Callable[[], tuple[bytes, int]]) -> None:
        """Send what `render` gives once the commit is done, or why it failed."""

        def step() -> None:
            if commit.error is not None:
                raise commit.error
            self.answer(call, *render())

        # Whoever finishes the commit has others to tell and must not hear of what goes wrong with this one.
        commit.on_done(lambda _: self.guarded(call, step))

    def performance(self, call: Call, extra: bytes = b"") -> bytes:
        """The performance object of an answer."""
        total_ms = (self.now_ns() - call.started_ns) / 1e6
        return b'{"server_total_ms":%.3f%b}' % (total_ms, extra)

    def cors_headers(self, call: Call) -> tuple[tuple[bytes, bytes], ...]:
        """What a browser needs to hand the answer to a page of another origin that is allowed to have it."""
        origins = self.settings.cors_origins
        if not origins:
            return ()
        origin = call.request.header(b"origin")
        if origin is None or ("*" not in origins and origin.decode("latin-1") not in origins):
            return ()
        return ((b"Access-Control-Allow-Origin", origin), (b"Vary", b"Origin"))

    def _answer_options(self, call: Call, path: str) -> None:
        methods = sorted(known for known, known_path in self.routes if known_path == path)
        allow = ", ".join([*methods, "OPTIONS"]).encode()
        headers = [(b"Allow", allow)]
        if cors := self.cors_headers(call):
            headers += [
                *cors,
                (b"Access-Control-Allow-Methods", allow),
                (
                    b"Access-Control-Allow-Headers",
                    b"Authorization, Content-Type, Idempotency-Key, Last-Event-ID",
                ),
                (b"Access-Control-Max-Age", b"600"),
            ]
        call.exchange.respond(204, b"", headers=tuple(headers))

    # --- The turn of the loop ----------------------------------------------------------------------------

    def turn_soon(self) -> None:
        """Write and poll once after everything that is ready now was handled."""
        if not self._turn_is_due:
            self._turn_is_due = True
            self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_is_due = False
        engine = self.engine
        if engine is None:
            return
        try:
            engine.write()
            engine.poll()
        except Exception:
            # Whoever waits for a commit is told by it; the turns have to go on for the others.
            log.exception("a turn of the engine failed")
        if self._timer is not None:
            self._timer.cancel()
        due_ns = engine.due_ns()
        delay_s = 1.0 if due_ns is None else max(0, due_ns - self.now_ns()) / NS_PER_S
        self._timer = self.loop.call_later(min(delay_s, 1.0), self.turn_soon)

    def wake(self) -> None:
        """Take a turn; may be called from any thread."""
        self.loop.call_soon_threadsafe(self.turn_soon)

    def drain(self) -> None:
        """Refuse what comes from now on, and let no reader wait any longer."""
        self.is_draining = True
        for wake_reader in tuple(self.parked):
            wake_reader()

    def stop_turning(self) -> None:
        """Take no more turns: the engine is about to be closed."""
        if self._timer is not None:
            self._timer.cancel()
        self.engine = None


def _pattern(path: bytes) -> tuple[str, str]:
    """Return the path with its name replaced by `:name`, and the decoded name."""
    parts = path.split(b"/")
    if len(parts) >= 4 and parts[1] == b"v0" and parts[2] in (b"topics", b"routers", b"watch"):
        # What is not UTF-8 is the name of nothing, but it must be possible to say so.
        name = unquote_to_bytes(parts[3]).decode("utf-8", "replace")
        parts[3] = b":name"
        return b"/".join(parts).decode("latin-1"), name
    return path.decode("latin-1"), ""


def _is_short(request: Request) -> bool:
    """Whether the body is so small, and on its way anyway, that reading it costs less than refusing it."""
    if request.header(b"transfer-encoding") is not None or request.header(b"expect") is not None:
        return False
    length = request.header(b"content-length")
    return length is None or len(length) <= SHORT_BODY_DIGITS


def _unauthorised() -> ApiError:
    challenge = ((b"WWW-Authenticate", b"Bearer"),)
    return ApiError(401, "unauthorized", "send a valid key as a bearer token", None, challenge)


def _takes_query_token(path: str) -> bool:
    """Streams that a browser opens cannot send headers, so these accept `?token=`."""
    return path in ("/v0/watch/:name", "/v0/topics/:name/work")


def _scope_of_unknown(path: str) -> Scope:
    return Scope.WRITE if path.startswith("/v0/topics/:name/") else NO_SCOPE


def scope_missing(scope: Scope) -> ApiError:
    """The refusal of a key that may not do so much."""
    words = " and ".join(word.name.lower() for word in Scope if word in scope and word.name)
    return ApiError(403, "forbidden", f"this key may not do that; it needs {words}")
