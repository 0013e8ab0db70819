"""What clients do, written once: flows that say which step comes next and are told its outcome.

A flow is a generator. It yields steps (send this, pause so long, open that stream), gets what came of each,
and returns a result or emits values on its way. `Client` and `AsyncClient` carry out the steps, each in its
own way. Owns retrying, reading, watching and working; touches no socket and no clock.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Container, Generator, Mapping
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlencode

import msgspec

from everlog.api_types import (
    CaughtUp,
    Job,
    Records,
    RouterSummary,
    StreamError,
    Tombstone,
    TopicGone,
    TopicSummary,
    WatchEvent,
    WatchSession,
)
from everlog.client import calls
from everlog.client.arguments import Gaps, Start, checked_gaps, checked_start
from everlog.client.calls import Call, Nodes
from everlog.client.errors import UNREACHABLE, ApiFailed, RecordsLost
from everlog.client.retrying import Attempts, RetryPolicy
from everlog.client.sse import Event, EventParser
from everlog.client.wire import Answer, Place, RequestWriter, foreign, refusal, topic_path

T = TypeVar("T")

LONG_POLL_MS: Final = 25_000
HEARTBEAT_MS: Final = 15_000
SILENCE_S: Final = 2.5 * HEARTBEAT_MS / 1000
"""A stream is given up after so long without a heartbeat."""

NOT_FOUND: Final = 404
SESSION_GONE: Final = 410
THROTTLED: Final = 429


class Send(NamedTuple):
    """Send a request and wait for its answer, which is the outcome."""

    request: bytes
    timeout_s: float


class Pause(NamedTuple):
    """Let time pass."""

    duration_s: float


class Open(NamedTuple):
    """Open a stream; its head is the outcome, or the whole answer if it is no success."""

    request: bytes
    timeout_s: float


class More(NamedTuple):
    """The next piece of the stream; nothing at its end."""

    timeout_s: float


class Emit(NamedTuple):
    """A value for whoever iterates."""

    value: Any


Step = Send | Pause | Open | More | Emit
Flow = Generator[Step, Any, T]


class Wishes:
    """What all flows of a client need to know: the server, its requests, time."""

    def __init__(
        self, writer: RequestWriter, policy: RetryPolicy, timeout_s: float, now_ns: Callable[[], int]
    ) -> None:
        self.writer = writer
        self.policy = policy
        self.timeout_s = timeout_s
        self.now_ns = now_ns

    @property
    def place(self) -> Place:
        """Where the server is."""
        return self.writer.place

    def attempts(self) -> Attempts:
        """The tries of a new call."""
        return Attempts(self.policy, self.now_ns)


def call(wishes: Wishes, wanted: Call[T]) -> Flow[T]:
    """Carry out a call, trying again where that is right."""
    request = wishes.writer.request(wanted.method, wanted.path, wanted.body, _accepts(wanted))
    attempts = wishes.attempts()
    while True:
        try:
            answer: Answer = yield Send(request, attempts.left_s(wishes.timeout_s) + wanted.wait_s)
            return read_answer(wishes.writer, wanted, answer)
        except ApiFailed as error:
            pause_s = attempts.pause_s(error, wanted.may_repeat)
        yield Pause(pause_s)


def _accepts(wanted: Call[Any]) -> bytes:
    return b"Accept: application/json\r\n" if wanted.path == "/metrics" else b""


def read_answer(writer: RequestWriter, wanted: Call[T], answer: Answer) -> T:
    """The value that an answer holds; raises what the server refused."""
    if not answer.is_success:
        raise refusal(writer, answer)
    try:
        return wanted.read(answer.body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise foreign(writer.place, answer.status, f"{wanted.method} {wanted.path}: {error}") from None


# --- Lists -----------------------------------------------------------------------------------------------


def topics(wishes: Wishes, prefix: str | None) -> Flow[list[TopicSummary]]:
    """All topics, page after page."""
    found: list[TopicSummary] = []
    cursor: str | None = None
    while True:
        page = yield from call(wishes, calls.topics_page(prefix, cursor=cursor))
        found += page.topics
        cursor = page.next_cursor
        if cursor is None:
            return found


def routers(
    wishes: Wishes, prefix: str | None, source: str | None, dest: str | None
) -> Flow[list[RouterSummary]]:
    """All routers, page after page."""
    found: list[RouterSummary] = []
    cursor: str | None = None
    while True:
        wanted = calls.routers_page(prefix, source=source, dest=dest, cursor=cursor)
        page = yield from call(wishes, wanted)
        found += page.routers
        cursor = page.next_cursor
        if cursor is None:
            return found


# --- Reading ---------------------------------------------------------------------------------------------


class ReadWishes(NamedTuple):
    """How a topic is read."""

    topic: str
    start: Start
    follow: bool | None
    gaps: Gaps
    limit: int
    node: Nodes | None
    include_tags: bool
    include_meta: bool


def read(wishes: Wishes, wanted: ReadWishes) -> Flow[None]:
    """Emit the records of a topic, up to its present end or for ever.

    Who asks for what is there misses nothing that had gone before; any other gap is told. What makes no sense
    is refused at once, not when the first record is asked for.
    """
    start, gaps = checked_start(wanted.start), checked_gaps(wanted.gaps)
    return _read(wishes, wanted._replace(start=start, gaps=gaps))


def _read(wishes: Wishes, wanted: ReadWishes) -> Flow[None]:
    cursor = yield from _first_cursor(wishes, wanted)
    is_following = wanted.start == "now" if wanted.follow is None else wanted.follow
    takes_what_is_there = wanted.start == "earliest"
    end: int | None = None
    while True:
        diff = yield from call(
            wishes,
            calls.diff(
                wanted.topic,
                cursor,
                limit=wanted.limit,
                node=wanted.node,
                include_tags=wanted.include_tags,
                include_meta=wanted.include_meta,
                wait_ms=LONG_POLL_MS if is_following else 0,
            ),
        )
        if diff.tombstone is not None and not takes_what_is_there:
            gap = msgspec.structs.replace(diff.tombstone, topic=wanted.topic)
            if wanted.gaps == "raise":
                raise lost(gap)
            yield Emit(gap)
            if gap.reason == "recreated":
                end = None
        takes_what_is_there = False
        for record in diff.records:
            yield Emit(record)
        cursor = diff.next_from_seq
        if not is_following:
            # A topic that is being written would otherwise never end.
            end = diff.head_seq if end is None else end
            if diff.caught_up or cursor >= end:
                return


def _first_cursor(wishes: Wishes, wanted: ReadWishes) -> Flow[int]:
    if isinstance(wanted.start, int):
        return max(wanted.start - 1, 0)
    if wanted.start == "earliest":
        return 0
    state = yield from call(wishes, calls.topic(wanted.topic, touch=False))
    return state.head_seq


def lost(gap: Tombstone) -> RecordsLost:
    """The exception for a gap."""
    if gap.reason == "recreated":
        message = (
            f"topic {gap.topic} ends with seq {gap.head_seq}, before what was to be read: it was deleted and "
            "created again, or never was longer; read it from its start"
        )
    else:
        message = (
            f"seqs {gap.gap_from} to {gap.gap_to} of topic {gap.topic} are gone ({gap.reason}); "
            f"go on with start={gap.resume}, or read with gaps='yield'"
        )
    return RecordsLost(message, gap)


# --- Watching --------------------------------------------------------------------------------------------


class WatchWishes(NamedTuple):
    """What is watched: where each topic begins, and what of it is sent."""

    topics: Mapping[str, Start]
    gaps: Gaps
    lenient: bool
    options: Mapping[str, object]


_EVENTS: Final[dict[str, type[WatchEvent]]] = {
    "record": Records,
    "caught-up": CaughtUp,
    "tombstone": Tombstone,
    "topic-deleted": TopicGone,
}


def watch(wishes: Wishes, wanted: WatchWishes) -> Flow[None]:
    """Emit the events of topics, across connections, sessions and restarts of the server.

    Where to go on is known here: what this flow has emitted. The server's cursors are ahead of that by what
    was lost with a connection, so each new one is told by `Last-Event-ID`.
    """
    return _watch(wishes, wanted._replace(gaps=checked_gaps(wanted.gaps)))


def _watch(wishes: Wishes, wanted: WatchWishes) -> Flow[None]:
    cursors = {topic: _watched_from(start) for topic, start in wanted.topics.items()}
    session = yield from call(wishes, _session_call(wanted, cursors))
    watching = _Watching(wishes, wanted, {topic: seen.from_seq for topic, seen in session.topics.items()})
    attempts = wishes.attempts()
    while watching.at:
        try:
            yield from _stream(wishes, watching.request(session.wid), watching.take, attempts)
            failure = _ended(wishes)
        except ApiFailed as error:
            failure = error
        if failure.status == NOT_FOUND:
            session = yield from call(wishes, _session_call(wanted, watching.cursors()))
            watching.keep_only(session.topics)
        elif watching.at:
            yield Pause(attempts.pause_s(failure, may_repeat=True))


def _watched_from(start: Start) -> dict[str, object]:
    if start == "now":
        return {"tail": True}
    return {"from_seq": 0 if start == "earliest" else max(int(start) - 1, 0)}


def _session_call(wanted: WatchWishes, cursors: Mapping[str, Mapping[str, object]]) -> Call[WatchSession]:
    return calls.start_watch(cursors, lenient=wanted.lenient, heartbeat_ms=HEARTBEAT_MS, **wanted.options)


def event_id(cursors: Mapping[str, int]) -> str:
    """What a stream is told of where its reader is."""
    return base64.urlsafe_b64encode(msgspec.json.encode(dict(cursors))).rstrip(b"=").decode()


class _Watching:
    """How far each topic was read; those that are gone are left out."""

    def __init__(self, wishes: Wishes, wanted: WatchWishes, at: dict[str, int]) -> None:
        self.at = at
        self._wishes = wishes
        self._wanted = wanted
        # Who asks for what is there misses nothing that had gone before.
        self._takes_what_is_there = {topic for topic, start in wanted.topics.items() if start == "earliest"}

    def request(self, wid: str) -> bytes:
        headers = f"Accept: text/event-stream\r\nLast-Event-ID: {event_id(self.at)}\r\n".encode()
        return self._wishes.writer.request("GET", f"/watch/{wid}", None, headers)

    def cursors(self) -> dict[str, dict[str, object]]:
        return {topic: {"from_seq": seq} for topic, seq in self.at.items()}

    def keep_only(self, topics: Container[str]) -> None:
        self.at = {topic: seq for topic, seq in self.at.items() if topic in topics}

    def take(self, event: Event) -> WatchEvent | None:
        """Move the cursor; the event as it is to be told, if it is. Raises what is to be an exception."""
        found = decode_event(self._wishes.place, event)
        if found is None or found.topic not in self.at:
            return None
        topic = found.topic
        is_first = topic in self._takes_what_is_there
        self._takes_what_is_there.discard(topic)
        if isinstance(found, Records):
            self.at[topic] = found.to_seq
        elif isinstance(found, Tombstone):
            self.at[topic] = 0 if found.reason == "recreated" else found.gap_to
            if is_first:
                return None
            if self._wanted.gaps == "raise":
                raise lost(found)
        elif isinstance(found, TopicGone):
            del self.at[topic]
        return found


def decode_event(place: Place, event: Event) -> WatchEvent | None:
    """The event as a value, None if its kind is not known; raises what the server tells is wrong."""
    kind = _EVENTS.get(event.name)
    try:
        if kind is not None:
            return msgspec.json.decode(event.data, type=kind)
        if event.name != "error":
            return None
        problem = msgspec.json.decode(event.data, type=StreamError)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise foreign(place, 200, f"event {event.name}: {error}") from None
    if problem.code == THROTTLED:
        return None  # advice, after which the stream goes on
    raise stream_failure(problem.code, problem.message)


def stream_failure(code: str | int, message: str) -> ApiFailed:
    """The failure that an event of the server tells about."""
    status = 503 if code == "server_shutting_down" else code if isinstance(code, int) else 500
    if status == SESSION_GONE:
        status = NOT_FOUND
    return ApiFailed(status, str(code), message or f"the server ended the stream: {code}")


def _stream(wishes: Wishes, request: bytes, take: Callable[[Event], Any], attempts: Attempts) -> Flow[None]:
    """Emit what `take` makes of the events of one connection, until it ends."""
    head: Answer = yield Open(request, wishes.timeout_s)
    if not head.is_success:
        raise refusal(wishes.writer, head)
    parser = EventParser()
    while piece := (yield More(SILENCE_S)):
        for event in parser.feed(piece):
            attempts.begin_again()
            value = take(event)
            if value is not None:
                yield Emit(value)


def _ended(wishes: Wishes) -> ApiFailed:
    return ApiFailed(UNREACHABLE, "unreachable", f"the server at {wishes.place} ended the stream")


# --- Working ---------------------------------------------------------------------------------------------


def work(wishes: Wishes, queue: str, node: str, max_jobs: int, lease_ms: int | None) -> Flow[None]:
    """Emit the jobs that the server pushes, across connections. A lost connection gives its jobs back."""
    query: dict[str, str | int] = {"node": node, "max": max_jobs}
    if lease_ms is not None:
        query["lease_ms"] = lease_ms
    path = f"{topic_path(queue, '/work')}?{urlencode(query)}"
    request = wishes.writer.request("GET", path, None, b"Accept: text/event-stream\r\n")
    attempts = wishes.attempts()

    def take(event: Event) -> Job | None:
        if event.name == "job":
            return msgspec.json.decode(event.data, type=Job)
        decode_event(wishes.place, event)
        return None

    while True:
        try:
            yield from _stream(wishes, request, take, attempts)
            failure = _ended(wishes)
        except ApiFailed as error:
            failure = error
        yield Pause(attempts.pause_s(failure, may_repeat=True))
