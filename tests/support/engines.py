"""Topics engines with a clock and a disk that tests move: for examples, for state machines, for servers.

Owns how tests open, fill, stop, crash and reopen an engine; what is expected is in the tests, and
`model_checks` compares answers with the model.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis.stateful import RuleBasedStateMachine

from everlog.clock import Clock, TestClock
from everlog.errors import EverlogError
from everlog.fault_fs import FaultFs
from everlog.fs import Fs
from everlog.topics import (
    Appended,
    Commit,
    Diff,
    Engine,
    EngineSettings,
    NewRecord,
    RecordsDeleted,
    TopicConfig,
    TopicDeleted,
    TopicPut,
    TopicState,
    record_of,
)
from everlog.topics.config import Durability
from everlog.topics.storage.syncs import Done, InlineSyncs, Job, SyncRunner
from tests.support.files import UnsyncedFs

NS_PER_MS = 1_000_000
START_MS = 1_700_000_000_000
FILE_BYTES = 64 << 10
WHOLE = 8 << 20
SEGMENT_EVENTS = 5


def open_engine(
    data_dir: str | Path | None,
    *,
    clock: Clock | None = None,
    fs: Fs | None = None,
    syncs: SyncRunner | None = None,
    **settings: Any,
) -> Engine:
    """Open an engine of one shard that syncs inside of its polls and does not wait for the disk."""
    return Engine.open(
        data_dir,
        EngineSettings(**{"shards": 1, **settings}),
        clock=clock,
        fs=fs or UnsyncedFs(),
        syncs=syncs or InlineSyncs(),
    )


class HeldSyncs(InlineSyncs):
    """Syncs and cold reads that happen on the next turn, or when the test releases them.

    `wake` is called when there is something to poll, as by the threads of a server.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_held = False
        self.wake: Callable[[], None] = lambda: None

    def start(self, lane: int, job: Job, done: Done) -> None:
        super().start(lane, job, done)
        self.wake()

    def poll(self) -> int:
        return 0 if self.is_held else super().poll()

    def release(self) -> None:
        self.is_held = False
        self.wake()


# --- For examples ----------------------------------------------------------------------------------------


class EngineHarness:
    """An engine, its clock and its disk. `root` None: nothing is on disk.

    Every operation waits until its answer may be given; `engine` itself is there for those that must not.
    """

    def __init__(self, root: Path | None, seed: int = 0, **settings: Any) -> None:
        self.clock = TestClock(START_MS * NS_PER_MS)
        self.root = root
        self.settings = EngineSettings(**{"shards": 1, "file_bytes": FILE_BYTES, **settings})
        self.fs = None if root is None else FaultFs(root, seed, UnsyncedFs())
        self._random = random.Random(seed)
        self.engine = self._open()

    def __del__(self) -> None:
        """Close the files of a harness that is no longer referenced."""
        self.engine.abandon()

    @property
    def data_dir(self) -> Path:
        """Where the engine keeps its files."""
        assert self.root is not None
        return self.root / "data"

    @property
    def disk(self) -> FaultFs:
        """The disk, to plan failures on."""
        assert self.fs is not None
        return self.fs

    def _open(self) -> Engine:
        data_dir = None if self.root is None else self.root / "data"
        return Engine.open(data_dir, self.settings, clock=self.clock, fs=self.fs, syncs=InlineSyncs())

    # --- Time and restarts -------------------------------------------------------------------------------

    def advance_ms(self, duration_ms: int) -> None:
        """Let time pass."""
        self.clock.advance_ns(duration_ms * NS_PER_MS)

    def now_ms(self) -> int:
        """Wall time."""
        return self.clock.wall_ns() // NS_PER_MS

    def open_with(self, **settings: Any) -> None:
        """Open the stopped or crashed directory again, with other settings if there are any."""
        if settings:
            self.settings = EngineSettings(**{"shards": 1, "file_bytes": FILE_BYTES, **settings})
        self.engine = self._open()

    def restart(self, **settings: Any) -> None:
        """Stop in good order and open again."""
        self.engine.close()
        self.open_with(**settings)

    def crash(self, **settings: Any) -> None:
        """Kill the process, so that what was written is there, and open again."""
        self.engine.abandon()
        self.open_with(**settings)

    def lose_power(self) -> None:
        """Lose power, so that only what was synced is certainly there, and open again."""
        self.engine.abandon()
        self.disk.restore(self._random)
        self.open_with()

    # --- Operations --------------------------------------------------------------------------------------

    def wait_for(self, commit: Commit) -> None:
        """Wait for a commit; raises what it failed with."""
        self.engine.wait_for(commit)

    def put(self, name: str, **config: Any) -> TopicPut:
        """Create or configure a topic."""
        answer = self.engine.put_topic(name, TopicConfig(**config))
        self.wait_for(answer.commit)
        return answer

    def append(self, name: str, *values: Any, **options: Any) -> Appended:
        """Append values as one batch: plain Python values, or `NewRecord`s."""
        answer = self.engine.append(name, records(values), **options)
        self.wait_for(answer.commit)
        return answer

    def append_each(self, name: str, values: Iterable[Any], **options: Any) -> None:
        """Append values one by one."""
        for value in values:
            self.append(name, value, **options)

    def delete(self, name: str, **selection: Any) -> RecordsDeleted:
        """Delete records."""
        answer = self.engine.delete_records(name, **selection)
        self.wait_for(answer.commit)
        return answer

    def delete_topic(self, name: str, *, if_empty: bool = False) -> TopicDeleted:
        """Delete a topic."""
        answer = self.engine.delete_topic(name, if_empty=if_empty)
        self.wait_for(answer.commit)
        return answer

    def diff(self, name: str, from_seq: int = 0, **options: Any) -> Diff:
        """Read one page."""
        answer = self.engine.diff(name, from_seq, **options)
        self.wait_for(answer.commit)
        return answer

    def state(self, name: str) -> TopicState:
        """Report a topic without counting as its reader."""
        state = self.engine.state(name, touch=False)
        self.wait_for(self.engine.floor_commit(name))
        return state

    def checkpoint(self, times: int = 1) -> None:
        """Checkpoint; after the second one the log from before the first is not needed any more."""
        for _ in range(times):
            self.engine.checkpoint()

    # --- What readers see --------------------------------------------------------------------------------

    def items(self, name: str, **options: Any) -> list[dict[str, Any]]:
        """Everything that can be read, as a reader gets it."""
        found: list[dict[str, Any]] = []
        cursor = 0
        while True:
            page = self.diff(name, cursor, limit=1000, max_batch_bytes=WHOLE, **options)
            found += parse(page)
            if page.caught_up:
                return found
            assert page.next_from_seq > cursor, f"a read from {cursor} does not move the cursor"
            cursor = page.next_from_seq

    def values(self, name: str) -> list[Any]:
        """The data of everything that can be read."""
        return [item["data"] for item in self.items(name)]

    def seqs(self, name: str) -> list[int]:
        """The seqs of everything that can be read."""
        return [item["$seq"] for item in self.items(name)]

    def gap(self, name: str, from_seq: int = 0) -> tuple[int, int, str] | None:
        """What a reader at `from_seq` is told to have missed: first seq, last seq, why."""
        tombstone = self.diff(name, from_seq).tombstone
        return None if tombstone is None else (tombstone.gap_from, tombstone.gap_to, tombstone.reason)


