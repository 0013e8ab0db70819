"""The format `everlog.topics` with `dataDir`: topics from segment and log files, in bulk, without a server.

The driver plans once which files hold which records, as of that moment; each task opens its files itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from everlog.errors import InvalidConfig
from everlog.pipeline import segment_ranges
from everlog.pipeline.options import Options
from everlog.pipeline.sources.base import Span
from everlog.pipeline.sources.topics import NS_PER_MS, TopicsSource
from everlog.pipeline.topic_ranges import match_topics
from everlog.seq_ranges import Gap
from everlog.topics.storage.bulk_view import RECREATED, BulkView, Piece


@dataclass(frozen=True, kw_only=True)
class DirectorySource(TopicsSource):
    """A read of files."""

    data_dir: str
    cold_dir: str | None

    @classmethod
    def own_options(cls, options: Options) -> dict[str, Any]:
        """Add the directories; tasks may have another working directory, so the paths are absolute."""
        for name in ("url", "key", "timeoutMs"):
            if name in options:
                raise InvalidConfig(f"dataDir reads files and needs no server; leave out {name}")
        cold = options.text("coldDir", "")
        return {
            **super().own_options(options),
            "data_dir": os.path.abspath(options.text("dataDir")),
            "cold_dir": os.path.abspath(cold) if cold else None,
        }

    def plan(self) -> list[tuple[str, str | None, list[Piece | Gap]]]:
        """Plan the pieces of files for each task, and which instance of the topic they belong to."""
        view = BulkView(self.data_dir, self.cold_dir)

        def listed(prefix: str) -> list[str]:
            return [topic for topic in view.topics() if topic.startswith(prefix)]

        def span(name: str) -> Span:
            live = view.bounds(name)
            wanted = self.span(live, lambda ts_ns: view.seq_at_time(name, -(-ts_ns // NS_PER_MS)))
            return Span(wanted, view.instance(name))

        spans = {name: span(name) for name in match_topics(self.topics, listed, self.data_dir)}
        planned = [
            (name, instance, view.plan(name, first, end)) for name, instance, first, end in self.ranges(spans)
        ]
        return [task for task in planned if task[2]]

    def batches(
        self, topic: str, instance: str | None, pieces: list[Piece | Gap]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of some pieces."""

        def replan(first: int, end: int) -> list[Piece | Gap]:
            view = BulkView(self.data_dir, self.cold_dir)
            if view.instance(topic) != instance:
                return [Gap(first, end, RECREATED)]
            return view.plan(topic, first, end)

        found = segment_ranges.read(topic, pieces, self.passing, self.frame_columns, replan)
        yield from self.to_batches(topic, instance, found)
