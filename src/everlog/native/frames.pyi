"""Types of the native frames module."""

from typing import Final, Literal, NamedTuple

from typing_extensions import Buffer

LAYOUT: Final[dict[str, int]]

class LogFrame(NamedTuple):
    size: int
    type: int
    flags: int
    topic_id: int
    seq: int
    ts: int
    node: bytes
    tag: bytes
    data: bytes

class SegmentFrame(NamedTuple):
    size: int
    flags: int
    seq: int
    ts: int
    node: bytes
    tag: bytes
    data: bytes
    deleted: bool

class FrameScan(NamedTuple):
    frames: int
    end: int
    outcome: Literal["end", "torn", "corrupt"]

def hash_pointer() -> int: ...
def hash_source() -> Literal["xxhash wheel", "python callback"]: ...
def checksum(data: Buffer) -> int: ...
def compact_json(text: Buffer) -> bytes: ...
def json_fault(text: Buffer, max_depth: int) -> str | None: ...
def is_utf8(text: Buffer) -> bool: ...
def scan_log_frames(buffer: Buffer, start: int = 0, *, verify: bool = True) -> FrameScan: ...
def scan_segment_frames(buffer: Buffer, start: int = 0, *, verify: bool = True) -> FrameScan: ...
def read_log_frame(buffer: Buffer, offset: int, *, verify: bool = True) -> LogFrame: ...
def read_segment_frame(buffer: Buffer, offset: int, *, verify: bool = True) -> SegmentFrame: ...

class FrameBuffer:
    def __init__(self, capacity: int = 0) -> None: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def populate(self) -> None: ...
    @property
    def is_viewed(self) -> bool: ...
    def append_control(self, type: int, flags: int, topic_id: int, seq: int, ts: int, data: bytes) -> int: ...
    def append_log(
        self,
        type: int,
        flags: int,
        topic_id: int,
        seq: int,
        ts: int,
        node: bytes,
        tag: bytes,
        data: bytes,
    ) -> int: ...
    def append_segment(
        self,
        flags: int,
        seq: int,
        ts: int,
        node: bytes,
        tag: bytes,
        data: bytes,
        *,
        deleted: bool = False,
    ) -> int: ...
    def append_records(self, topic_id: int, first_seq: int, ts: int, payloads: list[bytes]) -> int: ...
    def append_bytes(self, data: Buffer) -> None: ...
    def truncate(self, length: int) -> None: ...
    def clear(self) -> None: ...
    def tobytes(self) -> bytes: ...
