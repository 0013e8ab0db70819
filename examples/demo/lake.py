"""The lake: Spark archives the queue and the topic, rebuilds the books, computes features, audits.

    python -m examples.demo.lake ROOT URL

Owns nothing but its tables. Writes a line of JSON for every job that has ended, and all results as
one document at the end; who started it reads both.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from everlog.bus import IpcLayout
from everlog.market.feature_rows import standard_features
from everlog.market.protocol import BookMode
from everlog.market.triggers import TimeBar
from everlog.pipeline import spark_session
from everlog.pipeline.jobs.archive import archive_queue, archive_topics
from everlog.pipeline.jobs.audit import AuditReport, audit_queue, audit_topics
from everlog.pipeline.jobs.features import features_of_books
from everlog.pipeline.jobs.replay import replay_books
from everlog.pipeline.jobs.report import RunReport
from examples.demo.lake_files import (
    FEATURE_DEPTH,
    FEATURE_INTERVAL_NS,
    FEATURES_TABLE,
    L2_TABLE,
    L3_TABLE,
    MESSAGES_TABLE,
    PROGRESS_FILE,
    RECORDS_TABLE,
    RESULT_FILE,
    lake_dir,
)
from examples.demo.rebuilt import book_settings
from examples.demo.records import MARKET_TOPIC, ticks_dir

MASTER = "local[2]"
READER = "archive"
# Jobs of seconds: what the better of Java's two compilers gains never pays for the time that it takes.
SETTINGS: dict[str, Any] = {
    "spark.sql.shuffle.partitions": 2,
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


class Lake:
    """The jobs, one after the other, each with its line of progress."""

    def __init__(self, root: Path, url: str, spark: SparkSession) -> None:
        self._root = root
        self._url = url
        self._spark = spark
        self._queue = str(ticks_dir(IpcLayout(root)))
        self._lake = str(lake_dir(root))

    def run(self) -> dict[str, Any]:
        """Run every job; return what the jobs report."""
        spark, queue, lake = self._spark, self._queue, self._lake
        jobs: dict[str, Callable[[], RunReport]] = {
            "archive of the queue": lambda: archive_queue(spark, queue, lake, MESSAGES_TABLE, reader=READER),
            "archive of the topic": lambda: archive_topics(
                spark, self._url, MARKET_TOPIC, lake, RECORDS_TABLE
            ),
            "L2 replay": lambda: replay_books(
                spark, queue, lake, L2_TABLE, settings=book_settings(BookMode.L2)
            ),
            "L3 replay": lambda: replay_books(
                spark, queue, lake, L3_TABLE, settings=book_settings(BookMode.L3)
            ),
            "features": lambda: features_of_books(
                spark,
                queue,
                lake,
                FEATURES_TABLE,
                standard_features(FEATURE_DEPTH),
                trigger=TimeBar(FEATURE_INTERVAL_NS),
                settings=book_settings(BookMode.L2),
            ),
        }
        results: dict[str, Any] = {}
        for name, job in jobs.items():
            report = self._timed(name, job, lambda report: f"{report.rows:,} rows")
            results[name] = msgspec.to_builtins(report)
        audits: dict[str, Callable[[], AuditReport]] = {
            "audit of the queue's archive": lambda: audit_queue(spark, lake, MESSAGES_TABLE, queue=queue),
            "audit of the topic's archive": lambda: audit_topics(
                spark, lake, RECORDS_TABLE, self._url, topics=[MARKET_TOPIC]
            ),
        }
        for name, audit in audits.items():
            account = self._timed(name, audit, _verdict)
            results[name] = msgspec.to_builtins(account)
        return results

    def _timed(self, name: str, job: Callable[[], Any], told: Callable[[Any], str]) -> Any:
        started_s = time.monotonic()
        result = job()
        tell(self._root, name, time.monotonic() - started_s, told(result))
        return result


def _verdict(report: AuditReport) -> str:
    delivered = sum(stream.delivered for stream in report.streams)
    unexplained = sum(stream.missing + stream.duplicate for stream in report.streams)
    return f"{delivered:,} delivered, {unexplained:,} unexplained"


def tell(root: Path, name: str, seconds: float, result: str) -> None:
    """Add a line to the progress."""
    with open(root / PROGRESS_FILE, "a", encoding="utf-8") as file:
        file.write(json.dumps({"name": f"Spark: {name}", "seconds": seconds, "result": result}) + "\n")


def run(root: Path, url: str) -> None:
    """Start Spark, run the jobs, leave the results."""
    started_s = time.monotonic()
    spark = spark_session(master=MASTER, **SETTINGS)
    try:
        tell(root, "session", time.monotonic() - started_s, f"version {spark.version} on {MASTER}")
        results = Lake(root, url, spark).run()
    finally:
        spark.stop()
    (root / RESULT_FILE).write_text(json.dumps(results))


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2])
