"""Traces: from the header of an append into meta, through routers, jobs and the bridge, to spans."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from everlog import tracing
from everlog.api_types import NewRecord
from everlog.bridge.rendering import Format, Marker, Messages, Renderer, request_body
from everlog.client import Client, Producer, Worker
from everlog.job_types import Job
from tests.support.http_cases import Api, RunningServer, running, taken
from tests.support.processes import eventually
from tests.support.server_processes import running_server

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACE = f"00-{TRACE_ID}-00f067aa0ba902b7-01"
OTHER = f"00-{'ab' * 16}-{'cd' * 8}-00"


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with running() as started:
        yield started


@pytest.fixture
def api(server: RunningServer) -> Api:
    return server.api()


def url_of(server: RunningServer) -> str:
    host, port = server.server.address
    return f"http://{host}:{port}"


def append(api: Api, records: list[dict[str, Any]], traceparent: str = TRACE, topic: str = "t") -> None:
    headers = {"traceparent": traceparent}
    reply = api.client.request("POST", f"/v0/topics/{topic}", {"records": records}, headers)
    assert reply.status in (200, 201), reply.text


def metas(api: Api, topic: str = "t") -> list[dict[str, Any] | None]:
    records = taken(api.request("POST", f"/v0/topics/{topic}/diff", {}))["records"]
    return [record.get("meta") for record in records]


# --- The header ------------------------------------------------------------------------------------------


def test_the_trace_of_an_append_is_kept_in_the_meta_of_each_record(api: Api) -> None:
    append(
        api,
        [{"data": 1}, {"data": 2, "meta": {"a": [1]}}, {"data": 3, "meta": None}, {"data": 4, "meta": {}}],
    )
    assert metas(api) == [
        {"traceparent": TRACE},
        {"a": [1], "traceparent": TRACE},
        {"traceparent": TRACE},
        {"traceparent": TRACE},
    ]


def test_a_record_that_names_its_trace_keeps_it(api: Api) -> None:
    append(api, [{"data": 1, "meta": {"traceparent": OTHER}}])
    assert metas(api) == [{"traceparent": OTHER}]


def test_a_record_without_room_in_its_meta_is_taken_as_it_is(api: Api) -> None:
    full = {f"k{number}": number for number in range(64)}
    long = {"k": "x" * (16 * 1024 - len('{"k":""}'))}
    append(api, [{"data": 1, "meta": full}, {"data": 2, "meta": long}])
    assert metas(api) == [full, long]


@pytest.mark.parametrize(
    "value",
    [
        "",
        "nonsense",
        TRACE.upper(),
        TRACE + "-more",
        "ff" + TRACE[2:],
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        "01" + TRACE[2:] + "-" + "x" * 200,
    ],
)
def test_a_traceparent_that_is_none_is_ignored(api: Api, value: str) -> None:
    append(api, [{"data": 1}], value)
    assert metas(api) == [None]


def test_a_later_version_may_carry_more(api: Api) -> None:
    later = "01" + TRACE[2:] + "-more"
    append(api, [{"data": 1}], later)
    assert metas(api) == [{"traceparent": later}]


def test_a_wrong_body_is_refused_with_a_trace_as_without(api: Api) -> None:
    for body in ({"records": [{"data": 1, "meta": 5}]}, {"records": []}, {"records": [{"tag": "x"}]}):
        plain = api.client.request("POST", "/v0/topics/t", body)
        traced = api.client.request("POST", "/v0/topics/t", body, {"traceparent": TRACE})
        assert (traced.status, traced.json) == (plain.status, plain.json)
        assert traced.status == 400


def test_routers_claims_and_dead_letters_carry_the_trace(api: Api) -> None:
    taken(api.put("q", type="queue", max_deliveries=1, dead_letter="dead"), 201)
    taken(api.request("PUT", "/v0/routers/r", {"source": "q", "dest": "copy"}), 201)
    append(api, [{"data": 1}], topic="q")
    assert metas(api, "copy") == [{"traceparent": TRACE}]
    claim = {"node": "w", "max": 1}
    job = taken(api.request("POST", "/v0/topics/q/claim", claim))["claimed"][0]
    assert job["meta"] == {"traceparent": TRACE}
    taken(api.request("POST", "/v0/topics/q/nack", {"node": "w", "seqs": [1], "delay_ms": 0}))
    assert taken(api.request("POST", "/v0/topics/q/claim", claim))["claimed"] == []
    assert metas(api, "dead")[0]["traceparent"] == TRACE  # type: ignore[index]


# --- Clients, workers and the bridge ---------------------------------------------------------------------


def test_what_is_sent_in_a_trace_carries_it(server: RunningServer, api: Api) -> None:
    with Client(url_of(server)) as client:
        with tracing.following(TRACE):
            client.append("t", 1)
            with Producer(client, "t") as producer:
                producer.send(2)
                producer.send(3, meta={"traceparent": OTHER})
            with client.socket() as socket:
                socket.publish("t", [NewRecord(4, meta={"a": 1})])
        client.append("t", 5)
    assert metas(api) == [
        {"traceparent": TRACE},
        {"traceparent": TRACE},
        {"traceparent": OTHER},
        {"traceparent": TRACE, "a": 1},
        None,
    ]


@pytest.mark.parametrize("is_async", [False, True])
def test_what_a_handler_appends_follows_the_trace_of_its_job(
    server: RunningServer, api: Api, is_async: bool
) -> None:
    taken(api.put("q", type="queue"), 201)
    append(api, [{"data": 1}], topic="q")
    api.fill("q", 2)
    with Client(url_of(server)) as client:
        worker = Worker(client, "q", concurrency=1)

        def follow(job: Job) -> None:
            client.append("out", job.data)

        async def follow_async(job: Job) -> None:
            client.append("out", job.data)

        worker.handler(follow_async if is_async else follow)
        with worker:
            eventually("both jobs are done", lambda: worker.done == 2)
    assert metas(api, "out") == [{"traceparent": TRACE}, None]


def test_the_bridge_keeps_the_trace_that_a_payload_names() -> None:
    payloads = [
        json.dumps({"traceparent": TRACE, "n": 0}).encode(),
        json.dumps({"n": 1, "traceparent": OTHER}).encode(),
        b'{"n":{"traceparent":"x"}}',
        b'["traceparent"]',
        b'{"traceparent":"not one"}',
    ]
    seqs = np.arange(1, 6, dtype=np.uint64)
    messages = Messages(seqs, seqs, [1] * 5, [0] * 5, payloads)
    body = json.loads(request_body(Renderer(Format.AUTO).records(messages), Marker(1, 5, 5), "n", "k"))
    assert [record["data"] for record in body["records"]] == [json.loads(each) for each in payloads]
    marker = {"first_seq": 1, "last_seq": 5, "count": 5}
    assert [record.get("meta") for record in body["records"]] == [
        {"bridge": marker, "traceparent": TRACE},
        {"traceparent": OTHER},
        None,
        None,
        None,
    ]


# --- Exemplars and the access log ------------------------------------------------------------------------


def test_openmetrics_leads_from_a_duration_to_a_sampled_trace(api: Api) -> None:
    append(api, [{"data": 1}])
    append(api, [{"data": 1}], OTHER)  # not sampled
    accept = {"Accept": "application/openmetrics-text; version=1.0.0, text/plain;q=0.5"}
    reply = api.client.request("GET", "/v0/metrics", None, accept)
    assert reply.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    families = {family.name: family for family in text_string_to_metric_families(reply.text)}
    found = [
        (
            sample.labels["route"],
            sample.exemplar.labels["trace_id"],
            float(sample.labels["le"]) >= sample.exemplar.value,
        )
        for sample in families["topics_http_request_seconds"].samples
        if sample.exemplar is not None
    ]
    assert found == [("/v0/topics/:topic", TRACE_ID, True)]
    assert families["topics_uptime_ms"].type == "gauge"
    plain = api.client.request("GET", "/v0/metrics")
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert TRACE_ID not in plain.text


# --- Spans -----------------------------------------------------------------------------------------------

PROGRAM = """
import sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from everlog.client import Client, Worker

