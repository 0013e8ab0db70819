"""Types of the native copying of records between topics."""

from typing import NamedTuple

from typing_extensions import Buffer

from everlog.native.frames import FrameBuffer
from everlog.native.topic_log import Sources, TopicLog

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
