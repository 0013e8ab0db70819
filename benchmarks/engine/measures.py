"""What is measured: one function a measurement, each returning the numbers of one or more rounds.

Owns sizes and the data that is built once a run; the timed code is in the `*_jobs.py` modules. Every
number has a name (`diff_log_per_s`) that the report refers to.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.engine import delivery_jobs, growth_jobs, recovery_jobs, router_jobs, throughput_jobs
from benchmarks.queue.processes import Child, run_together
from benchmarks.queue.stats import MIB

RUN_TIMEOUT_S = 600.0
ROUTER_DESTS = 100
ROUTER_BATCHES = 3
LOG_TAGS: dict[str, int | None] = {"untagged": None, "shared": 1000, "distinct": 0}

Numbers = dict[str, float]


@dataclass(frozen=True)
class Sizes:
    """How much of everything. Targets that name a size hold for `FULL` only."""

    append_records: int
    lone_commits: int
    diff_records: int
    scan_bytes: int
    index_records: int
    log_records: int
    segment_records: int
    tags: int
    idle_topics: int
    disk_topics: int
    dirty_topics: int
    curve_points: tuple[int, ...]
    curve_chunk: int


FULL = Sizes(
    append_records=2_000_000,
    lone_commits=300,
    diff_records=1_000_000,
    scan_bytes=64 * MIB,
    index_records=1_000_000,
    log_records=2_000_000,
    segment_records=10_000_000,
    tags=10_000,
    idle_topics=100_000,
    disk_topics=1000,
    dirty_topics=100_000,
    curve_points=(1_000_000, 5_000_000, 10_000_000, 20_000_000, 50_000_000),
    curve_chunk=100_000,
)
QUICK = Sizes(
    append_records=50_000,
    lone_commits=40,
    diff_records=50_000,
    scan_bytes=16 * MIB,
    index_records=100_000,
    log_records=100_000,
    segment_records=200_000,
    tags=200,
    idle_topics=300,
    disk_topics=20,
    dirty_topics=2000,
    curve_points=(50_000, 100_000, 200_000),
    curve_chunk=10_000,
)


@dataclass
class Bench:
    """Where and how much to measure."""

    directory: Path
    memory_directory: Path
    core: int
    helper_cores: tuple[int, ...]
    sizes: Sizes
    rounds: int
    _built: dict[str, Path] = field(default_factory=dict)

    def alone(self, *job: Any) -> Any:
        """Run one job, `(job, *arguments)`, in a fresh process on the measured core."""
        return run_together([Child("measured", self.core, job[0], job[1:])], RUN_TIMEOUT_S)[0]

    def data(self, name: str, job: Any, *arguments: Any) -> tuple[Path, Numbers]:
        """The data that a job builds; built at the first call, kept for the run.

        Returns the numbers that building gave as well, empty if it was built before.
        """
        if name in self._built:
            return self._built[name], {}
        path = self.directory / name
        numbers = self.alone(job, str(path), *arguments, self.helper_cores)
        self._built[name] = path
        return path, numbers

    def discard(self, name: str) -> None:
        """Remove data that nothing needs any more."""
        self._built.pop(name, None)
        shutil.rmtree(self.directory / name, ignore_errors=True)


def kernels(bench: Bench) -> list[Numbers]:
    """Framing and scanning alone, and the memory of the indexes."""
    sizes = bench.sizes
    return [
        bench.alone(throughput_jobs.kernels, sizes.scan_bytes)
        | bench.alone(throughput_jobs.index_memory, sizes.index_records)
    ]


def appends(bench: Bench) -> list[Numbers]:
    """Every class of durability."""
    sizes = bench.sizes
    return [
        bench.alone(
            throughput_jobs.appends,
            str(bench.directory),
            sizes.append_records,
            sizes.lone_commits,
            bench.helper_cores,
        )
    ]


def diffs(bench: Bench) -> list[Numbers]:
    """Reading, from wherever the records lie."""
    return [
        bench.alone(throughput_jobs.diffs, str(bench.directory), bench.sizes.diff_records, bench.helper_cores)
    ]


def deliveries(bench: Bench) -> list[Numbers]:
    """Serving topics that have news."""
    return [bench.alone(delivery_jobs.deliveries, bench.sizes.dirty_topics)]


def routers(bench: Bench) -> list[Numbers]:
    """Copying one topic to a hundred."""
    path = str(bench.directory / "routers")
    try:
        return [bench.alone(router_jobs.fan_out, path, ROUTER_DESTS, ROUTER_BATCHES, bench.helper_cores)]
    finally:
        bench.discard("routers")


def replay(bench: Bench) -> list[Numbers]:
    """Start after a crash: all of it is in the log."""
    count = bench.sizes.log_records
    numbers: Numbers = {}
    for name, tags in LOG_TAGS.items():
        path, _ = bench.data(f"log-{name}", recovery_jobs.build_log, count, tags)
        numbers[f"replay_{name}_per_s"] = bench.alone(
            recovery_jobs.open_from_log, str(path), count, bench.helper_cores
        )
    return [numbers]


def _tagged_segments(bench: Bench) -> tuple[Path, int]:
    sizes = bench.sizes
    path, _ = bench.data("segments-tagged", recovery_jobs.build_segments, sizes.segment_records, sizes.tags)
    return path, sizes.segment_records + recovery_jobs.SINGLES


def start(bench: Bench) -> list[Numbers]:
    """Start after a stop: all of it is in segments."""
    count = bench.sizes.segment_records
    path, _ = bench.data("segments-untagged", recovery_jobs.build_segments, count, None)
    untagged_s = bench.alone(recovery_jobs.open_from_segments, str(path), count, bench.helper_cores)
    path, count = _tagged_segments(bench)
    tagged_s = bench.alone(recovery_jobs.open_from_segments, str(path), count, bench.helper_cores)
    return [{"start_untagged_s": untagged_s, "start_tagged_s": tagged_s}]


def deletes(bench: Bench) -> list[Numbers]:
    """Delete by tag in a big topic; last of all that use its data, which it changes."""
    sizes = bench.sizes
    how = (sizes.segment_records, sizes.tags, bench.rounds, bench.helper_cores)
    path, _ = _tagged_segments(bench)
    on_disk = bench.alone(growth_jobs.delete_on_disk, str(path), *how)
    bench.discard("segments-tagged")
    in_memory = bench.alone(growth_jobs.delete_in_memory, str(bench.directory / "delete"), *how)
    bench.discard("delete")
    return [disk | memory for disk, memory in zip(on_disk, in_memory, strict=True)]


def idle(bench: Bench) -> list[Numbers]:
    """Many topics with one record each.

    Their files are in memory: on a disk, syncing two files a topic and deleting them afterwards would
    take longer than all the rest. What the disk costs is measured with fewer topics.
    """
    topics, few, cores = bench.sizes.idle_topics, bench.sizes.disk_topics, bench.helper_cores
    _, on_disk = bench.data("idle", recovery_jobs.build_idle_topics, few)
    bench.discard("idle")
    with tempfile.TemporaryDirectory(prefix="everlog-bench-", dir=bench.memory_directory) as path:
        built = bench.alone(recovery_jobs.build_idle_topics, path, topics, cores)
        numbers: Numbers = bench.alone(recovery_jobs.open_idle_topics, path, topics, cores)
    numbers |= {f"idle_{name}": value for name, value in built.items()}
    return [numbers | {"idle_disk_checkpoint_ms": on_disk["checkpoint_s"] * 1000 / few}]


def curve(bench: Bench) -> list[Numbers]:
    """The cost of a record while one topic grows."""
    sizes = bench.sizes
    numbers: list[Numbers] = bench.alone(
        growth_jobs.curve,
        str(bench.directory / "curve"),
        sizes.curve_points,
        sizes.curve_chunk,
        bench.rounds,
        bench.helper_cores,
    )
    bench.discard("curve")
    return numbers


@dataclass(frozen=True)
class Measure:
    """A measurement as the command line names it; `once` if it takes its rounds by itself."""

    name: str
    run: Callable[[Bench], list[Numbers]]
    once: bool = False


MEASURES = (
    Measure("kernels", kernels),
    Measure("append", appends),
    Measure("diff", diffs),
    Measure("deliver", deliveries),
    Measure("routers", routers),
    Measure("replay", replay),
    Measure("start", start),
    Measure("delete", deletes, once=True),
    Measure("idle", idle, once=True),
    Measure("curve", curve, once=True),
)