spans = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)
with Client(sys.argv[1]) as client:
    client.put_topic("q", {"type": "queue"})
    with trace.get_tracer("test").start_as_current_span("root"):
        client.append("q", 1)
    worker = Worker(client, "q", concurrency=1)

    @worker.handler
    def handle(job):
        client.append("out", job.data)
        worker.stop()

    worker.run()
    print(client.diff("q").records, client.diff("out").records[0].meta["traceparent"])
for span in spans.get_finished_spans():
    parent = span.parent.span_id if span.parent else 0
    ids = f"{span.context.trace_id:x}", f"{span.context.span_id:x}", f"{parent:x}"
    print("span", *ids, span.kind.name, span.name)
"""


def test_spans_of_client_worker_and_server_are_one_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("opentelemetry.sdk")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    with running_server(tmp_path) as server:
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM, server.url],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        lines = [line.split(" ", 5)[1:] for line in ran.stdout.splitlines() if line.startswith("span ")]
        code, printed, errors = server.stop()
        assert code == 0, errors
    by_name = {name: (trace, own, parent, kind) for trace, own, parent, kind, name in lines}
    trace_id, root, _, _ = by_name["root"]
    published = by_name["append q"]
    processed = by_name["process q"]
    derived = by_name["append out"]
    assert published[0] == processed[0] == derived[0] == trace_id
    assert (published[2], processed[2], derived[2]) == (root, published[1], processed[1])
    assert (published[3], processed[3]) == ("CLIENT", "CONSUMER")
    assert derived[1] in ran.stdout.splitlines()[0], "the record that the handler appended is of its span"
    served = [json.loads(text) for text in re.findall(r"^\{.*?^\}", printed, re.DOTALL | re.MULTILINE)]
    of_trace = [each for each in served if int(each["context"]["trace_id"], 16) == int(trace_id, 16)]
    assert {each["name"] for each in of_trace} >= {"POST /v0/topics/:topic"}
    parents = {int(each["parent_id"], 16) for each in of_trace if each["name"] == "POST /v0/topics/:topic"}
    assert parents == {int(published[1], 16), int(derived[1], 16)}


def test_a_server_that_cannot_export_spans_says_so_and_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(tracing.InvalidConfig, match="it must be otlp, console or none"):
        tracing.export_as_told({"OTEL_TRACES_EXPORTER": "zipkin"}, "everlog")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(tracing.InvalidConfig, match=r"pip install 'everlog\[otel\]'"):
        tracing.export_as_told({"OTEL_TRACES_EXPORTER": "otlp"}, "everlog")
