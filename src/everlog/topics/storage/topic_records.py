"""What a snapshot stores of each topic, collected in slices: a topic may have millions of keys or leases.

Owns which fields are collected so. They may be of different moments: the log behind the snapshot says again
what has happened meanwhile. The other fields of a topic are of one moment.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from everlog.api_types import Durability
from everlog.topics.delivery.consumer_table import stored_consumers
from everlog.topics.jobs.lease_log import stored_job_counts, stored_job_rows
from everlog.topics.storage.control import Rows, TopicRecord, encode_in_pieces

if TYPE_CHECKING:
    from everlog.topics.topic import Topic


class StoredTopic(NamedTuple):
    """A topic as a snapshot stores it: `pieces` is all of it, `rows` are the fields that were collected."""

    pieces: list[bytes]
    rows: dict[str, Rows]


def collect(topic: Topic, clean: bool, row_cost: int) -> Generator[int, None, StoredTopic]:
    """Collect what a snapshot stores of a topic; yields what each step costs.

    It is kept in `snapshot_record` as long as nothing changes. A clean one needs no reserves for a crash.
    """
    if topic.snapshot_record is not None and not clean:
        return topic.snapshot_record
    stored = topic.snapshot_record = StoredTopic([], {})
    try:
        for field, part in _slices(topic):
            if part:
                stored.rows.setdefault(field, Rows()).add(part)
                yield len(part) * row_cost
        stored.pieces.extend(_pieces(topic, clean, stored.rows))
    finally:
        if clean or not stored.pieces:
            topic.snapshot_record = None
    return stored


def at_this_moment(topic: Topic, clean: bool, stored: StoredTopic) -> StoredTopic:
    """Collect the fields of one moment again if something has changed since."""
    if topic.snapshot_record is stored and not clean:
        return stored
    return StoredTopic(_pieces(topic, clean, stored.rows), stored.rows)


def _slices(topic: Topic) -> Iterator[tuple[str, list[Any]]]:
    if topic.durability in (Durability.DISK, Durability.FSYNC) or topic.storage.changes:
        for _, known in topic.keys.slices():
            done = [key for key in known if key.commit.done and key.commit.error is None]
            yield "keys", [(key.key, key.first_seq, key.count, key.ts) for key in done]
            yield "key_seqs", [(key.key, list(key.seqs)) for key in done if key.seqs]
    for consumers in stored_consumers(topic):
        yield "consumers", [consumer.record() for consumer in consumers]
    yield from stored_job_rows(topic)


def _pieces(topic: Topic, clean: bool, rows: dict[str, Rows]) -> list[bytes]:
    saved = topic.storage.segments
    record = TopicRecord(
        topic_id=topic.topic_id,
        name=topic.name,
        epoch=topic.epoch,
        config=topic.config,
        head_seq=topic.visible,
        ceiling=0 if clean else topic.reserved.ceiling_durable,
        cap_floor=topic.floors.cap,
        ttl_floor=topic.floors.ttl,
        trim_floor=topic.floors.trim,
        trim_holes=topic.floors.trim_runs,
        hop_runs=topic.routes.hop_runs,
        holes=topic.floors.holes,
        corrupt=topic.floors.corrupt,
        reserved_floor=topic.floors.cap if clean else max(topic.floors.cap, topic.reserved.floor_durable),
        delete_below=topic.floors.delete_below,
        last_ts=max(topic.log.last_ts, topic.storage.restored_ts),
        saved_seq=topic.storage.saved_seq,
        last_write_ts=topic.last_write_ts,
        last_read_ts=topic.schedule.last_read_ts,
        segments=[(info.first_seq, info.last_seq, info.data_bytes) for info in saved.infos] if saved else [],
        index_checksums=[info.index_checksum for info in saved.infos] if saved else [],
        index_identities=[info.identity for info in saved.infos] if saved else [],
        keys=[],
        **stored_job_counts(topic),
    )
    return encode_in_pieces(record, rows)
