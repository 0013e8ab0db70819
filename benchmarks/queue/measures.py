"""What is measured: one function a measurement, each returning the numbers of one round.

Owns run lengths and the order of the rounds; the timed code is in `loops.py` and
`everlog_jobs.py`. Every number has a name (`spinning_p50_us`) that the report refers to.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.queue import everlog_jobs, jobs
from benchmarks.queue.peers import Mode, Peer, Setup
from benchmarks.queue.peers.everlog import segment_size_for
from benchmarks.queue.processes import Child, run_together
from benchmarks.queue.stats import MIB, percentile_us, rate_per_s

PAYLOAD_BYTES = 64
PAYLOAD_SIZES = {64: "64b", 1024: "1kib", 65_536: "64kib"}
STREAM_BYTES_MAX = 128 * MIB

SPINNING_SAMPLES = 20_000
# Contenders with a slow pace get as many samples as fit into this time.
SPINNING_TIME_NS_MAX = 2_000_000_000
ASLEEP_SAMPLES = 800
ASLEEP_PACE_NS = 1_200_000
WARM_UP_SHARE = 0.1
# A look that takes so much longer than the usual one was interrupted.
INTERRUPTED_NS_MIN = 1_000

CALL_MESSAGES = 400_000
BATCH_MESSAGES_PREPARED = 4_000_000
BATCH_MESSAGES_FRESH = 6_000_000
FRESH_SEGMENT_BYTES = 128 * MIB
ROLL_APPENDS = 60_000

RUN_TIMEOUT_S = 120.0
QUICK_DIVISOR = 8

Numbers = dict[str, float]


@dataclass(frozen=True)
class Bench:
    """Where and how long to measure."""

    directory: Path
    sender_core: int
    receiver_core: int
    quick: bool

    def scaled(self, count: int) -> int:
        """`count`, or a fraction of it in a quick run."""
        return count // QUICK_DIVISOR if self.quick else count

    def pair(self, sender: tuple[Any, ...], receiver: tuple[Any, ...]) -> list[Any]:
        """Run a sending and a receiving job, each `(job, *arguments)`, on their cores."""
        return run_together(
            [
                Child("sender", self.sender_core, sender[0], sender[1:]),
                Child("receiver", self.receiver_core, receiver[0], receiver[1:]),
            ],
            RUN_TIMEOUT_S,
        )

    def alone(self, *job: Any) -> Any:
        """Run one job on the sender's core."""
        return run_together([Child("measured", self.sender_core, job[0], job[1:])], RUN_TIMEOUT_S)[0]

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """An empty directory for one run; gone afterwards, and its memory with it."""
        with tempfile.TemporaryDirectory(prefix="everlog-bench-", dir=self.directory) as path:
            yield Path(path)


