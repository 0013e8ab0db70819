"""Types of the native module of topics in memory."""

from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
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

LIMITS: Final[dict[str, int]]

class RecordBatch:
    count: int
    frame_bytes: int
    def __init__(self, records: list[Any], node: str | None = None) -> None: ...
    def __len__(self) -> int: ...

def scan_append(body: bytes, max_nesting: int) -> tuple[RecordBatch, str | None, bool | None] | None: ...

PLACE: Final[np.dtype[Any]]

class Rendered(NamedTuple):
    json: bytes
    next_from_seq: int
    delivered: int
    scanned: int
    missing_source: int
    corrupt_seq: int

class Sources:
    def __init__(self) -> None: ...
    def add(self, buffer: Buffer | None) -> int: ...
    def set(self, source: int, buffer: Buffer | None) -> None: ...
    def remove(self, source: int) -> None: ...
    def is_loaded(self, source: int) -> bool: ...
    def buffer(self, source: int) -> Buffer | None: ...

class TopicLog:
    topic_id: int
    def __init__(self, topic_id: int, next_seq: int = 1) -> None: ...
    @property
    def base_seq(self) -> int: ...
    @property
    def next_seq(self) -> int: ...
    @property
    def first_live(self) -> int: ...
    @property
    def live_count(self) -> int: ...
    @property
    def live_bytes(self) -> int: ...
    @property
    def last_ts(self) -> int: ...
    @property
    def index_memory_bytes(self) -> int: ...
    @property
    def tag_memory_bytes(self) -> int: ...
    @property
    def tag_count(self) -> int: ...
    def append(
        self,
        buffer: FrameBuffer,
        source: int,
        source_offset: int,
        records: RecordBatch | list[Any],
        ts: int,
        frame_flags: int,
        batch_node: str | None,
        continues: bool,
    ) -> int: ...
    @staticmethod
    def append_upper_bound(records: list[Any], batch_node: str | None) -> int: ...
    def pop(
        self, buffer: FrameBuffer | None, source_offset: int, count: int, last_ts: int | None = None
    ) -> None: ...
    def push_holes(self, count: int, ts: int) -> None: ...
    def load_index(self, first_seq: int, entries: Buffer, source: int) -> int: ...
    def load_frames(self, first_seq: int, count: int, data: Buffer) -> int: ...
    def copy_to_segment(
        self,
        sources: Sources,
        first_seq: int,
        last_seq: int,
        base_offset: int,
        data_out: FrameBuffer,
        index_out: FrameBuffer,
    ) -> None: ...
    def set_segment(self, first_seq: int, entries: Buffer, source: int) -> None: ...
    def kill_below(self, before_seq: int) -> tuple[int, int]: ...
    def kill_range(self, first_seq: int, end_seq: int) -> tuple[int, int]: ...
    def live_in(self, first_seq: int, end_seq: int) -> tuple[int, int]: ...
    def last_live_below(self, seq: int) -> int: ...
    def dead_seqs(self, first_seq: int, last_seq: int) -> NDArray[np.uint64]: ...
    def kill(self, seqs: NDArray[np.uint64]) -> tuple[int, int]: ...
    def sweep_tags(self, steps: int) -> int: ...
    def find_tag(self, tag: bytes, prefix: bool, before_seq: int) -> NDArray[np.uint64]: ...
    def is_live(self, seq: int) -> bool: ...
    def place(self, seq: int) -> tuple[int, int, int, bool]: ...
    def places(self, seqs: NDArray[np.uint64]) -> NDArray[np.void]: ...
    def sizes(self, first_seq: int, count: int) -> NDArray[np.uint32]: ...
    def plan_caps(
        self, floor: int, count: int, bytes: int, max_records: int, max_bytes: int
    ) -> tuple[int, int, int]: ...
    def find_ts(self, cutoff: int, end_seq: int) -> int: ...
    def timestamp(self, seq: int) -> int: ...
    def drop_front(self, seq: int) -> None: ...
    def render(
        self,
        sources: Sources,
        from_seq: int,
        end_seq: int,
        limit: int,
        max_bytes: int,
        nodes: tuple[bytes, ...],
        include_tags: bool,
        include_meta: bool,
        include_data: bool,
    ) -> Rendered: ...

class Selection(NamedTuple):
    runs: list[tuple[int, int]]
    next_seq: int
    records: int
    payload: int
    frame_bytes: int
    missing_source: int
    corrupt_seq: int

class Copied(NamedTuple):
    records: int
    payload: int
    missing_source: int
    corrupt_seq: int

def select_records(
    sources: Sources,
    log: TopicLog,
    first_seq: int,
    end_seq: int,
    tag: bytes | None,
    prefix: bool,
    max_count: int,
    max_bytes: int,
) -> Selection: ...
def copy_records(
    sources: Sources,
    log: TopicLog,
    runs: list[tuple[int, int]],
    dest: TopicLog,
    out: FrameBuffer,
    out_source: int,
    out_offset: int,
    ts: int,
    flags: int,
    keep_node: bool,
    keep_tag: bool,
    metas: list[bytes] | None,
) -> Copied: ...
def move_records(sources: Sources, log: TopicLog, first_seq: int, end_seq: int, dest: TopicLog) -> int: ...
def next_live(log: TopicLog, first_seq: int) -> int: ...
def meta_of(sources: Sources, log: TopicLog, seq: int) -> bytes | None: ...
def find_frames(buffer: Buffer, start: int, kind: int) -> list[tuple[int, bytes]]: ...

DONE: Final = 0
MISSING: Final = 1
CORRUPT: Final = 2
DELETED: Final = 3
FULL: Final = 4

def live_seqs(log: TopicLog, first_seq: int, last_seq: int, limit: int) -> list[int]: ...
def render_jobs(
    log: TopicLog,
    sources: Sources,
    seqs: list[int],
    deliveries: list[int],
    start: int,
    first_lease_id: int,
    deadline: int,
    max_bytes: int,
) -> tuple[list[bytes], int, int]: ...

class LogReplay:
    appended: int
    skipped: int
    gaps: list[tuple[int, int, int]]
    def __init__(self, buffer: Buffer, start: int, source: int, logs: dict[int, TopicLog]) -> None: ...
    @property
    def position(self) -> int: ...
    @property
    def outcome(self) -> str: ...
    def run(self) -> LogFrame | None: ...

SEQS_OMITTED: Final[int]
SEQS_LISTED: Final[int]
SEQS_NULL: Final[int]

def render_fields(
    topic: str,
    first_seq: int,
    last_seq: int,
    seqs: int,
    head_seq: int,
    created: bool,
    deduped: bool,
    waited_ns: int,
    synced_ns: int,
    more: bytes,
) -> bytes: ...