def records(values: Iterable[Any]) -> list[NewRecord]:
    """Records from plain Python values; those that are records already stay as they are."""
    return [value if isinstance(value, NewRecord) else record_of(value) for value in values]


def parse(answer: Diff) -> list[dict[str, Any]]:
    """The records of an answer as Python values."""
    found: list[dict[str, Any]] = json.loads(answer.records)
    assert len(found) == answer.delivered
    return found


def sized(size: int, **fields: Any) -> NewRecord:
    """A record whose data counts `size` bytes."""
    return NewRecord(b'"' + b"x" * (size - 2) + b'"', **fields)


# --- For state machines ----------------------------------------------------------------------------------


class EngineOnDisk(RuleBasedStateMachine):
    """A machine whose operations come one after the other, each committed before the next.

    It has a directory of its own, and small files, so that they change often.
    """

    clock_type: type[TestClock] = TestClock
    first_shards = 1
    segment_max_events = 7

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp(prefix="everlog-model-")
        self.clock = self.clock_type()
        self.engine = self._open(self.first_shards)

    def _open(self, shards: int) -> Engine:
        return open_engine(
            self.directory + "/data",
            clock=self.clock,
            shards=shards,
            file_bytes=16384,
            segment_max_events=self.segment_max_events,
            hot_retain_segments=1,
            cold_dir=self.directory + "/cold",
        )

    def teardown(self) -> None:
        """Leave nothing behind."""
        self.engine.close()
        shutil.rmtree(self.directory)

    @property
    def now_ms(self) -> int:
        """Wall time."""
        return self.clock.wall_ns() // NS_PER_MS

    def _refused(self, action: Callable[[], object], by: type[EverlogError]) -> None:
        with pytest.raises(EverlogError) as caught:
            action()
        assert caught.type is by, caught.value


# --- Directories with everything in them: several topics, segments, log, snapshot ------------------------


def open_small(root: Path) -> Engine:
    """Open the engine in `root`, with segments and log files small enough that there are many."""
    return open_engine(
        root / "data",
        clock=TestClock(),
        file_bytes=4096,
        segment_max_events=SEGMENT_EVENTS,
        hot_retain_segments=1,
        cold_dir=str(root / "cold"),
    )


def _append_each(engine: Engine, name: str, count: int) -> None:
    """Append `count` records, one at a time; every third has a tag, a node and meta."""
    for number in range(count):
        extra = number % 3 == 0
        record = NewRecord(
            b'{"number":%d,"text":"%s"}' % (number, b"x" * (10 * number % 200)),
            f"tag:{number % 2}" if extra else None,
            "node" if extra else None,
            b'{"m":1}' if extra else None,
        )
        engine.wait_for(engine.append(name, [record]).commit)


def _fill(engine: Engine) -> None:
    """Make three topics with sealed, cold and active segments, holes, marks, and a log behind them."""
    for name, durability in (("a", Durability.FSYNC), ("b", Durability.DISK), ("c", Durability.MEMORY)):
        engine.wait_for(engine.put_topic(name, TopicConfig(durability=durability)).commit)
        _append_each(engine, name, 18)
    engine.checkpoint()
    engine.relocate()
    engine.wait_for(engine.delete_records("a", match="tag:0").commit)
    engine.checkpoint()
    engine.checkpoint()
    for name in ("a", "b", "c"):
        _append_each(engine, name, 12)


def stopped_directory(root: Path) -> Path:
    """A directory that was closed in good order."""
    with open_small(root) as engine:
        _fill(engine)
    return root / "data"


def crashed_directory(root: Path) -> Path:
    """A directory whose process was killed: segments, a snapshot and several log files."""
    engine = open_small(root)
    _fill(engine)
    engine.abandon()
    return root / "data"
