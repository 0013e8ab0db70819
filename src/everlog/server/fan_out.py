"""From a dirty topic to all its watchers.

Owns who watches which topic, the queue of watchers that have something to send, and the rendered batches that
watchers share. Writes to no connection; each watcher does that for itself, so a slow one delays only itself.

When the engine serves a topic, `drain` broadcasts: watchers at the head get the bytes of one shared batch,
and each of the others is delivered to on its own. A watcher with a backlog asks for more with `serve_soon`;
those are delivered to beside that, a step at a time.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

import msgspec

from everlog.api_types import ConsumerAtRisk
from everlog.errors import Closed, EverlogError, TopicNotFound
from everlog.server.app import App
from everlog.server.errors import ApiError
from everlog.server.http_exchange import as_chunk
from everlog.server.sse import end_with_id, record_lines
from everlog.server.websocket import push_frame
from everlog.topics import Commit, Diff, Engine, Tombstone
from everlog.topics.config import (
    READ_BYTES_DEFAULT,
    READ_BYTES_MAX,
    READ_LIMIT_DEFAULT,
    READ_LIMIT_MAX,
    U64_MAX,
)
from everlog.topics.filters import Filter

# One step of the loop delivers to so many watchers, or works so long; then requests get their turn.
STEP_WATCHERS: Final = 256
STEP_NS: Final = 2_000_000
CACHE_BATCHES: Final = 64
CACHE_BYTES: Final = 16 << 20
# The clock is read once for so many watchers.
WATCHERS_PER_CLOCK: Final = 8
ADVICE_RETRY_MS: Final = 1000
log = logging.getLogger("everlog.server.watch")


class ReadOptions(NamedTuple):
    """What a watcher gets of a topic; watchers with equal options share what is rendered."""

    limit: int = 0
    max_batch_bytes: int = 0
    nodes: tuple[str, ...] = ()
    include_tags: bool = False
    include_meta: bool = True
    include_data: bool = True
    is_strong: bool = False
    filter: Filter | None = None


class WatchCursor:
    """How far one watcher is in one topic."""

    __slots__ = (
        "burst",
        "epoch",
        "head_seq",
        "held",
        "is_first",
        "is_gone",
        "is_live",
        "name",
        "options",
        "seq",
        "topic",
    )

    def __init__(self, name: str, seq: int, epoch: int, head_seq: int, options: ReadOptions) -> None:
        self.name = name
        self.options = options
        self.topic: bytes = msgspec.json.encode(name)
        self.seq = seq
        self.epoch = epoch
        self.head_seq = head_seq
        self.held: Batch | None = None
        """A batch that waits for its commit; nothing else is read meanwhile."""
        self.is_first = True
        """Nothing of the topic was sent on this connection yet."""
        self.is_live = False
        """Everything up to the head was sent."""
        self.is_gone = False
        """The topic is deleted."""
        self.burst = 0


class Version(NamedTuple):
    """What decides the outcome of a read besides the cursor."""

    epoch: int
    head_seq: int
    evict_floor: int
    live_count: int
    dedupes_nodes: bool


class Batch:
    """One read of one topic, rendered for every watcher whose cursor is at `from_seq`.

    It may be sent when `commit` is done without an error; if `is_incomplete`, it has to be read again then.
    """

    __slots__ = (
        "_chunk",
        "_frame",
        "_message",
        "caught_up",
        "commit",
        "epoch",
        "head_seq",
        "is_incomplete",
        "lines",
        "name",
        "start_seq",
        "to_seq",
        "tombstone",
    )

    def __init__(self, name: str, version: Version, from_seq: int, diff: Diff, commit: Commit) -> None:
        tombstone: Tombstone | None = diff.tombstone
        self.name = name
        self.epoch = version.epoch
        self.tombstone = tombstone
        self.commit = commit
        self.is_incomplete = diff.incomplete
        # Where reading goes on behind the gap.
        self.start_seq = from_seq if tombstone is None else tombstone.earliest_seq - 1
        self.to_seq = diff.next_from_seq
        self.head_seq = diff.head_seq
        self.caught_up = diff.caught_up
        self.lines = b""
        self._frame = self._chunk = self._message = b""
        if diff.delivered and not diff.incomplete:
            topic = msgspec.json.encode(name)
            self.lines = record_lines(topic, diff.records, self.start_seq, self.to_seq, self.head_seq)

    @property
    def is_shareable(self) -> bool:
        """Whether it has committed records up to the head and nothing else, as watchers at the head get."""
        commit = self.commit
        is_plain = bool(self.lines) and self.tombstone is None and self.caught_up
        return is_plain and commit.done and commit.error is None

    @property
    def sse_frame(self) -> bytes:
        """The event with its records for streams of this topic alone, whose event ids are equal."""
        if not self._frame:
            self._frame = self.lines + end_with_id({self.name: self.to_seq})
        return self._frame

    @property
    def sse_chunk(self) -> bytes:
        """The same event in the chunked framing of HTTP/1.1."""
        if not self._chunk:
            self._chunk = as_chunk(self.sse_frame)
        return self._chunk

    @property
    def socket_frame(self) -> bytes:
        """The WebSocket frame with its records."""
        if not self._message:
            self._message = push_frame("record", self.lines)
        return self._message


class Watcher(ABC):
    """A connection that follows topics.

    `at_head` is the cursor of a watcher that follows one topic only, has all of it so far, and has nothing
    else to send; such watchers share batches. It is None otherwise.
    """

    __slots__ = ("at_head", "options", "output_s")

    def __init__(self, options: ReadOptions, now_s: float) -> None:
        self.at_head: WatchCursor | None = None
        self.options = options
        self.output_s = now_s
        """When it was last sent something."""

    @abstractmethod
    def topic_changed(self, name: str) -> bool:
        """Note that a topic changed or is deleted; returns whether to deliver now."""

    @abstractmethod
    def topic_created(self, name: str) -> None:
        """Note that a topic appeared that a pattern matches; see `FanOut.follow`."""

    @abstractmethod
    def deliver(self) -> None:
        """Send a little; called after `topic_changed` or `FanOut.serve_soon`."""

    @abstractmethod
    def send_shared(self, batch: Batch) -> bool:
        """Send a batch to this watcher, which is at the head; False if its connection takes nothing now."""

    @abstractmethod
    def advise(self, names: list[str], retry_after_ms: int) -> None:
        """Say that these topics have something new that is not pushed for now; it can be read."""

    @abstractmethod
    def warn(self, risk: ConsumerAtRisk) -> None:
        """Say that a consumer whose cursor it began at may lose records; see `FanOut.follow_consumer`."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """End because `deliver` or `send_shared` raised."""


class _TopicWatchers:
    """The watchers of one topic name; the engine reports the next change while it is armed."""

    __slots__ = ("fan_out", "is_armed", "name", "watchers")

    def __init__(self, fan_out: FanOut, name: str) -> None:
        self.fan_out = fan_out
        self.name = name
        self.watchers: dict[Watcher, None] = {}
        self.is_armed = False

    def changed(self) -> None:
        """The topic has something new or is deleted; called once for each registration."""
        self.is_armed = False
        self.fan_out.topic_changed(self)


class BatchCache:
    """Rendered batches by topic, version, cursor and options; bounded."""

    def __init__(self) -> None:
        self._batches: dict[tuple[str, Version, int, ReadOptions], Batch] = {}
        self._bytes = 0
        self.rendered = 0

    def get(self, key: tuple[str, Version, int, ReadOptions]) -> Batch | None:
        """A batch that was rendered before."""
        return self._batches.get(key)

    def put(self, key: tuple[str, Version, int, ReadOptions], batch: Batch) -> None:
        """Add a batch and drop the oldest ones that do not fit."""
        self.rendered += 1
        self._batches[key] = batch
        self._bytes += len(batch.lines)
        while len(self._batches) > CACHE_BATCHES or self._bytes > CACHE_BYTES:
            oldest = next(iter(self._batches))
            self._bytes -= len(self._batches.pop(oldest).lines)

    def clear(self) -> None:
        """Forget all of them."""
        self._batches.clear()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._batches)


class FanOut:
    """All watchers of all topics."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._topics: dict[str, _TopicWatchers] = {}
        self._prefixes: dict[str, dict[Watcher, None]] = {}
        self._of_consumers: dict[tuple[str, str], dict[Watcher, None]] = {}  # by topic and consumer
        self._is_following = False
        self._changed: list[_TopicWatchers] = []
        # Topics under broadcast, each with the watchers that were not served yet.
        self._unserved: deque[tuple[str, Iterator[Watcher]]] = deque()
        self._ready: set[Watcher] = set()
        self._queue: deque[Watcher] = deque()
        self._step_is_due = False
        self._versions: dict[str, Version | None] = {}
        self._advised: set[str] = set()
        self.batches = BatchCache()
        app.drains.append(self.drain)
        app.advisers.append(self.advise)

    # --- Who watches what --------------------------------------------------------------------------------

    def join(self, name: str, watcher: Watcher) -> None:
        """Report the changes of a topic to a watcher that come after its next read."""
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = _TopicWatchers(self, name)
        topic.watchers[watcher] = None

    def leave(self, name: str, watcher: Watcher) -> None:
        """Undo a `join`; an unknown watcher is no error."""
        topic = self._topics.get(name)
        if topic is None:
            return
        topic.watchers.pop(watcher, None)
        if not topic.watchers:
            del self._topics[name]
            if topic.is_armed and self._app.engine is not None:
                self._app.engine.forget_change(name, topic.changed)

    def follow(self, prefix: str, watcher: Watcher) -> None:
        """Report topics to a watcher that appear from now on and begin with `prefix`."""
        if not self._is_following:
            self._app.ready_engine().on_topic_created(self._topic_created)
            self._is_following = True
        self._prefixes.setdefault(prefix, {})[watcher] = None

    def unfollow(self, prefix: str, watcher: Watcher) -> None:
        """Undo a `follow`; an unknown watcher is no error."""
        watchers = self._prefixes.get(prefix)
        if watchers is not None:
            watchers.pop(watcher, None)
            if not watchers:
                del self._prefixes[prefix]

    def _topic_created(self, name: str) -> None:
        if self._prefixes:
            # The prefixes of a name are few, whatever number of patterns there is.
            for size in range(len(name) + 1):
                for watcher in self._prefixes.get(name[:size], ()):
                    watcher.topic_created(name)
                    self.serve_soon(watcher)

    def follow_consumer(self, topic: str, consumer: str, watcher: Watcher) -> None:
        """Warn a watcher when the consumer is at risk, and now if it is."""
        consumers = self._app.ready_engine().consumers
        consumers.on_at_risk = self._warn
        self._of_consumers.setdefault((topic, consumer), {})[watcher] = None
        risk = consumers.risk(topic, consumer)
        if risk is not None:
            watcher.warn(risk)

    def unfollow_consumer(self, topic: str, consumer: str, watcher: Watcher) -> None:
        """Undo a `follow_consumer`; an unknown watcher is no error."""
        watchers = self._of_consumers.get((topic, consumer))
        if watchers is not None:
            watchers.pop(watcher, None)
            if not watchers:
                del self._of_consumers[topic, consumer]

    def _warn(self, risk: ConsumerAtRisk) -> None:
        for watcher in tuple(self._of_consumers.get((risk.topic, risk.consumer), ())):
            watcher.warn(risk)

    def forget(self, watcher: Watcher) -> None:
        """Deliver no more to a watcher that has ended."""
        self._ready.discard(watcher)

    def _arm(self, topic: _TopicWatchers) -> None:
        """Register for the next change; before each read, so that no change is missed."""
        engine = self._app.engine
        if not topic.is_armed and engine is not None and engine.has_topic(topic.name):
            # A closed engine changes no more; the read that follows raises.
            with suppress(Closed):
                engine.on_change(topic.name, topic.changed)
                topic.is_armed = True

    def topic_changed(self, topic: _TopicWatchers) -> None:
        """Serve the watchers of a topic, but not here: this may be the middle of a change."""
        self._changed.append(topic)
        engine = self._app.engine
        if engine is None or not engine.delivery.is_serving:
            self._step_soon()

    def serve_soon(self, watcher: Watcher) -> None:
        """Deliver to a watcher in one of the next steps."""
        if watcher not in self._ready:
            self._ready.add(watcher)
            self._queue.append(watcher)
            self._step_soon()

    # --- Steps -------------------------------------------------------------------------------------------

    def _step_soon(self) -> None:
        if not self._step_is_due:
            self._step_is_due = True
            self._app.loop.call_soon(self._step)

    def _step(self) -> None:
        """Serve watchers for a while; what is left goes on after the loop has seen to other events."""
        self._step_is_due = False
        started_ns = self._app.now_ns()
        end_ns = started_ns + STEP_NS
        is_drained = self.drain(end_ns)
        self._versions.clear()  # until the end of this step nothing changes
        for _ in range(min(len(self._queue), STEP_WATCHERS)):
            watcher = self._queue.popleft()
            if watcher in self._ready:
                self._ready.remove(watcher)
                self._deliver(watcher)
                if self._app.now_ns() >= end_ns:
                    break
        if self._queue or self._changed or not is_drained:
            self._step_soon()
        else:
            self.batches.clear()
        self._app.answered.steps.note(self._app.now_ns() - started_ns)

    def drain(self, end_ns: int) -> bool:
        """Serve the watchers of topics that changed, up to a time; returns whether all were served."""
        changed, self._changed = self._changed, []
        self._unserved.extend((topic.name, iter(tuple(topic.watchers))) for topic in changed)
        if not self._unserved:
            return True
        self._versions.clear()
        while self._unserved:
            if not self._broadcast(*self._unserved[0], end_ns):
                return False
            self._unserved.popleft()
        if not self._queue:
            self.batches.clear()  # no watcher is left that could share them
        return True

    def _broadcast(self, name: str, watchers: Iterator[Watcher], end_ns: int) -> bool:
        """Send what is new in a topic to these watchers, up to a time; returns whether all were served.

        Watchers at the head share one batch; each of the others is delivered to on its own.
        """
        batch: Batch | None = None
        seq = epoch = -1
        options: ReadOptions | None = None
        for number, watcher in enumerate(watchers, 1):
            cursor = watcher.at_head
            is_sent = False
            if cursor is not None and cursor.name == name:
                if cursor.seq != seq or cursor.epoch != epoch or watcher.options != options:
                    seq, epoch, options = cursor.seq, cursor.epoch, watcher.options
                    batch = self._shared_batch(cursor, options)
                try:
                    is_sent = batch is not None and watcher.send_shared(batch)
                except Exception as error:
                    self._failed(watcher, error)
                    is_sent = True  # it has ended
            if not is_sent and watcher.topic_changed(name):
                self._deliver(watcher)
            if number % WATCHERS_PER_CLOCK == 0 and self._app.now_ns() >= end_ns:
                return False
        return True

    def _shared_batch(self, cursor: WatchCursor, options: ReadOptions) -> Batch | None:
        """The batch that all watchers at this cursor get; None if each has to read for itself."""
        try:
            batch = self.read(cursor.name, cursor.epoch, cursor.seq, options)
        except Exception:
            return None  # `deliver` meets the same error and reports it to its client
        return batch if batch is not None and batch.is_shareable else None

    def _deliver(self, watcher: Watcher) -> None:
        try:
            watcher.deliver()
        except Exception as error:
            self._failed(watcher, error)

    def _failed(self, watcher: Watcher, error: Exception) -> None:
        if not isinstance(error, EverlogError | ApiError):
            log.error("delivery to a watcher failed", exc_info=error)
        watcher.fail(error)

    # --- Topics that are paused --------------------------------------------------------------------------

    def advise(self, paused: list[str]) -> None:
        """Advise the watchers of these topics that nothing is pushed for now, once for each pause."""
        self._advised.intersection_update(paused)
        advised: dict[Watcher, list[str]] = {}
        for name in paused:
            topic = self._topics.get(name)
            if topic is not None and name not in self._advised:
                self._advised.add(name)
                for watcher in topic.watchers:
                    advised.setdefault(watcher, []).append(name)
        for watcher, names in advised.items():
            watcher.advise(names, ADVICE_RETRY_MS)

    # --- Reading -----------------------------------------------------------------------------------------

    def read(self, name: str, epoch: int, from_seq: int, options: ReadOptions) -> Batch | None:
        """Read a topic from a cursor of its instance `epoch`; None if there is no such topic.

        In another instance of the name the cursor means nothing: that one is read from its beginning, with
        the tombstone that says so. Call it while a step is under way only.
        """
        topic = self._topics.get(name)
        if topic is not None and not topic.is_armed:
            self._arm(topic)
        engine = self._app.ready_engine()
        version = self._version(engine, name)
        if version is None:
            return None
        if version.epoch != epoch:
            from_seq = U64_MAX
        key = (name, version, from_seq, options)
        batch = self.batches.get(key)
        if batch is None:
            batch = self._render(engine, name, version, from_seq, options)
            if not batch.is_incomplete:
                self.batches.put(key, batch)
        return batch

    def _version(self, engine: Engine, name: str) -> Version | None:
        """The version of a topic; looked up once per step, because nothing changes inside of one."""
        if name in self._versions:
            return self._versions[name]
        try:
            state = engine.state(name, touch=False)
        except TopicNotFound:
            version = None
        else:
            version = Version(
                state.epoch,
                state.head_seq,
                state.evict_floor,
                state.count,
                state.config.dedupe_node,
            )
        self._versions[name] = version
        return version

    def _render(
        self, engine: Engine, name: str, version: Version, from_seq: int, options: ReadOptions
    ) -> Batch:
        diff = engine.diff(
            name,
            from_seq,
            options.limit,
            node=options.nodes,
            include_tags=options.include_tags,
            include_meta=options.include_meta,
            include_data=options.include_data,
            max_batch_bytes=options.max_batch_bytes,
            filter=options.filter,
            block=False,
        )
        commit = diff.commit
        start_seq = from_seq if diff.tombstone is None else diff.tombstone.earliest_seq - 1
        if diff.incomplete and diff.next_from_seq > start_seq:
            # What was scanned before the cold segment need not be scanned again: to begin at the old cursor
            # could need more segments at once than there is memory for, and would never end.
            diff = msgspec.structs.replace(diff, incomplete=False)
            commit = engine.floor_commit(name)
        if options.is_strong and diff.delivered and not diff.incomplete:
            commit = _both(commit, engine.synced_commit(name))
        if not commit.done:
            self._app.turn_soon()
        return Batch(name, version, from_seq, diff, commit)


class ReaderBody(Protocol):
    """The fields of a request that choose what is read."""

    node: str | list[str] | None
    limit: int
    max_batch_bytes: int
    include_tags: bool
    include_meta: bool
    include_data: bool


def options_of(body: ReaderBody, *, is_strong: bool = False) -> ReadOptions:
    """The options of a request with every number in its range, so that equal options compare equal."""
    node = body.node
    return ReadOptions(
        limit=min(body.limit or READ_LIMIT_DEFAULT, READ_LIMIT_MAX),
        max_batch_bytes=min(body.max_batch_bytes or READ_BYTES_DEFAULT, READ_BYTES_MAX),
        nodes=() if node is None else (node,) if isinstance(node, str) else tuple(sorted(set(node))),
        include_tags=body.include_tags,
        include_meta=body.include_meta,
        include_data=body.include_data,
        is_strong=is_strong,
    )


def _both(first: Commit, second: Commit) -> Commit:
    """A commit that is done when both are, or as soon as the first has failed."""
    if first.done and first.error is None:
        return second
    both = Commit()

    def first_done(_: Commit) -> None:
        if first.error is not None:
            both.finish(first.error)
        else:
            second.on_done(lambda _: both.finish(second.error))

    first.on_done(first_done)
    return both
