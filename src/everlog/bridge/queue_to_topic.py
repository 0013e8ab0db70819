"""The bridge from a queue to a topic.

The order of steps makes it exactly once: read, store the plan, send under the key of the plan, and move the
queue's reader only when the batch is confirmed. If an answer is lost, `in_doubt` asks the topic before the
batch is sent again. One batch is sent while the next one is rendered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import msgspec

from everlog.api_types import Appended
from everlog.bridge.base import NOT_FOUND, Bridge, Progress, Stopped
from everlog.bridge.in_doubt import Verdict, resolve_in_doubt
from everlog.bridge.rendering import (
    Format,
    Marker,
    Messages,
    Rendered,
    Renderer,
    copy_messages,
    fitting,
    request_body,
)
from everlog.bridge.state import (
    VERSION,
    Plan,
    QueueToTopicState,
    StateFile,
    check_name,
    new_identity,
    reader_name,
)
from everlog.client import ApiFailed, calls
from everlog.client.flows import Call
from everlog.client.producer import WINDOW_MS_DEFAULT
from everlog.client.retrying import ONCE, Backoff
from everlog.client.wire import topic_path
from everlog.clock import NS_PER_S
from everlog.errors import CorruptMetadata, EverlogError, InvalidConfig, SegmentMissing
from everlog.queue import Queue, QueueReader, StartMode, identity
from everlog.queue.control import ControlBlock
from everlog.queue.reader_meta import meta_path
from everlog.queue.retention import byte_position

BATCH_RECORDS_MAX: Final = 10_000
BATCH_BYTES: Final = 4 << 20
WAIT_SLICE_S: Final = 0.2
BAD_REQUEST: Final = 400
FULL: Final = 422
_NS_PER_MS: Final = 1_000_000

InDoubt = Literal["stop", "send", "skip"]


class BatchInDoubt(EverlogError):
    """It cannot be found out whether a batch reached its topic, so a person has to decide.

    `first_seq` and `last_seq` are those of the queue, both included.
    """

    code = "bridge_in_doubt"

    def __init__(self, message: str, first_seq: int = 0, last_seq: int = 0) -> None:
        super().__init__(message)
        self.first_seq = first_seq
        self.last_seq = last_seq


@dataclass(frozen=True, slots=True)
class QueueToTopicSettings:
    """What is forwarded and how. `start` applies only if the bridge has never run.

    With `origin`, the meta of each record says which message it was: source, seq, `ts_ns` and type.
    """

    queue: str
    topic: str
    name: str
    form: Format = Format.AUTO
    origin: bool = True
    batch_records: int = BATCH_RECORDS_MAX
    batch_bytes: int = BATCH_BYTES
    start: Literal["earliest", "latest"] = "earliest"
    once: bool = False
    durability: str | None = None
    in_doubt: InDoubt = "stop"

    def __post_init__(self) -> None:
        check_name(self.name)
        if not 1 <= self.batch_records <= BATCH_RECORDS_MAX:
            raise InvalidConfig(f"a batch has 1 to {BATCH_RECORDS_MAX} records, not {self.batch_records}")
        if self.batch_bytes < 1:
            raise InvalidConfig(f"a batch has at least 1 byte, not {self.batch_bytes}")


class _Prepared(NamedTuple):
    """A rendered batch and the position of the queue's reader behind it."""

    messages: Messages
    records: Rendered
    end: tuple[int, int]
    timestamp_ns: int


class _Delivered(NamedTuple):
    topic_head: int
    is_repeat: bool


