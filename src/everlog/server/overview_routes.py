"""The routes about the server as a whole: how it is, and what it measured of itself in the last hour.

Owns the rules by which something becomes an alert, and the timer that samples. Nothing here looks at each
topic, so that a page which asks every second costs the same whatever the server holds.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Final

from everlog.api_types import StorageHealth
from everlog.errors import Superseded
from everlog.server.answers import Alert, DiskSpace, Overview, PressureState, RecoverySummary, Samples
from everlog.server.app import App, Call, Route, query_seq
from everlog.server.auth import Key, Scope
from everlog.server.errors import SUPERSEDED, invalid
from everlog.server.samples import COARSE_STEP_MS, FIELDS, FINE_STEP_MS, Sampler
from everlog.topics import Engine
from everlog.topics.delivery.delivery import DeliveryCounts
from everlog.topics.delivery.governor import Rung
from everlog.topics.storage.store import RecoveryReport

SAMPLE_S: Final = FINE_STEP_MS / 1000
SAMPLES_PER_DISK_LOOK: Final = 10
DAMAGE_SHOWN_MAX: Final = 20
CONSUMERS_LOOKED_AT_MAX: Final = 5000
"""Whether a consumer is at risk takes a look at it; with more of them that would hold up the loop."""
DISK_FREE_SHARE_MIN: Final = 0.05
_VERSION: Final = version("everlog")
_RUNG_WORDS: Final = {
    Rung.COALESCE: "watchers get several writes at once",
    Rung.COMMIT: "more writers share a sync",
    Rung.DEFER: "routers wait, and topics of negative priority are not pushed",
    Rung.REFUSE: "writes are refused while the queue of the log is nearly full",
}


class OverviewRoutes:
    """Handlers of /v0/overview and /v0/samples. `gauges` gives what only the server knows."""

    def __init__(self, app: App, gauges: Callable[[], dict[str, int]], *, is_memory: bool) -> None:
        self._app = app
        self._gauges = gauges
        self._is_memory = is_memory
        self._sampler = Sampler()
        self._disk: DiskSpace | None = None
        self._disk_look: asyncio.Future[DiskSpace | None] | None = None
        self._due_s = 0.0
        self._samples = 0
        app.add("GET", "/v0/overview", Route(Scope.READ, self.overview))
        app.add("GET", "/v0/samples", Route(Scope.READ, self.samples, needs_poll=False))

    # --- Sampling ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Sample from now on, until the server drains."""
        self._due_s = self._app.loop.time()
        self._tick()

    def _tick(self) -> None:
        app, now_s = self._app, self._app.loop.time()
        if app.is_draining:
            return
        late_ms = (now_s - self._due_s) * 1000
        # Beats that were missed are not made up for.
        self._due_s = max(self._due_s + SAMPLE_S, now_s)
        app.loop.call_at(self._due_s, self._tick)
        engine = app.engine
        if engine is not None:
            self._sampler.sample(
                int(time.time() * 1000),
                app.now_ns(),
                app.requests,
                self._gauges()["sse_connections"],
                engine.vitals(),
                engine.delivery.counts(),
                late_ms,
                app.answered.prompt_counts(),
            )
        if self._samples % SAMPLES_PER_DISK_LOOK == 0:
            self._look_at_disk()
        self._samples += 1

    def _look_at_disk(self) -> None:
        """Ask for the free space on another thread: a disk that hangs must not hold up the loop."""
        if self._is_memory or (self._disk_look is not None and not self._disk_look.done()):
            return
        path = self._app.settings.data_dir
        self._disk_look = self._app.loop.run_in_executor(None, disk_space, path)
        self._disk_look.add_done_callback(self._keep_disk)

    def _keep_disk(self, look: asyncio.Future[DiskSpace | None]) -> None:
        if not look.cancelled():
            self._disk = look.result()

    # --- Answers -----------------------------------------------------------------------------------------

    def samples(self, call: Call) -> None:
        """GET /v0/samples."""
        query = call.query()
        step_ms = query_seq(query, "step_ms", FINE_STEP_MS)
        if step_ms not in (FINE_STEP_MS, COARSE_STEP_MS):
            raise invalid(f"step_ms is {step_ms}; samples are kept for {FINE_STEP_MS} and {COARSE_STEP_MS}")
        ring = self._sampler.fine if step_ms == FINE_STEP_MS else self._sampler.coarse
        rows = ring.rows(float(query_seq(query, "after_ms", 0)))
        answer = Samples(step_ms=step_ms, fields=list(FIELDS), rows=rows)
        self._app.answer(call, self._app.rendered(call, answer))

    def overview(self, call: Call) -> None:
        """GET /v0/overview."""
        engine, gauges = self._app.ready_engine(), self._gauges()
        vitals, delivery = engine.vitals(), engine.delivery.counts()
        health = engine.storage_health()
        answer = Overview(
            version=_VERSION,
            uptime_ms=(self._app.now_ns() - self._app.started_ns) // 1_000_000,
            has_keys=self._app.settings.api_keys.enabled,
            is_memory=self._is_memory,
            topics=vitals.topics,
            routers=vitals.routers,
            consumers=vitals.consumers,
            bytes_live=vitals.bytes_live,
            appended_total=vitals.appended,
            sse_connections=gauges["sse_connections"],
            watch_sessions=gauges["watch_sessions"],
            pressure=PressureState(delivery.pressure, delivery.busy, _rung_names(delivery), delivery.refused),
            storage=health,
            recovery=recovery_summary(engine.recovery, call.key),
            disk=self._disk,
            alerts=[*alerts(health, delivery, self._disk), *_consumers_at_risk(engine)],
        )
        self._app.answer(call, self._app.rendered(call, answer))


