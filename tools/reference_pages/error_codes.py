"""Every error code that a client can meet: its status, what it means and what `detail` has.

Owns the table that the documents show. The errors themselves are raised elsewhere; a test holds every status
and code in the code of the server against this table.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class ErrorCode(NamedTuple):
    """One row."""

    status: int
    code: str
    meaning: str
    detail: tuple[str, ...] = ()
    """Fields that `detail` has, or may have."""


ERROR_CODES: Final = (
    ErrorCode(400, "invalid_request", "bad JSON, type, range, name, predicate or cursor; a field is missing"),
    ErrorCode(
        400,
        "batch_too_large",
        "more than 10,000 records, or more than 1,000 seqs",
        ("records", "seqs", "max"),
    ),
    ErrorCode(
        400,
        "record_too_large",
        "data and meta of a record over 1 MiB, or a batch larger than the whole cap of a `reject` topic",
    ),
    ErrorCode(401, "unauthorized", "no token, an unknown one, or not the one that created the session"),
    ErrorCode(
        403,
        "forbidden",
        "the key lacks a scope or may not use this name, or a page of another site sent the request",
        ("topic", "router", "name"),
    ),
    ErrorCode(404, "topic_not_found", "there is no such topic", ("topic",)),
    ErrorCode(404, "router_not_found", "there is no such router", ("router",)),
    ErrorCode(404, "consumer_not_found", "the topic has no such consumer", ("name", "topic")),
    ErrorCode(404, "schedule_not_found", "there is no such schedule", ("name",)),
    ErrorCode(404, "job_not_found", "the job queue has no such job", ("seq", "topic")),
    ErrorCode(404, "not_found", "no such route, or the watch session is over", ("path", "nearest")),
    ErrorCode(405, "method_not_allowed", "the path has other methods; `Allow` lists them"),
    ErrorCode(406, "not_acceptable", "a stream was asked for with an `Accept` that excludes it"),
    ErrorCode(408, "invalid_request", "headers or body came too slowly"),
    ErrorCode(409, "router_cycle", "the router would close a circle of topics", ("cycle",)),
    ErrorCode(
        409,
        "topic_exists_incompatible",
        "the topic exists with another type, or the router with another source or dest",
        ("existing_type", "requested_type", "reason", "existing_source", "existing_dest"),
    ),
    ErrorCode(409, "topic_not_empty", "`if_empty` was asked for, and there are records", ("topic", "count")),
    ErrorCode(409, "cursor_backwards", "a commit below the cursor of the consumer", ("cursor", "seq")),
    ErrorCode(409, "fenced", "another owner has the consumer, or no epoch was sent", ("owner_epoch",)),
    ErrorCode(409, "not_a_queue", "a queue route was used on a topic of type `log`", ("topic",)),
    ErrorCode(413, "payload_too_large", "the body is longer than `max_body_bytes`"),
    ErrorCode(414, "invalid_request", "the request target is longer than 16 KiB"),
    ErrorCode(415, "unsupported_media_type", "the body is not `application/json`, or has another coding"),
    ErrorCode(
        421, "misdirected_request", "`Host` is not a name of this server, see `allowed_hosts`", ("host",)
    ),
    ErrorCode(
        422,
        "topic_full",
        'a topic with `"discard":"reject"` has no room; nothing was appended',
        ("topic", "cap_records", "cap_bytes", "head_seq", "earliest_seq"),
    ),
    ErrorCode(
        429, "throttled", "a cap is reached, or the server is too busy", ("limit", "max", "retry_after_ms")
    ),
    ErrorCode(431, "invalid_request", "more than 100 headers, or more than 64 KiB of them"),
    ErrorCode(500, "internal", "a bug, or the log could not be written"),
    ErrorCode(
        500,
        "outcome_unknown",
        "a change was written and not confirmed: its sync failed, and a restart shows whether it happened,"
        " or another server took over, which shows it",
        ("primary",),
    ),
    ErrorCode(503, "not_ready", "the log is being replayed", ("replay_progress",)),
    ErrorCode(503, "shutting_down", "the server is about to end"),
    ErrorCode(
        503,
        "storage_failed",
        "some topics cannot be written, or the object store with these records does not answer",
        ("storage", "primary"),
    ),
    ErrorCode(503, "topic_damaged", "a segment of this topic is lost; others are served", ("topic",)),
    ErrorCode(503, "throttled", "the server has as many connections as it takes"),
)

SOCKET_CODES: Final = {
    "invalid_json": "the message is not JSON that may be used",
    "unsupported_message": "a binary message",
    "server_shutting_down": "the server is about to end; connect again",
}
"""Codes of error messages on a WebSocket besides those above."""

OF_EVERY_REQUEST: Final = frozenset(
    {
        (400, "invalid_request"),
        (408, "invalid_request"),
        (413, "payload_too_large"),
        (414, "invalid_request"),
        (415, "unsupported_media_type"),
        (421, "misdirected_request"),
        (403, "forbidden"),
        (429, "throttled"),
        (431, "invalid_request"),
        (500, "internal"),
        (500, "outcome_unknown"),
        (503, "shutting_down"),
        (503, "storage_failed"),
        (503, "throttled"),
        (503, "topic_damaged"),
    }
)
"""What any request can meet before its route is looked at, or when something is broken."""


def rows_of(codes: frozenset[str]) -> list[ErrorCode]:
    """The rows with these codes, besides those that every request can meet."""
    return [row for row in ERROR_CODES if row.code in codes or (row.status, row.code) in OF_EVERY_REQUEST]
