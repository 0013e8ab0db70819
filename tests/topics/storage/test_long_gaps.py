"""Topics with very many seqs in a row that have no record: a gap costs neither memory nor disk for each."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlog.fs import OsFs
from everlog.topics.storage.control import HeadWatermark, encode
from everlog.topics.storage.layout import FrameType
from everlog.topics.storage.verify import verify
from tests.support.engines import EngineHarness, record_of

HEAD = 1 << 30


@pytest.fixture
def harness(tmp_path: Path) -> EngineHarness:
    """A topic whose seqs up to HEAD were given out, with a record at each end of the gap."""
    harness = EngineHarness(tmp_path, segment_max_events=1000)
    harness.put("t", durability="disk")
    harness.append("t", 1, 2, record_of(3, tag="x"))
    topic = harness.engine._core.topics["t"]
    watermark = encode(HeadWatermark(0, HEAD))
    harness.wait_for(harness.engine._core.log_change(topic, FrameType.HEAD_WATERMARK, watermark))
    harness.crash()
    return harness


def check(harness: EngineHarness, *values: int) -> None:
    """What readers find, and what it costs."""
    assert harness.values("t") == list(values)
    assert harness.state("t").head_seq == harness.seqs("t")[-1]
    assert harness.engine._core.topics["t"].log.index_memory_bytes < 8 << 20
    sizes = [path.stat().st_size for path in (harness.data_dir / "topics").rglob("seg-*")]
    assert sum(sizes) < 4 << 20, sizes


def test_a_gap_is_passed_over_by_readers_checkpoints_and_restarts(harness: EngineHarness) -> None:
    assert harness.append("t", 4).first_seq == HEAD + 1
    check(harness, 1, 2, 3, 4)
    harness.crash()
    check(harness, 1, 2, 3, 4)
    harness.checkpoint(2)
    harness.append("t", 5)
    check(harness, 1, 2, 3, 4, 5)
    for again in (harness.crash, harness.restart):
        again()
        check(harness, 1, 2, 3, 4, 5)
    harness.delete("t", match="x")
    harness.delete("t", before_seq=2)
    harness.restart()
    check(harness, 2, 4, 5)
    harness.delete("t", before_seq=HEAD)
    harness.checkpoint(3)
    check(harness, 4, 5)
    harness.engine.close()
    assert verify(str(harness.data_dir), OsFs()).errors == []


@pytest.mark.parametrize("again", ["crash", "restart"])
def test_a_head_behind_a_gap_does_not_fall(harness: EngineHarness, again: str) -> None:
    """Nothing was appended behind the gap, so no segment reaches there."""
    for _ in range(2):
        harness.checkpoint()
        getattr(harness, again)()
        assert harness.state("t").head_seq == HEAD
        assert harness.values("t") == [1, 2, 3]
    assert harness.append("t", 4).first_seq == HEAD + 1
    getattr(harness, again)()
    check(harness, 1, 2, 3, 4)
