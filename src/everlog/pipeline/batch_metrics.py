"""Metrics of a streaming job, in a file that the text-file collector of Prometheus's node exporter reads.

A file rather than a port: a job on a cluster has no address that is known beforehand, and one that has ended
still shows when it last committed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from everlog.pipeline.jobs.report import RunReport

LABELS: Final = ("job", "table")
COUNTERS: Final = {
    "rows": ("everlog_job_rows", "Rows that a run has committed, those of gaps included."),
    "gaps": ("everlog_job_gaps", "Gaps that a run has committed."),
    "batches": ("everlog_job_commits", "Commits of a run."),
    "files": ("everlog_job_files", "Files that a run has committed."),
    "seconds": ("everlog_job_seconds", "How long the run took until its last commit."),
}


class BatchMetrics(Collector):
    """The metrics of one run; the file is replaced as a whole."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._report: RunReport | None = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def write(self, report: RunReport) -> None:
        """Write what a report says, after a commit."""
        self._report = report
        write_to_textfile(self._path, self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the last commit; none before the first."""
        report = self._report
        if report is None:
            return
        labels = [report.job, report.table]
        for field, (name, text) in COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=LABELS)
            counter.add_metric(labels, getattr(report, field))
            yield counter
        last = GaugeMetricFamily(
            "everlog_job_last_commit_timestamp_seconds", "When it last committed.", labels=LABELS
        )
        last.add_metric(labels, time.time())
        yield last
