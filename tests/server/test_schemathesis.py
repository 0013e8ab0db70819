"""A real server answers whatever can be asked as its OpenAPI document says: no 5xx, no status, header, type
or field of an answer that is not in it.

Requests are made from the document itself, valid ones and broken ones. Names are mostly those of topics that
are there, since most of what can go wrong goes wrong behind a 404.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.specs.openapi.schemas import OpenApiSchema

from tests.support.api_documents import closed
from tests.support.effort import effort
from tests.support.server_processes import running_server
from tools.reference_pages.documents import registered_routes
from tools.reference_pages.openapi import openapi

EXAMPLES = effort(12)
KEY = "a-key-that-may-do-everything"
NAMES = ("log", "full", "absent", "jobs")
COPY = "copy"
"""Where the router leads that is always there."""
CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


def strict_document() -> dict[str, Any]:
    """The document, with every answer closed: a field that it does not have is an error here."""
    document = openapi(registered_routes())
    document["components"]["schemas"] = closed(document["components"]["schemas"])
    return document


DOCUMENT = strict_document()
SCHEMA: OpenApiSchema = schemathesis.openapi.from_dict(DOCUMENT)
FOUND: list[Any] = list(SCHEMA.get_all_operations())
OPERATIONS = {found.ok().label: found.ok() for found in FOUND}


def new_session() -> requests.Session:
    """A connection that does not look for a proxy in the environment with each request."""
    session = requests.Session()
    session.trust_env = False
    return session


def fill(session: requests.Session, url: str, headers: dict[str, str]) -> None:
    """Topics of each kind and a router, as new: what was asked before may have changed them."""

    def send(method: str, path: str, body: Any = None) -> Any:
        answer = session.request(method, f"{url}/v0{path}", json=body, headers=headers, timeout=30)
        assert answer.status_code in (200, 201), answer.text
        return answer.json()

    for found in send("GET", "/routers?page_size=1000")["routers"]:
        send("DELETE", f"/routers/{quote(found['router'], safe='')}")
    for name in (*NAMES, COPY):
        send("DELETE", f"/topics/{name}")
    send("PUT", "/topics/log", {})
    record = {"data": {"id": 1}, "tag": "t", "node": "n", "meta": {"k": 1}}
    send("POST", "/topics/log", {"records": [record] * 20})
    send("PUT", "/topics/full", {"cap_records": 1, "discard": "reject", "durability": "fsync"})
    send("POST", "/topics/full", {"records": [record]})
    send("PUT", "/topics/jobs", {"type": "queue"})
    send("POST", "/topics/jobs", {"records": [record] * 20})
    send("POST", "/topics/jobs/claim", {"node": "worker", "max": 10, "lease_ms": 60_000})
    send("PUT", "/routers/mirror", {"source": "log", "dest": COPY})


@contextmanager
def serving(folder: Path, *flags: object, key: str | None = None) -> Iterator[str]:
    """A server process; in the end it must have made no mistake."""
    with running_server(folder, *flags, key=key) as server:
        yield server.url
        code, _, errors = server.stop()
        assert code == 0
        assert "Traceback" not in errors


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server without keys."""
    with serving(tmp_path_factory.mktemp("server")) as url:
        yield url


@pytest.fixture(scope="module")
def keyed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with keys."""
    folder: Path = tmp_path_factory.mktemp("server")
    (folder / "server.toml").write_text(f'api_keys = ["{KEY}", "another:read:other."]\n')
    with serving(folder, "--config", folder / "server.toml", key=KEY) as url:
        yield url


def tame(case: Case[Any], data: st.DataObject) -> None:
    """Aim at topics that exist, and let no request wait."""
    parameters = case.path_parameters or {}
    if "topic" in parameters and data.draw(st.integers(0, 9)):
        # A stream of jobs that are really there has no end.
        names = NAMES[:-1] if case.operation.label.endswith("/work") else NAMES
        parameters["topic"] = data.draw(st.sampled_from(names))
    if "router" in parameters and data.draw(st.booleans()):
        parameters["router"] = "mirror"
    body: Any = case.body
    if isinstance(body, dict):
        wait_ms = body.get("wait_ms")
        if isinstance(wait_ms, int | float):
            body["wait_ms"] = min(wait_ms, 5)
        topics = body.get("topics")
        if isinstance(topics, dict) and data.draw(st.booleans()):
            body["topics"] = dict(zip(NAMES, topics.values(), strict=False))
        if isinstance(body.get("seqs"), list) and data.draw(st.booleans()):
            body["seqs"] = [seq % 40 if isinstance(seq, int) else seq for seq in body["seqs"]]
            body["node"] = "worker"
        for end in ("source", "dest"):
            if isinstance(body.get(end), str) and data.draw(st.booleans()):
                body[end] = data.draw(st.sampled_from((*NAMES, COPY)))


def with_whole_numbers(value: Any) -> Any:
    """For JSON Schema 2.0 is an integer; for the server it is not."""
    if isinstance(value, dict):
        return {name: with_whole_numbers(member) for name, member in value.items()}
    if isinstance(value, list):
        return [with_whole_numbers(member) for member in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def at_boundaries(label: str) -> Iterator[Case[Any]]:
    """Requests with each value of each field at and beyond its bounds, and methods that a path has not."""
    operation = OPERATIONS[label]
    config = SCHEMA.config.generation_for(operation=operation)
    modes = list(GenerationMode)
    for case in SCHEMA.iter_coverage_cases(operation, generation_modes=modes, generation_config=config):
        parameters = case.path_parameters or {}
        if isinstance(parameters.get("topic"), str):
            name = "jobs" if label.endswith(("/claim", "ack", "/extend")) else "log"
            parameters["topic"] = name
        if isinstance(parameters.get("router"), str):
            parameters["router"] = "mirror"
        body: Any = case.body
        if isinstance(body, dict) and isinstance(body.get("wait_ms"), int | float):
            body["wait_ms"] = min(body["wait_ms"], 5)
        yield case


@pytest.mark.parametrize("label", OPERATIONS)
def test_every_boundary_of_every_field_is_answered_as_the_document_says(
    label: str, keyed_server: str
) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    count = 0
    with new_session() as session:
        fill(session, keyed_server, headers)
        for case in at_boundaries(label):
            count += 1
            case.call_and_validate(
                base_url=keyed_server, session=session, headers=headers, checks=CHECKS, timeout=30
            )
    assert count > 0


def kinds_of_requests() -> Iterator[Any]:
    """Valid requests of every operation, and broken ones where something can be broken."""
    for label, operation in OPERATIONS.items():
        can_be_broken = next(operation.iter_parameters(), None) is not None or len(operation.body) > 0
        for mode in GenerationMode:
            if mode is GenerationMode.POSITIVE or can_be_broken:
                yield pytest.param(label, mode, id=f"{label}, {mode.value}")


@pytest.mark.parametrize(("label", "mode"), list(kinds_of_requests()))
def test_every_answer_is_one_that_the_document_describes(
    label: str, mode: GenerationMode, open_server: str
) -> None:
    session = new_session()

    @settings(
        max_examples=EXAMPLES,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    @given(data=st.data())
    def ask(data: st.DataObject) -> None:
        case = data.draw(OPERATIONS[label].as_strategy(generation_mode=mode))
        tame(case, data)
        if mode is GenerationMode.POSITIVE:
            case.body = with_whole_numbers(case.body)
        case.call_and_validate(base_url=open_server, session=session, checks=CHECKS, timeout=30)

    with session:
        fill(session, open_server, {})
        ask()
