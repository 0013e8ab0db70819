"""Types of the native record batch."""

from typing import Any, Final

LIMITS: Final[dict[str, int]]

class RecordBatch:
    count: int
    frame_bytes: int
    def __init__(self, records: list[Any], node: str | None = None) -> None: ...
    def __len__(self) -> int: ...

def scan_append(body: bytes, max_nesting: int) -> tuple[RecordBatch, str | None, bool | None] | None: ...
