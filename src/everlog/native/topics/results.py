"""What the functions of `everlog.native.topics.log` return: frames, walks, pages and copies of records."""

from typing import Literal, NamedTuple


class LogFrame(NamedTuple):
    """One frame of the log, its parts copied out."""

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
    """One record of a segment, its parts copied out."""

    size: int
    flags: int
    seq: int
    ts: int
    node: bytes
    tag: bytes
    data: bytes
    deleted: bool


class FrameScan(NamedTuple):
    """A walk over frames: how many are sound, where it stopped and why."""

    frames: int
    end: int
    outcome: Literal["end", "torn", "corrupt"]


class Rendered(NamedTuple):
    """One read: the records as a JSON array, how far it came and why it stopped there."""

    json: bytes
    next_from_seq: int
    delivered: int
    scanned: int
    missing_source: int
    corrupt_seq: int


class Selection(NamedTuple):
    """Records to copy: `runs` of first seq and length, and behind which seq the look stopped."""

    runs: list[tuple[int, int]]
    next_seq: int
    records: int
    payload: int
    frame_bytes: int
    missing_source: int
    corrupt_seq: int


class Copied(NamedTuple):
    """How many records were copied; if not all, either a source is not loaded or a frame is corrupt."""

    records: int
    payload: int
    missing_source: int
    corrupt_seq: int
