"""One error hierarchy for all of everlog, with codes that never change.

Owns the names and the codes; holds no logic. Every error says what happened, which value
caused it and what to do. `code` is the stable machine-readable name (it appears in `--json`
output), the class is what Python code catches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class EverlogError(Exception):
    """Base of every error that everlog raises on purpose."""

    code: str = "error"

    detail: dict[str, Any] | None = None
    """What a program can use of it: values by name."""


class Io(EverlogError):
    """The operating system refused a file operation; `errno` says why."""

    code = "io"

    def __init__(self, message: str, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno


class QueueNotFound(Io):
    """There is no queue at this path (no `control.meta`)."""

    code = "queue_not_found"


class Corrupt(EverlogError):
    """A segment or a record does not match its format."""

    code = "corrupt"


class CorruptMetadata(Corrupt):
    """A metadata file (control block, reader meta, lock) is damaged or missing."""

    code = "corrupt_metadata"


class DamagedData(Corrupt):
    """Acknowledged records of a topics data directory may be lost; nothing was changed."""

    code = "damaged_data"


class TopicDamaged(Corrupt):
    """A segment of this topic is lost or damaged, so it is not served until that is repaired."""

    code = "topic_damaged"


class NotReady(EverlogError):
    """The records of this topic are still being loaded after a start; try again soon."""

    code = "not_ready"


class Unsupported(EverlogError):
    """The operation makes no sense for this object or in this state."""

    code = "unsupported"


class UnsupportedVersion(EverlogError):
    """A file or record carries a format version this build does not know."""

    code = "unsupported_version"

    def __init__(self, message: str, version: int = 0) -> None:
        super().__init__(message)
        self.version = version


class PayloadTooLarge(EverlogError):
    """The payload can never fit into one segment of this queue."""

    code = "payload_too_large"


class InvalidTypeId(EverlogError):
    """The type id is outside 0..0xFFFE (0xFFFF marks padding)."""

    code = "invalid_type_id"


class InvalidTimestamp(EverlogError):
    """The timestamp is not an unsigned 64-bit number of nanoseconds."""

    code = "invalid_timestamp"


class QueueFull(EverlogError):
    """The capacity limit is reached and the slowest reader has not moved on.

    `appended` counts the records of an `append_many` or `append_array` call that were
    published before the limit was hit.
    """

    code = "queue_full"

    def __init__(self, message: str, appended: int = 0) -> None:
        super().__init__(message)
        self.appended = appended


class SegmentNotPrepared(EverlogError):
    """`require_prealloc` is set and no prepared segment was ready in time for a roll."""

    code = "segment_not_prepared"


class LateData(EverlogError):
    """A message belongs to a day of the archive that was closed an hour after its end."""

    code = "late_data"


class WriterAlreadyActive(EverlogError):
    """Another live process (or object) holds the writer lock of this queue."""

    code = "writer_already_active"


class ReaderAlreadyActive(EverlogError):
    """Another live reader has this name open on this queue."""

    code = "reader_already_active"


class SegmentMissing(EverlogError):
    """The segment a reader stands on, or must go to next, was deleted."""

    code = "segment_missing"


class InvalidName(EverlogError):
    """A path component (venue, symbol, stream, strategy, reader) is not allowed."""

    code = "invalid_name"


class InvalidPartition(EverlogError):
    """A partition key or value does not match the table's scheme."""

    code = "invalid_partition"


class InvalidConfig(EverlogError):
    """A setting has a value that cannot work."""

    code = "invalid_config"


class ConcurrentUse(EverlogError):
    """Two threads (or a callback) used one reader or writer at the same time."""

    code = "concurrent_use"


class Closed(EverlogError):
    """The object was closed, or belongs to the parent of this forked process."""

    code = "closed"


class StorageFailed(Io):
    """The topics log could not be written or synced; what was being committed is lost."""

    code = "storage_failed"


class ReadOnly(StorageFailed):
    """A sync of this part of the topics log failed, so nothing more is accepted until a restart."""

    code = "read_only"


class Superseded(ReadOnly):
    """Another server has taken over the log that this one ships; it acknowledges nothing any more."""

    code = "superseded"

    def __init__(self, message: str, address: str = "") -> None:
        super().__init__(message)
        self.address = address


class OutcomeUnknown(ReadOnly):
    """A change was written and its commit failed: it happened wholly or not at all, which turns out later.

    `reason` is why: a sync failed, another server took over, or the backup did not answer before the end.
    """

    code = "outcome_unknown"

    def __init__(self, message: str, errno: int | None = None, reason: StorageFailed | None = None) -> None:
        super().__init__(message, errno)
        self.reason = reason

    @classmethod
    def of(cls, reason: StorageFailed) -> OutcomeUnknown:
        """The error for a change that was written before this."""
        return cls(str(reason), reason.errno, reason)


class ObjectStoreFailed(Io):
    """An object store refused a request, did not answer in time, or holds something else than it should."""

    code = "object_store_failed"


class ObjectNotFound(ObjectStoreFailed):
    """The object store has no object of this key."""

    code = "object_not_found"


class ObjectTooShort(ObjectStoreFailed):
    """An object ends before the bytes that were asked for."""

    code = "object_too_short"


