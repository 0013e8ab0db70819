"""Every operation of the HTTP API: what it takes, what it answers, and how it can fail.

Owns the table that the OpenAPI document and the reference page are made from. Paths and methods are those of
the application; a test compares both ways.
"""

from __future__ import annotations

from typing import Any, Final

from everlog import api_types, job_types
from everlog.server import answers, bodies
from everlog.server.auth import Scope
from everlog.topics import TopicConfig
from everlog.topics.routing.definitions import RouterConfig
from tools.reference_pages.bus_operations import BUS, LAKE
from tools.reference_pages.operation import (
    EVENT_STREAM,
    HTML,
    PLAIN_TEXT,
    STRICT,
    Answer,
    Operation,
    Parameter,
    operation,
)

_STREAM: Final = "server-sent events, see the AsyncAPI document"

_PREFIX: Final = Parameter("prefix", "string", "only names that begin so")
_PAGE: Final = (
    Parameter("page_size", "integer", "entries of a page, clamped to [1, 1000]", 100),
    Parameter("cursor", "string", "`next_cursor` of the page before"),
)

TOPICS: Final = (
    operation(
        "Topics",
        "GET /v0/topics",
        "listTopics",
        "List topics",
        Answer("a page", api_types.TopicPage),
        Scope.READ,
        parameters=(
            _PREFIX,
            *_PAGE,
            Parameter("touch", "boolean", "whether this counts as a use of the topics", False),
        ),
        text="Sorted by name, byte by byte. A key with prefixes sees only names that it may use.",
    ),
    operation(
        "Topics",
        "PUT /v0/topics/:name",
        "putTopic",
        "Create a topic, or replace its settings",
        {200: Answer("replaced", api_types.TopicPut), 201: Answer("created", api_types.TopicPut)},
        Scope.ADMIN,
        "topic_exists_incompatible",
        body=TopicConfig,
        body_is_optional=True,
        text="What is left out returns to its default. A tighter cap or age holds at once.",
    ),
    operation(
        "Topics",
        "GET /v0/topics/:name",
        "getTopic",
        "Look at a topic",
        Answer("its state", api_types.TopicState),
        Scope.READ,
        "topic_not_found",
        parameters=(Parameter("touch", "boolean", "whether this counts as a use of the topic", True),),
    ),
    operation(
        "Topics",
        "GET /v0/topics/:name/account",
        "accountTopic",
        "Account for a range of seqs",
        Answer("what has become of them", api_types.TopicAccount),
        Scope.READ,
        "topic_not_found invalid_request",
        parameters=(
            Parameter("from_seq", "integer", "begin behind this seq", 0),
            Parameter("to_seq", "integer", "the last seq; by default as many as one answer covers"),
        ),
        text="One answer covers up to 1,000,000 seqs and says by `to_seq` where it ends. Asking does not "
        "count as a use of the topic.",
    ),
    operation(
        "Topics",
        "GET /v0/topics/:name/latest",
        "latest",
        "The newest record of each tag",
        Answer("these records, sorted by tag", api_types.Latest),
        Scope.READ,
        "topic_not_found invalid_request",
        parameters=(
            Parameter("tag", "strings", "a tag; may be repeated"),
            Parameter("prefix", "string", "all tags that begin so; in place of `tag`"),
            Parameter("limit", "integer", "most records, 1 to 1000; 100 with `prefix`, 1000 with `tag`"),
            Parameter("cursor", "string", "`next_cursor` of the page before"),
        ),
        text="Tags without a live record are left out. An answer ends after 8 MiB; `next_cursor` goes on.",
    ),
    operation(
        "Topics",
        "GET /v0/topics/:name/histogram",
        "histogram",
        "Count records by time",
        Answer("the counts", api_types.Histogram),
        Scope.READ,
        "topic_not_found invalid_request",
        parameters=(
            Parameter("from_ms", "integer", "begin of the first bucket; by default the oldest live record"),
            Parameter("to_ms", "integer", "end of the last bucket, not included; by default now"),
            Parameter("buckets", "integer", "how many, 1 to 1000", 60),
        ),
        text="Only live records count.",
    ),
    operation(
        "Topics",
        "DELETE /v0/topics/:name",
        "deleteTopic",
        "Delete a topic and everything in it",
        Answer("gone; `deleted` is false if it was not there", api_types.TopicDeleted),
        Scope.DELETE,
        "topic_not_empty",
        parameters=(Parameter("if_empty", "boolean", "only if it has no records", False),),
        text="Routers with this topic at an end go with it. The next one of this name begins with seq 1.",
    ),
    operation(
        "Topics",
        "POST /v0/topics/:name",
        "append",
        "Append records",
        {
            200: Answer("appended", api_types.Appended),
            201: Answer("appended, and the topic was created", api_types.Appended),
        },
        Scope.WRITE,
        "topic_not_found topic_full not_a_queue batch_too_large record_too_large",
        parameters=(
            Parameter("return_seqs", "boolean", "whether the answer lists the seqs", True),
            Parameter(
                "Idempotency-Key",
                "string",
                "as `idempotency_key`; the field of the body wins",
                is_header=True,
            ),
            Parameter(
                "traceparent",
                "string",
                "the trace (W3C Trace Context), kept as `meta.traceparent` of each record that has none; one "
                "that is not valid is ignored",
                is_header=True,
            ),
        ),
        body=bodies.AppendBody,
        text="All or nothing, answered when the records are as safe as the topic's durability says. An "
        "append with `config` to a topic that does not exist needs the scope `admin` as well.",
    ),
    operation(
        "Topics",
        "POST /v0/topics/:name/diff",
        "diff",
        "Read from a cursor",
        Answer("what is behind the cursor", api_types.Diff),
        Scope.READ,
        "topic_not_found",
        body=bodies.DiffBody,
        body_is_optional=True,
        text="With `wait_ms` a reader that is caught up is answered when something is appended.",
    ),
    operation(
        "Topics",
        "POST /v0/topics/:name/delete",
        "deleteRecords",
        "Delete records by seq, by tag, or both",
        Answer("deleted", api_types.RecordsDeleted),
        Scope.DELETE,
        "topic_not_found",
        body=bodies.DeleteBody,
        text="`before_seq` or `match` must be there; with both, both must be fulfilled. No gap is reported. "
        "With `dry_run` the answer says how many these are, and nothing is deleted.",
    ),
)