def disk_space(path: str) -> DiskSpace | None:
    """The space of a file system; None if it does not say."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return DiskSpace(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


def recovery_summary(report: RecoveryReport | None, key: Key | None) -> RecoverySummary | None:
    """What the last start found. Damage names files and topics, which a key with prefixes does not see."""
    if report is None:
        return None
    is_whole = key is None or not key.prefixes
    return RecoverySummary(
        snapshot_number=report.snapshot_number,
        rejected_snapshots=len(report.rejected_snapshots),
        topics=report.topics,
        segments=report.segments,
        records_from_segments=report.records_from_segments,
        log_files=report.log_files,
        records_from_log=report.records_from_log,
        cut_bytes=report.cut_bytes,
        damage=[found.message if is_whole else found.kind for found in report.damage[:DAMAGE_SHOWN_MAX]],
    )


def alerts(health: StorageHealth, delivery: DeliveryCounts, disk: DiskSpace | None) -> Iterator[Alert]:
    """What a person should know, the worst first."""
    is_superseded = Superseded.code in health.closed_shards.values()
    if is_superseded:
        yield Alert("error", "superseded", SUPERSEDED)
    for shard, cause in () if is_superseded else sorted(health.closed_shards.items()):
        yield Alert(
            "error",
            "shard_read_only",
            f"log shard {shard} takes no writes until a restart: it could not be written or synced ({cause})",
        )
    for kind, cause in sorted(health.failing.items()):
        yield Alert("error", "storage_failing", f"{kind} fails at present ({cause}); see the server log")
    if health.may_lack_acked:
        yield Alert(
            "error",
            "acknowledged_records_missing",
            "the last start found damage: acknowledged records of disk or fsync topics may be lost",
        )
    if health.damaged_topics:
        yield Alert(
            "error",
            "topics_damaged",
            f"{health.damaged_topics} topics are not served because their segments are damaged",
        )
    if health.paused_routers:
        message = f"{health.paused_routers} routers are paused at damaged topics or records"
        yield Alert("error", "routers_paused", message)
    for kind, count in sorted(health.damage.items()):
        yield Alert("warning", "recovery_damage", f"the last start found {count} damaged places: {kind}")
    if disk is not None and disk.free_bytes < disk.total_bytes * DISK_FREE_SHARE_MIN:
        free = disk.free_bytes // 1_000_000
        yield Alert("error", "disk_nearly_full", f"{free} MB are free on the disk of the data directory")
    for rung in Rung:
        if delivery.rungs[rung]:
            yield Alert(
                "error" if rung is Rung.REFUSE else "warning",
                f"pressure_{rung.name.lower()}",
                f"under pressure: {_RUNG_WORDS[rung]}",
            )


def _consumers_at_risk(engine: Engine) -> Iterator[Alert]:
    if not 0 < engine.consumers.count <= CONSUMERS_LOOKED_AT_MAX:
        return
    _, at_risk = engine.consumers.lags(0, lambda _: True)
    if at_risk:
        yield Alert(
            "warning",
            "consumers_at_risk",
            f"{at_risk} consumer{'s' if at_risk != 1 else ''} lost records to eviction, or will soon",
        )


def _rung_names(delivery: DeliveryCounts) -> list[str]:
    return [rung.name.lower() for rung in Rung if delivery.rungs[rung]]
