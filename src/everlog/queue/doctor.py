"""Finds problems of queues and what to do about them; changes nothing.

Owns the list of known problems with their stable codes. `inspect` reads the files. A live queue
changes while it is inspected, so a problem is reported only if a second inspection finds it too.

    control_error           the control block is damaged, not initialised or of another version
    control_missing         there are segments, but no control block
    control_torn            the writer died while publishing the head
    segment_missing         a hole in the segments, or no segment at the head
    segment_damaged         a segment file with the wrong length, magic, version or id
    head_behind             segments behind the head hold records: readers do not get there
    segment_unsealed        a segment below the head that is not sealed: readers stop there
    reader_meta_unreadable  a reader's meta file is damaged: retention deletes nothing any more
    reader_expired          a reader has been silent for longer than its time to live
    reader_lagging          a reader is too far behind
    reader_segment_missing  the segment a reader stands on was deleted
    waiters_leaked          more waiters are registered than readers live
    leftover_temp           a temporary file that a crash left behind
    orphan_index            a seek index without its segment
    ready_without_writer    READY is set but no writer is alive
    stale_lock              the lock names a process that is gone
    file_unreadable         some other file of the queue cannot be read
    directory_unreadable    a directory below the root cannot be listed
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from everlog.clock import NS_PER_S, Clock
from everlog.errors import CorruptMetadata, EverlogError, Io, QueueNotFound
from everlog.fs import Fs
from everlog.queue import layout, retention
from everlog.queue.config import WriterConfig
from everlog.queue.deep_check import check_deeply
from everlog.queue.findings import Finding, Severity
from everlog.queue.inspect import (
    ControlInfo,
    LockInfo,
    QueueInfo,
    ReaderInfo,
    find_queues,
    inspect_queue,
)
from everlog.queue.layout import CONTROL_FILE, LOCK_FILE, READERS_DIR, SEG_DATA_OFFSET
from everlog.queue.segment import TEMP_SUFFIX

_DEFAULTS = WriterConfig()
READER_TTL_NS = int(_DEFAULTS.reader_ttl_s * NS_PER_S)
MAX_READER_LAG_BYTES = _DEFAULTS.max_reader_lag_bytes


@dataclass(frozen=True, slots=True)
class QueueFindings:
    """What was found at one queue. `candidates`: segments that retention may delete."""

    path: str
    lock: LockInfo | None
    candidates: list[int]
    control_error: EverlogError | None
    findings: list[Finding]


def examine(fs: Fs, clock: Clock, root: str, *, deep: bool = False) -> list[QueueFindings]:
    """Examine every queue in and below `root`, sorted by path; a damaged one does not stop the others.

    `deep` also reads and checks every record, index and meta file: see `deep_check`.
    """
    found = find_queues(fs, root)
    results = [_unlisted(path, reason) for path, reason in found.unreadable.items()]
    results += [_headless(path) for path in found.headless]
    for path in found.paths:
        try:
            results.append(examine_queue(fs, clock, path, deep=deep))
        except QueueNotFound:
            continue  # removed since it was found
        except EverlogError as error:
            results.append(_unlisted(path, str(error)))
    return sorted(results, key=lambda result: result.path)


def examine_queue(fs: Fs, clock: Clock, path: str, *, deep: bool = False) -> QueueFindings:
    """Examine one queue."""
    info = inspect_queue(fs, clock, path)
    findings = list(_judge(info))
    if findings:
        info = inspect_queue(fs, clock, path)
        seen = {(finding.code, finding.subject) for finding in findings}
        findings = [finding for finding in _judge(info) if (finding.code, finding.subject) in seen]
    if deep:
        findings += check_deeply(fs, clock, info)
    return QueueFindings(path, info.lock, retention_candidates(info), info.control_error, findings)


def retention_candidates(info: QueueInfo) -> list[int]:
    """Return the segments that a writer with default settings may delete now, oldest first."""
    control = info.control
    if control is None or READERS_DIR in info.unreadable:
        return []
    counting = None
    if info.stored is not None:
        try:
            counting = retention.counting_readers(
                info.stored,
                retention.WallClockLiveness(info.seen_ns, READER_TTL_NS),
                head_segment=control.head_segment,
                head_offset=control.head_offset,
                segment_size=control.segment_size,
                max_reader_lag_bytes=MAX_READER_LAG_BYTES,
            )
        except CorruptMetadata:
            return []  # what that reader needs is unknown, so nothing is deleted
    with_records = [segment.segment_id for segment in info.segments if segment.has_records]
    end = retention.deletable_end(
        counting, head_segment=control.head_segment, keep_from=max(with_records, default=None)
    )
    return sorted(segment.segment_id for segment in info.segments if segment.segment_id < end)


def _unlisted(path: str, reason: str) -> QueueFindings:
    message = f"{path} cannot be examined ({reason}); check its mode and the disk"
    finding = Finding("directory_unreadable", Severity.WARNING, ".", message)
    return QueueFindings(path, None, [], Io(message), [finding])


def _headless(path: str) -> QueueFindings:
    message = f"{path} has segments but no {CONTROL_FILE}; restore it, or move the segments away"
    finding = Finding("control_missing", Severity.ERROR, CONTROL_FILE, message)
    return QueueFindings(path, None, [], CorruptMetadata(message), [finding])


def _judge(info: QueueInfo) -> Iterator[Finding]:
    live = _live_readers(info)
    if info.control_error is not None:
        yield Finding("control_error", Severity.ERROR, CONTROL_FILE, str(info.control_error))
    if info.control is not None:
        yield from _judge_control(info, info.control)
        yield from _judge_segments(info, info.control)
        yield from _judge_waiters(info.control, len(live))
    for segment in info.segments:
        if segment.error is not None:
            name = layout.segment_name(segment.segment_id)
            yield Finding(
                "segment_damaged",
                Severity.ERROR,
                name,
                f"{name} cannot be read as a segment: {segment.error}; restore it from a backup",
            )
    for reader in info.readers:
        yield from _judge_reader(info, reader, live=reader.name in live)
    yield from _judge_files(info)
    yield from _judge_writer(info)


def _judge_control(info: QueueInfo, control: ControlInfo) -> Iterator[Finding]:
    if control.torn:
        hint = "look again; if it stays, restart the writer"
        if not info.writer_alive:
            hint = "the next writer repairs it"
        yield Finding(
            "control_torn",
            Severity.WARNING,
            CONTROL_FILE,
            f"the head is half published, so its offset is unknown; {hint}",
        )


def _judge_segments(info: QueueInfo, control: ControlInfo) -> Iterator[Finding]:
    head = control.head_segment
    present = [segment.segment_id for segment in info.segments if segment.segment_id <= head]
    # Gaps as ranges: a damaged head may be billions of segments away.
    for before, after in pairwise([*present, head + 1]):
        if after - before > 1:
            yield _missing(before + 1, after - 1, "readers stop before it")
    if not present and control.head_offset == SEG_DATA_OFFSET:
        name = layout.segment_name(head)
        message = f"{name} does not exist yet: the writer died creating the queue; the next writer creates it"
        yield Finding("segment_missing", Severity.WARNING, name, message)
    elif not present:
        yield _missing(head, head, "there is nothing to read")
    newer = [segment for segment in info.segments if segment.segment_id > head and segment.has_records]
    for segment in newer:
        name = layout.segment_name(segment.segment_id)
        message = f"{name} holds records, but the head is in segment {head}; open the writer, it finds them"
        yield Finding("head_behind", Severity.ERROR, name, message)
    for segment in info.segments:
        if segment.segment_id < head and not segment.sealed and segment.error is None:
            yield _unsealed(info, segment.segment_id, last=segment.segment_id == head - 1)


def _missing(first: int, last: int, consequence: str) -> Finding:
    name = layout.segment_name(first)
    what = name if first == last else f"{name} to {layout.segment_name(last)}"
    return Finding(
        "segment_missing",
        Severity.ERROR,
        name,
        f"{what} is missing: its records are lost and {consequence}; restore it from a "
        "backup, or let readers seek behind it",
    )


def _unsealed(info: QueueInfo, segment_id: int, *, last: bool) -> Finding:
    name = layout.segment_name(segment_id)
    if not last:
        severity, hint = Severity.ERROR, "no writer seals it any more: let readers seek behind it"
    elif info.writer_alive:
        severity, hint = Severity.WARNING, "a roll may be under way: look again, then restart the writer"
    else:
        severity, hint = Severity.WARNING, "the next writer seals it"
    message = f"{name} lies below the head but is not sealed, so readers cannot leave it; {hint}"
    return Finding("segment_unsealed", severity, name, message)


def _live_readers(info: QueueInfo) -> set[str]:
    positions = {reader.name: reader.position for reader in info.readers if reader.position is not None}
    return retention.WallClockLiveness(info.seen_ns, READER_TTL_NS).live(positions)


def _judge_waiters(control: ControlInfo, live: int) -> Iterator[Finding]:
    if control.waiters_pending > live:
        yield Finding(
            "waiters_leaked",
            Severity.WARNING,
            CONTROL_FILE,
            f"{control.waiters_pending} waiters are registered but {live} named readers live: a reader was "
            "killed in its sleep (or readers without a name wait); every append makes a needless system "
            "call until the writer is opened again",
        )


def _judge_reader(info: QueueInfo, reader: ReaderInfo, *, live: bool) -> Iterator[Finding]:
    name, position = reader.name, reader.position
    if position is None:
        yield Finding(
            "reader_meta_unreadable",
            Severity.ERROR,
            name,
            f"{reader.error}; until then retention deletes nothing and the disk fills up",
        )
        return
    silent_ns = info.seen_ns - position.heartbeat_ns
    if not live:
        yield Finding(
            "reader_expired",
            Severity.WARNING,
            name,
            f"reader {name!r} has been silent for {silent_ns / NS_PER_S:.0f} s (time to live "
            f"{READER_TTL_NS / NS_PER_S:.0f} s), so retention may delete what it has not read; start it "
            f"again, or remove {READERS_DIR}/{name}{layout.READER_META_SUFFIX}",
        )
    if reader.lag_bytes is not None and reader.lag_bytes > MAX_READER_LAG_BYTES:
        yield Finding(
            "reader_lagging",
            Severity.WARNING,
            name,
            f"reader {name!r} is {reader.lag_bytes} bytes behind (limit {MAX_READER_LAG_BYTES}), so "
            "retention may delete what it has not read; let it catch up, or start it at 'latest'",
        )
    if _stands_on_nothing(info, position.segment_id):
        yield Finding(
            "reader_segment_missing",
            Severity.WARNING,
            name,
            f"reader {name!r} stands at segment {position.segment_id}, which does not exist; start it with "
            "'resume-snapshot' (oldest segment) or 'resume-latest' (head) to go on with a gap",
        )


def _stands_on_nothing(info: QueueInfo, segment_id: int) -> bool:
    # Above the head it may stand: a reader of whole segments waits there for the next one.
    if info.control is None or segment_id > info.control.head_segment:
        return False
    return all(segment.segment_id != segment_id for segment in info.segments)


def _judge_files(info: QueueInfo) -> Iterator[Finding]:
    for name, reason in info.unreadable.items():
        yield Finding("file_unreadable", Severity.ERROR, name, f"{name}: {reason}")
    # Compressed segments, and stubs of those in an object store, begin with the name of the segment.
    present = {name[: len(layout.segment_name(0))] for name in info.names if not name.endswith(TEMP_SUFFIX)}
    for name in info.names:
        segment_id = layout.parse_seek_index_name(name)
        if segment_id is not None and layout.segment_name(segment_id) not in present:
            yield Finding(
                "orphan_index",
                Severity.WARNING,
                name,
                f"{name} is the seek index of a segment that does not exist; remove it",
            )
        if name.endswith(TEMP_SUFFIX):
            yield _judge_temp(info, name)


def _judge_temp(info: QueueInfo, name: str) -> Finding:
    is_segment = layout.parse_segment_name(name.removesuffix(TEMP_SUFFIX)) is not None
    if is_segment and info.writer_alive:
        message = f"{name} is being prepared by the live writer, or was left by an earlier one; look again"
        return Finding("leftover_temp", Severity.INFO, name, message)
    hint = "the next writer removes it" if is_segment else "remove it once no process of the queue runs"
    return Finding("leftover_temp", Severity.WARNING, name, f"{name} was left by a crash; {hint}")


def _judge_writer(info: QueueInfo) -> Iterator[Finding]:
    if info.writer_alive:
        return
    if info.lock is not None:
        owner = info.lock.owner
        yield Finding(
            "stale_lock",
            Severity.INFO,
            LOCK_FILE,
            f"the last writer (process {owner.pid}, epoch {owner.epoch}) is gone; nothing to do, the next "
            "writer takes the lock over",
        )
    if info.ready:
        yield Finding(
            "ready_without_writer",
            Severity.WARNING,
            layout.READY_FILE,
            f"READY promises a served queue, but no writer lives ({_last_sign(info)}); start the writer, or "
            "remove READY",
        )


def _last_sign(info: QueueInfo) -> str:
    heartbeat_ns = info.control.writer_heartbeat_ns if info.control else 0
    if heartbeat_ns == 0:
        return "no heartbeat was ever stored"
    return f"last heartbeat {max(0, info.seen_ns - heartbeat_ns) / NS_PER_S:.0f} s ago"
