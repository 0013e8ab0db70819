"""What a request means: which key may send it, which route it is, and when its answer may be sent.

Owns the order of checks of the contract and the turn of the loop: all requests of one turn are
framed first, then written together, and each is answered when its commit is done.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Callable
from difflib import get_close_matches
from typing import Final
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from everlog.errors import EverlogError
from everlog.server.auth import Key, Scope
from everlog.server.body_checks import UnknownMember, ignored_field
from everlog.server.compression import COMPRESSED_BYTES_MIN, packed, unpack_body
from everlog.server.errors import CHALLENGE, RETRY_SOON, ApiError, from_engine, invalid, limit_reached
from everlog.server.http import Exchange, Request, Target
from everlog.server.http_exchange import JSON_TYPE, EarlyAnswer
from everlog.server.key_caps import KeyCap
from everlog.server.origins import OriginGuard
from everlog.server.request_counts import RequestCounts, RouteCounts
from everlog.server.settings import ServerSettings
from everlog.topics import Commit, Engine

NS_PER_S: Final = 1_000_000_000
TURN_INTERVAL_NS: Final = NS_PER_S
POLL_INTERVAL_NS: Final = 1_000_000
"""How long work that no client waits for may be put off while appends follow each other."""

NO_SCOPE: Final = Scope(0)
WRITE_SCOPES: Final = Scope.WRITE | Scope.DELETE | Scope.ADMIN
SHOWN_PATH_BYTES: Final = 100
QUERY_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}
log = logging.getLogger("everlog.server")
_json: Final = msgspec.json.Encoder()


class Call:
    """One request on its way through the application."""

    __slots__ = ("exchange", "has_waited", "holds_slot", "ignored", "item", "key", "name", "started_ns")

    def __init__(self, exchange: Exchange, started_ns: int) -> None:
        self.exchange = exchange
        self.started_ns = started_ns
        self.key: Key | None = None
        self.holds_slot = False
        self.has_waited = False
        """For records or jobs, as its client wished; how long says nothing of the server."""
        self.ignored: list[UnknownMember] | None = None
        self.name = ""
        self.item = ""
        """The second name in the path: of something that belongs to the topic."""

    @property
    def request(self) -> Request:
        """The request itself."""
        return self.exchange.request

    def query(self) -> dict[str, str]:
        """The query, decoded; of a repeated name the first one counts."""
        target = self.exchange.request.target
        query: dict[str, str] = (target.meaning or Match(None, "", "", "", target.query)).query
        return query


class Route:
    """The handler of a method of a path, and what a key needs for it: `scope`, or `or_scope` if it has one.

    One that `checks_key` looks at the key itself: its order of checks, or what counts as the key, is special.
    One that has no `needs_poll` only adds to what the next turn writes.
    """

    __slots__ = ("checks_key", "handler", "is_probe", "is_write", "needs_poll", "or_scope", "scope")

    def __init__(
        self,
        scope: Scope,
        handler: Callable[[Call], None],
        *,
        or_scope: Scope | None = None,
        is_probe: bool = False,
        checks_key: bool = False,
        needs_poll: bool = True,
    ) -> None:
        self.scope = scope
        self.is_write = bool(scope & WRITE_SCOPES)
        self.or_scope = scope if or_scope is None else or_scope
        self.handler = handler
        self.is_probe = is_probe
        self.checks_key = checks_key
        self.needs_poll = needs_poll


class Match:
    """What a target stands for. `path` has `:name` and `:item` for the names; all requests share `query`."""

    __slots__ = ("counts", "is_topic", "item", "name", "path", "query", "route")

    def __init__(
        self,
        route: Route | None,
        path: str,
        name: str,
        item: str,
        query: bytes,
        counts: RouteCounts | None = None,
    ) -> None:
        self.route = route
        self.counts = counts
        self.path = path
        self.name = name
        self.item = item
        # What keys with prefixes are checked against.
        self.is_topic = bool(name) and not path.startswith("/v0/watch/")
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        self.query: dict[str, str] = dict(reversed(pairs))


class _Pending:
    """An answer that waits for a commit. Called once, by the commit."""

    __slots__ = ("_app", "_call", "_render")

    def __init__(self, app: App, call: Call, render: Callable[[], tuple[bytes, int]]) -> None:
        self._app = app
        self._call = call
        self._render = render

    def __call__(self, commit: Commit) -> None:
        # An error here must not reach the commit, which has other callbacks to call.
        app, call = self._app, self._call
        try:
            if commit.error is not None:
                raise commit.error
            app.answer(call, *self._render())
        except Exception as error:
            app.fail(call, error)


def query_flag(query: dict[str, str], name: str, default: bool) -> bool:
    """A boolean of the query; anything but true, 1, false and 0 counts as absent."""
    return QUERY_FLAGS.get(query.get(name, ""), default)


def query_seq(query: dict[str, str], name: str, default: int) -> int:
    """A seq of the query; anything but digits is refused."""
    text = query.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise invalid(f"{name} is {text!r}; it must be a whole number from 0 on")
    return int(text)


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
        self.drains: list[Callable[[int], bool]] = []
        """They finish what telling a topic's watchers has begun; see `Engine.deliver`."""
        self.advisers: list[Callable[[list[str]], None]] = []
        """They are called with the topics that have records which are not pushed for now."""
        self.routes: dict[tuple[str, str], Route] = {}
        self.files: dict[str, Callable[[Exchange], None]] = {}
        """What is sent as it stands, by path; it needs no key."""
        self.requests = 0
        """Requests that came since the start."""
        self._paths: set[str] = set()
        self.answered = RequestCounts(is_logged=settings.access_log)
        self._in_flight: dict[int, int] = {}
        self.requests_of_keys: Counter[int] = Counter()  # by the number of the key
        self._has_keys = settings.api_keys.enabled
        self.topics_of_keys = KeyCap(
            "topics",
            settings.max_topics_per_key,
            lambda key, limit: limit if key.max_topics is None else key.max_topics,
        )
        self.routers_of_keys = KeyCap("routers", settings.max_routers_per_key)
        self.consumers_of_keys = KeyCap("consumers", settings.max_consumers_per_key)
        self.schedules_of_keys = KeyCap("schedules", settings.max_schedules_per_key)
        self._guard = OriginGuard(settings.host, settings.allowed_hosts, settings.cors_origins)
        self.turn_is_due = False
        self._poll_is_due = False
        self._polled_ns = 0
        self._advised_samples = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0

    # --- Routes ------------------------------------------------------------------------------------------

    def add(self, method: str, path: str, route: Route) -> None:
        """Answer a method of a path; `:name` in the path stands for one segment."""
        self.routes[method, path] = route
        self._paths.add(path)

    def _match(self, target: Target) -> Match:
        """Find the route of a target; it is kept with the target, for all requests that have the same one."""
        method = "GET" if target.method == "HEAD" else target.method
        path, name, item = _pattern(target.path)
        route = self.routes.get((method, path))
        counts = self.answered.of(None if path not in self._paths else path, target.method)
        match = target.meaning = Match(route, path, name, item, target.query, counts)
        return match

    def check_head(self, request: Request) -> EarlyAnswer | None:
        """Refuse a request without a valid key before its body is read."""
        if not self._has_keys or request.method == "OPTIONS":
            return None
        path, _, _ = _pattern(request.path)
        route = self.routes.get(("GET", path))
        if (
            (route is not None and route.is_probe)
            or path in self.files
            or self._key_of(request) is not None
            or _takes_other_token(path)
        ):
            return None
        error = _unauthorised()
        return error.status, error.body(), error.headers

    def handle(self, exchange: Exchange) -> None:
        """Answer a request, now or later."""
        call = Call(exchange, self.now_ns())
        self.requests += 1
        try:
            needs_poll = self._dispatch(call)
        except Exception as error:
            self.fail(call, error)
            needs_poll = True
        if needs_poll:
            self.turn_soon()
        else:
            self.write_soon()

    def guarded(self, call: Call, step: Callable[[], None]) -> None:
        """Take a step of a call; what goes wrong in it is the answer to the client."""
        try:
            step()
        except Exception as error:
            self.fail(call, error)

    def fail(self, call: Call, error: Exception) -> None:
        """Tell the client what went wrong with its call."""
        if isinstance(error, EverlogError):
            error = from_engine(error, call.name or None)
        if not isinstance(error, ApiError):
            request_id = uuid.uuid4().hex[:16]
            log.error("a request failed (request id %s)", request_id, exc_info=error)
            error = ApiError(500, "internal", f"internal error; see the server log (request id {request_id})")
        self.refuse(call, error)

    def _dispatch(self, call: Call) -> bool:
        """Check a request and pass it to its route; whether the engine has to be polled for it."""
        request = call.exchange.request
        self._guard.check(request.headers)
        match: Match = request.target.meaning or self._match(request.target)
        route, call.name, call.item = match.route, match.name, match.item
        if request.method == "OPTIONS" and match.path in self._paths:
            self._answer_options(call, match.path)
            return False
        if route is None and match.path in self.files and request.method in ("GET", "HEAD"):
            self.files[match.path](call.exchange)
            return False
        if self._has_keys:
            self._authorise(call, match)
        if route is None:
            raise self._no_route(match, request)
        if self.is_draining and not route.is_probe:
            raise ApiError(503, "shutting_down", "the server is shutting down", None, RETRY_SOON)
        if self.engine is None and not route.is_probe:
            detail = {"replay_progress": self.replay_progress}
            raise ApiError(503, "not_ready", "the log is being replayed; try again soon", detail, RETRY_SOON)
        if route.is_write and self.engine is not None and self.engine.primary is not None:
            self.check_writable()
        if b"content-encoding" in request.headers:
            unpack_body(request, self.settings.gzip, self.settings.max_body_bytes)
        route.handler(call)
        return route.needs_poll

    def _no_route(self, match: Match, request: Request) -> ApiError:
        if match.path in self._paths:
            allow = self._methods_of(match.path)
            message = f"{request.method} is not possible here; there are {allow}"
            return ApiError(405, "method_not_allowed", message, None, ((b"Allow", allow.encode()),))
        path = request.path[:SHOWN_PATH_BYTES].decode("latin-1")
        near = get_close_matches(match.path[:SHOWN_PATH_BYTES], sorted(self._paths), 1)
        nearest = near[0].replace(":name", match.name[:SHOWN_PATH_BYTES]) if near else None
        nearest = nearest and nearest.replace(":item", match.item[:SHOWN_PATH_BYTES])
        hint = "the reference lists all routes" if nearest is None else f"did you mean {nearest}?"
        detail = {"path": path} if nearest is None else {"path": path, "nearest": nearest}
        return ApiError(404, "not_found", f"there is no route {path}; {hint}", detail)

    def _methods_of(self, path: str) -> str:
        """The methods of a path as the header `Allow` lists them; GET routes answer HEAD too."""
        methods = {method for method, known_path in self.routes if known_path == path} | {"OPTIONS"}
        return ", ".join(sorted(methods | {"HEAD"} if "GET" in methods else methods))

    # --- Keys --------------------------------------------------------------------------------------------

    def _authorise(self, call: Call, match: Match) -> None:
        route, path = match.route, match.path
        if route is not None and (route.checks_key or (route.is_probe and not self._guarded(path))):
            return
        key = self._key_of(call.exchange.request)
        if key is None:
            raise _unauthorised()
        self._take_slot(call, key)
        needed = route.scope if route is not None else _scope_of_unknown(path)
        if not key.allows(needed) and (route is None or not key.allows(route.or_scope)):
            raise scope_missing(needed)
        if key.prefixes and match.is_topic and not key.allows_name(call.name.encode()):
            raise ApiError(
                403, "forbidden", f"this key may not use the name {call.name!r}", {"topic": call.name}
            )

    def _key_of(self, request: Request) -> Key | None:
        return self.settings.api_keys.find_header(request.headers.get(b"authorization"))

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
        self.requests_of_keys[key.number] += 1
        call.key = key
        call.holds_slot = True

    def on_gone(self, call: Call, callback: Callable[[], None]) -> None:
        """Call back if the client goes away before its answer, or may have: it sends nothing more."""

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
        if scope & WRITE_SCOPES:
            self.check_writable()

    def check_writable(self) -> None:
        """Refuse a write if this server only follows another one."""
        if self.engine is not None and self.engine.primary is not None:
            detail = {"primary": self.engine.primary} if self.engine.primary else None
            message = "this server is a standby; send writes to the primary"
            raise ApiError(503, "storage_failed", message, detail)

    def ready_engine(self) -> Engine:
        """The engine; routes are reached only when there is one."""
        if self.engine is None:
            raise ApiError(503, "shutting_down", "the server is shutting down", None, RETRY_SOON)
        return self.engine

    # --- Answers -----------------------------------------------------------------------------------------

    def answer(self, call: Call, body: bytes, status: int = 200, content_type: bytes = JSON_TYPE) -> None:
        """Send an answer."""
        if call.holds_slot:
            self._free_slot(call)
        if call.ignored is not None:
            body = ignored_field(body[:-1], call.ignored) + b"}"
        headers = self.cors_headers(call) if self.settings.cors_origins else ()
        if self.settings.gzip and len(body) >= COMPRESSED_BYTES_MIN:
            body, more = packed(call.request, body)
            headers += more
        self.answered.note(call, status, self.now_ns())
        call.exchange.respond(status, body, content_type, headers)

    def refuse(self, call: Call, error: ApiError) -> None:
        """Send an error."""
        self._free_slot(call)
        self.answered.note(call, error.status, self.now_ns())
        call.exchange.respond(error.status, error.body(), headers=(*error.headers, *self.cors_headers(call)))

    def answer_when(self, call: Call, commit: Commit, render: Callable[[], tuple[bytes, int]]) -> None:
        """Send what `render` gives once the commit is done, or why it failed."""
        commit.on_done(_Pending(self, call, render))

    def answer_with(self, call: Call, commit: Commit, answer: object, status: int = 200) -> None:
        """Send an answer, which is rendered once the commit is done; see `rendered`."""
        self.answer_when(call, commit, lambda: (self.rendered(call, answer), status))

    def rendered(self, call: Call, answer: object) -> bytes:
        """The JSON of a dictionary or struct that has fields, with the performance object as the last."""
        return b'%b,"performance":%b}' % (_json.encode(answer)[:-1], self.performance(call))

    def performance(self, call: Call, extra: bytes = b"") -> bytes:
        """The performance object of an answer."""
        total_ms = (self.now_ns() - call.started_ns) / 1e6
        return b'{"server_total_ms":%.3f%b%b}' % (total_ms, extra, self.throttle_field())

    def throttle_field(self, synced_ms: float = 0.0) -> bytes:
        """How much later an answer is for the server's sake, as a field with a comma; empty without pressure.

        That is the wider window of a sync if the answer waited `synced_ms` for one, or the time for which a
        reader that is just being woken was left to wait for more.
        """
        delivery = None if self.engine is None else self.engine.delivery
        if delivery is None or not delivery.is_throttling:
            return b""
        wait_ns = delivery.hold_ns + delivery.sync_wait_ns(int(synced_ms * 1e6))
        return b',"throttle_wait_ms":%.3f' % (wait_ns / 1e6)

    def cors_headers(self, call: Call) -> tuple[tuple[bytes, bytes], ...]:
        """What lets a browser pass the answer to a page of another origin, if that origin is allowed."""
        origins = self.settings.cors_origins
        if not origins:
            return ()
        origin = call.request.header(b"origin")
        if origin is None or ("*" not in origins and origin.decode("latin-1") not in origins):
            return ()
        return (
            (b"Access-Control-Allow-Origin", origin),
            (b"Access-Control-Expose-Headers", b"Allow, Date, Retry-After, WWW-Authenticate"),
            (b"Vary", b"Origin"),
        )

    def _answer_options(self, call: Call, path: str) -> None:
        allow = self._methods_of(path).encode()
        headers = [(b"Allow", allow)]
        if cors := self.cors_headers(call):
            headers += [
                *cors,
                (b"Access-Control-Allow-Methods", allow),
                (
                    b"Access-Control-Allow-Headers",
                    b"Authorization, Content-Type, Idempotency-Key, Last-Event-ID, traceparent",
                ),
                (b"Access-Control-Max-Age", b"600"),
            ]
        call.exchange.respond(204, b"", headers=tuple(headers))

    # --- The turn of the loop ----------------------------------------------------------------------------

    def turn_soon(self) -> None:
        """Write and poll once after everything that is ready now was handled."""
        self._poll_is_due = True
        self.write_soon()

    def write_soon(self) -> None:
        """As `turn_soon`, for appends: if nothing else waits for the engine, a write is enough for now."""
        if not self.turn_is_due:
            self.turn_is_due = True
            self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self.turn_is_due = False
        engine = self.engine
        if engine is None:
            return
        started_ns = self.now_ns()
        self._take_turn(engine)
        self.answered.steps.note(self.now_ns() - started_ns)

    def _take_turn(self, engine: Engine) -> None:
        try:
            has_written = engine.write()
            if not self._poll_is_due and engine.is_quiet:
                now_ns = self.now_ns()
                if now_ns - self._polled_ns < POLL_INTERVAL_NS:
                    self._turn_at(self._polled_ns + POLL_INTERVAL_NS, now_ns)
                    return
            self._poll_is_due = False
            engine.poll(self._drain_watchers)
            self._advise(engine)
            if engine.holds_sync:
                self._start_or_share(engine, has_written)
        except Exception:
            # Those that wait for a commit get the error from it; the turns have to go on for the others.
            log.exception("a turn of the engine failed")
        if engine.delivery.has_ready:
            self.turn_soon()  # after the requests that have come meanwhile
            return
        due_ns, now_ns = engine.due_ns(), self.now_ns()
        self._polled_ns = now_ns
        latest_ns = now_ns + TURN_INTERVAL_NS
        self._turn_at(latest_ns if due_ns is None else min(max(due_ns, now_ns), latest_ns), now_ns)

    def _start_or_share(self, engine: Engine, has_written: bool) -> None:
        """Put off a sync while more is being written that can share it; start it otherwise."""
        if has_written:
            self.write_soon()
        else:
            engine.start_held_syncs()

    def _turn_at(self, due_ns: int, now_ns: int) -> None:
        """Take the next turn at this time at the latest."""
        if self._timer is not None:
            # A turn too early does no harm; setting a timer anew with each turn would cost more.
            if now_ns < self._timer_ns <= due_ns:
                return
            self._timer.cancel()
        self._timer_ns = due_ns
        self._timer = self.loop.call_later((due_ns - now_ns) / NS_PER_S, self._timer_turn)

    def _timer_turn(self) -> None:
        self._timer = None
        self.turn_soon()

    def _advise(self, engine: Engine) -> None:
        """Name the topics whose pushes are paused, once after each look of the governor."""
        samples = engine.delivery.governor.samples
        if samples != self._advised_samples and self.advisers:
            self._advised_samples = samples
            paused = engine.paused_topics()
            for advise in self.advisers:
                advise(paused)

    def _drain_watchers(self, end_ns: int) -> bool:
        """Let all watchers of the topic that was just served have their share, up to a time."""
        is_done = True
        for drain in self.drains:
            is_done = drain(end_ns) and is_done
        return is_done

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
            self._timer = None
        self.engine = None


