"""How many streams may be open: in all, and per key.

Owns the two counts for every kind of stream (watch, work, WebSocket); whoever takes a slot gives it back
once, however its stream ends.
"""

from __future__ import annotations

from everlog.server.auth import Key
from everlog.server.errors import limit_reached
from everlog.server.settings import ServerSettings


class StreamSlots:
    """The streams that are open now."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._by_key: dict[int, int] = {}
        self.taken = 0

    def take(self, key: Key | None) -> None:
        """Count one more stream, or refuse it if a cap is reached."""
        most, most_per_key = self._settings.max_sse_connections, self._settings.max_sse_connections_per_key
        if most and self.taken >= most:
            raise limit_reached(f"{self.taken} streams are open", "max_sse_connections", most)
        if key is not None:
            of_key = self._by_key.get(key.number, 0)
            if most_per_key and of_key >= most_per_key:
                message = f"{of_key} streams of this key are open"
                raise limit_reached(message, "max_sse_connections_per_key", most_per_key)
            self._by_key[key.number] = of_key + 1
        self.taken += 1

    def give_back(self, key: Key | None) -> None:
        """A stream is over."""
        self.taken -= 1
        if key is not None:
            self._by_key[key.number] -= 1