class ObjectExists(ObjectStoreFailed):
    """An object that was to be created exists already with other content."""

    code = "object_exists"


class ObjectChanged(ObjectStoreFailed):
    """An object that was to be replaced has been replaced by another writer since it was read."""

    code = "object_changed"


class DataDirInUse(EverlogError):
    """Another process has this topics data directory open."""

    code = "data_dir_in_use"


class InvalidRequest(EverlogError):
    """An argument of a topics operation is out of range or malformed; nothing changed."""

    code = "invalid_request"


class InvalidRecord(InvalidRequest):
    """A record of a batch breaks a limit other than its size; nothing of the batch was appended."""

    code = "invalid_record"


class BatchTooLarge(InvalidRequest):
    """More records than one append may carry."""

    code = "batch_too_large"


class RecordTooLarge(InvalidRequest):
    """Data and meta of a record are too long, or a batch can never fit into a `reject` topic."""

    code = "record_too_large"


class TopicNotFound(EverlogError):
    """There is no topic of this name."""

    code = "topic_not_found"

    def __init__(self, message: str, topic: str = "") -> None:
        super().__init__(message)
        self.topic = topic


class NotAQueue(EverlogError):
    """The topic is a log; only a topic of type `queue` has jobs to claim."""

    code = "not_a_queue"


class TopicIncompatible(EverlogError):
    """The topic exists with another type, which cannot be changed."""

    code = "topic_exists_incompatible"

    def __init__(self, message: str, existing: str = "", requested: str = "") -> None:
        super().__init__(message)
        self.existing = existing
        self.requested = requested


class TopicNotEmpty(EverlogError):
    """The topic still has live records and was to be deleted only if empty."""

    code = "topic_not_empty"


class TopicFull(EverlogError):
    """The topic is at its cap and set to refuse, or consumers hold what would have to go; nothing changed."""

    code = "topic_full"

    def __init__(self, message: str, held_by: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.held_by = tuple(held_by)


class ConsumerNotFound(EverlogError):
    """The topic has no consumer of this name."""

    code = "consumer_not_found"

    def __init__(self, message: str, topic: str = "", name: str = "") -> None:
        super().__init__(message)
        self.detail = {"name": name, "topic": topic}


class JobNotFound(EverlogError):
    """The job queue has no job with this seq."""

    code = "job_not_found"

    def __init__(self, message: str, topic: str = "", seq: int = 0) -> None:
        super().__init__(message)
        self.detail = {"seq": seq, "topic": topic}


class ScheduleNotFound(EverlogError):
    """There is no schedule of this name."""

    code = "schedule_not_found"

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.detail = {"name": name}


class CursorBackwards(EverlogError):
    """A commit below what the consumer has committed; only a reset moves a cursor back."""

    code = "cursor_backwards"

    def __init__(self, message: str, cursor: int = 0, seq: int = 0) -> None:
        super().__init__(message)
        self.detail = {"cursor": cursor, "seq": seq}


class Fenced(EverlogError):
    """Another owner has acquired the consumer since, or none was named although it has one."""

    code = "fenced"

    def __init__(self, message: str, owner_epoch: int = 0) -> None:
        super().__init__(message)
        self.detail = {"owner_epoch": owner_epoch}


class RouterNotFound(EverlogError):
    """There is no router of this name."""

    code = "router_not_found"


class RouterCycle(EverlogError):
    """Records would come back to where they started; `cycle` names the topics, the first one also last."""

    code = "router_cycle"

    def __init__(self, message: str, cycle: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.cycle = cycle


class RouterIncompatible(EverlogError):
    """A router with these ends cannot be: `reason` is a word for why.

    `router`, from and to the topics in `existing`, is there instead.
    """

    code = "router_incompatible"

    def __init__(
        self, message: str, reason: str = "", existing: tuple[str, str] = ("", ""), router: str = ""
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.existing = existing
        self.router = router


class DataLost(EverlogError):
    """Records that a read was to deliver are gone, and the reader did not ask to have the gap reported."""

    code = "data_lost"


class LimitReached(EverlogError):
    """A resource cap of the engine is reached; existing things still work."""

    code = "throttled"

    def __init__(self, message: str, limit: str = "", maximum: int = 0, retry_after_ms: int = 0) -> None:
        super().__init__(message)
        self.limit = limit
        self.maximum = maximum
        self.retry_after_ms = retry_after_ms
        """When to try again; 0 if that does not depend on time alone."""


class InvalidSource(EverlogError):
    """A file to import does not match its format; `label` and `line` say where."""

    code = "invalid_source"

    def __init__(self, message: str, label: str = "", line: int = 0) -> None:
        super().__init__(message)
        self.label = label
        self.line = line


class BookGap(EverlogError):
    """Events of a market are missing, and the gap policy of the book is to stop.

    `seen` is the last number applied, `found` the one that came instead of the next.
    """

    code = "book_gap"

    def __init__(self, message: str, seen: int = 0, found: int = 0) -> None:
        super().__init__(message)
        self.seen = seen
        self.found = found


class SnapshotGap(EverlogError):
    """The record after a book snapshot is no longer in the queue: the book cannot be brought up to date."""

    code = "snapshot_gap"
