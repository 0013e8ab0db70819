"""From a topic that changed to everybody who watches it.

Owns who watches which topic, the queue of watchers that have something to do, and the rendering that they
share: records behind a cursor are rendered once for all watchers who stand there with the same wishes.
Writes to no connection; each watcher does that for itself, so a slow one holds up nobody.

There are two ways to a watcher. When the engine serves a topic, `drain` pumps all its watchers before another
topic is served. Whoever has more to send than one pump takes, or asks by itself, waits in a queue that is
worked off beside that, a step at a time. On the first way watchers that are at ease need not even be pumped:
`native/live_readers` gives all of them that stand next to each other the same bytes.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

import msgspec

from everlog.errors import Closed, EverlogError, TopicNotFound
from everlog.native.live_readers import LiveReader, Row
from everlog.server.app import App
from everlog.server.errors import ApiError
from everlog.server.http_exchange import as_chunk
from everlog.server.sse import end_with_id, record_lines
from everlog.topics import Commit, Diff, Discard, Engine, Tombstone, TopicConfig
from everlog.topics.config import (
    READ_BYTES_DEFAULT,
    READ_BYTES_MAX,
    READ_LIMIT_DEFAULT,
    READ_LIMIT_MAX,
    U64_MAX,
)

# One step of the loop serves so many watchers, or works so long; then requests get their turn.
STEP_WATCHERS: Final = 256
STEP_NS: Final = 2_000_000
CACHE_BATCHES: Final = 64
CACHE_BYTES: Final = 16 << 20
# The clock is looked at once for so many watchers.
PUMPS_PER_LOOK: Final = 8
ADVICE_RETRY_MS: Final = 1000
log = logging.getLogger("everlog.server.watch")


class Wishes(NamedTuple):
    """What a watcher wants to get of a topic; those who wish the same share what is rendered."""

    limit: int = 0
    max_batch_bytes: int = 0
    nodes: tuple[str, ...] = ()
    include_tags: bool = False
    include_meta: bool = True
    include_data: bool = True
    is_strong: bool = False


class Version(NamedTuple):
    """What decides the outcome of a read besides the cursor: as long as it is the same, so is the outcome."""

    epoch: int
    head_seq: int
    evict_floor: int
    live_count: int
    dedupes_nodes: bool
    loss: str | None
    """Why records of this topic can be lost, as a tombstone would say it; None if they cannot."""


class Batch:
    """One read of one topic, ready to be sent to everybody who stands at `from_seq`.

    It may be sent when `commit` is done without an error; if `is_incomplete`, it has to be read again then.
    """

    __slots__ = (
        "_alone",
        "_chunk",
        "caught_up",
        "commit",
        "earliest_seq",
        "epoch",
        "head_seq",
        "is_incomplete",
        "is_plain",
        "lines",
        "loss",
        "name",
        "start_seq",
        "to_seq",
        "tombstone",
    )

    def __init__(self, name: str, version: Version, from_seq: int, diff: Diff, commit: Commit) -> None:
        tombstone: Tombstone | None = diff.tombstone
        self.name = name
        self.epoch = version.epoch
        self.loss = version.loss
        self.tombstone = tombstone
        self.commit = commit
        self.is_incomplete = diff.incomplete
        # Where reading goes on behind the gap.
        self.start_seq = from_seq if tombstone is None else tombstone.earliest_seq - 1
        self.to_seq = diff.next_from_seq
        self.head_seq = diff.head_seq
        self.earliest_seq = diff.earliest_seq
        self.caught_up = diff.caught_up
        self.lines = b""
        self._alone = b""
        self._chunk = b""
        if diff.delivered and not diff.incomplete:
            topic = msgspec.json.encode(name)
            self.lines = record_lines(topic, diff.records, self.start_seq, self.to_seq, self.head_seq)
        # Records up to the head and nothing else: what nearly all readers get nearly all the time.
        self.is_plain = bool(self.lines) and tombstone is None and self.caught_up

    @property
    def frame_alone(self) -> bytes:
        """The frame of the records for all who watch nothing but this topic: their ids are the same too."""
        if not self._alone:
            self._alone = self.lines + end_with_id({self.name: self.to_seq})
        return self._alone

    @property
    def chunk_alone(self) -> bytes:
        """The same as one piece of a stream over HTTP/1.1, framed once for all of them."""
        if not self._chunk:
            self._chunk = as_chunk(self.frame_alone)
        return self._chunk


class Watcher(LiveReader, ABC):
    """Somebody who follows topics."""

    __slots__ = ()

    @abstractmethod
    def topic_changed(self, name: str) -> bool:
        """There may be something new in this topic, or it is gone; tells whether to pump for it now."""

    @abstractmethod
    def pump(self) -> None:
        """Send a little; called after `topic_changed` or `FanOut.serve_soon`."""

    @abstractmethod
    def rendered(self, batch: Batch) -> bytes:
        """The records of a batch as all watchers of its class get them that are at ease."""

    @abstractmethod
    def passed_in_part(self, data: bytes, sent_bytes: int, before_seq: int) -> None:
        """It was at ease at `before_seq`; of what was passed on, the kernel took only so much for it."""

    @abstractmethod
    def advise(self, names: list[str], retry_after_ms: int) -> None:
        """These topics have something new that is not pushed for now; it can be read."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Its pump failed."""


