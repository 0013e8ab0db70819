"""The operations of routers and queues; the other half of the table in `operations`.

Owns words, statuses and codes; what requests look like is defined by the routes themselves.
"""

from __future__ import annotations

from typing import Final

from everlog import api_types
from everlog.server.auth import Scope
from everlog.server.bodies import AckBody, ClaimBody, ExtendBody, NackBody, RouterBody
from everlog.server.schema.operations import (
    EVENT_STREAM,
    KEYED,
    PAGE,
    Answer,
    Operation,
    Parameter,
    codes_of,
)

ROUTERS: Final = (
    Operation(
        "GET",
        "/v0/routers",
        "listRouters",
        "Routers",
        "List routers",
        {200: Answer("a page", api_types.RouterPage)},
        codes_of(KEYED),
        Scope.READ,
        parameters=(
            Parameter("prefix", "string", "only names that begin so"),
            Parameter("source", "string", "only those of this source"),
            Parameter("dest", "string", "only those into this topic"),
            *PAGE,
        ),
        text="A key with prefixes sees only routers whose name, source and dest it may use.",
    ),
    Operation(
        "PUT",
        "/v0/routers/:name",
        "putRouter",
        "Routers",
        "Create a router, or replace its settings",
        {
            200: Answer("replaced", api_types.RouterPut),
            201: Answer("created", api_types.RouterPut),
        },
        codes_of(KEYED + "topic_not_found topic_exists_incompatible router_cycle"),
        Scope.ADMIN,
        name="router",
        body=RouterBody,
        text="Copies what is appended to `source` from now on into `dest`. The two ends are fixed.",
    ),
    Operation(
        "GET",
        "/v0/routers/:name",
        "getRouter",
        "Routers",
        "Look at a router",
        {200: Answer("its state", api_types.RouterState)},
        codes_of(KEYED + "router_not_found"),
        Scope.READ,
        name="router",
    ),
    Operation(
        "DELETE",
        "/v0/routers/:name",
        "deleteRouter",
        "Routers",
        "Delete a router",
        {200: Answer("gone; `deleted` is false if it was not there", api_types.RouterDeleted)},
        codes_of(KEYED),
        Scope.DELETE,
        name="router",
        text="Forwarding stops at once; copies stay.",
    ),
)

_QUEUE_CODES: Final = KEYED + "topic_not_found not_a_queue "


def _on_leases(verb: str, summary: str, body: type, answer: type, text: str = "") -> Operation:
    return Operation(
        "POST",
        f"/v0/topics/:name/{verb}",
        verb,
        "Queues",
        summary,
        {200: Answer("done", answer)},
        codes_of(_QUEUE_CODES + "batch_too_large"),
        Scope.WRITE,
        name="topic",
        body=body,
        text=text,
    )


QUEUES: Final = (
    Operation(
        "POST",
        "/v0/topics/:name/claim",
        "claim",
        "Queues",
        "Lease jobs",
        {200: Answer("the jobs", api_types.Claimed)},
        codes_of(_QUEUE_CODES),
        Scope.READ | Scope.WRITE,
        name="topic",
        body=ClaimBody,
        text="Jobs that came back are first, then those that were never handed out, by seq.",
    ),
    _on_leases("ack", "Delete jobs that are done", AckBody, api_types.Acked),
    _on_leases("nack", "Give jobs back", NackBody, api_types.Nacked),
    _on_leases("extend", "Extend leases", ExtendBody, api_types.Extended),
    Operation(
        "GET",
        "/v0/topics/:name/work",
        "work",
        "Queues",
        "Get jobs as a stream",
        {200: Answer("server-sent events, see the AsyncAPI document", content=EVENT_STREAM)},
        codes_of(KEYED + "not_acceptable topic_not_found not_a_queue"),
        Scope.READ | Scope.WRITE,
        takes_token=True,
        name="topic",
        parameters=(
            Parameter("node", "string", "the worker", is_required=True),
            Parameter("max", "integer", "most leases at a time, clamped to [1, 1000]", 1),
            Parameter("lease_ms", "integer", "length of the leases"),
        ),
        text="Closing the connection gives back the leases that were handed out on it.",
    ),
)
