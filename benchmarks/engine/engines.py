"""Engines as the benchmark opens them: on which cores their threads run, and when they checkpoint.

Owns nothing that is timed. `OPEN_ENDED` keeps an engine from checkpointing by itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from everlog.topics import Durability, Engine, EngineSettings, TopicConfig
from everlog.topics.storage.store import lanes_for
from everlog.topics.storage.syncs import Done, Job, ThreadSyncs

TOPIC = "measured"

DEFAULTS = EngineSettings(shards=1)
OPEN_ENDED = replace(DEFAULTS, snapshot_log_bytes=1 << 50, snapshot_interval_ms=1 << 40)


class PlacedSyncs(ThreadSyncs):
    """The engine's own sync threads, moved to `cores`: otherwise they inherit the pin of their owner."""

    def __init__(self, lanes: int, cores: tuple[int, ...]) -> None:
        super().__init__(lanes)
        self._cores = cores
        self._placed: set[int] = set()

    def start(self, lane: int, job: Job, done: Done) -> None:
        """Start a job; the first one of each lane also moves the thread it runs on."""
        if lane in self._placed:
            super().start(lane, job, done)
            return
        self._placed.add(lane)

        def move_and_run() -> None:
            os.sched_setaffinity(0, self._cores)
            job()

        super().start(lane, move_and_run, done)


@contextmanager
def opened(
    path: Path | str,
    helper_cores: tuple[int, ...],
    settings: EngineSettings = DEFAULTS,
) -> Iterator[Engine]:
    """An engine on a data directory, its sync threads on `helper_cores`.

    It is let go without a final checkpoint, unless it was closed: its files stay as they are.
    """
    syncs = PlacedSyncs(lanes_for(settings), helper_cores)
    engine = Engine.open(path, settings, syncs=syncs)
    try:
        yield engine
    finally:
        # First the threads: a checkpoint in the middle of its work still reads what the engine holds.
        syncs.close()
        engine.abandon()


@contextmanager
def with_topic(
    path: Path | str,
    durability: Durability,
    helper_cores: tuple[int, ...],
    settings: EngineSettings = DEFAULTS,
) -> Iterator[Engine]:
    """A fresh engine with one empty topic, `TOPIC`."""
    with opened(path, helper_cores, settings) as engine:
        engine.wait_for(engine.put_topic(TOPIC, TopicConfig(durability=durability)).commit)
        yield engine
