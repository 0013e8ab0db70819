"""Which topics there are: create, configure, list, delete.

Owns the table of topics and the control frames that keep it. Every change waits for a sync.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import takewhile

from everlog.api_types import Durability
from everlog.errors import (
    InvalidRequest,
    LimitReached,
    NotReady,
    StorageFailed,
    TopicDamaged,
    TopicIncompatible,
    TopicNotEmpty,
    TopicNotFound,
)
from everlog.topics import class_change
from everlog.topics.class_change import StateChange
from everlog.topics.commits import COMMITTED, ChangeEntry, Commit, ShardCommits, together
from everlog.topics.config import TopicConfig, check_topic_name
from everlog.topics.core import CONTROL_ROOM, Core
from everlog.topics.delivery.consumer_table import delist, enlist
from everlog.topics.due_work import schedule
from everlog.topics.jobs.lease_log import reconfigure_jobs
from everlog.topics.jobs.steps import Steps
from everlog.topics.results import TopicDeleted, TopicPut
from everlog.topics.retention import sweep
from everlog.topics.storage.control import (
    ConfigUpdate,
    TopicCreate,
    TopicDelete,
    encode,
)
from everlog.topics.storage.layout import FrameType
from everlog.topics.topic import Topic, Totals


def find(core: Core, name: str) -> Topic:
    """Return the topic; `TopicNotFound` if there is none."""
    topic = core.topics.get(name)
    if topic is None:
        check_served(core, name)
        raise TopicNotFound(f"there is no topic {name!r}; create it or check the name", name)
    return topic


def check_served(core: Core, name: str) -> None:
    """Refuse a topic that is there and cannot be served."""
    if name in core.filling:
        raise NotReady(f"the records of topic {name!r} are still being loaded; try again soon")
    if name in core.damaged:
        raise TopicDamaged(
            f"topic {name!r} is not served: a segment of it, or of the source of its copies, is lost or "
            f"damaged; stop the server, restore the file or run `everlog repair`, and start again"
        )


def new_topic(core: Core, name: str, create: bool | None, config: TopicConfig | None) -> Topic:
    """Make a topic for a write to an absent name; not in the table until its frame is gathered."""
    check_served(core, name)
    config = config or TopicConfig()
    if not (config.auto_create if create is None else create):
        raise TopicNotFound(f"there is no topic {name!r}, and this write may not create it", name)
    check_topic_name(name)
    resolved = config.resolved(name)
    limit = core.settings.max_topics
    count = len(core.topics) + len(core.filling)
    if limit and count >= limit:
        raise LimitReached(
            f"there are {count} topics, as many as max_topics allows; delete some",
            "max_topics",
            limit,
        )
    # The time is in it so that two data directories behind one address do not give out the same epoch.
    topic_id, epoch = core.next_topic_id, max(core.next_epoch, core.now_ms())
    core.next_topic_id += 1
    core.next_epoch = epoch + 1
    shard = core.shard_of(topic_id, len(core.shards))
    return Topic(topic_id, name, epoch, resolved, shard, core.totals)


def register(core: Core, topic: Topic) -> None:
    """Put a topic into the table."""
    if topic.name not in core.topics:
        core.topic_names.add(topic.name)
    core.topics[topic.name] = topic
    core.by_id[topic.topic_id] = topic


def unlist(core: Core, topic: Topic) -> None:
    """Take a topic out of the table of names, unless a newer one has its name."""
    if core.topics.get(topic.name) is topic:
        del core.topics[topic.name]
        core.topic_names.remove(topic.name)


def hide(core: Core, topic: Topic) -> None:
    """Take a topic out of the table and wake its waiters."""
    topic.deleted = True
    unlist(core, topic)
    delist(core, topic)
    core.by_id.pop(topic.topic_id, None)
    core.delivery.forget(topic.schedule)
    topic.schedule.serve()  # at once: a watcher must not mistake the next topic of this name for this one


def release(core: Core, topic: Topic) -> None:
    """Free what a hidden topic holds; its files go with the next checkpoint."""
    topic.gone = True
    core.totals.bytes -= topic.log.live_bytes
    if core.totals.keyed.pop(topic.topic_id, None) is not None:
        core.totals.keys -= len(topic.keys)
    topic.totals = Totals()  # what still happens to it does not count any more
    topic.schedule.delivery = None
    if topic.storage.chunks is not None:
        topic.storage.chunks.clear()
    if topic.storage.segments is not None:
        core.dropped.append(topic)


def frame_create(core: Core, shard: ShardCommits, topic: Topic) -> ChangeEntry:
    """Write the frame of a new topic; the entry is for the caller to gather."""
    payload = encode(TopicCreate(topic.name, topic.epoch, topic.config))
    shard.wal.buffer.append_control(FrameType.TOPIC_CREATE, 0, topic.topic_id, 0, core.now_ms(), payload)
    topic.pending.syncs += 1
    topic.storage.create_pending = True

    def apply() -> None:
        topic.pending.syncs -= 1
        topic.storage.create_pending = False
        _tell_created(core, topic)

    def undo() -> None:
        topic.pending.syncs -= 1
        hide(core, topic)
        release(core, topic)

    return ChangeEntry(apply, undo)


def _tell_created(core: Core, topic: Topic) -> None:
    for tell in core.created:
        tell(topic.name)


def log_create(core: Core, topic: Topic) -> Commit:
    """Log a new topic by itself and put it into the table."""
    if not core.shards:
        register(core, topic)
        _tell_created(core, topic)
        return COMMITTED
    shard = core.writable_shard(topic)
    shard.reserve(CONTROL_ROOM)
    entry = frame_create(core, shard, topic)
    register(core, topic)
    shard.gather(entry, 1)
    return entry.commit


def put_steps(core: Core, name: str, config: TopicConfig) -> Steps[TopicPut]:
    """Begin a `put_topic`: its steps are short, however many records a change of the class has to log."""
    topic = core.topics.get(name)
    resolved = config.resolved(name)
    if topic is None or topic.config.type is not resolved.type:
        return put_topic(core, name, config)
    change = StateChange(core, topic, resolved)
    try:
        yield from class_change.log_ahead(core, topic, resolved.durability or Durability.DISK)
        yield from change.log_ahead()
        return put_topic(core, name, config, change)
    except BaseException:
        change.close()
        raise


def put_topic(core: Core, name: str, config: TopicConfig, change: StateChange | None = None) -> TopicPut:
    """Create or configure a topic in one step; `change` has logged most of what is to be logged."""
    topic = core.topics.get(name)
    if topic is None:
        topic = new_topic(core, name, True, config)
        return TopicPut(True, topic.config, log_create(core, topic))
    resolved = config.resolved(name)
    if resolved.type is not topic.config.type:
        raise TopicIncompatible(
            f"topic {name!r} is of type {topic.config.type}, which cannot become {resolved.type}; "
            f"delete it first or use another name",
            topic.config.type,
            resolved.type,
        )
    # Logged before the change: what has expired under the old limit must not come back under the new one.
    sweep(core, topic, core.now_ms())
    if change is None or not change.is_of(topic):
        if change is not None:
            change.close()
        change = StateChange(core, topic, resolved)
    return TopicPut(False, resolved, _log_config(core, topic, resolved, change))


def _log_config(core: Core, topic: Topic, config: TopicConfig, change: StateChange) -> Commit:
    """Log a new configuration; it takes effect when it is committed, and later appends wait for that."""
    durability = config.durability or Durability.DISK
    becomes_logged = class_change.becomes_logged(core, topic, durability)
    is_logged = durability is not Durability.EPHEMERAL
    storage, newest_before, logged_before = topic.storage, topic.newest_config, topic.storage.logged_seq
    waits_for = [class_change.sync_copies(core, topic, durability)]

    def end() -> None:
        topic.pending.syncs -= 1
        storage.logged_changes -= is_logged
        change.close()

    def apply() -> None:
        end()
        if not topic.gone:
            reconfigure(core, topic, config)

    def undo() -> None:
        end()
        storage.newest_config = newest_before
        if becomes_logged:
            storage.logged_seq = logged_before

    topic.pending.syncs += 1
    storage.logged_changes += is_logged
    try:
        if becomes_logged:
            class_change.log_memory(core, topic)
            waits_for.append(class_change.log_cursors(core, topic))
        class_change.log_head(core, topic, durability)
        change.log_rest()
        storage.updates += 1
        storage.newest_config = config
        update = encode(ConfigUpdate(config))
        waits_for.append(core.log_change(topic, FrameType.CONFIG_UPDATE, update, apply, undo))
    except BaseException:
        undo()
        raise
    return together(waits_for)


def reconfigure(core: Core, topic: Topic, config: TopicConfig) -> None:
    """Set the new configuration of a topic, which takes effect at once."""
    topic.configure(config)
    reconfigure_jobs(topic)
    core.delivery.reconsider(topic.schedule)
    topic.snapshot_record = None
    topic.floors.caps_due = True
    # A floor that cannot be logged now does not undo the change: the next operation tries again.
    with suppress(StorageFailed, LimitReached):
        sweep(core, topic, core.now_ms())
    schedule(core, topic)


def delete_topic(core: Core, name: str, if_empty: bool) -> TopicDeleted:
    """Delete a topic and all it holds; an absent one is no error."""
    topic = core.topics.get(name)
    if topic is None:
        check_served(core, name)
        return TopicDeleted(False, COMMITTED)
    sweep(core, topic, core.now_ms())
    if if_empty and topic.log.live_count > 0:
        raise TopicNotEmpty(
            f"topic {name!r} has {topic.count} live records and was to be deleted only if empty"
        )
    gone = topic
    if topic.routes.feeds and core.forwarder is not None:
        core.forwarder.forward_from(topic)
    touching = core.routers.touching(topic)

    def apply() -> None:
        core.deleting.pop(gone.topic_id, None)
        release(core, gone)

    def undo() -> None:
        core.deleting.pop(gone.topic_id, None)
        if name not in core.topics:
            gone.deleted = False
            register(core, gone)
            enlist(core, gone)
            schedule(core, gone)
            for router in touching:
                core.routers.restore(router)

    commit = core.log_change(topic, FrameType.TOPIC_DELETE, encode(TopicDelete(name)), apply, undo)
    hide(core, topic)
    for router in touching:
        core.routers.remove(router)
    if not topic.gone:
        core.deleting[topic.topic_id] = topic
    return TopicDeleted(True, commit, tuple(router.name for router in touching))


def list_topics(core: Core, prefix: str, after: str | None, limit: int) -> list[Topic]:
    """Return up to `limit` topics in byte order whose names begin with `prefix`, after the name `after`."""
    if limit < 1:
        raise InvalidRequest(f"a list of {limit} topics was asked for; the limit must be at least 1")
    names = core.topic_names
    at = names.bisect_left(prefix) if after is None or after < prefix else names.bisect_right(after)
    found = takewhile(lambda name: name.startswith(prefix), names.islice(at, at + limit))
    return [core.topics[name] for name in found]
