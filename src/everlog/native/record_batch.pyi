"""Types of the native record batch."""

from typing import Any, Final

LIMITS: Final[dict[str, int]]

class RecordBatch:
    count: int
    frame_bytes: int
    def __init__(self, records: list[Any], node: str | None = None) -> None: ...
    def __len__(self) -> int: ...

def plain_batch(body: bytes, max_nesting: int) -> RecordBatch | None: ...
