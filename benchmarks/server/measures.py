"""What is measured: one function a measurement and contender, each returning the numbers of one round.

Owns sizes and which server runs for which measurement; the timed code is in the `*_jobs.py` modules. Every
number has a name (`single_per_s`) that the report refers to, the same for all contenders.
"""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.engine import samples
from benchmarks.queue.processes import Child, ChildFailed, run_together
from benchmarks.server import (
    load_jobs,
    option_jobs,
    peer_wires,
    python_jobs,
    queue_jobs,
    reader_jobs,
    servers,
    wrk,
)
from benchmarks.server.load_jobs import CONNECTIONS, READ_LIMIT, Form, Numbers
from benchmarks.server.servers import RunningServer

RUN_TIMEOUT_S = 600.0
BATCH_RECORDS = 100
CAP_RECORDS = 1_000_000
API_KEY = "benchmark-key"
FEW_WATCHERS = 100
MANY_WATCHERS = 1000


@dataclass(frozen=True)
class Sizes:
    """How much work each measurement is; counts of requests unless the name says otherwise."""

    singles: int
    batches: int
    diffs: int
    diff_records: int
    few_writes: int
    many_writes: int
    idle_watchers: int
    python_singles: int
    python_batches: int
    python_reads: int
    jobs: int = 100_000
    peer_jobs: int = 20_000
    handovers: int = 200
    commits: int = 100_000
    filtered_records: int = 100_000
    filtered_reads: int = 20
    watched_topics: int = 10_000
    watched_rounds: int = 50
    idle_consumers: int = 10_000
    idle_s: float = 10.0
    scheduled_jobs: int = 1_000_000
    due_jobs: int = 1000
    keys: int = 100_000
    dead_letters: int = 100_000


FULL = Sizes(
    singles=100_000,
    batches=6000,
    diffs=3000,
    diff_records=100_000,
    few_writes=500,
    many_writes=60,
    idle_watchers=10_000,
    python_singles=4000,
    python_batches=200,
    python_reads=50,
)
QUICK = Sizes(
    singles=20_000,
    batches=1500,
    diffs=500,
    diff_records=20_000,
    few_writes=100,
    many_writes=15,
    idle_watchers=1000,
    python_singles=1000,
    python_batches=50,
    python_reads=10,
    jobs=20_000,
    peer_jobs=5000,
    handovers=50,
    commits=20_000,
    filtered_records=20_000,
    filtered_reads=10,
    watched_topics=1000,
    watched_rounds=10,
    idle_consumers=1000,
    idle_s=3.0,
    scheduled_jobs=20_000,
    due_jobs=200,
    keys=20_000,
    dead_letters=20_000,
)


@dataclass(frozen=True)
class Bench:
    """Where and how much to measure."""

    directory: Path
    server_core: int
    load_core: int
    sizes: Sizes

    def loaded(self, *job: Any) -> Any:
        """Run one job, `(job, *arguments)`, in a fresh process on the core of the load."""
        return run_together([Child("load", self.load_core, job[0], job[1:])], RUN_TIMEOUT_S)[0]

    @contextmanager
    def server(
        self, start: Callable[..., AbstractContextManager[RunningServer]], *arguments: Any
    ) -> Iterator[RunningServer]:
        """A fresh server with a fresh directory on its core."""
        with (
            tempfile.TemporaryDirectory(prefix="everlog-bench-", dir=self.directory) as home,
            start(Path(home) / "server", self.server_core, *arguments) as server,
        ):
            yield server

    def on(
        self, start: Callable[..., AbstractContextManager[RunningServer]], job: Any, *arguments: Any
    ) -> Numbers:
        """The numbers of one job against a fresh server."""
        with self.server(start) as server:
            numbers: Numbers = self.loaded(job, server, *arguments)
        return numbers


def redis_everysec(home: Path, core: int) -> AbstractContextManager[RunningServer]:
    """Redis as it is with a log: what was acknowledged in the last second may be lost with the machine."""
    return servers.redis(home, core, "everysec")


def redis_always(home: Path, core: int) -> AbstractContextManager[RunningServer]:
    """Redis that syncs before it answers."""
    return servers.redis(home, core, "always")


# --- Contenders ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contender:
    """A server that is measured, and what has to be there for it."""

    name: str
    title: str
    programs: tuple[str, ...]
    package: str
    install_command: str

    def missing(self) -> str | None:
        """What is not installed, if anything."""
        for program in self.programs:
            if shutil.which(program) is None and shutil.which(f"/usr/sbin/{program}") is None:
                return program
        try:
            version(self.package)
        except PackageNotFoundError:
            return f"the Python package {self.package}"
        return None


CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender("everlog", "everlog", (), "everlog", "make setup"),
        Contender(
            "redis",
            "Redis Streams",
            ("redis-server", "redis-benchmark"),
            "redis",
            "apt-get install redis-server redis-tools && pip install redis",
        ),
        Contender(
            "nats",
            "NATS JetStream",
            ("nats-server",),
            "nats-py",
            "apt-get install nats-server && pip install nats-py",
        ),
    )
}


