"""What is timed of bridges: a queue that is full already into a topic, and that topic into another queue.

A job for one pinned process, which is the bridge; it ends when everything is confirmed.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import contextmanager

from benchmarks.engine import samples
from benchmarks.queue.stats import rate_per_s
from benchmarks.server.load import WrongAnswer
from benchmarks.server.load_jobs import TOPIC, Job, Numbers
from benchmarks.server.servers import RunningServer
from everlog.bridge import (
    Format,
    Progress,
    QueueToTopic,
    QueueToTopicSettings,
    TopicToQueue,
    TopicToQueueSettings,
)
from everlog.client import Client
from everlog.queue import Queue

TYPE_ID = 1
FILL_RECORDS = 1000


def _fill(path: str, records: int) -> None:
    ring = [samples.payload(number) for number in range(samples.RING_RECORDS)]
    with Queue.open_publisher(path, retention=False) as writer:
        for start in range(0, records, FILL_RECORDS):
            count = min(FILL_RECORDS, records - start)
            writer.append_many(TYPE_ID, [ring[(start + place) % len(ring)] for place in range(count)])


def _timed(bridge: QueueToTopic | TopicToQueue, records: int) -> tuple[float, float]:
    """Records a second, and microseconds of processor time a record."""
    started_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
    progress: Progress = bridge.run()
    elapsed_ns, spent_ns = time.perf_counter_ns() - started_ns, time.process_time_ns() - cpu_ns
    if progress.forwarded != records:
        raise WrongAnswer(f"{progress.forwarded} records were forwarded instead of {records}")
    return rate_per_s(records, elapsed_ns), spent_ns / records / 1000


@contextmanager
def bridges(server: RunningServer, records: int, directory: str) -> Job:
    """One queue out in two formats, and back."""
    with (
        tempfile.TemporaryDirectory(prefix="everlog-bench-", dir=directory) as home,
        Client("http://{}:{}".format(*server.address)) as client,
    ):
        _fill(f"{home}/queue", records)

        def out(name: str, form: Format) -> tuple[float, float]:
            settings = QueueToTopicSettings(f"{home}/queue", f"{TOPIC}-{name}", name, form, once=True)
            return _timed(QueueToTopic(client, settings), records)

        def run() -> Numbers:
            json_per_s, cpu_us = out("json", Format.AUTO)
            base64_per_s, _ = out("base64", Format.BASE64)
            settings = TopicToQueueSettings(f"{home}/back", f"{TOPIC}-json", "back", once=True)
            return {
                "bridge_json_per_s": json_per_s,
                "bridge_json_cpu_us": cpu_us,
                "bridge_base64_per_s": base64_per_s,
                "bridge_back_per_s": _timed(TopicToQueue(client, settings), records)[0],
            }

        yield run