ROUTERS: Final = (
    operation(
        "Routers",
        "GET /v0/routers",
        "listRouters",
        "List routers",
        Answer("a page", api_types.RouterPage),
        Scope.READ,
        parameters=(
            _PREFIX,
            Parameter("source", "string", "only those of this source"),
            Parameter("dest", "string", "only those into this topic"),
            Parameter("lag", "boolean", "whether each says how many records it is behind", False),
            *_PAGE,
        ),
        text="A key with prefixes sees only routers whose name, source and dest it may use.",
    ),
    operation(
        "Routers",
        "PUT /v0/routers/:name",
        "putRouter",
        "Create a router, or replace its settings",
        {200: Answer("replaced", api_types.RouterPut), 201: Answer("created", api_types.RouterPut)},
        Scope.ADMIN,
        "topic_not_found topic_exists_incompatible router_cycle",
        body=RouterConfig,
        text="Copies what is appended to `source` from now on into `dest`. The two ends are fixed.",
    ),
    operation(
        "Routers",
        "GET /v0/routers/:name",
        "getRouter",
        "Look at a router",
        Answer("its state", api_types.RouterState),
        Scope.READ,
        "router_not_found",
    ),
    operation(
        "Routers",
        "DELETE /v0/routers/:name",
        "deleteRouter",
        "Delete a router",
        Answer("gone; `deleted` is false if it was not there", api_types.RouterDeleted),
        Scope.DELETE,
        text="Forwarding stops at once; copies stay.",
    ),
)

_CONSUMER: Final = "/v0/topics/:name/consumers/:item"
_CONSUMER_CODES: Final = "topic_not_found consumer_not_found"

