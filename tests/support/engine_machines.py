"""The engine under a hypothesis machine: a directory of its own, and small files, so that they change often.

Owns how the machines of topics, routers and queues open and leave an engine; the rules are theirs.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable

import pytest
from hypothesis.stateful import RuleBasedStateMachine

from everlog.clock import TestClock
from everlog.errors import EverlogError
from everlog.topics import Engine, EngineSettings
from everlog.topics.storage.syncs import InlineSyncs
from tests.support.files import UnsyncedFs


class EngineOnDisk(RuleBasedStateMachine):
    """A machine whose operations come one after the other, each settled before the next."""

    clock_type: type[TestClock] = TestClock
    first_shards = 1
    segment_max_events = 7

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp(prefix="everlog-model-")
        self.clock = self.clock_type()
        self.engine = self._open(self.first_shards)

    def _open(self, shards: int) -> Engine:
        return Engine.open(
            self.directory + "/data",
            EngineSettings(
                shards=shards,
                file_bytes=16384,
                segment_max_events=self.segment_max_events,
                hot_retain_segments=1,
                cold_dir=self.directory + "/cold",
            ),
            clock=self.clock,
            fs=UnsyncedFs(),
            syncs=InlineSyncs(),
        )

    def teardown(self) -> None:
        """Leave nothing behind."""
        self.engine.close()
        shutil.rmtree(self.directory)

    @property
    def now_ms(self) -> int:
        """Wall time."""
        return self.clock.wall_ns() // 1_000_000

    def _refused(self, action: Callable[[], object], by: type[EverlogError]) -> None:
        with pytest.raises(EverlogError) as caught:
            action()
        assert caught.type is by, caught.value