def _exchange(
    bench: Bench, peer: Peer, mode: Mode, samples: int, pace_ns: int, receiver: Callable[..., Any]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Send at a pace; return when each message was sent and what the receiver noted, a warm-up left out."""
    warm_up = int(samples * WARM_UP_SHARE)
    count = samples + warm_up
    with bench.scratch() as scratch, peer.channel(scratch) as address:
        setup = Setup(address, mode, PAYLOAD_BYTES, count)
        sent, noted = bench.pair(
            (jobs.paced_sender, peer.name, setup, count, pace_ns), (receiver, peer.name, setup, count)
        )
    return np.asarray(sent)[warm_up:], np.asarray(noted)[..., warm_up:]


def _latency(bench: Bench, peer: Peer, mode: Mode, samples: int, pace_ns: int) -> Numbers:
    sent, received = _exchange(bench, peer, mode, samples, pace_ns, jobs.timed_receiver)
    return {
        f"{mode.value}_p50_us": percentile_us(received - sent, 50),
        f"{mode.value}_p99_us": percentile_us(received - sent, 99),
        f"{mode.value}_p999_us": percentile_us(received - sent, 99.9),
    }


def _spinning_samples(bench: Bench, peer: Peer) -> int:
    return min(bench.scaled(SPINNING_SAMPLES), SPINNING_TIME_NS_MAX // peer.spinning_pace_ns)


def spinning(bench: Bench, peer: Peer) -> Numbers:
    """One-way latency to a receiver that never sleeps."""
    return _latency(bench, peer, Mode.SPINNING, _spinning_samples(bench, peer), peer.spinning_pace_ns)


def polling(bench: Bench, peer: Peer) -> Numbers:
    """The same with a loop in Python that asks for the next message, and which of them found it running.

    What the machine takes away from the receiver is no part of a contender's latency, but of the p99.
    """
    samples = _spinning_samples(bench, peer)
    sent, (received, looked) = _exchange(
        bench, peer, Mode.POLLING, samples, peer.spinning_pace_ns, jobs.polled_receiver
    )
    latency_ns, look_ns = received - sent, received - looked
    running = look_ns < np.median(look_ns) + INTERRUPTED_NS_MIN
    return {
        "polling_p50_us": percentile_us(latency_ns, 50),
        "polling_p99_us": percentile_us(latency_ns, 99),
        "polling_running_p99_us": percentile_us(latency_ns[running], 99),
        "polling_interrupted_percent": 100.0 * float(np.mean(~running)),
    }


def asleep(bench: Bench, peer: Peer) -> Numbers:
    """One-way latency to a receiver that sleeps in the kernel before each message."""
    return _latency(bench, peer, Mode.ASLEEP, bench.scaled(ASLEEP_SAMPLES), ASLEEP_PACE_NS)


def stream(bench: Bench, peer: Peer) -> Numbers:
    """Throughput at three payload sizes, and the memory that the smallest one took."""
    numbers: Numbers = {}
    for payload_bytes, label in PAYLOAD_SIZES.items():
        count = bench.scaled(min(peer.stream_messages, STREAM_BYTES_MAX // payload_bytes))
        with bench.scratch() as scratch, peer.channel(scratch) as address:
            setup = Setup(address, Mode.STREAM, payload_bytes, count)
            (started_ns, sender_memory), (ended_ns, receiver_memory) = bench.pair(
                (jobs.stream_sender, peer.name, setup, count),
                (jobs.stream_receiver, peer.name, setup, count),
            )
        numbers[f"stream_{label}_per_s"] = rate_per_s(count, ended_ns - started_ns)
        if payload_bytes == PAYLOAD_BYTES:
            numbers |= {
                "sender_private_mib": sender_memory.private_mib,
                "sender_mapped_mib": sender_memory.mapped_mib,
                "receiver_private_mib": receiver_memory.private_mib,
                "receiver_mapped_mib": receiver_memory.mapped_mib,
            }
    return numbers


def calls(bench: Bench, peer: Peer) -> Numbers:
    """Cost of each call inside one process."""
    with bench.scratch() as scratch:
        return asdict(bench.alone(everlog_jobs.call_costs, str(scratch / "q"), bench.scaled(CALL_MESSAGES)))


def _batches(bench: Bench, count: int, segment_size: int, *, prepared: bool) -> float:
    whole = count - count % everlog_jobs.BATCH_MESSAGES
    with bench.scratch() as scratch:
        path = str(scratch / "q")
        (started_ns, _), (ended_ns, _) = bench.pair(
            (everlog_jobs.batch_sender, path, whole, segment_size, prepared),
            (everlog_jobs.batch_receiver, path, whole),
        )
    return rate_per_s(whole, ended_ns - started_ns)


def batches_prepared(bench: Bench, peer: Peer) -> Numbers:
    """Batched throughput within one prepared segment."""
    count = bench.scaled(BATCH_MESSAGES_PREPARED)
    segment_bytes = segment_size_for(count, PAYLOAD_BYTES)
    return {"batched_per_s": _batches(bench, count, segment_bytes, prepared=True)}


def batches_fresh(bench: Bench, peer: Peer) -> Numbers:
    """Batched throughput through a new queue, one segment after the other."""
    count = bench.scaled(BATCH_MESSAGES_FRESH)
    segment_bytes = bench.scaled(FRESH_SEGMENT_BYTES)
    return {"batched_fresh_per_s": _batches(bench, count, segment_bytes, prepared=False)}


def rolls(bench: Bench, peer: Peer) -> Numbers:
    """Duration of appends when every 511th rolls to a prepared segment."""
    with bench.scratch() as scratch:
        durations, rolled = bench.alone(
            everlog_jobs.rolling_writer, str(scratch / "q"), bench.scaled(ROLL_APPENDS)
        )
    appends_ns = np.asarray(durations)
    rolls_ns = appends_ns[rolled]
    return {
        "rolling_append_p50_us": percentile_us(appends_ns, 50),
        "rolling_append_p99_us": percentile_us(appends_ns, 99),
        "rolling_append_p999_us": percentile_us(appends_ns, 99.9),
        "rolling_append_max_us": percentile_us(appends_ns, 100),
        "roll_p50_us": percentile_us(rolls_ns, 50),
        "roll_p99_us": percentile_us(rolls_ns, 99),
        "roll_max_us": percentile_us(rolls_ns, 100),
    }


EVERLOG_ONLY = ("everlog",)


@dataclass(frozen=True)
class Measure:
    """A measurement as the command line names it, and for whom it is; None: for all."""

    name: str
    run: Callable[[Bench, Peer], Numbers]
    contenders: tuple[str, ...] | None = None


MEASURES = (
    Measure("calls", calls, EVERLOG_ONLY),
    Measure("spinning", spinning),
    Measure("polling", polling, ("everlog", "iceoryx2")),
    Measure("asleep", asleep),
    Measure("stream", stream),
    Measure("batches", batches_prepared, EVERLOG_ONLY),
    Measure("fresh", batches_fresh, EVERLOG_ONLY),
    Measure("rolls", rolls, EVERLOG_ONLY),
)