def _pattern(path: bytes) -> tuple[str, str, str]:
    """Return the path with its names replaced by `:name` and `:item`, and the decoded names."""
    parts = path.split(b"/")
    name = item = ""
    if len(parts) >= 4 and parts[1] == b"v0" and parts[2] in _NAMED:
        # What is not UTF-8 is the name of nothing, but it must be possible to say so.
        name = unquote_to_bytes(parts[3]).decode("utf-8", "replace")
        parts[3] = b":name"
        if len(parts) >= 6 and parts[2] == b"topics" and _has_item(parts):
            item = unquote_to_bytes(parts[5]).decode("utf-8", "replace")
            parts[5] = b":item"
    return b"/".join(parts).decode("latin-1"), name, item


_NAMED: Final = (b"topics", b"routers", b"watch", b"schedules")


def _has_item(parts: list[bytes]) -> bool:
    """Whether the segment below a collection of a topic is a name, or the seq of a job."""
    return parts[4] == b"consumers" or (parts[4] == b"jobs" and parts[5] not in (b"cancel", b"retry"))


def _unauthorised() -> ApiError:
    return ApiError(401, "unauthorized", "send a valid key as a bearer token", None, CHALLENGE)


def _takes_other_token(path: str) -> bool:
    """Streams that a browser opens cannot send headers: these look for the key elsewhere."""
    return path in ("/v0/watch/:name", "/v0/topics/:name/work", "/v0/ws")


def _scope_of_unknown(path: str) -> Scope:
    return Scope.WRITE if path.startswith("/v0/topics/:name/") else NO_SCOPE


def scope_missing(scope: Scope) -> ApiError:
    """The refusal of a key that may not do so much."""
    words = " and ".join(word.name.lower() for word in Scope if word in scope and word.name)
    return ApiError(403, "forbidden", f"this key may not do that; it needs {words}")