class QueueToTopic(Bridge[QueueToTopicSettings]):
    """Forwards a queue to a topic until it is stopped, or once to the end of what is there."""

    direction = "queue-to-topic"
    back_again = "the server takes records again"

    def _set_up(self) -> None:
        settings = self._settings
        self._file = StateFile(self._fs, settings.queue, settings.name, QueueToTopicState)
        self._topic_head = 0
        self._confirmed_ts_ns = 0

    # --- Running -------------------------------------------------------------------------------------------

    def run(self) -> Progress:
        """Forward until stopped, or to the end with `once`. Raises errors that a retry cannot solve."""
        self._started_ns = self._clock.monotonic_ns()
        with contextlib.ExitStack() as held:
            held.callback(self._file.close)
            self._state = self._load_state()
            self._renderer = Renderer(self._settings.form, self._source() if self._settings.origin else None)
            self._reader = held.enter_context(contextlib.closing(self._open_reader()))
            self._control = ControlBlock.open(self._fs, self._clock, self._settings.queue, writable=False)
            held.callback(self._control.close)
            self._confirmed = self._reader.committed_position
            pool = held.enter_context(ThreadPoolExecutor(1, "bridge-send"))
            held.callback(self.stop.set)  # called first: the thread must not keep trying
            with contextlib.suppress(Stopped):
                self._forward(pool)
            plan = self._state.plan
            self.progress.is_in_doubt = plan is not None and self._confirmed < plan.end
            self._show_progress(is_last=True)
        return self.progress

    def _load_state(self) -> QueueToTopicState:
        settings = self._settings
        if not ControlBlock.is_ready(self._fs, settings.queue):
            # Raises the error for a missing queue: a bridge does not create the queue it reads from.
            Queue.open_subscriber(settings.queue, None).close()
        state = self._file.load()
        if state is None:
            reader = meta_path(settings.queue, reader_name(settings.name))
            if self._fs.exists(reader):
                raise CorruptMetadata(
                    f"{self._file.path} is missing although the bridge {settings.name!r} has run; restore "
                    f"it, or delete {reader} as well to forward the queue again"
                )
            state = self._file.create(
                QueueToTopicState(VERSION, settings.name, new_identity(), settings.topic)
            )
        if state.topic != settings.topic:
            raise InvalidConfig(
                f"the bridge {settings.name!r} forwards {settings.queue} to topic {state.topic!r}; give a "
                f"bridge to {settings.topic!r} another --name"
            )
        return state

    def _source(self) -> str:
        """Return the identity of the queue; that of the bridge for a queue of an earlier version."""
        return identity.load(self._fs, self._settings.queue) or self._state.identity

    def _open_reader(self) -> QueueReader:
        settings = self._settings
        name = reader_name(settings.name)
        is_new = not self._fs.exists(meta_path(settings.queue, name))
        start = StartMode.LATEST if is_new and settings.start == "latest" else StartMode.RESUME_STRICT
        return Queue.open_subscriber(settings.queue, name, start, clock=self._clock, fs=self._fs)

    def _forward(self, pool: ThreadPoolExecutor) -> None:
        end = self._end_of_queue() if self._settings.once else None
        self._finish_old_plan(pool)
        in_flight: tuple[_Prepared, Future[_Delivered]] | None = None
        for prepared in self._batches(end):
            if in_flight is not None:
                self._confirm(*in_flight)
                in_flight = None
            if self.stop.is_set():
                return
            if prepared is None:
                self._show_progress()
                if end is not None and self._reader.position >= end:
                    return
                self._reader.wait(WAIT_SLICE_S)
            else:
                plan = self._store_plan(prepared)
                in_flight = prepared, pool.submit(self._deliver, prepared, plan, is_in_doubt=False)

    def _end_of_queue(self) -> tuple[int, int]:
        with Queue.open_subscriber(self._settings.queue, None, StartMode.LATEST) as reader:
            return reader.position

    # --- Batches -------------------------------------------------------------------------------------------

    def _batches(self, end: tuple[int, int] | None) -> Iterator[_Prepared | None]:
        """Yield batches as they come, and None whenever there is nothing to read."""
        settings = self._settings
        while True:
            if end is not None and self._reader.position >= end:
                yield None
                continue
            batch = self._reader.read_batch(settings.batch_records)
            if not len(batch):
                yield None
                continue
            position, offsets = self._reader.position, batch.offset
            times = batch.timestamp_ns
            start = 0
            while start < len(batch):
                stop = start + fitting(batch, settings.batch_bytes, start)
                messages = copy_messages(batch, start, stop)
                behind = position if stop == len(batch) else (batch.segment_id, int(offsets[stop]))
                yield _Prepared(messages, self._renderer.records(messages), behind, int(times[stop - 1]))
                start = stop

    def _store_plan(self, prepared: _Prepared) -> Plan:
        messages, state = prepared.messages, self._state
        plan = Plan(
            messages.first_seq,
            messages.last_seq,
            len(messages.seqs),
            prepared.end,
            self._topic_head,
            self._clock.wall_ns() // _NS_PER_MS,
        )
        self._state = msgspec.structs.replace(
            state,
            generation=state.generation + 1,
            forwarded=state.forwarded + (state.plan.count if state.plan is not None else 0),
            first_seq=messages.first_seq if state.first_seq is None else state.first_seq,
            plan=plan,
        )
        self._file.store(self._state)
        return plan

    def _confirm(self, prepared: _Prepared, sent: Future[_Delivered]) -> None:
        """Wait until a batch is in the topic, with heartbeats, and move the queue's reader behind it."""
        while True:
            try:
                delivered = sent.result(WAIT_SLICE_S)
                break
            except TimeoutError:
                if sent.done():
                    raise
                self._reader.heartbeat()
                self._show_progress()
        self._topic_head = delivered.topic_head
        # Not synced: after a power loss the plan still says where to continue.
        self._reader._commit_at(prepared.end, durable=False)
        self._confirmed = prepared.end
        messages = prepared.messages
        self._count(len(messages.seqs), messages.last_seq, deduplicated=int(delivered.is_repeat))
        self._confirmed_ts_ns = prepared.timestamp_ns
        self._show_progress()

    # --- The plan of an earlier run ------------------------------------------------------------------------

    def _finish_old_plan(self, pool: ThreadPoolExecutor) -> None:
        plan = self._state.plan
        if plan is None or self._reader.committed_position >= plan.end:
            self._topic_head = self._until_answered(self._head_of_topic)
            return
        prepared = self._read_again(plan)
        self._confirm(prepared, pool.submit(self._deliver, prepared, plan, is_in_doubt=True))

    def _read_again(self, plan: Plan) -> _Prepared:
        """Make the planned batch again, of the same messages."""
        self._reader.seek_seq(plan.first_seq)
        batch = self._reader.read_batch(plan.last_seq - plan.first_seq + 1)
        if not len(batch) or (int(batch.seq[0]), int(batch.seq[-1])) != (plan.first_seq, plan.last_seq):
            raise SegmentMissing(
                f"messages {plan.first_seq} to {plan.last_seq} of {self._settings.queue} are gone, and the "
                f"bridge {self._settings.name!r} has no confirmation that they arrived; restore the queue, "
                "or start a bridge with another --name"
            )
        messages = copy_messages(batch, 0, len(batch))
        records = self._renderer.records(messages)
        return _Prepared(messages, records, self._reader.position, int(batch.timestamp_ns[-1]))

    def _head_of_topic(self) -> int:
        try:
            state = self._client.call(calls.topic(self._settings.topic, touch=False), retry=ONCE)
        except ApiFailed as error:
            if error.status == NOT_FOUND:
                return 0
            raise
        if state.config.durability in ("ephemeral", "memory"):
            self._warn(
                "weak_topic",
                f"topic {self._settings.topic!r} is of class {state.config.durability}: what it loses in a "
                "restart is not forwarded again, and the batch in flight may be lost or arrive twice",
            )
        return state.head_seq

    def _heartbeat(self) -> None:
        self._reader.heartbeat()

    # --- Sending, in the thread of its own -----------------------------------------------------------------

    def _deliver(self, prepared: _Prepared, plan: Plan, *, is_in_doubt: bool) -> _Delivered:
        """Send a batch until it is in the topic."""
        backoff = Backoff()
        call = self._call(prepared.records, plan)
        is_careful = False
        while True:
            if self.stop.is_set() and (is_in_doubt or self._is_away):
                raise Stopped
            try:
                if is_in_doubt and (found := self._find(plan)) is not None:
                    return found
                appended = self._client.call(call, retry=ONCE)
            except ApiFailed as error:
                if error.status == BAD_REQUEST and not is_careful:
                    # The server refuses a payload that passed as JSON here; the careful renderer finds it.
                    is_careful = True
                    call = self._call(self._renderer.records(prepared.messages, careful=True), plan)
                    continue
                is_in_doubt |= not self._did_nothing(error)
                self._pause(error, backoff)
            else:
                self._mark_connected()
                return _Delivered(appended.head_seq, appended.deduped)

    def _call(self, records: Rendered, plan: Plan) -> Call[Appended]:
        more = b',"create":true'
        if self._settings.durability is not None:
            more += b',"config":' + msgspec.json.encode({"durability": self._settings.durability})
        marker = Marker(plan.first_seq, plan.last_seq, plan.count)
        body = request_body(records, marker, self._state.node, self._state.key(plan), more)
        path = topic_path(self._settings.topic) + "?return_seqs=false"
        return Call("POST", path, Appended, body, may_repeat=False)

    def _find(self, plan: Plan) -> _Delivered | None:
        """Return what the topic says of a batch in doubt; None if it has to be sent."""
        finding = resolve_in_doubt(self._client, self._state, plan)
        if finding.verdict is Verdict.LANDED:
            self._mark_connected()
            return _Delivered(finding.topic_head, is_repeat=True)
        if finding.verdict is Verdict.UNKNOWN and not self._is_key_known(plan):
            if self._settings.in_doubt == "skip":
                return _Delivered(finding.topic_head, is_repeat=True)
            if self._settings.in_doubt == "stop":
                raise BatchInDoubt(
                    f"messages {plan.first_seq} to {plan.last_seq} of {self._settings.queue} may have been "
                    f"in topic {self._settings.topic!r}: an answer was lost, records of that time are gone "
                    "from the topic, and the server no longer remembers the batch's key. Look at the "
                    "readers of the topic, then start the bridge with --in-doubt send or --in-doubt skip",
                    plan.first_seq,
                    plan.last_seq,
                )
        return None

    def _is_key_known(self, plan: Plan) -> bool:
        """Whether the server still has the key if the batch arrived; trusts half of the window only."""
        try:
            state = self._client.call(calls.topic(self._settings.topic, touch=False), retry=ONCE)
            window_ms = state.config.idempotency_window_ms
        except ApiFailed as error:
            if error.status != NOT_FOUND:
                raise
            window_ms = WINDOW_MS_DEFAULT
        age_ms = self._clock.wall_ns() // _NS_PER_MS - plan.planned_ms
        return 0 <= age_ms < window_ms // 2

    def _did_nothing(self, error: ApiFailed) -> bool:
        """Whether a failed request certainly had no effect; raises errors that a retry cannot solve."""
        if error.is_busy or error.status == FULL:
            return True
        if error.is_outage:
            return not error.was_sent
        if error.status >= 500:
            return False
        raise error

    # --- Lag -----------------------------------------------------------------------------------------------

    def _measure_lag(self) -> None:
        size = self._reader.segment_size
        lag = byte_position(*self._control.head(), size) - byte_position(*self._confirmed, size)
        self.progress.lag = max(0, lag)
        age_ns = self._clock.wall_ns() - self._confirmed_ts_ns
        is_behind = self.progress.lag > 0 and self._confirmed_ts_ns > 0
        self._metrics.lag_bytes.set(self.progress.lag)
        self._metrics.lag_seconds.set(max(0, age_ns) / NS_PER_S if is_behind else 0)
