"""The probes: is the server alive, is it ready, and what does it count.

Owns the metrics and their names; they are read from the engine when asked for, never kept twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import partial
from importlib.metadata import version
from itertools import chain
from typing import Any, Final

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from everlog.api_types import ConsumerState
from everlog.errors import Superseded
from everlog.server.app import App, Call, Route
from everlog.server.auth import Key, Scope, allows_name
from everlog.server.errors import RETRY_SOON, SUPERSEDED, ApiError
from everlog.server.request_counts import Durations, RequestCounts, TracedDuration
from everlog.topics import Durability, EngineCounts, StorageHealth
from everlog.topics.counting import OTHER_TOPICS, JobsOfTopic, OtherTopics, TopicCount
from everlog.topics.delivery.delivery import DeliveryCounts
from everlog.topics.delivery.governor import Rung
from everlog.topics.storage.failures import FAILURES
from everlog.topics.storage.store import DAMAGES

TOPIC_METRICS_MAX: Final = 1000
_SUMMED: Final = ("count", "bytes")
_RENDERED_AT_ONCE: Final = 100  # topics whose values are rendered on the loop
_VERSION: Final = version("everlog")
_json = msgspec.json.Encoder()

_UPTIME: Final = "milliseconds since the start"
_GAUGES: Final[dict[str, str]] = {
    "topics": "topics there are",
    "records_live": "records that can be read, of all topics",
    "bytes_live": "bytes of these records: compact JSON of data and meta",
    "queue_topics": "topics of type queue",
    "queue_leases_in_flight": "jobs that are leased to a worker, of all queues",
    "routers": "routers there are",
    "sse_connections": "open streams and sockets",
    "watch_sessions": "watch sessions there are",
    "ready": "1 once recovery is over",
    "recovery_progress": "share of the log that is replayed, 0 to 1",
    "idempotency_keys": "idempotency keys that are remembered, of all topics",
    "wal_queue_depth": "appends that wait to be written",
    "wal_queue_depth_peak": "most appends that have waited at once",
    "wal_read_only": "1 after the log could not be written: appends are refused",
}
_LOG_COUNTERS: Final[dict[str, str]] = {
    "frames": "frames written to the log",
    "batches": "writes that brought them there",
    "fsyncs": "syncs of the log",
    "bytes_written": "bytes written to the log",
    "rotations": "log files that were full",
}
_OF_TOPICS: Final[dict[str, tuple[str, str]]] = {
    "head_seq": ("head_seq", "last seq of the topic"),
    "earliest_seq": ("earliest_seq", "first seq that can be read"),
    "records_live": ("count", "records that can be read"),
    "bytes_live": ("bytes", "bytes of these records"),
}
_OF_QUEUES: Final[dict[str, str]] = {
    "ready": "jobs that can be claimed now",
    "in_flight": "jobs that are leased to a worker",
}


class _Form(Enum):
    """How metrics are written, with the content type."""

    TEXT = b"text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = b"application/openmetrics-text; version=1.0.0; charset=utf-8"
    JSON = b"application/json"


class ProbeRoutes:
    """Handlers of health, ready and metrics. `gauges` and `streams_of` give what only the server knows."""

    def __init__(
        self,
        app: App,
        gauges: Callable[[], dict[str, int]],
        connections: Callable[[], dict[str, int]] = dict,
        streams_of: Callable[[Key], int] = lambda _: 0,
    ) -> None:
        self.app = app
        self.streams_of = streams_of
        self.gauges = gauges
        self.connections = connections
        for path in ("/v0/health", "/healthz"):
            app.add("GET", path, Route(Scope(0), self.health, is_probe=True))
        for path in ("/v0/ready", "/readyz"):
            app.add("GET", path, Route(Scope(0), self.ready, is_probe=True))
        app.add("GET", "/v0/metrics", Route(Scope.READ, self.metrics, is_probe=True))

    def health(self, call: Call) -> None:
        """GET /v0/health."""
        engine = self.app.engine
        health = StorageHealth() if engine is None else engine.storage_health()
        body = {"status": "ok", "version": _VERSION, "uptime_ms": self.uptime_ms(), **_shown(health)}
        self.app.answer(call, _json.encode(body))

    def ready(self, call: Call) -> None:
        """GET /v0/ready."""
        app = self.app
        if app.is_draining:
            raise ApiError(503, "shutting_down", "the server is shutting down", None, RETRY_SOON)
        if app.engine is None:
            detail = {"replay_progress": app.replay_progress}
            raise ApiError(503, "not_ready", "the log is being replayed", detail, RETRY_SOON)
        health = app.engine.storage_health()
        if health.status == "failing":
            detail = {"storage": msgspec.to_builtins(health)}
            raise ApiError(503, "storage_failed", _why_unready(health), detail, RETRY_SOON)
        body = {
            "status": "ready",
            "wal_replay_complete": True,
            "topics": app.engine.topic_count,
            **_shown(health),
        }
        self.app.answer(call, _json.encode(body))

    def metrics(self, call: Call) -> None:
        """GET /v0/metrics."""
        accept = call.request.header(b"accept") or b""
        form = _Form.JSON if b"application/json" in accept else _Form.TEXT
        if b"application/openmetrics-text" in accept:
            form = _Form.OPENMETRICS
        engine = self.app.engine
        if engine is None:
            self._answer(call, None, form)
        else:
            limit = 0 if form is _Form.JSON else TOPIC_METRICS_MAX
            self._count(call, engine.count_topics(partial(allows_name, call.key), limit), form)

    def _count(self, call: Call, counted: TopicCount, form: _Form) -> None:
        """Count in steps, and let the loop turn between two of them."""
        if counted.step():
            self._answer(call, counted, form)
        else:
            step = partial(self._count, call, counted, form)
            self.app.loop.call_soon(self.app.guarded, call, step)

    def _answer(self, call: Call, counted: TopicCount | None, form: _Form) -> None:
        if form is _Form.JSON:
            self.app.answer(call, _json.encode(self.document(counted)))
            return
        families = list(_Metrics(self, call.key, counted).collect())
        if form is _Form.OPENMETRICS:
            families.append(GaugeMetricFamily("topics_uptime_ms", _UPTIME, value=self.uptime_ms()))
        of_topics = partial(_topic_families, counted)
        if counted is None or len(counted.states) <= _RENDERED_AT_ONCE:
            self._send(call, _text_of(families, of_topics, form), form)
            return
        # Thousands of lines take longer than a step of the loop may.
        rendered = self.app.loop.run_in_executor(None, _text_of, families, of_topics, form)
        rendered.add_done_callback(
            lambda done: self.app.guarded(call, lambda: self._send(call, done.result(), form))
        )

    def _send(self, call: Call, text: bytes, form: _Form) -> None:
        if form is _Form.TEXT:
            text += self._uptime_text()
        self.app.answer(call, text, content_type=form.value)

    def _uptime_text(self) -> bytes:
        """The one counter whose name does not end as the library lets all counters end."""
        name = b"topics_uptime_ms"
        help_line = b"# HELP %b %b\n" % (name, _UPTIME.encode())
        return help_line + b"# TYPE %b counter\n%b %d\n" % (name, name, self.uptime_ms())

    def families(self) -> list[Metric]:
        """Every metric with its name, its kind, its labels and what it means."""
        uptime = Metric("topics_uptime_ms", _UPTIME, "counter")
        return [*_Metrics(self, None, None).collect(), *_topic_families(None), uptime]

    def uptime_ms(self) -> int:
        """Time since the start."""
        return (self.app.now_ns() - self.app.started_ns) // 1_000_000

    def document(self, counted: TopicCount | None) -> dict[str, Any]:
        """The metrics as one JSON object."""
        engine = self.app.engine
        counts = EngineCounts() if engine is None else engine.counts(counted)
        wal = counts.wal
        return {
            "topics": counts.topics,
            **{f"topics_{kind}": counts.by_class.get(kind, 0) for kind in Durability},
            "records_live": counts.records_live,
            "bytes_live": counts.bytes_live,
            "queue_topics": counts.queue_topics,
            "queue_leases_in_flight": counts.queue_leases_in_flight,
            **self.gauges(),
            "ready": engine is not None,
            "replay_progress": 1.0 if engine is not None else self.app.replay_progress,
            "uptime_ms": self.uptime_ms(),
            "wal": {
                "fsyncs": wal.fsyncs,
                "frames": wal.frames,
                "batches": wal.batches,
                "bytes_written": wal.bytes_written,
                "rotations": wal.rotations,
                "queue_depth": counts.queue_depth,
                "queue_depth_peak": counts.queue_depth_peak,
                "submit_full_total": counts.queue_refused,
                "read_only": counts.read_only,
                "fsync_count": wal.fsyncs,
                "fsync_micros_total": wal.fsync_micros_total,
            },
        }


def _shown(health: StorageHealth) -> dict[str, StorageHealth]:
    """The storage as a member of an answer, left out while it is fine."""
    return {} if health == StorageHealth() else {"storage": health}


def _why_unready(health: StorageHealth) -> str:
    if health.failing.get("backup") == Superseded.code:
        return SUPERSEDED
    if health.closed_shards:
        shards = ", ".join(f"{shard} ({cause})" for shard, cause in sorted(health.closed_shards.items()))
        what = "log shards that could not be written or synced take no writes until a restart"
        return f"{what}: {shards}; reads go on"
    causes = ", ".join(f"{kind} ({cause})" for kind, cause in sorted(health.failing.items()))
    return f"the log cannot be written: {causes}; reads go on"


class _Metrics(Collector):
    """The same for Prometheus, without the values per topic. `key`: whose consumers and routers are shown."""

    def __init__(self, probes: ProbeRoutes, key: Key | None, counted: TopicCount | None) -> None:
        self._probes = probes
        self._app = probes.app
        self._engine = probes.app.engine  # None until recovery is over
        self._key = key
        self._counted = counted
        self._process = ProcessCollector(registry=None)

    def collect(self) -> Iterator[Metric]:
        """Yield every metric once."""
        engine = self._engine
        counts = EngineCounts() if engine is None else engine.counts(self._counted)
        by_class = GaugeMetricFamily(
            "topics_topics_by_class", "topics of each durability class", labels=["class"]
        )
        for kind in Durability:
            by_class.add_metric([kind], counts.by_class.get(kind, 0))
        yield by_class
        gauges = {
            "topics": counts.topics,
            "records_live": counts.records_live,
            "bytes_live": counts.bytes_live,
            "queue_topics": counts.queue_topics,
            "queue_leases_in_flight": counts.queue_leases_in_flight,
            **self._probes.gauges(),
            "ready": int(engine is not None),
            "recovery_progress": 1.0 if engine is not None else self._app.replay_progress,
            "idempotency_keys": 0 if engine is None else engine.key_count,
            "wal_queue_depth": counts.queue_depth,
            "wal_queue_depth_peak": counts.queue_depth_peak,
            "wal_read_only": counts.read_only,
        }
        for name, value in gauges.items():
            yield GaugeMetricFamily(f"topics_{name}", _GAUGES.get(name, name), value=value)
        yield from self._request_metrics(self._app.answered)
        yield from self._process.collect()
        yield from self._log_metrics(counts)
        yield from self._storage_metrics()
        yield from self._delivery_metrics(DeliveryCounts() if engine is None else engine.delivery.counts())
        yield from self._router_metrics()
        yield from self._consumer_metrics()
        yield from self._key_metrics()
        text = "how long the schedule that waits longest is overdue"
        late_ms = 0 if engine is None else engine.schedules.late_ms()
        yield GaugeMetricFamily("topics_schedules_late_seconds", text, value=late_ms / 1000)

    def _request_metrics(self, requests: RequestCounts) -> Iterator[Metric]:
        total = CounterMetricFamily(
            "topics_http_requests", "answers of a route", labels=["route", "method", "status"]
        )
        seconds = HistogramMetricFamily(
            "topics_http_request_seconds", "time from a request to its answer", labels=["route"]
        )
        by_route: dict[str, Durations] = {}
        for counts in requests.routes():
            for status, count in sorted(counts.statuses.items()):
                total.add_metric([counts.route, counts.method, str(status)], count)
            by_route.setdefault(counts.route, Durations()).add(counts.durations)
        for route, durations in by_route.items():
            buckets = zip(durations.cumulative(), durations.traced(), strict=True)
            seconds.add_metric([route], [_bucket(*bucket) for bucket in buckets], durations.total_s)
        yield from (total, seconds)
        steps = HistogramMetricFamily("topics_loop_step_seconds", "time of one step of the loop")
        steps.add_metric([], requests.steps.cumulative(), requests.steps.total_s)
        yield steps
        text = "open connections: http without a stream, event streams, WebSockets, work streams"
        connections = GaugeMetricFamily("topics_connections", text, labels=["kind"])
        for kind, count in self._probes.connections().items():
            connections.add_metric([kind], count)
        yield connections
        text = "time that the last checkpoint took"
        checkpoint_ns = 0 if self._engine is None else self._engine.checkpoint_ns
        yield GaugeMetricFamily("topics_checkpoint_seconds", text, value=checkpoint_ns / 1e9)

    def _log_metrics(self, counts: EngineCounts) -> Iterator[Metric]:
        wal = counts.wal
        for name, text in _LOG_COUNTERS.items():
            yield CounterMetricFamily(f"topics_wal_{name}", text, getattr(wal, name))
        refused = "appends refused because too many wait to be written"
        yield CounterMetricFamily("topics_wal_submit_full", refused, counts.queue_refused)
        histogram = HistogramMetricFamily("topics_wal_fsync_latency_us", "time of a sync in microseconds")
        histogram.add_metric([], wal.cumulative_buckets(), wal.fsync_micros_total)
        yield histogram

    def _storage_metrics(self) -> Iterator[Metric]:
        engine = self._engine
        health = StorageHealth() if engine is None else engine.storage_health()
        backup_lag_ms = 0 if engine is None else engine.backup_lag_ms
        for name, text, kinds, found in (
            ("storage_errors", "failures of the disk since the start", FAILURES, health.errors),
            ("recovery_damage", "places that the last start found damaged", DAMAGES, health.damage),
        ):
            family = CounterMetricFamily(f"topics_{name}", text, labels=["kind"])
            for kind in kinds:  # also those at 0: an increase is seen only from a value before it
                family.add_metric([kind], found.get(kind, 0))
            yield family
        text = "topics that are not served because their segments are damaged"
        yield GaugeMetricFamily("topics_damaged_topics", text, value=health.damaged_topics)
        text = (
            "routers that copy nothing, because a topic at an end of theirs or their next record is damaged"
        )
        yield GaugeMetricFamily("topics_paused_routers", text, value=health.paused_routers)
        text = "topics of class memory whose records are still being loaded after the start"
        yield GaugeMetricFamily("topics_filling_topics", text, value=health.filling_topics)
        text = "how long ago the last shipment began that held everything there was; 0 without a backup"
        yield GaugeMetricFamily("topics_backup_lag_seconds", text, value=backup_lag_ms / 1000)

    def _router_metrics(self) -> Iterator[Metric]:
        lag = GaugeMetricFamily(
            "topics_router_lag", "records a router is behind its source", labels=["router"]
        )
        total = CounterMetricFamily(
            "topics_router_forwarded", "records a router has copied", labels=["router"]
        )
        if self._engine is not None:
            is_shown = partial(allows_name, self._key)
            for state in self._engine.routers(limit=TOPIC_METRICS_MAX, is_shown=is_shown):
                lag.add_metric([state.router], state.lag)
                total.add_metric([state.router], state.forwarded_total)
        yield lag
        yield total

    def _consumer_metrics(self) -> Iterator[Metric]:
        labels = ["topic", "consumer"]
        records = GaugeMetricFamily(
            "topics_consumer_lag_records", "records a consumer has not committed", labels=labels
        )
        seconds = GaugeMetricFamily(
            "topics_consumer_lag_seconds", "age of the oldest of these records", labels=labels
        )
        states: list[ConsumerState] = []
        at_risk = 0
        if self._engine is not None:
            is_shown = partial(allows_name, self._key)
            states, at_risk = self._engine.consumers.lags(TOPIC_METRICS_MAX, is_shown)
        for state in states:
            records.add_metric([state.topic, state.name], state.lag_records)
            seconds.add_metric([state.topic, state.name], state.lag_ms / 1000)
        yield from (records, seconds)
        text = "consumers that have lost records to eviction, or soon will"
        yield GaugeMetricFamily("topics_consumers_at_risk", text, value=at_risk)

    def _key_metrics(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "topics_key_requests", "requests with a key, its streams aside", labels=["key"]
        )
        streams = GaugeMetricFamily("topics_key_streams", "streams of a key that are open", labels=["key"])
        topics = GaugeMetricFamily(
            "topics_key_topics", "topics that a key has created since the start", labels=["key"]
        )
        app, key = self._app, self._key
        for each in app.settings.api_keys.keys:
            # A key that is bound to prefixes sees itself only.
            if key is None or not key.prefixes or each.number == key.number:
                requests.add_metric([each.shown], app.requests_of_keys[each.number])
                streams.add_metric([each.shown], self._probes.streams_of(each))
                topics.add_metric([each.shown], len(app.topics_of_keys.names_of(each)))
        yield from (requests, streams, topics)

    @staticmethod
    def _delivery_metrics(delivery: DeliveryCounts) -> Iterator[Metric]:
        for name, text, value in (
            ("pressure", "how much there is to do, 0 to 1", delivery.pressure),
            ("loop_busy", "share of the time in which the loop worked, 0 to 1", delivery.busy),
            ("scheduler_held", "topics that gather more before they are served", delivery.held),
            ("scheduler_paused", "topics that are not pushed for now", delivery.paused),
            ("coalesce_window_ms", "time between two services of a topic, at least", delivery.coalesce_ms),
            ("commit_window_floor_ms", "time between two syncs, at least", delivery.commit_floor_ms),
        ):
            yield GaugeMetricFamily(f"topics_{name}", text, value=value)
        depths = GaugeMetricFamily("topics_band_depth", "topics that wait to be served", labels=["band"])
        for band, depth in enumerate(delivery.band_depths):
            depths.add_metric([f"B{band}"], depth)
        rungs = GaugeMetricFamily("topics_rung_engaged", "1 while a rung is taken", labels=["rung"])
        taken = CounterMetricFamily("topics_rung_taken", "how often a rung was taken", labels=["rung"])
        for rung in Rung:
            rungs.add_metric([rung.name.lower()], int(delivery.rungs[rung]))
            taken.add_metric([rung.name.lower()], delivery.rungs_taken[rung])
        yield from (depths, rungs, taken)
        yield CounterMetricFamily("topics_scheduler_serviced", "topics that were served", delivery.served)
        yield CounterMetricFamily("topics_throttled", "writes refused for pressure", delivery.refused)
        histogram = HistogramMetricFamily(
            "topics_scheduling_latency_us", "time from a change to its service in microseconds"
        )
        histogram.add_metric([], delivery.cumulative_buckets(), delivery.latency_us_total)
        yield histogram


def _topic_families(counted: TopicCount | None) -> Iterator[Metric]:
    """Values per topic; those of less active ones are sums under `_other`. Runs on any thread."""
    states = [] if counted is None else counted.states
    other = OtherTopics() if counted is None else counted.other
    for name, (field, text) in _OF_TOPICS.items():
        family = GaugeMetricFamily(f"topics_topic_{name}", text, labels=["topic"])
        for state in states:
            family.add_metric([state.topic], getattr(state, field))
        if other.topics and field in _SUMMED:
            family.add_metric([OTHER_TOPICS], getattr(other, field))
        yield family
    for name, text in _OF_QUEUES.items():
        family = GaugeMetricFamily(f"topics_topic_queue_{name}", text, labels=["topic"])
        for state in states:
            if state.queue is not None:
                family.add_metric([state.topic], getattr(state.queue, name))
        yield family
    yield from _job_families([] if counted is None else counted.jobs, other)
    text = "1 if topics are summed up under _other"
    yield GaugeMetricFamily("topics_topic_metrics_truncated", text, int(other.topics > 0))


def _job_families(of_topics: list[JobsOfTopic], other: OtherTopics) -> Iterator[Metric]:
    """Jobs and attempts per job queue."""
    jobs = GaugeMetricFamily("topics_jobs", "jobs of a job queue by state", labels=["topic", "state"])
    attempts = CounterMetricFamily(
        "topics_job_attempts",
        "attempts by how they ended, and jobs that were cancelled, since the start",
        labels=["topic", "outcome"],
    )
    shown = [*of_topics, JobsOfTopic(OTHER_TOPICS, other.jobs, other.outcomes)]
    for each in shown:
        for state, count in each.jobs.items():
            jobs.add_metric([each.topic, state], count)
        for outcome, count in each.outcomes.items():
            attempts.add_metric([each.topic, outcome], count)
    yield from (jobs, attempts)


class _Families(CollectorRegistry):
    """Families that were collected before, for `generate_latest`."""

    def __init__(self, families: Iterable[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Yield them."""
        yield from self._families


def _text_of(families: list[Metric], of_topics: Callable[[], Iterator[Metric]], form: _Form) -> bytes:
    """The text of a form; runs on any thread."""
    generate = openmetrics.generate_latest if form is _Form.OPENMETRICS else generate_latest
    return generate(_Families(chain(families, of_topics())))


def _bucket(
    counted: tuple[str, float], traced: TracedDuration | None
) -> tuple[str, float] | tuple[str, float, Exemplar]:
    """A bucket with what leads from it to a trace; only OpenMetrics shows that."""
    if traced is None:
        return counted
    return (*counted, Exemplar({"trace_id": traced.trace_id}, traced.duration_s, traced.at_s))