CONSUMERS: Final = (
    operation(
        "Consumers",
        "GET /v0/consumers",
        "listAllConsumers",
        "List the consumers of all topics",
        Answer("a page", api_types.ConsumerPage),
        Scope.READ,
        parameters=_PAGE,
        text="Those of the oldest topic first, within a topic by name. A key with prefixes sees only "
        "consumers of topics that it may use.",
    ),
    operation(
        "Consumers",
        "GET /v0/topics/:name/consumers",
        "listConsumers",
        "List the consumers of a topic",
        Answer("a page", api_types.ConsumerPage),
        Scope.READ,
        "topic_not_found",
        parameters=_PAGE,
        text="Sorted by name, byte by byte.",
    ),
    operation(
        "Consumers",
        f"PUT {_CONSUMER}",
        "putConsumer",
        "Create a consumer, or replace its settings",
        {
            200: Answer("replaced", api_types.ConsumerState),
            201: Answer("created", api_types.ConsumerState),
        },
        Scope.ADMIN,
        "topic_not_found",
        body=bodies.ConsumerBody,
        body_is_optional=True,
        text="`start` counts for a new one only. What is left out returns to its default.",
    ),
    operation(
        "Consumers",
        f"GET {_CONSUMER}",
        "getConsumer",
        "Look at a consumer",
        Answer("its state", api_types.ConsumerState),
        Scope.READ,
        _CONSUMER_CODES,
    ),
    operation(
        "Consumers",
        f"DELETE {_CONSUMER}",
        "deleteConsumer",
        "Delete a consumer",
        Answer("gone; `deleted` is false if it was not there", api_types.ConsumerDeleted),
        Scope.ADMIN,
        "topic_not_found",
        text="The scope `delete` is enough as well.",
    ),
    operation(
        "Consumers",
        f"POST {_CONSUMER}/read",
        "readConsumer",
        "Read from the cursor of a consumer",
        Answer("what is behind the cursor", api_types.ConsumerDiff),
        Scope.READ,
        f"{_CONSUMER_CODES} cursor_backwards fenced",
        body=bodies.ConsumerReadBody,
        body_is_optional=True,
        text="The cursor moves only by a commit; one with `commit` needs the scope `write` too.",
    ),
    operation(
        "Consumers",
        f"POST {_CONSUMER}/commit",
        "commitConsumer",
        "Note what is processed",
        Answer("the state of the consumer", api_types.ConsumerState),
        Scope.WRITE,
        f"{_CONSUMER_CODES} cursor_backwards fenced",
        body=bodies.ConsumerCommitBody,
    ),
    operation(
        "Consumers",
        f"POST {_CONSUMER}/acquire",
        "acquireConsumer",
        "Become the owner of a consumer",
        Answer("the epoch to send from now on", api_types.ConsumerAcquired),
        Scope.WRITE,
        _CONSUMER_CODES,
        body=bodies.ConsumerAcquireBody,
        text="Earlier epochs are refused from now on, and so are reads and commits without one.",
    ),
    operation(
        "Consumers",
        f"POST {_CONSUMER}/reset",
        "resetConsumer",
        "Put the cursor of a consumer anywhere",
        Answer("where it was and where it is", api_types.ConsumerReset),
        Scope.ADMIN,
        _CONSUMER_CODES,
        body=bodies.ConsumerResetBody,
    ),
)

_QUEUE_CODES: Final = "topic_not_found not_a_queue"


def _on_leases(verb: str, summary: str, body: type, answer: type) -> Operation:
    return operation(
        "Queues",
        f"POST /v0/topics/:name/{verb}",
        verb,
        summary,
        Answer("done", answer),
        Scope.WRITE,
        f"{_QUEUE_CODES} batch_too_large",
        body=body,
    )


QUEUES: Final = (
    operation(
        "Queues",
        "POST /v0/topics/:name/claim",
        "claim",
        "Lease jobs",
        Answer("the jobs", job_types.Claimed),
        Scope.READ | Scope.WRITE,
        _QUEUE_CODES,
        body=bodies.ClaimBody,
        text="Jobs that came back are first, then those that were never handed out, by seq.",
    ),
    _on_leases("ack", "Delete jobs that are done", bodies.AckBody, job_types.Acked),
    _on_leases("nack", "Give jobs back", bodies.NackBody, job_types.Nacked),
    _on_leases("extend", "Extend leases", bodies.ExtendBody, job_types.Extended),
    operation(
        "Queues",
        "GET /v0/topics/:name/work",
        "work",
        "Get jobs as a stream",
        Answer(_STREAM, content=EVENT_STREAM),
        Scope.READ | Scope.WRITE,
        f"{_QUEUE_CODES} not_acceptable",
        takes_token=True,
        parameters=(
            Parameter("node", "string", "the worker", is_required=True),
            Parameter("max", "integer", "most leases at a time, clamped to [1, 1000]", 1),
            Parameter("lease_ms", "integer", "length of the leases"),
        ),
        text="Closing the connection gives back the leases that were handed out on it.",
    ),
)


