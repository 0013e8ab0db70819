"""The archive on one core: tap, compress, scan and remote read, beside `zstd -3` and `cp` of the same bytes.

Every round runs all of them one after the other on the same files; ratios are taken within a round, and the
median of the rounds counts. Times are those of the processor: what is promised is promised for one core.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from benchmarks.arguments import (
    add_directory,
    benchmark_parser,
    directory_in_memory,
    directory_on_disk,
    print_facts,
    table_console,
)
from benchmarks.queue import machine
from everlog.archive import ArchiveTap, RemoteTier, open_archive
from everlog.archive.tiers import changing, compress_segment
from everlog.fs import OsFs
from everlog.queue import Queue

ROUNDS = 5
SEGMENT_BYTES = 128 << 20
QUICK_BYTES = 16 << 20
PAYLOAD = np.dtype([("price", "<u8"), ("size", "<u8"), ("order", "<u8"), ("rest", "V40")])


class Target(NamedTuple):
    """A ratio that is promised: numerator over denominator, at least so much."""

    label: str
    above: str
    below: str
    at_least: float


TARGETS = (
    Target("compress against zstd -3", "compress", "zstd -3", 0.8),
    Target("scan compressed against scan plain", "scan compressed", "scan plain", 0.5),
)
TAP_TARGET_PER_S = 2e6


class Files:
    """A sealed segment of market-like rows, and everything that is made of it."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size = folder, size
        self.live = folder / "live"
        count = (size - 64) // 128
        source = np.random.default_rng(7)
        rows = np.zeros(count, dtype=PAYLOAD)
        rows["price"] = 1_000_000 + np.cumsum(source.integers(-2, 3, count))
        rows["size"] = source.integers(1, 500, count)
        rows["order"] = np.arange(count)
        times = np.arange(count, dtype=np.uint64) * np.uint64(1000) + np.uint64(10**18)
        with Queue.open_publisher(self.live, segment_size=size, retention=False) as writer:
            writer.append_array(0x1000, rows, timestamp_ns=times)
            writer.append_array(0x1000, rows[:1])
        self.messages = count
        self.source = self.live / "000000000.q"
        self.archive = folder / "archive"
        self.bucket = folder / "bucket"

    def plain(self) -> None:
        """Start over with one plain segment in the archive."""
        shutil.rmtree(self.archive, ignore_errors=True)
        self.archive.mkdir()
        shutil.copy(self.source, self.archive / self.source.name)
        shutil.copy(self.live / "000000000.idx", self.archive / "000000000.idx")


def timed(work: Callable[[], object]) -> float:
    """Return how many seconds of the processor a call takes, those of its threads and programs included."""
    begun = _cpu_s()
    work()
    return _cpu_s() - begun


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def scan(files: Files, remote: RemoteTier | None = None) -> None:
    """Read every message of the archive."""
    count = 0
    with open_archive(files.archive, remote=remote) as reader:
        while len(batch := reader.read_batch()):
            count += len(batch)
    assert count == files.messages, f"read {count} of {files.messages} messages"


def compress(files: Files) -> None:
    """Compress, check and remove the plain segment, as `everlog archive compress` does."""
    with changing(OsFs(), str(files.archive)):
        compress_segment(OsFs(), str(files.archive), 0)


def tap(files: Files) -> None:
    """Copy all messages to an archive queue."""
    target = files.folder / "tapped"
    with ArchiveTap(files.live, target, reader="bench") as running:
        while running.run_once():
            pass
    assert running.copied > files.messages
    shutil.rmtree(target)
    (files.live / "readers" / "bench.meta").unlink()


def run_round(files: Files) -> dict[str, float]:
    """Return the seconds of everything, once."""
    packed, copied = files.folder / "packed.zst", files.folder / "copied"
    seconds = {"tap": timed(lambda: tap(files))}
    program = ["zstd", "-3", "-q", "-f", "--single-thread", str(files.source), "-o", str(packed)]
    if shutil.which("zstd"):
        seconds["zstd -3"] = timed(lambda: subprocess.run(program, check=True))
    seconds["cp"] = timed(lambda: subprocess.run(["cp", str(files.source), str(copied)], check=True))
    files.plain()
    seconds["scan plain"] = timed(lambda: scan(files))
    seconds["compress"] = timed(lambda: compress(files))
    seconds["scan compressed"] = timed(lambda: scan(files))
    tier = RemoteTier(OsFs())
    tier.move(str(files.archive), 0, f"file://{files.bucket}", "bench")
    seconds["remote read"] = timed(lambda: scan(files, tier))
    return seconds


def rows_of(rounds: Sequence[dict[str, float]], files: Files) -> list[dict[str, Any]]:
    """Return the rows of the report: bytes a second of everything, then the promised ratios."""
    rows = []
    for name in rounds[0]:
        rate = statistics.median(files.size / one[name] / 1e6 for one in rounds)
        values = {"everlog" if name not in ("zstd -3", "cp") else name: rate}
        rows.append(row("Bytes of a segment on one core", name, "MB/s", None, values))
    per_s = statistics.median(files.messages / one["tap"] for one in rounds)
    rows.append(row("Messages of 64 bytes", "tap", "M/s", TAP_TARGET_PER_S / 1e6, {"everlog": per_s / 1e6}))
    for target in TARGETS:
        if target.below in rounds[0]:
            ratio = statistics.median(one[target.below] / one[target.above] for one in rounds)
            rows.append(row("Ratios", target.label, "times", target.at_least, {"everlog": ratio}))
    return rows


def row(
    section: str, label: str, unit: str, target: float | None, values: dict[str, float]
) -> dict[str, Any]:
    """Return one row in the form that all benchmarks share."""
    is_met = target is None or values["everlog"] >= target
    return {
        "section": section,
        "row": label,
        "number": f"{section}: {label}",
        "unit": unit,
        "target": None if target is None else f">= {target:g}",
        "verdict": "" if target is None else "ok" if is_met else "MISSED",
        "values": values,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    parser = benchmark_parser("archive", __doc__ or "", ROUNDS, [])
    add_directory(parser, directory_in_memory(directory_on_disk()), "files are made, about 1 GB")
    options = parser.parse_args(arguments)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    before = machine.CpuTime.now()
    count = options.rounds or (2 if options.quick else ROUNDS)
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        files = Files(Path(folder), QUICK_BYTES if options.quick else SEGMENT_BYTES)
        rounds = [run_round(files) for _ in range(count)]
        rows = rows_of(rounds, files)
    facts = machine.describe() | {
        "noise": machine.CpuTime.now().noise_since(before),
        "pinned": "everything on one core",
        "rounds": f"median of {count}",
        "files": f"{options.dir} ({machine.filesystem_of(options.dir)})",
    }
    table = Table(title="Archive")
    for name in ("", "", "unit", "target", "value", ""):
        table.add_column(name)
    for one in rows:
        value = f"{next(iter(one['values'].values())):.3g}"
        table.add_row(one["section"], one["row"], one["unit"], one["target"] or "", value, one["verdict"])
    console = table_console()
    console.print(table)
    print_facts(console, facts)
    if options.json:
        options.json.write_text(json.dumps({"machine": facts, "rows": rows}, indent=2) + "\n")
    return 1 if options.check and any(one["verdict"] == "MISSED" for one in rows) else 0
