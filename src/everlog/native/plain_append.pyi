"""Types of the native short way of appends."""

from collections.abc import Callable
from typing import Any

from everlog.native.commits import BatchEntry, Commit
from everlog.native.outlet import Outlet

class ServerState:
    ok_json_head: bytes
    bodies_bytes: int
    is_draining: bool

class AppState:
    is_draining: bool
    turn_is_due: bool

class PlainConnection(Outlet):
    server: Any
    _state: int
    _exchanges: list[Any]
    _unread: bytes
    _is_read_paused: bool
    _since_s: float
    def data_received(self, data: bytes) -> None: ...

class PlainAppend(BatchEntry):
    held: bytearray | None
    closes: bool
    counted_bytes: int
    @property
    def data(self) -> bytes: ...
    @property
    def started_ns(self) -> int: ...
    @property
    def connection(self) -> Any: ...
    @property
    def channel(self) -> None: ...
    @property
    def wants_word(self) -> bool: ...
    @property
    def offers_upgrade(self) -> bool: ...
    def gone(self) -> Callable[[], None] | None: ...
    def __call__(self, commit: Commit) -> None: ...

class PlainAppends:
    def __init__(
        self,
        owner: Any,
        app: Any,
        server: Any,
        core: Any,
        *,
        wall_ns: Callable[[], int],
        classes: Any,
        frame_ceiling: Callable[..., Any],
        limits: tuple[int, int, int, int],
        uncounted_bytes: int,
        packed_bytes: int,
        ceiling_low: int,
        queue_max: int,
        control_room: int,
        max_nesting: int,
    ) -> None: ...
    def take(self, connection: Any, exchanges: list[Any], data: bytes) -> bool: ...