def _on_jobs(
    path: str, id_: str, summary: str, body: type, answer: type, scope: Scope = Scope.ADMIN, text: str = ""
) -> Operation:
    return operation(
        "Jobs",
        f"POST /v0/topics/:name/{path}",
        id_,
        summary,
        Answer("done", answer),
        scope,
        _QUEUE_CODES,
        body=body,
        text=text,
    )


JOBS: Final = (
    operation(
        "Jobs",
        "GET /v0/topics/:name/jobs",
        "listJobs",
        "List jobs without claiming them",
        Answer("a page by seq, and counts", job_types.JobPage),
        Scope.READ,
        _QUEUE_CODES,
        parameters=(
            Parameter("state", "string", "ready, delayed, leased or failed"),
            Parameter("tag", "string", "only jobs with this tag"),
            Parameter("key", "string", "only jobs with this unique or concurrency key"),
            Parameter("filter", "string", "only jobs that pass this expression, as JSON"),
            Parameter("limit", "integer", "jobs of a page, clamped to [1, 1000]", 100),
            Parameter("cursor", "string", "`next_cursor` of the page before"),
            Parameter("include", "string", "`data`: with data and meta"),
        ),
    ),
    operation(
        "Jobs",
        "GET /v0/topics/:name/jobs/:item",
        "getJob",
        "Show a job and the attempts at it",
        Answer("the job", job_types.JobShown),
        Scope.READ,
        f"{_QUEUE_CODES} job_not_found",
    ),
    _on_jobs(
        "jobs/cancel",
        "cancelJobs",
        "Delete jobs",
        bodies.JobsBody,
        job_types.JobsCancelled,
        text="A leased job is deleted when its lease ends, unless it is acknowledged. Needs admin or delete.",
    ),
    _on_jobs("jobs/retry", "retryJobs", "Make delayed jobs due", bodies.JobsBody, job_types.JobsRetried),
    _on_jobs(
        "pause",
        "pauseQueue",
        "Let claims give nothing",
        bodies.PauseBody,
        job_types.QueuePaused,
        text="Appends, acks and nacks go on.",
    ),
    _on_jobs("resume", "resumeQueue", "Let claims give jobs again", bodies.PauseBody, job_types.QueuePaused),
    _on_jobs(
        "purge",
        "purgeJobs",
        "Delete all jobs, or those that pass a filter",
        bodies.PurgeBody,
        job_types.JobsPurged,
        text="Leased ones too. Needs admin or delete.",
    ),
    operation(
        "Jobs",
        "POST /v0/topics/:name/redrive",
        "redrive",
        "Bring dead letters back to their job queues",
        Answer("done, or after 30 s with what is left", job_types.JobsRedriven),
        Scope.ADMIN,
        "topic_not_found not_a_queue topic_full",
        body=bodies.RedriveBody,
        text="Each goes back at most once, also across a crash, without its marks `$dead_letter_*`. "
        "`to` must be a job queue.",
    ),
)

SCHEDULES: Final = (
    operation(
        "Schedules",
        "GET /v0/schedules",
        "listSchedules",
        "List schedules",
        Answer("a page", job_types.SchedulePage),
        Scope.READ,
        text="A key with prefixes sees only schedules whose name and topic it may use.",
        parameters=(
            Parameter("prefix", "string", "only names that begin so"),
            Parameter("page_size", "integer", "clamped to [1, 1000]", 100),
            Parameter("cursor", "string", "`next_cursor` of the page before"),
        ),
    ),
    operation(
        "Schedules",
        "PUT /v0/schedules/:name",
        "putSchedule",
        "Create or replace a schedule",
        {
            200: Answer("replaced", job_types.ScheduleShown),
            201: Answer("created", job_types.ScheduleShown),
        },
        Scope.ADMIN,
        "topic_not_found not_a_queue throttled",
        body=bodies.ScheduleBody,
        text="Each fire has the idempotency key `schedule:<name>:<ts>`, and never comes twice.",
    ),
    operation(
        "Schedules",
        "GET /v0/schedules/:name",
        "getSchedule",
        "Report a schedule",
        Answer("its state", job_types.ScheduleShown),
        Scope.READ,
        "schedule_not_found",
    ),
    operation(
        "Schedules",
        "DELETE /v0/schedules/:name",
        "deleteSchedule",
        "Delete a schedule",
        Answer("gone; `deleted` is false if it was not there", job_types.ScheduleDeleted),
        Scope.ADMIN,
        text="Needs admin or delete.",
    ),
)

