"""Section 8 over the wire: health, readiness, metrics in both formats, and who may see them."""

from __future__ import annotations

import re
from importlib.metadata import version

import pytest

from tests.support.http_cases import Api, Reply, RunningServer, assert_error, running, taken

GAUGES = [
    "topics",
    "routers",
    "records_live",
    "bytes_live",
    "queue_topics",
    "queue_leases_in_flight",
    "sse_connections",
    "watch_sessions",
    "ready",
    "recovery_progress",
    "wal_queue_depth",
    "wal_queue_depth_peak",
    "wal_read_only",
    "topic_metrics_truncated",
]
COUNTERS = [
    "uptime_ms",
    "wal_frames_total",
    "wal_batches_total",
    "wal_fsyncs_total",
    "wal_bytes_written_total",
    "wal_rotations_total",
    "wal_submit_full_total",
]
PER_TOPIC = ["topic_head_seq", "topic_earliest_seq", "topic_records_live", "topic_bytes_live"]
BOUNDS = ["50", "100", "250", "500", "1000", "5000", "10000", "50000", "100000", "+Inf"]
JSON_FIELDS = [
    "topics",
    "topics_ephemeral",
    "topics_memory",
    "topics_disk",
    "topics_fsync",
    "routers",
    "records_live",
    "bytes_live",
    "queue_topics",
    "queue_leases_in_flight",
    "sse_connections",
    "watch_sessions",
    "ready",
    "replay_progress",
    "uptime_ms",
    "wal",
]
JSON_WAL_FIELDS = [
    "fsyncs",
    "frames",
    "batches",
    "bytes_written",
    "rotations",
    "queue_depth",
    "queue_depth_peak",
    "submit_full_total",
    "read_only",
    "fsync_count",
    "fsync_micros_total",
]
HEALTH = ("/v0/health", "/healthz")
READY = ("/v0/ready", "/readyz")
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")


def metrics_of(api: Api) -> Reply:
    reply = api.request("GET", "/v0/metrics")
    assert reply.status == 200
    return reply


