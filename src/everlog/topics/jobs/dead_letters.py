"""Move a job that was delivered too often to the dead-letter topic of its job queue.

Owns the order: first the copy is committed there, then the job is deleted here. A crash in between leaves
both, so a job is never lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from everlog.errors import EverlogError, InvalidRequest
from everlog.native.topics.log import read_log_frame, read_segment_frame
from everlog.topics.append import append
from everlog.topics.commits import COMMITTED, Commit, failed
from everlog.topics.jobs.lease_log import delete_jobs
from everlog.topics.reading import ColdRead
from everlog.topics.records import NewRecord
from everlog.topics.results import Appended
from everlog.topics.storage.layout import FLAG_HAS_META, META_LEN, META_LEN_SIZE
from everlog.topics.topic import Topic

if TYPE_CHECKING:
    from everlog.topics.core import Core
    from everlog.topics.jobs.lease_table import LeaseTable

PROVENANCE: Final = "$dead_letter_"
_json = msgspec.json.Encoder()


def move_to_dead_letters(
    core: Core,
    topic: Topic,
    table: LeaseTable,
    seq: int,
    load: Callable[[int], bool],
    cold: list[Commit],
) -> Commit:
    """Begin to move a job; the commit is done, never with an error, when it is moved or claimable again.

    The commit of a segment that has to be loaded first is added to `cold`.
    """
    table.begin_delete(seq)
    try:
        appended = _append_copy(core, topic, seq, load)
    except ColdRead as read:
        cold.append(read.commit)
        table.abort_delete(seq)
        return COMMITTED
    except EverlogError:
        table.abort_delete(seq)
        return COMMITTED
    decided = Commit()
    table.dead_lettered += 1
    number = table.dead_lettered

    def copied(commit: Commit) -> None:
        if commit.error is not None:
            stayed(commit)
            return
        try:
            delete_jobs(core, topic, table, [seq], dead_lettered=number).on_done(stayed)
        except EverlogError as error:
            stayed(failed(error))

    def stayed(commit: Commit) -> None:
        if commit.error is not None:
            table.dead_lettered -= 1
            table.abort_delete(seq)
            table.wake()
        decided.finish()

    appended.commit.on_done(copied)
    return decided


def _append_copy(core: Core, topic: Topic, seq: int, load: Callable[[int], bool]) -> Appended:
    record = _read(core, topic, seq, load)
    target = topic.config.dead_letter
    assert target is not None, "only a queue with a dead-letter topic moves jobs"
    marks = _provenance(topic, seq)
    marked = NewRecord(record.data, record.tag, record.node, with_marks(record.meta, marks))
    try:
        return append(core, target, [marked], None, None, True, None)
    except InvalidRequest:
        # The marks do not fit beside this meta; the job itself is worth more than where it comes from.
        return append(core, target, [record], None, None, True, None)


def _read(core: Core, topic: Topic, seq: int, load: Callable[[int], bool]) -> NewRecord:
    """The job as it was appended."""
    source, offset, _, in_log = topic.log.place(seq)
    while not core.sources.is_loaded(source):
        load(source)
    buffer = core.sources.buffer(source)
    assert buffer is not None
    frame = read_log_frame(buffer, offset) if in_log else read_segment_frame(buffer, offset)
    data, meta = frame.data, None
    if frame.flags & FLAG_HAS_META:
        (meta_len,) = META_LEN.unpack_from(data)
        meta, data = data[META_LEN_SIZE : META_LEN_SIZE + meta_len], data[META_LEN_SIZE + meta_len :]
    return NewRecord(data, _text(frame.tag), _text(frame.node), meta)


def _text(stored: bytes) -> str | None:
    return stored.decode("utf-8", "surrogatepass") or None


def _provenance(topic: Topic, seq: int) -> dict[str, object]:
    """Where a dead letter comes from and why."""
    table = topic.leases
    most = topic.config.max_deliveries
    marks: dict[str, object] = {
        f"{PROVENANCE}from": topic.name,
        f"{PROVENANCE}deliveries": str(most),
        f"{PROVENANCE}src_seq": str(seq),
    }
    if table is None:
        return marks
    if table.board is not None and (options := table.board.options.get(seq)) is not None:
        marks[f"{PROVENANCE}deliveries"] = str(
            most if options.max_deliveries is None else options.max_deliveries
        )
    error = table.last_error(seq)
    if error is not None:
        marks[f"{PROVENANCE}error"] = {"type": error.type, "message": error.message}
    return marks


def with_marks(meta: bytes | msgspec.Raw | None, marks: dict[str, object]) -> bytes:
    """The meta of a record, as text, with other marks in place of those of dead letters."""
    text = bytes(meta or b"{}")
    if PROVENANCE.encode() in text:
        # It has been a dead letter before: the marks of the last time count, the rest stays as it is.
        values = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        values = {name: value for name, value in values.items() if not name.startswith(PROVENANCE)}
        text = _json.encode(values)
    if not marks:
        return text
    added = _json.encode(marks)[1:]
    return text[:-1] + (b"," if len(text) > len(b"{}") else b"") + added