WATCH: Final = (
    operation(
        "Watch",
        "POST /v0/watch",
        "watch",
        "Make a watch session",
        Answer("the session", api_types.WatchSession),
        Scope.READ,
        "topic_not_found",
        parameters=(Parameter("lenient", "boolean", "leave topics out that do not exist", False),),
        body=bodies.WatchBody,
        text="It is kept in memory, and dropped after 300 s without an open stream.",
    ),
    operation(
        "Watch",
        "GET /v0/watch/:name",
        "openStream",
        "Open the stream of a session",
        Answer(_STREAM, content=EVENT_STREAM),
        codes="unauthorized not_ready not_acceptable not_found",
        takes_token=True,
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
    operation(
        "Watch",
        "GET /v0/ws",
        "openSocket",
        "Upgrade to a WebSocket",
        {101: Answer("the WebSocket, see the AsyncAPI document")},
        codes="unauthorized forbidden not_ready",
        parameters=(STRICT,),
        text="The key must be in the header. Pages of other origins need to be allowed (`cors_origins`).",
    ),
)


def _probe(path: str, id_: str, summary: str, body: type, codes: str = "unauthorized") -> Operation:
    text = "Needs a key only if `probe_auth` is on."
    answer = Answer("yes", body)
    return operation("Probes", f"GET {path}", id_, summary, answer, codes=codes, is_open=True, text=text)


PROBES: Final = (
    _probe("/v0/health", "health", "Is the process alive?", api_types.Health),
    _probe("/healthz", "healthz", "The same as /v0/health", api_types.Health),
    _probe(
        "/v0/ready", "ready", "Is recovery over?", api_types.Ready, "unauthorized not_ready storage_failed"
    ),
    _probe(
        "/readyz", "readyz", "The same as /v0/ready", api_types.Ready, "unauthorized not_ready storage_failed"
    ),
    operation(
        "Probes",
        "GET /v0/metrics",
        "metrics",
        "What the server counts",
        Answer("Prometheus text, or JSON if `Accept` has it", api_types.Metrics, PLAIN_TEXT),
        Scope.READ,
        keyed="unauthorized forbidden",
        text="Answers during recovery as well.",
    ),
)

SERVER: Final = (
    operation(
        "Server",
        "GET /v0/overview",
        "overview",
        "How the server is",
        Answer("its state", answers.Overview),
        Scope.READ,
        text="Answered without a look at each topic: it takes as long with 100,000 topics as with one.",
    ),
    operation(
        "Server",
        "GET /v0/samples",
        "samples",
        "What the server measured of itself",
        Answer("the samples", answers.Samples),
        Scope.READ,
        "invalid_request",
        parameters=(
            Parameter("step_ms", "integer", "1000: the last five minutes; 10000: the last hour", 1000),
            Parameter("after_ms", "integer", "only samples that are later, ms since the epoch", 0),
        ),
        text="`fields` names the numbers of a row. Rates are means over the step; latencies are those of the "
        "step, 0 if there were none. The samples are in memory and begin with the start of the server.",
    ),
    operation(
        "Server",
        "GET /",
        "index",
        "The console, or links",
        Answer("a page if `Accept` has `text/html`, else JSON", answers.ServerIndex, HTML),
        is_open=True,
        text="Not a part of `/v0`. Needs no key; the page asks for one.",
    ),
    operation(
        "Server",
        "GET /openapi.json",
        "openapiDocument",
        "The OpenAPI document",
        Answer("OpenAPI 3.1", dict[str, Any]),
        is_open=True,
    ),
    operation(
        "Server",
        "GET /asyncapi.json",
        "asyncapiDocument",
        "The AsyncAPI document",
        Answer("AsyncAPI 3.0", dict[str, Any]),
        is_open=True,
    ),
)

OPERATIONS: Final = (
    *TOPICS,
    *CONSUMERS,
    *ROUTERS,
    *QUEUES,
    *JOBS,
    *SCHEDULES,
    *WATCH,
    *PROBES,
    *BUS,
    *LAKE,
    *SERVER,
)
"""Every operation that is described; the document has those that the server has."""