class _Feed:
    """The watchers of one topic name; the engine tells it of the next change while it is armed."""

    __slots__ = ("batch", "fan_out", "from_seq", "is_armed", "moment", "name", "watchers", "wishes")

    def __init__(self, fan_out: FanOut, name: str) -> None:
        self.fan_out = fan_out
        self.name = name
        self.watchers: dict[Watcher, None] = {}
        self.is_armed = False
        # The last read: most watchers want the same one after the other.
        self.batch: Batch | None = None
        self.moment = 0
        self.from_seq = 0
        self.wishes = Wishes()

    def woken(self) -> None:
        """The topic has something new or is deleted; each registration is told once."""
        self.is_armed = False
        self.fan_out.feed_woken(self)


class SharedBatches:
    """Batches that others may want as well, by topic, version, cursor and wishes; bounded."""

    def __init__(self) -> None:
        self._batches: dict[tuple[str, Version, int, Wishes], Batch] = {}
        self._bytes = 0
        self.rendered = 0
        self.shared = 0

    def get(self, key: tuple[str, Version, int, Wishes]) -> Batch | None:
        """A batch that was read before."""
        batch = self._batches.get(key)
        if batch is not None:
            self.shared += 1
        return batch

    def put(self, key: tuple[str, Version, int, Wishes], batch: Batch) -> None:
        """Keep a batch for others; the oldest ones make room."""
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

    def __init__(self, app: App, time_s: Callable[[], float] | None = None) -> None:
        self._app = app
        # The time in which watchers measure how long nothing was sent.
        self._time_s = time_s or app.loop.time
        self._feeds: dict[str, _Feed] = {}
        self._woken: list[_Feed] = []
        self._ready: set[Watcher] = set()
        self._queue: deque[Watcher] = deque()
        self._live: deque[Row] = deque()
        self._step_is_due = False
        self._moment = 0
        self._versions: dict[str, Version | None] = {}
        self._advised: set[str] = set()
        self._shared_by: set[_Feed] = set()
        self.batches = SharedBatches()
        app.drains.append(self.drain)
        app.advisers.append(self.advise)

    # --- Who watches what --------------------------------------------------------------------------------

    def join(self, name: str, watcher: Watcher) -> None:
        """Tell a watcher about the changes of a topic that come after its next read."""
        feed = self._feeds.get(name)
        if feed is None:
            feed = self._feeds[name] = _Feed(self, name)
        feed.watchers[watcher] = None

    def leave(self, name: str, watcher: Watcher) -> None:
        """Tell it no more; not watching is no error."""
        feed = self._feeds.get(name)
        if feed is None:
            return
        feed.watchers.pop(watcher, None)
        if not feed.watchers:
            del self._feeds[name]
            if feed.is_armed and self._app.engine is not None:
                self._app.engine.forget_change(name, feed.woken)

    def forget(self, watcher: Watcher) -> None:
        """A watcher is over: serve it no more."""
        self._ready.discard(watcher)

    def _arm(self, feed: _Feed) -> None:
        """Register for the next change; before each look, so that no change is missed."""
        engine = self._app.engine
        if not feed.is_armed and engine is not None and engine.has_topic(feed.name):
            # A closed engine changes no more; the read that follows tells its reader.
            with suppress(Closed):
                engine.on_change(feed.name, feed.woken)
                feed.is_armed = True

    def feed_woken(self, feed: _Feed) -> None:
        """Tell the watchers, but not here: this may be the middle of a change."""
        self._woken.append(feed)
        engine = self._app.engine
        if engine is None or not engine.delivery.is_serving:
            self._step_soon()

    def serve_soon(self, watcher: Watcher) -> None:
        """Let a watcher pump when its turn comes."""
        if watcher not in self._ready:
            self._ready.add(watcher)
            self._queue.append(watcher)
            self._step_soon()

    # --- The turn of the watchers ------------------------------------------------------------------------

    def _step_soon(self) -> None:
        if not self._step_is_due:
            self._step_is_due = True
            self._app.loop.call_soon(self._step)

    def drain(self, end_ns: int) -> bool:
        """Pump the watchers of topics that have something new, up to a time; tells whether all had theirs."""
        woken = self._woken
        if woken:
            self._woken = []
            self._live.extend(Row(feed.name, feed.watchers) for feed in woken)
        if not self._live:
            return True
        self._begin_moment()
        is_done = self._pump_live(end_ns)
        if is_done and not self._queue:
            self._forget_moment()
        return is_done

    def _pump_live(self, end_ns: int) -> bool:
        live, now_ns = self._live, self._app.now_ns
        turns_left = PUMPS_PER_LOOK
        while live:
            row = live[0]
            while (watcher := row.peek()) is not None:
                if self._pass_on(row, watcher, end_ns):
                    turns_left = 1
                else:
                    row.step()
                    if watcher.topic_changed(row.name):
                        self._pump(watcher)
                turns_left -= 1
                if not turns_left:
                    turns_left = PUMPS_PER_LOOK
                    if now_ns() >= end_ns:
                        return False
            live.popleft()
        return True

    def _pass_on(self, row: Row, watcher: Watcher, end_ns: int) -> bool:
        """Send what has come to those that are next in the row, at ease and at one place, up to a time.

        False if nobody got anything: then the one whose turn it is has to be pumped.
        """
        place = watcher.at_ease
        if place is None or place.name != row.name:
            return False  # one that was in the row of this topic may follow another one by now
        try:
            batch = self.read(row.name, place.epoch, place.seq, watcher.wishes)
            if batch is None or not batch.is_plain or not batch.commit.done or batch.commit.error is not None:
                return False
            data = watcher.rendered(batch)
        except Exception:
            return False  # its pump meets the same, and then its reader is told
        before, before_seq = row.position, place.seq
        stuck = row.pass_on(
            data, watcher, batch.to_seq, batch.head_seq, self._time_s(), self._app.now_ns, end_ns
        )
        if stuck is not None:
            try:
                stuck.passed_in_part(data, row.sent_bytes, before_seq)
            except Exception as error:
                self._pump_failed(stuck, error)
        passed = row.position - before
        self.batches.shared += passed
        return passed > 0

    def _step(self) -> None:
        """Serve watchers for a while; what is left goes on after the loop has seen to others."""
        self._step_is_due = False
        end_ns = self._app.now_ns() + STEP_NS
        is_drained = self.drain(end_ns)
        self._begin_moment()
        for _ in range(min(len(self._queue), STEP_WATCHERS)):
            watcher = self._queue.popleft()
            if watcher in self._ready:
                self._ready.remove(watcher)
                self._pump(watcher)
                if self._app.now_ns() >= end_ns:
                    break
        if self._queue or self._woken or not is_drained:
            self._step_soon()
        else:
            self._forget_moment()

    def _begin_moment(self) -> None:
        """From here to the end of the call nothing changes, so what is read once holds for all."""
        self._moment += 1
        self._versions.clear()

    def _forget_moment(self) -> None:
        """Nobody is left who could share what was read."""
        self.batches.clear()
        for feed in self._shared_by:
            feed.batch = None
        self._shared_by.clear()

    def _pump(self, watcher: Watcher) -> None:
        try:
            watcher.pump()
        except Exception as error:
            self._pump_failed(watcher, error)

    def _pump_failed(self, watcher: Watcher, error: Exception) -> None:
        if not isinstance(error, EverlogError | ApiError):
            log.error("a watch stream failed", exc_info=error)
        watcher.fail(error)

    # --- Topics that are paused --------------------------------------------------------------------------

    def advise(self, paused: list[str]) -> None:
        """Tell the watchers of these topics that nothing is pushed for now, once for each pause."""
        self._advised.intersection_update(paused)
        told: dict[Watcher, list[str]] = {}
        for name in paused:
            feed = self._feeds.get(name)
            if feed is not None and name not in self._advised:
                self._advised.add(name)
                for watcher in feed.watchers:
                    told.setdefault(watcher, []).append(name)
        for watcher, names in told.items():
            watcher.advise(names, ADVICE_RETRY_MS)

    # --- Reading -----------------------------------------------------------------------------------------

    def read(self, name: str, epoch: int, from_seq: int, wishes: Wishes) -> Batch | None:
        """Read a topic from a cursor of its instance `epoch`; None if there is no such topic.

        The cursor means nothing in another instance of the name: that one is read from its beginning, with
        the tombstone that says so. Call it inside `Watcher.pump` only.
        """
        feed = self._feeds.get(name)
        if feed is None:
            return self._read(name, epoch, from_seq, wishes)
        if not feed.is_armed:
            self._arm(feed)
        batch = feed.batch
        if (
            batch is not None
            and feed.moment == self._moment
            and feed.from_seq == from_seq
            and batch.epoch == epoch
            and feed.wishes == wishes
        ):
            self.batches.shared += 1
            return batch
        batch = self._read(name, epoch, from_seq, wishes)
        if batch is not None and not batch.is_incomplete and batch.epoch == epoch:
            feed.batch, feed.moment, feed.from_seq, feed.wishes = batch, self._moment, from_seq, wishes
            self._shared_by.add(feed)
        return batch

    def _read(self, name: str, epoch: int, from_seq: int, wishes: Wishes) -> Batch | None:
        engine = self._app.ready_engine()
        version = self._version(engine, name)
        if version is None:
            return None
        if version.epoch != epoch:
            from_seq = U64_MAX
        key = (name, version, from_seq, wishes)
        batch = self.batches.get(key)
        if batch is None:
            batch = self._render(engine, name, version, from_seq, wishes)
            if not batch.is_incomplete:
                self.batches.put(key, batch)
        return batch

    def _version(self, engine: Engine, name: str) -> Version | None:
        """The version of a topic; looked up once per step, nothing changes inside of one."""
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
                _loss(state.config),
            )
        self._versions[name] = version
        return version

    def _render(self, engine: Engine, name: str, version: Version, from_seq: int, wishes: Wishes) -> Batch:
        diff = engine.diff(
            name,
            from_seq,
            wishes.limit,
            node=wishes.nodes,
            include_tags=wishes.include_tags,
            include_meta=wishes.include_meta,
            include_data=wishes.include_data,
            max_batch_bytes=wishes.max_batch_bytes,
            block=False,
        )
        commit = diff.commit
        start_seq = from_seq if diff.tombstone is None else diff.tombstone.earliest_seq - 1
        if diff.incomplete and diff.next_from_seq > start_seq:
            # What was passed on the way to a cold segment is passed for good. To begin at the old cursor
            # again could need more segments at once than there is memory for, and would never end.
            diff = msgspec.structs.replace(diff, incomplete=False)
            commit = engine.floor_commit(name)
        if wishes.is_strong and diff.delivered and not diff.incomplete:
            commit = _both(commit, engine.synced_commit(name))
        if not commit.done:
            self._app.turn_soon()
        return Batch(name, version, from_seq, diff, commit)


class ReaderBody(Protocol):
    """What every request of a reader says about what it wants."""

    node: str | list[str] | None
    limit: int
    max_batch_bytes: int
    include_tags: bool
    include_meta: bool
    include_data: bool


def wishes_of(body: ReaderBody, *, is_strong: bool = False) -> Wishes:
    """The wishes of a reader with every number in its range, so that equal wishes are recognised."""
    node = body.node
    return Wishes(
        limit=min(body.limit or READ_LIMIT_DEFAULT, READ_LIMIT_MAX),
        max_batch_bytes=min(body.max_batch_bytes or READ_BYTES_DEFAULT, READ_BYTES_MAX),
        nodes=() if node is None else (node,) if isinstance(node, str) else tuple(sorted(set(node))),
        include_tags=body.include_tags,
        include_meta=body.include_meta,
        include_data=body.include_data,
        is_strong=is_strong,
    )


def _loss(config: TopicConfig) -> str | None:
    """Why a topic may lose records that nobody deleted."""
    by_cap = config.discard is Discard.OLD and bool(config.cap_records or config.cap_bytes)
    by_age = config.ttl_ms > 0
    return "mixed" if by_cap and by_age else "cap" if by_cap else "ttl" if by_age else None


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
