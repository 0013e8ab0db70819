"""Types of the hot fields of topics and of the log."""

from typing import Any

from everlog.native.frames import FrameBuffer
from everlog.native.ready_set import TopicWork
from everlog.native.topic_log import TopicLog

class Totals:
    bytes: int
    delivery: Any
    unforwarded: dict[int, Any]
    unsaved: dict[int, Any]
    def __init__(self, delivery: Any = None) -> None: ...

class TopicCore(TopicWork):
    topic_id: int
    name: str
    log: TopicLog
    shard: int
    visible: int
    pending_syncs: int
    pending_count: int
    pending_bytes: int
    ceiling_logged: int
    ceiling_durable: int
    logged_seq: int
    last_write_ts: int | None
    restored_ts: int
    caps_due: bool
    snapshot_record: bytes | None

class Pressure:
    is_refusing: bool
    is_throttling: bool

class LogTail:
    fd: int
    end: int

class LogPlace:
    active: Any
    buffer: FrameBuffer
    source: int
    file_number: int
    source_offset: int
    limit: int
    mark: int
    frames_gathered: int
    frames: int
    writes: int
    bytes_written: int
    requested_ns: int | None
    def advance(self, length: int) -> None: ...
