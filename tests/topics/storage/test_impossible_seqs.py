"""Seqs in the log that cannot be true: the start says which file and topic, and changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlog.errors import Corrupt
from everlog.topics.commits import ChangeEntry
from everlog.topics.storage.control import EvictWatermark, HeadWatermark, encode
from everlog.topics.storage.layout import FrameType
from tests.support.engines import EngineHarness

FAR = (1 << 32) + 100


def harness_of(root: Path) -> EngineHarness:
    harness = EngineHarness(root)
    harness.put("t", durability="fsync")
    harness.put("other", durability="fsync")
    harness.append("t", 1, 2)
    return harness


def log_bytes(harness: EngineHarness) -> dict[Path, bytes]:
    return {path: path.read_bytes().rstrip(b"\0") for path in sorted(harness.data_dir.rglob("*.wal*"))}


def refused(harness: EngineHarness) -> str:
    """Crash, fail to start, twice; return why."""
    harness.engine.abandon()
    before = log_bytes(harness)
    reasons = []
    for _ in range(2):
        with pytest.raises(Corrupt) as raised:
            harness.open_with()
        reasons.append(str(raised.value))
    assert reasons[0] == reasons[1]
    assert log_bytes(harness) == before
    return reasons[0]


@pytest.mark.parametrize("seq", [FAR, 1 << 62, (1 << 64) - 1])
@pytest.mark.parametrize("kind", [FrameType.HEAD_WATERMARK, FrameType.EVICT_WATERMARK])
def test_a_watermark_far_behind_all_records_names_file_and_topic(
    tmp_path: Path, kind: FrameType, seq: int
) -> None:
    harness = harness_of(tmp_path)
    core = harness.engine._core
    mark = HeadWatermark(0, seq) if kind is FrameType.HEAD_WATERMARK else EvictWatermark(seq, 1, 1)
    harness.wait_for(core.log_change(core.topics["t"], kind, encode(mark)))
    reason = refused(harness)
    assert "'t'" in reason and str(harness.data_dir) in reason and "wal" in reason


@pytest.mark.parametrize("seq", [FAR + 10, 1 << 63])
def test_a_record_far_behind_all_others_names_file_and_topic_and_cuts_nothing_off(
    tmp_path: Path, seq: int
) -> None:
    harness = harness_of(tmp_path)
    core = harness.engine._core
    topic = core.topics["t"]
    shard = core.writable_shard(topic)
    shard.reserve(1000)
    shard.wal.buffer.append_log(FrameType.APPEND, 0, topic.topic_id, seq, 1, b"", b"", b"1")
    entry = ChangeEntry()
    shard.gather(entry, 1)
    harness.wait_for(entry.commit)
    harness.append("other", "behind it")
    reason = refused(harness)
    assert "'t'" in reason and str(seq) in reason and str(harness.data_dir) in reason


def test_a_topic_without_records_may_stand_far_behind_2_to_the_32(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", durability="fsync")
    core = harness.engine._core
    harness.wait_for(
        core.log_change(core.topics["t"], FrameType.HEAD_WATERMARK, encode(HeadWatermark(0, FAR)))
    )
    harness.crash()
    assert harness.append("t", 1).first_seq == FAR + 1