# --- Measurements ----------------------------------------------------------------------------------------


# The first four are what users meet, so these must not differ much; the third is what every client sends.
SINGLE_FORMS = (
    Form("single"),
    Form("capped", cap_records=CAP_RECORDS),
    Form("client", is_client=True),
    Form("client_keys", is_client=True, key=API_KEY),
    Form("single_keys", key=API_KEY),
)


def _everlog_single(bench: Bench) -> Numbers:
    numbers: Numbers = {}
    for form in SINGLE_FORMS:
        numbers |= _everlog_writes(bench, form, bench.sizes.singles)
    rates = [numbers[f"{form.name}_per_s"] for form in SINGLE_FORMS[:4]]
    return numbers | {
        "forms_spread": max(rates) / min(rates),
        "bare_share": numbers["single_per_s"] / numbers["client_per_s"],
    }


def _everlog_writes(bench: Bench, form: Form, requests: int) -> Numbers:
    """Appends through the fastest client that is there: wrk in C, or bare sockets in Python."""
    if not wrk.is_installed():
        with bench.server(servers.everlog, form.key) as server:
            numbers: Numbers = bench.loaded(load_jobs.writes, server, form, requests)
        return numbers
    with (
        bench.server(servers.everlog, form.key) as server,
        tempfile.TemporaryDirectory(prefix="everlog-bench-", dir=bench.directory) as home,
    ):

        def load(path: str, body: bytes) -> wrk.Summary:
            return wrk.post(server, bench.load_core, path, body, CONNECTIONS, requests, Path(home) / "wrk")

        return load_jobs.counted_writes(server, form, load)


def _redis_single(bench: Bench) -> Numbers:
    numbers = _redis_benchmark(bench, redis_everysec, "single", bench.sizes.singles, 1)
    # Redis has one form of a write; every form is compared with it.
    return numbers | {"client_keys_per_s": numbers["single_per_s"]}


def _nats_single(bench: Bench) -> Numbers:
    return bench.on(servers.nats, load_jobs.nats_writes, "single", 1, bench.sizes.singles)


def _everlog_batch(bench: Bench) -> Numbers:
    sizes = bench.sizes
    disk = _everlog_writes(bench, Form("batch", records=BATCH_RECORDS), sizes.batches)
    with_keys = Form("batch_keys", records=BATCH_RECORDS, is_client=True, key=API_KEY)
    disk |= _everlog_writes(bench, with_keys, sizes.batches)
    fsync = _everlog_writes(bench, Form("fsync", "fsync", BATCH_RECORDS), sizes.batches)
    # The two follow one another, so what disturbs one disturbs the other; a ratio of medians would not know.
    return disk | fsync | {"fsync_share": fsync["fsync_per_s"] / disk["batch_per_s"]}


def _redis_batch(bench: Bench) -> Numbers:
    records = bench.sizes.batches * BATCH_RECORDS
    disk = _redis_benchmark(bench, redis_everysec, "batch", records, BATCH_RECORDS)
    disk["batch_keys_per_s"] = disk["batch_per_s"]
    fsync = _redis_benchmark(bench, redis_always, "fsync", records, BATCH_RECORDS)
    return disk | fsync | {"fsync_share": fsync["fsync_per_s"] / disk["batch_per_s"]}


def _nats_batch(bench: Bench) -> Numbers:
    return bench.on(servers.nats, load_jobs.nats_writes, "batch", BATCH_RECORDS, bench.sizes.batches)


def _everlog_diff(bench: Bench) -> Numbers:
    return bench.on(servers.everlog, load_jobs.reads, bench.sizes.diffs, bench.sizes.diff_records)


def _redis_diff(bench: Bench) -> Numbers:
    command = ["XRANGE", peer_wires.STREAM.decode(), "-", "+", "COUNT", str(READ_LIMIT)]
    with bench.server(redis_everysec) as server:
        _run_redis_benchmark(bench, server, READ_LIMIT, BATCH_RECORDS, _XADD)
        row = _run_redis_benchmark(bench, server, bench.sizes.diffs, 1, command)
    return {"diff_per_s": float(row["rps"]) * READ_LIMIT}


def _everlog_watch(bench: Bench) -> Numbers:
    return _watch(bench, servers.everlog, load_jobs.deliveries)


def _redis_watch(bench: Bench) -> Numbers:
    return _watch(bench, redis_everysec, load_jobs.redis_deliveries)


def _nats_watch(bench: Bench) -> Numbers:
    return _watch(bench, servers.nats, load_jobs.nats_deliveries)


def _watch(bench: Bench, start: Callable[..., AbstractContextManager[RunningServer]], job: Any) -> Numbers:
    sizes = bench.sizes
    few = bench.on(start, job, "few", FEW_WATCHERS, sizes.few_writes)
    return few | bench.on(start, job, "many", MANY_WATCHERS, sizes.many_writes)


def _everlog_idle(bench: Bench) -> Numbers:
    return bench.on(servers.everlog, load_jobs.idle_watchers, bench.sizes.idle_watchers)


