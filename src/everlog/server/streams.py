"""What watch streams, work streams and WebSockets share: timers, heartbeats, keys, and how many are open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from everlog.server.app import App
from everlog.server.auth import Key, bearer_token, token_of_query
from everlog.server.errors import CHALLENGE, ApiError, limit_reached
from everlog.server.http import Request
from everlog.server.settings import ServerSettings

# A timer may fire a rounding error early; waiting for the rest would be a busy loop.
TIMER_SLACK_S: Final = 0.0005


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None:
        """Cancel it."""
        ...


class Timers(Protocol):
    """The time that heartbeats and slow clients are measured in; an event loop is one."""

    def time(self) -> float:
        """Now, in seconds."""
        ...

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        """Call back after so many seconds."""
        ...


class Heartbeat:
    """Calls `beat` when nothing was sent for an interval; `output_s` returns when something was sent last."""

    __slots__ = ("_beat", "_interval_s", "_output_s", "_timer", "_timers")

    def __init__(
        self, timers: Timers, interval_s: float, output_s: Callable[[], float], beat: Callable[[], None]
    ) -> None:
        self._timers = timers
        self._interval_s = interval_s
        self._output_s = output_s
        self._beat = beat
        self._timer: Timer = timers.call_later(interval_s, self._due)

    def _due(self) -> None:
        quiet_s = self._timers.time() - self._output_s()
        if quiet_s > self._interval_s - TIMER_SLACK_S:
            self._beat()
            quiet_s = 0.0
        self._timer = self._timers.call_later(self._interval_s - quiet_s, self._due)

    def cancel(self) -> None:
        """Beat no more."""
        self._timer.cancel()


def stream_key(
    app: App, request: Request, hint: str, other: Callable[[Request], bytes | None] | None = None
) -> Key | None:
    """The key of a request for a stream; None if the server has no keys. A 401 says `hint`.

    A browser cannot send headers with a stream, so the key may be elsewhere: `other` looks there, by default
    in the query.
    """
    keys = app.settings.api_keys
    if not keys.enabled:
        return None
    token = bearer_token(request.header(b"authorization"))
    if token is None:
        token = token_of_query(request.query) if other is None else other(request)
    key = None if token is None else keys.find(token)
    if key is None:
        raise ApiError(401, "unauthorized", hint, None, CHALLENGE)
    return key


KEY_REVOKED: Final = "the key of this stream was removed or has expired"


class StreamSlots:
    """The streams that are open now, in all and per key. Each take is given back once."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._by_key: dict[int, int] = {}
        self.taken = 0

    def of_key(self, key: Key) -> int:
        """How many of them a key has open."""
        return self._by_key.get(key.number, 0)

    def take(self, key: Key | None) -> None:
        """Count one more stream, or refuse it if a cap is reached."""
        most, most_per_key = self._settings.max_sse_connections, self._settings.max_sse_connections_per_key
        if most and self.taken >= most:
            raise limit_reached(f"{self.taken} streams are open", "max_sse_connections", most)
        if key is not None:
            if key.max_streams is not None:
                most_per_key = key.max_streams
            of_key = self._by_key.get(key.number, 0)
            if most_per_key and of_key >= most_per_key:
                message = f"{of_key} streams of this key are open"
                raise limit_reached(message, "max_sse_connections_per_key", most_per_key)
            self._by_key[key.number] = of_key + 1
        self.taken += 1

    def give_back(self, key: Key | None) -> None:
        """Count one stream less."""
        self.taken -= 1
        if key is not None:
            self._by_key[key.number] -= 1
