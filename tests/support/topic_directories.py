"""Data directories of the topics engine with everything in them: several topics, segments, log, snapshot."""

from __future__ import annotations

import os
from pathlib import Path

from everlog.clock import TestClock
from everlog.topics import Engine, EngineSettings, NewRecord, TopicConfig
from everlog.topics.config import Durability
from everlog.topics.storage.syncs import InlineSyncs
from tests.support.files import UnsyncedFs

FILE_BYTES = 4096
SEGMENT_EVENTS = 5


def open_engine(root: Path) -> Engine:
    """Open the engine in `root`, with segments and log files small enough that there are many."""
    return Engine.open(
        root / "data",
        EngineSettings(
            shards=1,
            file_bytes=FILE_BYTES,
            segment_max_events=SEGMENT_EVENTS,
            hot_retain_segments=1,
            cold_dir=str(root / "cold"),
        ),
        clock=TestClock(),
        fs=UnsyncedFs(),
        syncs=InlineSyncs(),
    )


def append(engine: Engine, name: str, count: int) -> None:
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


def fill(engine: Engine) -> None:
    """Make three topics with sealed, cold and active segments, holes, marks, and a log behind them."""
    for name, durability in (("a", Durability.FSYNC), ("b", Durability.DISK), ("c", Durability.MEMORY)):
        engine.wait_for(engine.put_topic(name, TopicConfig(durability=durability)).commit)
        append(engine, name, 18)
    engine.checkpoint()
    engine.relocate()
    engine.wait_for(engine.delete_records("a", match="tag:0").commit)
    engine.checkpoint()
    engine.checkpoint()
    for name in ("a", "b", "c"):
        append(engine, name, 12)


def stopped_directory(root: Path) -> Path:
    """A directory that was closed in good order."""
    engine = open_engine(root)
    fill(engine)
    engine.close()
    return root / "data"


def crashed_directory(root: Path) -> Path:
    """A directory whose process was killed: segments, a snapshot and several log files."""
    engine = open_engine(root)
    fill(engine)
    engine.abandon()
    return root / "data"


def files_below(root: Path) -> dict[str, bytes]:
    """Every file with its content."""
    return {
        os.path.join(folder, name): Path(folder, name).read_bytes()
        for folder, _, names in sorted(os.walk(root))
        for name in sorted(names)
    }


def flip_bit(path: Path, offset: int, bit: int = 0) -> None:
    """Damage one bit of a file."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 1 << bit
    path.write_bytes(content)