def _python(
    start: Callable[..., AbstractContextManager[RunningServer]], job: Any
) -> Callable[[Bench], Numbers]:
    def run(bench: Bench) -> Numbers:
        sizes = bench.sizes
        counts = (sizes.python_singles, sizes.python_batches, sizes.python_reads)
        with bench.server(start) as server:
            numbers: Numbers = bench.loaded(job, server.address, *counts)
        return numbers

    return run


def _everlog_queue(bench: Bench) -> Numbers:
    sizes = bench.sizes
    plain = bench.on(servers.everlog, queue_jobs.everlog, sizes.jobs)
    keyed = bench.on(servers.everlog, queue_jobs.everlog, sizes.jobs, sizes.keys)
    numbers = plain | {
        "keyed_jobs_per_s": keyed["jobs_per_s"],
        "keyed_share": keyed["jobs_per_s"] / plain["jobs_per_s"],
        "keyed_cpu_us": keyed["jobs_cpu_us"],
    }
    numbers |= bench.on(servers.everlog, queue_jobs.handovers, sizes.handovers)
    numbers |= bench.on(servers.everlog, option_jobs.delayed, sizes.scheduled_jobs, sizes.due_jobs)
    return numbers | bench.on(servers.everlog, option_jobs.redriven, sizes.dead_letters)


def _everlog_readers(bench: Bench) -> Numbers:
    sizes = bench.sizes
    numbers = bench.on(servers.everlog, reader_jobs.commits, sizes.commits)
    numbers |= bench.on(servers.everlog, reader_jobs.filtered, sizes.filtered_records, sizes.filtered_reads)
    numbers |= bench.on(servers.everlog, reader_jobs.patterns, sizes.watched_topics, sizes.watched_rounds)
    return numbers | bench.on(servers.everlog, reader_jobs.idle_consumers, sizes.idle_consumers, sizes.idle_s)


def _redis_queue(bench: Bench) -> Numbers:
    return bench.on(redis_everysec, queue_jobs.redis, bench.sizes.peer_jobs)


def _nats_queue(bench: Bench) -> Numbers:
    return bench.on(servers.nats, queue_jobs.nats, bench.sizes.peer_jobs)


@dataclass(frozen=True)
class Measure:
    """A measurement as the command line names it, and how each contender is measured."""

    name: str
    runs: dict[str, Callable[[Bench], Numbers]]


MEASURES = (
    Measure("single", {"everlog": _everlog_single, "redis": _redis_single, "nats": _nats_single}),
    Measure("batch", {"everlog": _everlog_batch, "redis": _redis_batch, "nats": _nats_batch}),
    Measure("diff", {"everlog": _everlog_diff, "redis": _redis_diff}),
    Measure("watch", {"everlog": _everlog_watch, "redis": _redis_watch, "nats": _nats_watch}),
    Measure("idle", {"everlog": _everlog_idle}),
    Measure("readers", {"everlog": _everlog_readers}),
    Measure("queue", {"everlog": _everlog_queue, "redis": _redis_queue, "nats": _nats_queue}),
    Measure(
        "python",
        {
            "everlog": _python(servers.everlog, python_jobs.everlog),
            "redis": _python(redis_everysec, python_jobs.redis),
            "nats": _python(servers.nats, python_jobs.nats),
        },
    ),
)


# --- redis-benchmark -------------------------------------------------------------------------------------

# As long as the records of the others; quotes in it would not survive the CSV that is printed.
_XADD = ["XADD", peer_wires.STREAM.decode(), "*", "p", "x" * samples.PAYLOAD_BYTES]


def _redis_benchmark(
    bench: Bench,
    start: Callable[..., AbstractContextManager[RunningServer]],
    name: str,
    records: int,
    pipeline: int,
) -> Numbers:
    """XADD through the C client of Redis; its waiting times are those of a whole pipeline."""
    with bench.server(start) as server:
        cpu_s = server.cpu_s()
        row = _run_redis_benchmark(bench, server, records, pipeline, _XADD)
        cpu_us = (server.cpu_s() - cpu_s) * 1e6 * pipeline / records
    return {
        f"{name}_per_s": float(row["rps"]),
        f"{name}_p50_ms": float(row["p50_latency_ms"]),
        f"{name}_p99_ms": float(row["p99_latency_ms"]),
        f"{name}_cpu_us": cpu_us,
    }


def _run_redis_benchmark(
    bench: Bench, server: RunningServer, requests: int, pipeline: int, command: list[str]
) -> dict[str, str]:
    host, port = server.address
    call = ["redis-benchmark", "-h", host, "-p", str(port), "-c", str(CONNECTIONS), "-n", str(requests)]
    call += ["-P", str(pipeline), "--csv", *command]
    placed = [sys.executable, "-c", servers.PLACE_AND_RUN, str(bench.load_core), *call]
    ended = subprocess.run(placed, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
    rows = list(csv.DictReader(io.StringIO(ended.stdout)))
    if ended.returncode or not rows or "rps" not in rows[-1]:
        raise ChildFailed(f"redis-benchmark failed: {ended.stdout[-500:]}{ended.stderr[-500:]}")
    return rows[-1]
