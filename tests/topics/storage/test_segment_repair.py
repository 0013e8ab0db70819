"""Segments with more, fewer or other bytes than listed: what a start does, and what a repair leaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from everlog.errors import Corrupt, TopicDamaged
from everlog.topics import record_of
from everlog.topics.storage.verify import Verification, verify
from tests.support.engines import EngineHarness, parse
from tests.support.files import flip_bit

COUNT = 22
PER_SEGMENT = 4


def bucket_of(root: Path) -> dict[str, object]:
    """Settings with which all but the newest sealed segments are in a bucket."""
    return {
        "segment_max_events": PER_SEGMENT,
        "hot_retain_segments": 1,
        "cold_url": f"file://{root}/bucket",
    }


def filled(root: Path, **settings: object) -> EngineHarness:
    """A stopped engine with six segments of one topic, one record of which is in the last two."""
    harness = EngineHarness(root, **{"segment_max_events": PER_SEGMENT, **settings})
    harness.append("t", *[record_of(number) for number in range(COUNT)])
    harness.checkpoint()
    while harness.engine.relocate():
        pass
    harness.engine.close()
    return harness


def check(harness: EngineHarness) -> Verification:
    """Verify the stopped directory."""
    return verify(str(harness.data_dir), harness.disk)


def lengthen(path: Path) -> None:
    """Add bytes that mean nothing."""
    path.write_bytes(path.read_bytes() + b"\xa5" * 31)


@pytest.mark.parametrize("place", [0, 2, -1], ids=["first", "middle", "last"])
@pytest.mark.parametrize("suffix", ["idx", "data"])
def test_bytes_behind_the_end_of_a_segment_cost_nothing(tmp_path: Path, suffix: str, place: int) -> None:
    harness = filled(tmp_path)
    lengthen(sorted((harness.data_dir / "topics").rglob(f"*.{suffix}"))[place])
    assert check(harness).findings
    harness.open_with(segment_max_events=PER_SEGMENT)
    assert harness.values("t") == list(range(COUNT))
    assert harness.append("t", "next").first_seq == COUNT + 1
    harness.restart(segment_max_events=PER_SEGMENT, on_damage="give_up")
    assert harness.values("t") == [*range(COUNT), "next"]
    assert harness.engine.recovery is not None
    assert not harness.engine.recovery.may_lack_acked
    harness.engine.close()
    assert not check(harness).errors


def test_a_repair_that_gives_up_records_leaves_nothing_to_report(tmp_path: Path) -> None:
    harness = filled(tmp_path)
    path = sorted((harness.data_dir / "topics").rglob("*.data"))[1]
    flip_bit(path, 45)
    (found,) = check(harness).errors
    assert found.kind == "corrupt_frame"
    assert "seq 6 of topic 't'" in found.message
    harness.open_with(segment_max_events=PER_SEGMENT, on_damage="give_up")
    assert harness.engine.recovery is not None
    (found,) = harness.engine.recovery.damage
    assert "topic 't'" in found.message
    harness.engine.close()
    result = check(harness)
    assert not result.errors
    assert [finding.kind for finding in result.findings] == ["given_up"]
    harness.open_with(segment_max_events=PER_SEGMENT)
    assert not harness.engine.recovery.damage
    assert harness.gap("t", 5) == (6, 6, "corrupt")
    assert harness.values("t") == [value for value in range(COUNT) if value != 5]


def test_a_record_that_was_given_up_stays_a_note_when_eviction_passes_it(tmp_path: Path) -> None:
    harness = filled(tmp_path)
    first, second = sorted((harness.data_dir / "topics").rglob("*.data"))[1:3]
    flip_bit(first, 45)
    harness.open_with(segment_max_events=PER_SEGMENT, on_damage="give_up")
    harness.put("t", cap_records=COUNT - 7)  # seq 6 is evicted, 8 is in the same segment
    assert harness.values("t")[0] == 7
    harness.engine.close()
    flip_bit(second, 45)
    harness.open_with(segment_max_events=PER_SEGMENT, on_damage="give_up")  # forgets gaps below the floor
    harness.engine.close()
    result = check(harness)
    assert not result.errors
    assert [(finding.path, finding.kind) for finding in result.findings] == [
        (str(first), "given_up"),
        (str(second), "given_up"),
    ]
    flip_bit(first, first.stat().st_size - 20)
    assert [finding.kind for finding in check(harness).errors] == ["corrupt_frame"]


def test_every_bad_record_of_a_segment_is_reported(tmp_path: Path) -> None:
    harness = filled(tmp_path)
    path = sorted((harness.data_dir / "topics").rglob("*.data"))[1]
    content = path.read_bytes()
    path.write_bytes(bytes(len(content)))
    errors = [finding.message for finding in check(harness).errors]
    assert len(errors) == PER_SEGMENT
    assert all(f"seq {seq} of topic 't'" in text for seq, text in enumerate(errors, PER_SEGMENT + 1))


def cut(path: Path) -> None:
    """Leave half of a file."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def replace(path: Path) -> None:
    """Put other bytes in place of a file, of the same length."""
    path.write_bytes(b"\xa5" * path.stat().st_size)


@pytest.mark.parametrize("harm", [Path.unlink, cut, replace])
def test_a_lost_object_is_damage_and_a_repair_gives_it_up(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    harness = filled(tmp_path, **bucket_of(tmp_path))
    path = sorted((tmp_path / "bucket").rglob("*.data"))[1]
    harm(path)
    assert check(harness).errors
    harness.open_with(**bucket_of(tmp_path))
    assert [item["$seq"] for item in parse(harness.diff("t", limit=PER_SEGMENT))] == [1, 2, 3, 4]
    with pytest.raises(Corrupt, match="restore it from a backup"):
        harness.diff("t", PER_SEGMENT)
    harness.engine.close()
    harness.open_with(**bucket_of(tmp_path), on_damage="give_up")
    for _ in range(2):
        assert harness.gap("t", PER_SEGMENT) == (5, 8, "corrupt")
        assert harness.values("t") == [value for value in range(COUNT) if not 4 <= value < 8]
        harness.restart(**bucket_of(tmp_path))
    harness.engine.close()
    assert {finding.kind for finding in check(harness).errors} <= {"orphan"}


def test_a_segment_whose_data_the_cold_directory_has_lost_is_given_up_once(tmp_path: Path) -> None:
    chosen = {"cold_dir": str(tmp_path / "cold"), "hot_retain_segments": 1}
    harness = filled(tmp_path, **chosen)
    sorted((tmp_path / "cold").rglob("*.data"))[0].unlink()
    harness.open_with(segment_max_events=PER_SEGMENT, **chosen)
    with pytest.raises(TopicDamaged):
        harness.diff("t", 0)
    harness.restart(segment_max_events=PER_SEGMENT, on_damage="give_up", **chosen)
    for _ in range(2):
        assert harness.gap("t") == (1, 4, "corrupt")
        assert harness.values("t") == list(range(4, COUNT))
        harness.restart(segment_max_events=PER_SEGMENT, **chosen)