def samples(text: str) -> dict[str, float]:
    """Each sample by its name, with its labels as they are written."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = SAMPLE.match(line)
            assert match is not None, line
            name, labels, value = match.groups()
            found[name if labels is None else f"{name}{{{labels}}}"] = float(value)
    return found


def types(text: str) -> dict[str, str]:
    return dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))


# --- Health and readiness --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", HEALTH)
def test_health_says_ok_version_and_uptime(api: Api, path: str) -> None:
    body = taken(api.request("GET", path))
    assert set(body) == {"status", "version", "uptime_ms"}
    assert (body["status"], body["version"]) == ("ok", version("everlog"))
    assert isinstance(body["uptime_ms"], int)


@pytest.mark.parametrize("path", READY)
def test_ready_says_so_and_counts_topics(api: Api, path: str) -> None:
    api.put("a")
    api.put("b")
    body = taken(api.request("GET", path))
    assert body == {"status": "ready", "wal_replay_complete": True, "topics": 2}


def test_during_replay_only_health_and_metrics_answer() -> None:
    with running(recovers=False) as server:
        api = server.api()
        for path in HEALTH:
            assert taken(api.request("GET", path))["status"] == "ok"
        for path in READY:
            assert_error(api.request("GET", path), 503, "not_ready", replay_progress=0.0)
        for reply in (
            api.put("t"),
            api.append("t"),
            api.diff("t"),
            api.state("t"),
            api.topics(),
            api.drop("t"),
            api.delete("t", before_seq=1),
            api.request("POST", "/v0/topics/t", b"{nonsense"),
        ):
            assert_error(reply, 503, "not_ready", replay_progress=0.0)
            assert reply.headers["retry-after"] == "1"
        measured = samples(metrics_of(api).text)
        assert (measured["topics_ready"], measured["topics_recovery_progress"]) == (0, 0)
        body = taken(api.request("GET", "/v0/metrics", Accept="application/json"))
        assert (body["ready"], body["replay_progress"], body["topics"]) == (False, 0.0, 0)
        server.app.replay_progress = 0.25
        assert_error(api.topics(), 503, "not_ready", replay_progress=0.25)
        server.let_recover()
        for path in READY:
            taken(api.request("GET", path))
        taken(api.put("t"), 201)


def test_during_replay_keys_are_checked_all_the_same() -> None:
    with running(recovers=False, keys="k:read") as server:
        assert_error(server.api().topics(), 401, "unauthorized")
        assert_error(server.api("k").put("t"), 403, "forbidden")
        assert_error(server.api("k").topics(), 503, "not_ready")


def test_a_draining_server_is_not_ready(server: RunningServer, api: Api) -> None:
    server.app.is_draining = True
    for path in READY:
        assert_error(api.request("GET", path), 503, "shutting_down")
    assert_error(api.append("t"), 503, "shutting_down")
    assert_error(api.topics(), 503, "shutting_down")
    for path in HEALTH:
        taken(api.request("GET", path))
    assert metrics_of(api).status == 200


# --- Who may see them ------------------------------------------------------------------------------------


def test_health_and_ready_need_no_token_but_metrics_need_read() -> None:
    with running(keys="reader:read,writer:write") as server:
        for api in (server.api(), server.api("wrong"), server.api("writer")):
            for path in HEALTH + READY:
                taken(api.request("GET", path))
        assert_error(server.api().request("GET", "/v0/metrics"), 401, "unauthorized")
        assert_error(server.api("writer").request("GET", "/v0/metrics"), 403, "forbidden")
        metrics_of(server.api("reader"))


def test_with_probe_auth_they_need_any_token_of_any_scope_and_prefix() -> None:
    with running(keys="reader:read,writer:write:only-", probe_auth=True) as server:
        for path in HEALTH + READY:
            assert_error(server.api().request("GET", path), 401, "unauthorized")
            assert_error(server.api("wrong").request("GET", path), 401, "unauthorized")
            taken(server.api("writer").request("GET", path))
        assert_error(server.api("writer").request("GET", "/v0/metrics"), 403, "forbidden")
        metrics_of(server.api("reader"))


def test_probe_auth_without_keys_changes_nothing() -> None:
    with running(probe_auth=True) as server:
        for path in HEALTH + READY:
            taken(server.api().request("GET", path))


# --- Metrics ---------------------------------------------------------------------------------------------


def test_metrics_are_prometheus_text_by_default(api: Api) -> None:
    reply = metrics_of(api)
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    measured, kinds = samples(reply.text), types(reply.text)
    for name in GAUGES:
        assert kinds[f"topics_{name}"] == "gauge", name
        assert f"topics_{name}" in measured
    for name in COUNTERS:
        assert kinds[f"topics_{name}"] == "counter", name
        assert f"topics_{name}" in measured
    assert kinds["topics_wal_fsync_latency_us"] == "histogram"
    for bound in BOUNDS:
        assert f'topics_wal_fsync_latency_us_bucket{{le="{bound}"}}' in measured
    assert {"topics_wal_fsync_latency_us_count", "topics_wal_fsync_latency_us_sum"} <= set(measured)


def test_every_sample_has_its_type_and_nothing_is_named_twice(api: Api) -> None:
    api.fill("t", 1)
    text = metrics_of(api).text
    kinds = types(text)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert len({line.rsplit(" ", 1)[0] for line in lines}) == len(lines)
    for name in samples(text):
        bare = re.sub(r"(_bucket|_count|_sum)$", "", name.split("{")[0])
        assert bare in kinds or name.split("{")[0] in kinds, name


def test_metrics_count_topics_by_class_records_and_bytes(api: Api) -> None:
    for number, durability in enumerate(("ephemeral", "memory", "disk", "fsync")):
        for copy in range(number + 1):
            api.put(f"{durability}{copy}", durability=durability)
    api.fill("disk0", "abc", "de")
    measured = samples(metrics_of(api).text)
    for number, durability in enumerate(("ephemeral", "memory", "disk", "fsync")):
        assert measured[f'topics_topics_by_class{{class="{durability}"}}'] == number + 1
    assert measured["topics_topics"] == 10
    assert (measured["topics_records_live"], measured["topics_bytes_live"]) == (2, 9)
    assert (measured["topics_ready"], measured["topics_recovery_progress"]) == (1, 1)
    body = taken(api.request("GET", "/v0/metrics", Accept="application/json"))
    assert [body[f"topics_{word}"] for word in ("ephemeral", "memory", "disk", "fsync")] == [1, 2, 3, 4]
    assert (body["topics"], body["records_live"], body["bytes_live"]) == (10, 2, 9)


def test_each_topic_has_its_metrics(api: Api) -> None:
    api.fill("a:b", "abc", "de")
    api.delete("a:b", before_seq=2)
    measured = samples(metrics_of(api).text)
    expected = dict(zip(PER_TOPIC, (2, 2, 1, 4), strict=True))
    assert {name: measured[f'topics_{name}{{topic="a:b"}}'] for name in PER_TOPIC} == expected
    assert measured["topics_topic_metrics_truncated"] == 0
    assert not [name for name in measured if name.startswith("topics_topic_queue")]


def test_at_most_1000_topics_have_their_own_metrics(api: Api) -> None:
    for number in range(1001):
        api.put(f"t{number:04}")
    api.fill("t1000", "abc")
    text = metrics_of(api).text
    assert text.count("topics_topic_head_seq{") == 1000
    assert 'topics_topic_records_live{topic="t1000"} 1.0' in text  # by activity, not by name
    assert 'topics_topic_records_live{topic="_other"} 0.0' in text
    assert samples(text)["topics_topic_metrics_truncated"] == 1
    api.drop("t0000")
    text = metrics_of(api).text
    assert text.count("topics_topic_head_seq{") == 1000
    assert samples(text)["topics_topic_metrics_truncated"] == 0


@pytest.mark.parametrize("accept", ["application/json", "text/html, application/json;q=0.9"])
def test_metrics_are_json_if_that_is_accepted(api: Api, accept: str) -> None:
    body = taken(api.request("GET", "/v0/metrics", Accept=accept))
    assert set(body) == set(JSON_FIELDS)
    assert set(body["wal"]) == set(JSON_WAL_FIELDS)
    assert body["ready"] is True
    assert body["replay_progress"] == 1.0


def test_the_log_is_measured(tmp_path: object) -> None:
    with running(memory=False, data_dir=str(tmp_path)) as server:
        api = server.api()
        api.put("t", durability="fsync")
        for _ in range(3):
            times = taken(api.append("t"))["performance"]
            assert times["fsync_ms"] > 0
            assert times["fsync_ms"] + times["wal_append_ms"] <= times["server_total_ms"]
        measured = samples(metrics_of(api).text)
        fsyncs = measured["topics_wal_fsyncs_total"]
        assert fsyncs >= 4
        assert measured["topics_wal_fsync_latency_us_count"] == fsyncs
        assert measured['topics_wal_fsync_latency_us_bucket{le="+Inf"}'] == fsyncs
        assert measured["topics_wal_frames_total"] >= 4
        assert measured["topics_wal_batches_total"] >= 4
        assert measured["topics_wal_bytes_written_total"] > 0
        assert measured["topics_wal_read_only"] == 0
        body = taken(api.request("GET", "/v0/metrics", Accept="application/json"))
        wal = body["wal"]
        assert wal["fsyncs"] == wal["fsync_count"] >= fsyncs
        assert wal["fsync_micros_total"] > 0
        assert wal["read_only"] in (0, False)


def test_jobs_are_counted_by_state_and_attempts_by_outcome(api: Api) -> None:
    api.put("q", type="queue")
    api.append("q", [{"data": n} for n in range(5)] + [{"data": 5, "delay_ms": 60_000}])
    leased = taken(api.claim("q", max=4))["claimed"]
    assert [job["$seq"] for job in leased] == [1, 2, 3, 4]
    taken(api.settle("ack", "q", [1]))
    taken(api.settle("nack", "q", [2], error={"type": "E", "message": "m"}))
    taken(api.settle("nack", "q", [3], delay_ms=60_000))
    taken(api.request("POST", "/v0/topics/q/jobs/cancel", {"seqs": [3]}))
    measured = samples(metrics_of(api).text)

    def of(name: str, label: str, values: str) -> dict[str, float]:
        return {each: measured[f'{name}{{{label}="{each}",topic="q"}}'] for each in values.split()}

    states = of("topics_jobs", "state", "ready delayed leased failed")
    assert states == {"ready": 1, "delayed": 1, "leased": 1, "failed": 1}
    outcomes = of("topics_job_attempts_total", "outcome", "acked nacked expired released cancelled")
    assert outcomes == {"acked": 1, "nacked": 2, "expired": 0, "released": 0, "cancelled": 1}
    assert measured["topics_schedules_late_seconds"] == 0
