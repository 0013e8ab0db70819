"""Every operation of the HTTP API: what it takes, what it answers, and how it can fail.

Owns the table that the OpenAPI document and the reference page are made from. Paths and methods are those of
the application; a test compares both ways.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from everlog import api_types
from everlog.server.auth import Scope
from everlog.server.bodies import AppendBody, DeleteBody, DiffBody, WatchBody
from everlog.topics import TopicConfig

EVENT_STREAM: Final = "text/event-stream"
PLAIN_TEXT: Final = "text/plain"
NO_SCOPE: Final = Scope(0)


@dataclass(frozen=True)
class Parameter:
    """A parameter of the query, or a header."""

    name: str
    kind: str
    text: str
    default: Any = None
    is_header: bool = False
    is_required: bool = False


@dataclass(frozen=True)
class Answer:
    """A success: a struct of `api_types` as JSON, other content, or both."""

    text: str
    body: type | None = None
    content: str | None = None


@dataclass(frozen=True)
class Operation:
    """One method of one path. `name` says what `:name` in the path stands for."""

    method: str
    path: str
    id: str
    group: str
    summary: str
    answers: dict[int, Answer]
    codes: frozenset[str]
    scope: Scope = NO_SCOPE
    is_open: bool = False
    """No key is needed, whatever the settings."""
    takes_token: bool = False
    """The key may also stand in the query."""
    name: str | None = None
    parameters: tuple[Parameter, ...] = ()
    body: type | None = None
    body_is_optional: bool = False
    text: str = ""

    @property
    def template(self) -> str:
        """The path with its parameter in braces."""
        return self.path if self.name is None else self.path.replace(":name", f"{{{self.name}}}")


def codes_of(words: str) -> frozenset[str]:
    """Error codes, written with blanks between them."""
    return frozenset(words.split())


KEYED: Final = "unauthorized forbidden not_ready "
PAGE: Final = (
    Parameter("page_size", "integer", "entries of a page, clamped to [1, 1000]", 100),
    Parameter("cursor", "string", "`next_cursor` of the page before"),
)

TOPICS: Final = (
    Operation(
        "GET",
        "/v0/topics",
        "listTopics",
        "Topics",
        "List topics",
        {200: Answer("a page", api_types.TopicPage)},
        codes_of(KEYED),
        Scope.READ,
        parameters=(
            Parameter("prefix", "string", "only names that begin so"),
            *PAGE,
            Parameter("touch", "boolean", "whether this counts as a use of the topics", False),
        ),
        text="Sorted by name, byte by byte. A key with prefixes sees only names that it may use.",
    ),
    Operation(
        "PUT",
        "/v0/topics/:name",
        "putTopic",
        "Topics",
        "Create a topic, or replace its settings",
        {
            200: Answer("replaced", api_types.TopicPut),
            201: Answer("created", api_types.TopicPut),
        },
        codes_of(KEYED + "topic_exists_incompatible"),
        Scope.ADMIN,
        name="topic",
        body=TopicConfig,
        body_is_optional=True,
        text="What is left out returns to its default. A tighter cap or age holds at once.",
    ),
    Operation(
        "GET",
        "/v0/topics/:name",
        "getTopic",
        "Topics",
        "Look at a topic",
        {200: Answer("its state", api_types.TopicState)},
        codes_of(KEYED + "topic_not_found"),
        Scope.READ,
        name="topic",
        parameters=(Parameter("touch", "boolean", "whether this counts as a use of the topic", True),),
    ),
    Operation(
        "GET",
        "/v0/topics/:name/account",
        "accountTopic",
        "Topics",
        "Account for a range of seqs",
        {200: Answer("what has become of them", api_types.TopicAccount)},
        codes_of(KEYED + "topic_not_found invalid_request"),
        Scope.READ,
        name="topic",
        parameters=(
            Parameter("from_seq", "integer", "begin behind this seq", 0),
            Parameter("to_seq", "integer", "the last seq; by default as many as one answer covers"),
        ),
        text=(
            "One answer covers up to 1,000,000 seqs and says by `to_seq` where it ends. Asking does not "
            "count as a use of the topic."
        ),
    ),
    Operation(
        "DELETE",
        "/v0/topics/:name",
        "deleteTopic",
        "Topics",
        "Delete a topic and everything in it",
        {200: Answer("gone; `deleted` is false if it was not there", api_types.TopicDeleted)},
        codes_of(KEYED + "topic_not_empty"),
        Scope.DELETE,
        name="topic",
        parameters=(Parameter("if_empty", "boolean", "only if it has no records", False),),
        text="Routers with this topic at an end go with it. The next one of this name begins with seq 1.",
    ),
    Operation(
        "POST",
        "/v0/topics/:name",
        "append",
        "Topics",
        "Append records",
        {
            200: Answer("appended", api_types.Appended),
            201: Answer("appended, and the topic was created", api_types.Appended),
        },
        codes_of(KEYED + "topic_not_found topic_full batch_too_large record_too_large"),
        Scope.WRITE,
        name="topic",
        parameters=(
            Parameter("return_seqs", "boolean", "whether the answer lists the seqs", True),
            Parameter(
                "Idempotency-Key",
                "string",
                "as `idempotency_key`; the field of the body wins",
                is_header=True,
            ),
        ),
        body=AppendBody,
        text=(
            "All or nothing, answered when the records are as safe as the topic's durability says. An append "
            "with `config` to a topic that does not exist needs the scope `admin` as well."
        ),
    ),
    Operation(
        "POST",
        "/v0/topics/:name/diff",
        "diff",
        "Topics",
        "Read from a cursor",
        {200: Answer("what is behind the cursor", api_types.Diff)},
        codes_of(KEYED + "topic_not_found"),
        Scope.READ,
        name="topic",
        body=DiffBody,
        body_is_optional=True,
        text="With `wait_ms` a reader that is caught up is answered when something is appended.",
    ),
    Operation(
        "POST",
        "/v0/topics/:name/delete",
        "deleteRecords",
        "Topics",
        "Delete records by seq, by tag, or both",
        {200: Answer("deleted", api_types.RecordsDeleted)},
        codes_of(KEYED + "topic_not_found"),
        Scope.DELETE,
        name="topic",
        body=DeleteBody,
        text="`before_seq` or `match` must be there; with both, both must be fulfilled. No gap is reported.",
    ),
)

WATCH: Final = (
    Operation(
        "POST",
        "/v0/watch",
        "watch",
        "Watch",
        "Make a watch session",
        {200: Answer("the session", api_types.WatchSession)},
        codes_of(KEYED + "topic_not_found"),
        Scope.READ,
        parameters=(Parameter("lenient", "boolean", "leave topics out that do not exist", False),),
        body=WatchBody,
        text="It is kept in memory, and dropped after 300 s without an open stream.",
    ),
    Operation(
        "GET",
        "/v0/watch/:name",
        "openStream",
        "Watch",
        "Open the stream of a session",
        {200: Answer("server-sent events, see the AsyncAPI document", content=EVENT_STREAM)},
        codes_of("unauthorized not_ready not_acceptable not_found"),
        takes_token=True,
        name="wid",
        parameters=(
            Parameter(
                "Last-Event-ID",
                "string",
                "the last id that was processed; can only move back",
                is_header=True,
            ),
        ),
        text="With keys, only the key that made the session opens its stream.",
    ),
    Operation(
        "GET",
        "/v0/ws",
        "openSocket",
        "Watch",
        "Upgrade to a WebSocket",
        {101: Answer("the WebSocket, see the AsyncAPI document")},
        codes_of("unauthorized forbidden not_ready"),
        text="The key must be in the header. Pages of other origins need to be allowed (`cors_origins`).",
    ),
)

_PROBE_TEXT: Final = "Needs a key only if `probe_auth` is on."


def _probe(path: str, id_: str, summary: str, body: type, codes: str) -> Operation:
    answer = {200: Answer("yes", body)}
    return Operation(
        "GET", path, id_, "Probes", summary, answer, codes_of(codes), is_open=True, text=_PROBE_TEXT
    )


_PROBE_CODES: Final = "unauthorized"
PROBES: Final = (
    _probe("/v0/health", "health", "Is the process alive?", api_types.Health, _PROBE_CODES),
    _probe("/healthz", "healthz", "The same as /v0/health", api_types.Health, _PROBE_CODES),
    _probe("/v0/ready", "ready", "Is recovery over?", api_types.Ready, _PROBE_CODES + " not_ready"),
    _probe("/readyz", "readyz", "The same as /v0/ready", api_types.Ready, _PROBE_CODES + " not_ready"),
    Operation(
        "GET",
        "/v0/metrics",
        "metrics",
        "Probes",
        "What the server counts",
        {200: Answer("Prometheus text, or JSON if `Accept` has it", api_types.Metrics, PLAIN_TEXT)},
        codes_of("unauthorized forbidden"),
        Scope.READ,
        text="Answers during recovery as well.",
    ),
)
