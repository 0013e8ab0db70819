"""Deletes: below a seq, by tag, or both, as of one moment.

Owns the order "found, logged, applied". What a delete by tag removes is found in slices; then it is logged
and applied in one step, so that a reader sees all of it or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from everlog.errors import InvalidRequest
from everlog.topics import ack_policy
from everlog.topics.commits import COMMITTED, Commit
from everlog.topics.config import U64_MAX
from everlog.topics.jobs.steps import Load, Steps
from everlog.topics.records import TagMatch, parse_match
from everlog.topics.results import RecordsDeleted
from everlog.topics.retention import floor_commit, sweep
from everlog.topics.storage.control import Delete, encode
from everlog.topics.storage.layout import FrameType
from everlog.topics.tag_search import TagSearch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from everlog.topics.core import Core
    from everlog.topics.topic import Topic

# So many records die in half a millisecond; more of them have a turn of their own, and so has their memory.
_KILLED_AT_ONCE: Final = 100_000


def delete_records(
    core: Core,
    topic: Topic,
    before_seq: int | None,
    match: str | Sequence[Any] | None,
    load: Load,
    *,
    dry_run: bool = False,
) -> Steps[RecordsDeleted]:
    """Delete records below a seq, by tag, or both; as of now, never later ones; `dry_run` counts them.

    As of the last step: records that are appended while those with the tag are searched go, too.
    """
    if before_seq is None and match is None:
        raise InvalidRequest("a delete needs before_seq, match, or both")
    if before_seq is not None and not 0 <= before_seq <= U64_MAX:
        raise InvalidRequest(f"before_seq is {before_seq}; it must be from 0 to {U64_MAX}")
    selector = None if match is None else parse_match(match)
    return _delete_steps(core, topic, before_seq, selector, load, dry_run)


def _delete_steps(
    core: Core, topic: Topic, before_seq: int | None, match: TagMatch | None, load: Load, dry_run: bool
) -> Steps[RecordsDeleted]:
    limit = U64_MAX if before_seq is None else before_seq
    bound = _visible_bound(core, topic, dry_run)
    if match is None:
        return _delete(core, topic, Delete(min(limit, bound), bound), [], dry_run)
    search = TagSearch(core, topic, match, min(limit, bound))
    yield from search.run()
    if search.found > _KILLED_AT_ONCE:
        yield None
    while True:
        bound = _visible_bound(core, topic, dry_run)
        before = min(limit, bound)
        if before <= search.end_seq:
            return _delete(core, topic, Delete(before, bound, *match), search.pieces, dry_run)
        yield from search.extend(before, load)


def _visible_bound(core: Core, topic: Topic, dry_run: bool) -> int:
    """One past the head, after what is due has happened."""
    sweep(core, topic, core.now_ms())
    if core.logs_changes(topic) and not dry_run:
        # What is gathered becomes visible with the write of the delete: it is among the records of now.
        core.shards[topic.shard].write()
    return topic.visible + 1


def _delete(
    core: Core, topic: Topic, frame: Delete, pieces: list[NDArray[np.uint64]], dry_run: bool
) -> RecordsDeleted:
    if dry_run:
        return _deleted(topic, _count_selected(topic, frame, pieces), floor_commit(topic))
    commit = COMMITTED
    if core.logs_changes(topic):
        waits = ack_policy.delete_needs_sync(topic.durability)
        commit = core.log_change(topic, FrameType.DELETE, encode(frame), needs_sync=waits)
        # Written at once: a delete cannot be undone, so nothing may happen before it is in the log.
        core.shards[topic.shard].write()
        if commit.done and commit.error is not None:
            raise commit.error
    deleted = _apply(topic, frame, pieces)
    if not commit.done:
        topic.floors.commit = commit  # a front that a crash could bring back is not shown
    return _deleted(topic, deleted, floor_commit(topic) if commit.done else commit)


def _deleted(topic: Topic, deleted: int, commit: Commit) -> RecordsDeleted:
    return RecordsDeleted(deleted, topic.earliest_seq, topic.visible, topic.count, topic.bytes, commit)


def _count_selected(topic: Topic, frame: Delete, pieces: list[NDArray[np.uint64]]) -> int:
    """How many records `_apply` would remove."""
    if frame.tag is not None:
        return sum(topic.log.kill(piece, only_counts=True)[0] for piece in pieces)
    return topic.log.live_in(1, frame.before_seq)[0] if frame.before_seq > 1 else 0


def replay_delete(topic: Topic, frame: Delete) -> None:
    """Remove what the frame selects, as the first run did."""
    pieces = []
    if frame.tag is not None:
        pieces.append(topic.log.find_tag(frame.tag, frame.prefix, frame.before_seq))
    _apply(topic, frame, pieces)


def _apply(topic: Topic, frame: Delete, pieces: list[NDArray[np.uint64]]) -> int:
    """Remove the records below the seq of the frame, or those of `pieces` that are still there."""
    if frame.tag is None:
        deleted = topic.kill_below(frame.before_seq)
        topic.floors.delete_below = max(topic.floors.delete_below, frame.before_seq)
    else:
        pieces = [piece for piece in pieces if len(piece)]
        if pieces:
            topic.storage.unmarked.extend(pieces)
            topic.totals.unsaved[topic.topic_id] = topic
        deleted = sum(topic.kill(piece) for piece in pieces)
    topic.snapshot_record = None
    if deleted > _KILLED_AT_ONCE:
        topic.totals.unreclaimed[topic.topic_id] = topic
    else:
        topic.reclaim()
    return deleted
