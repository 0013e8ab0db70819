"""What clients iterate over, written once as flows: the records of a topic, watched topics, pushed jobs.

Owns where reading goes on after a lost connection, and how gaps are reported; touches no socket and no clock.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple, overload
from urllib.parse import urlencode

import msgspec

from everlog.api_types import (
    CaughtUp,
    ConsumerAtRisk,
    Record,
    Records,
    StreamError,
    Tombstone,
    TopicCreated,
    TopicGone,
    Watched,
    WatchEvent,
    WatchSession,
)
from everlog.client import calls
from everlog.client.arguments import (
    Gaps,
    Nodes,
    Start,
    WatchStart,
    checked_gaps,
    checked_start,
    checked_starts,
)
from everlog.client.errors import UNREACHABLE, ApiFailed, RecordsLost
from everlog.client.flows import Call, ClientContext, Emit, Flow, More, Open, Pause, Stream
from everlog.client.retrying import Attempts
from everlog.client.sse import Event, EventParser
from everlog.client.wire import Answer, ServerAddress, foreign, refusal, topic_path
from everlog.job_types import Job

LONG_POLL_MS: Final = 25_000
HEARTBEAT_MS: Final = 15_000
SILENCE_S: Final = 2.5 * HEARTBEAT_MS / 1000
"""A stream without a heartbeat for so long counts as lost."""

_STARTS: Final = frozenset(("from_seq", "tail", "from_time_ms", "consumer"))
NOT_FOUND: Final = 404
SESSION_GONE: Final = 410
THROTTLED: Final = 429
_EVENT_STREAM: Final = b"Accept: text/event-stream\r\n"


def lost(gap: Tombstone) -> RecordsLost:
    """The exception for a gap."""
    if gap.reason == "recreated":
        message = (
            f"topic {gap.topic} ends with seq {gap.head_seq}, before the seq to be read: it was deleted and "
            "created again, or never was longer; read it from its start"
        )
    else:
        message = (
            f"seqs {gap.gap_from} to {gap.gap_to} of topic {gap.topic} are gone ({gap.reason}); "
            f"continue with start={gap.resume}, or read with gaps='yield'"
        )
    return RecordsLost(message, gap)


# --- Reading ---------------------------------------------------------------------------------------------


class _ReadOptions(NamedTuple):
    topic: str
    start: Start
    follow: bool
    gaps: Gaps
    diff: Mapping[str, Any]


@overload
def read(
    topic: str,
    start: Start = "earliest",
    *,
    follow: bool | None = None,
    gaps: Literal["raise"] = "raise",
    limit: int = 1000,
    node: Nodes | None = None,
    include_tags: bool = True,
    include_meta: bool = True,
) -> Stream[Record]: ...


@overload
def read(
    topic: str,
    start: Start = "earliest",
    *,
    follow: bool | None = None,
    gaps: Literal["yield"],
    limit: int = 1000,
    node: Nodes | None = None,
    include_tags: bool = True,
    include_meta: bool = True,
) -> Stream[Record | Tombstone]: ...


def read(
    topic: str,
    start: Start = "earliest",
    *,
    follow: bool | None = None,
    gaps: Gaps = "raise",
    limit: int = 1000,
    node: Nodes | None = None,
    include_tags: bool = True,
    include_meta: bool = True,
) -> Stream[Record | Tombstone]:
    """Iterate over the records of a topic, from `start` to its present end, or endlessly with `follow`.

    Without `follow`, `start="now"` follows and the others do not. Records that were gone before they were
    read are reported by `RecordsLost`, or by a `Tombstone` in their place with `gaps="yield"`. A reader that
    starts with "earliest" misses nothing that had gone before.
    """
    is_following = start == "now" if follow is None else follow
    options = {"limit": limit, "node": node, "include_tags": include_tags, "include_meta": include_meta}
    if is_following:
        options["wait_ms"] = LONG_POLL_MS
    wanted = _ReadOptions(topic, checked_start(start), is_following, checked_gaps(gaps), options)
    return Stream(lambda context: _read(context, wanted))


def _read(context: ClientContext, wanted: _ReadOptions) -> Flow[None]:
    cursor = yield from _first_cursor(context, wanted)
    ignores_gap = wanted.start == "earliest"
    end: int | None = None
    while True:
        diff = yield from calls.diff(wanted.topic, cursor, **wanted.diff).steps(context)
        if diff.tombstone is not None and not ignores_gap:
            gap = msgspec.structs.replace(diff.tombstone, topic=wanted.topic)
            if wanted.gaps == "raise":
                raise lost(gap)
            yield Emit(gap)
            if gap.reason == "recreated":
                end = None
        ignores_gap = False
        for record in diff.records:
            yield Emit(record)
        cursor = diff.next_from_seq
        if not wanted.follow:
            # The end of the first page: reading a topic that is being written would otherwise never end.
            end = diff.head_seq if end is None else end
            if diff.caught_up or cursor >= end:
                return


def _first_cursor(context: ClientContext, wanted: _ReadOptions) -> Flow[int]:
    if isinstance(wanted.start, int):
        return max(wanted.start - 1, 0)
    if wanted.start == "earliest":
        return 0
    state = yield from calls.topic(wanted.topic, touch=False).steps(context)
    return state.head_seq


# --- Watching --------------------------------------------------------------------------------------------

_EVENTS: Final[dict[str, type[WatchEvent]]] = {
    "record": Records,
    "caught-up": CaughtUp,
    "tombstone": Tombstone,
    "topic-deleted": TopicGone,
    "topic-created": TopicCreated,
    "consumer-at-risk": ConsumerAtRisk,
}


class _WatchOptions(NamedTuple):
    topics: Mapping[str, WatchStart]
    gaps: Gaps
    lenient: bool
    session: Mapping[str, Any]


def watch(
    topics: Mapping[str, WatchStart] | Iterable[str] | str,
    *,
    gaps: Gaps = "raise",
    lenient: bool = False,
    node: Nodes | None = None,
    include_tags: bool = True,
    include_meta: bool = True,
    include_data: bool = True,
    limit: int = 256,
    consistency: Literal["eventual", "strong"] = "eventual",
) -> Stream[WatchEvent]:
    """Iterate over what happens to topics; the iteration ends when all of them are deleted.

    A mapping says where each topic begins; otherwise all begin with the next record. An entry may also be
    like `{"from_time_ms": t}`, `{"consumer": name}` or `{"tail": True, "filter": [...]}`. A name that ends in
    `*` stands for all topics that begin so; those that appear later join with a `TopicCreated`. After a lost
    connection or a restart of the server it continues where it was, without a missing or repeated record.
    """
    session = {
        "heartbeat_ms": HEARTBEAT_MS,
        "node": node,
        "include_tags": include_tags,
        "include_meta": include_meta,
        "include_data": include_data,
        "limit": limit,
        "consistency": consistency,
    }
    wanted = _WatchOptions(checked_starts(topics), checked_gaps(gaps), lenient, session)
    return Stream(lambda context: _watch(context, wanted))


def _watch(context: ClientContext, wanted: _WatchOptions) -> Flow[None]:
    # The server's cursors are ahead of what was emitted here by what a connection lost, so each new
    # connection says by `Last-Event-ID` where to continue.
    cursors = {topic: watched_from(start) for topic, start in wanted.topics.items()}
    session = yield from _session(wanted, cursors).steps(context)
    watching = _Watching(context, wanted, {topic: seen.from_seq for topic, seen in session.topics.items()})
    attempts = context.attempts()
    while watching.is_going_on:
        try:
            yield from _events(context, watching.request(session.wid), watching.take, attempts)
            failure = _ended(context)
        except ApiFailed as error:
            failure = error
        if failure.status == NOT_FOUND:
            session = yield from _session(wanted, watching.cursors()).steps(context)
            watching.begin_again(session.topics)
        elif watching.is_going_on:
            yield Pause(attempts.pause_s(failure, may_repeat=True))


def watched_from(start: WatchStart) -> dict[str, object]:
    """Where watching a topic begins, as the server takes it."""
    if isinstance(start, Mapping):
        return dict(start)
    if start == "now":
        return {"tail": True}
    return {"from_seq": 0 if start == "earliest" else max(int(start) - 1, 0)}


def _session(wanted: _WatchOptions, cursors: Mapping[str, Mapping[str, object]]) -> Call[WatchSession]:
    return calls.start_watch(cursors, lenient=wanted.lenient, **wanted.session)


class _Watching:
    """How far each topic was read; deleted topics are left out."""

    def __init__(self, context: ClientContext, wanted: _WatchOptions, at: dict[str, int]) -> None:
        self.at = at
        self._context = context
        self._gaps = wanted.gaps
        self._patterns = [topic for topic in wanted.topics if topic.endswith("*")]
        self._entries = {topic: watched_from(start) for topic, start in wanted.topics.items()}
        # With patterns the topics are too many to name in a header, and the server's id stands for them.
        self._last_id = ""
        # A watch from "earliest" misses nothing that had gone before.
        self._ignores_gap = {topic for topic, start in wanted.topics.items() if start == "earliest"}

    @property
    def is_going_on(self) -> bool:
        return bool(self.at or self._patterns)

    def request(self, wid: str) -> bytes:
        event_id = base64.urlsafe_b64encode(msgspec.json.encode(self.at)).rstrip(b"=")
        if self._patterns:
            event_id = self._last_id.encode()
        headers = _EVENT_STREAM + (b"Last-Event-ID: " + event_id + b"\r\n" if event_id else b"")
        return self._context.writer.request("GET", f"/watch/{wid}", None, headers)

    def cursors(self) -> dict[str, dict[str, object]]:
        """The entries of a new session: every known topic from where it was, patterns for the others."""
        entries = {topic: {**self._rest_of(topic), "from_seq": seq} for topic, seq in self.at.items()}
        return entries | {pattern: self._rest_of(pattern) for pattern in self._patterns}

    def _rest_of(self, topic: str) -> dict[str, object]:
        """What an entry says besides where it begins."""
        pattern = next((each for each in self._patterns if topic.startswith(each[:-1])), topic)
        entry = self._entries.get(topic) or self._entries.get(pattern) or {}
        return {name: value for name, value in entry.items() if name not in _STARTS}

    def begin_again(self, topics: Mapping[str, Watched]) -> None:
        """A new session has these topics."""
        self._last_id = ""
        if self._patterns:
            self.at = {topic: watched.from_seq for topic, watched in topics.items()}
        else:
            self.at = {topic: seq for topic, seq in self.at.items() if topic in topics}

    def take(self, event: Event) -> WatchEvent | None:
        """Move the cursor; returns the event if it is to be emitted, raises a gap that is to be raised."""
        found = _decoded(self._context.address, event)
        self._last_id = event.event_id or self._last_id
        if found is None or (found.topic not in self.at and not self._patterns):
            return None
        topic = found.topic
        ignores_gap = topic in self._ignores_gap
        self._ignores_gap.discard(topic)
        advance(self.at, found)
        if isinstance(found, Tombstone):
            if ignores_gap:
                return None
            if self._gaps == "raise":
                raise lost(found)
        return found


def advance(at: dict[str, int], event: WatchEvent) -> None:
    """Move the cursor of a watched topic past an event; a deleted topic has none."""
    if isinstance(event, Records):
        at[event.topic] = event.to_seq
    elif isinstance(event, TopicCreated):
        at[event.topic] = 0
    elif isinstance(event, TopicGone):
        at.pop(event.topic, None)
    elif isinstance(event, Tombstone) and event.topic in at:
        at[event.topic] = 0 if event.reason == "recreated" else event.gap_to


def _decoded(address: ServerAddress, event: Event) -> WatchEvent | None:
    """The event as a value, None for an unknown kind; raises an error that the server reports."""
    kind = _EVENTS.get(event.name)
    try:
        if kind is not None:
            return msgspec.json.decode(event.data, type=kind)
        if event.name != "error":
            return None
        problem = msgspec.json.decode(event.data, type=StreamError)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise foreign(address, 200, f"event {event.name}: {error}") from None
    if problem.code == THROTTLED:
        return None  # advice, after which the stream goes on
    raise stream_failure(problem.code, problem.message)


def stream_failure(code: str | int, message: str) -> ApiFailed:
    """The failure that an error event or message of the server reports."""
    status = 503 if code == "server_shutting_down" else code if isinstance(code, int) else 500
    if status == SESSION_GONE:
        status = NOT_FOUND
    return ApiFailed(status, str(code), message or f"the server ended the stream: {code}")


def _events(
    context: ClientContext, request: bytes, take: Callable[[Event], Any], attempts: Attempts
) -> Flow[None]:
    """Emit what `take` makes of the events of one connection, until it ends."""
    head: Answer = yield Open(request, context.timeout_s)
    if not head.is_success:
        raise refusal(context.writer, head)
    parser = EventParser()
    while piece := (yield More(SILENCE_S)):
        for event in parser.feed(piece):
            attempts.begin_again()
            value = take(event)
            if value is not None:
                yield Emit(value)


def _ended(context: ClientContext) -> ApiFailed:
    return ApiFailed(UNREACHABLE, "unreachable", f"the server at {context.address} ended the stream")


# --- Working ---------------------------------------------------------------------------------------------


def work(queue: str, node: str, max: int = 1, *, lease_ms: int | None = None) -> Stream[Job]:
    """Iterate over jobs that the server pushes, at most `max` of them unfinished at a time.

    Finish each with `ack` or `nack`. The leases end with this iteration.
    """
    query: dict[str, str | int] = {"node": node, "max": max}
    if lease_ms is not None:
        query["lease_ms"] = lease_ms
    path = f"{topic_path(queue, '/work')}?{urlencode(query)}"
    return Stream(lambda context: _work(context, path))


def _work(context: ClientContext, path: str) -> Flow[None]:
    request = context.writer.request("GET", path, None, _EVENT_STREAM)
    attempts = context.attempts()

    def take(event: Event) -> Job | None:
        if event.name == "job":
            return msgspec.json.decode(event.data, type=Job)
        _decoded(context.address, event)
        return None

    while True:
        try:
            yield from _events(context, request, take, attempts)
            failure = _ended(context)
        except ApiFailed as error:
            failure = error
        yield Pause(attempts.pause_s(failure, may_repeat=True))
