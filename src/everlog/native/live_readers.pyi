"""Types of the native walk along the readers of a topic."""

from collections.abc import Callable, Iterable
from typing import Any

from everlog.native.outlet import Outlet

class Place:
    name: str
    topic: bytes
    seq: int
    epoch: int
    head_seq: int
    held: Any
    is_first: bool
    is_live: bool
    was_live: bool
    is_gone: bool
    skips: bool
    burst: int
    def __init__(self, name: str, topic: bytes, seq: int, epoch: int, head_seq: int) -> None: ...

class LiveReader:
    at_ease: Place | None
    outlet: Outlet | None
    wishes: Any
    output_s: float

class Row:
    @property
    def name(self) -> str: ...
    @property
    def sent_bytes(self) -> int: ...
    @property
    def position(self) -> int: ...
    def __init__(self, name: str, readers: Iterable[Any]) -> None: ...
    def peek(self) -> Any: ...  # one of `readers`
    def step(self) -> None: ...
    def pass_on(
        self,
        data: bytes,
        first: LiveReader,
        to_seq: int,
        head_seq: int,
        now_s: float,
        now_ns: Callable[[], int],
        end_ns: int,
    ) -> Any: ...  # one of `readers`
