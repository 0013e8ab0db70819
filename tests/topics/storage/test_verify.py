"""`verify`: nothing is wrong with a good directory, every damage is found, nothing is changed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.errors import CorruptMetadata, DataDirInUse, Io
from everlog.fs import OsFs
from everlog.topics.storage import control, layout, snapshot
from everlog.topics.storage.recovery import EMPTY_SNAPSHOT
from everlog.topics.storage.verify import Finding, Progress, verify
from tests.support.effort import effort
from tests.support.engines import crashed_directory, open_small, stopped_directory
from tests.support.files import flip_bit, tree


def findings(root: Path) -> list[Finding]:
    return verify(str(root / "data"), OsFs(), str(root / "cold")).findings


def errors(root: Path) -> list[Finding]:
    return [finding for finding in findings(root) if not finding.is_note]


def only(found: list[Finding]) -> Finding:
    assert len(found) == 1, found
    return found[0]


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    stopped_directory(tmp_path)
    return tmp_path


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    crashed_directory(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def crashed_once() -> Iterator[Path]:
    """One crashed directory for many examples, each of which works on a copy."""
    with tempfile.TemporaryDirectory(prefix="everlog-verify-") as root:
        crashed_directory(Path(root))
        yield Path(root)


def segments(root: Path, tier: str, suffix: str = ".data") -> list[Path]:
    return sorted((root / tier / "topics").rglob(f"*{suffix}"))


def log_files(root: Path) -> list[Path]:
    return sorted((root / "data" / "wal").rglob("*.log"))


def test_an_older_copy_does_not_count_before_a_newer_snapshot(stopped: Path) -> None:
    engine = open_small(stopped)
    engine.delete_topic("a")
    engine.checkpoint()
    engine.checkpoint()
    engine.abandon()
    assert verify(str(stopped / "data"), OsFs(), str(stopped / "cold")).errors == []


def test_nothing_is_found_after_a_clean_stop(stopped: Path) -> None:
    result = verify(str(stopped / "data"), OsFs(), str(stopped / "cold"))
    assert result.findings == []
    assert result.records > 0
    files = [path for tier in ("data", "cold") for path in (stopped / tier).rglob("*") if path.is_file()]
    assert result.files == len(files) - 3  # lock, boot, synced ends


def test_a_crash_leaves_only_a_torn_tail(crashed: Path) -> None:
    result = verify(str(crashed / "data"), OsFs(), str(crashed / "cold"))
    assert {finding.kind for finding in result.findings} <= {"torn_tail"}
    assert result.errors == []
    assert result.log_frames > 12


def test_nothing_is_changed(crashed: Path) -> None:
    flip_bit(segments(crashed, "data")[0], 40)
    before = tree(crashed)
    findings(crashed)
    assert tree(crashed) == before


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    engine = open_small(tmp_path)
    with pytest.raises(DataDirInUse, match=f"process {os.getpid()} has "):
        findings(tmp_path)
    engine.close()
    assert findings(tmp_path) == []
    open_small(tmp_path).close()


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Io, match="no data directory"):
        verify(str(tmp_path / "nothing"), OsFs())


def test_an_empty_directory_has_no_findings(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    assert findings(tmp_path) == []
    assert list((tmp_path / "data").iterdir()) == []


def test_progress_reaches_the_total(crashed: Path) -> None:
    seen: list[Progress] = []
    verify(str(crashed / "data"), OsFs(), str(crashed / "cold"), seen.append)
    assert [progress.files_done for progress in seen] == list(range(1, seen[-1].files_total + 1))


def found_after_flip(root: Path, path: Path, offset: int, bit: int) -> list[Finding]:
    """What is found in the directory of a file while one of its bits is flipped."""
    flip_bit(path, offset, bit)
    try:
        return [finding for finding in findings(root) if finding.path.startswith(str(path.parent))]
    finally:
        flip_bit(path, offset, bit)


@given(draw=st.data())
@settings(max_examples=effort(40))
def test_every_flipped_bit_of_a_segment_is_found(crashed_once: Path, draw: st.DataObject) -> None:
    path = draw.draw(st.sampled_from([*segments(crashed_once, "data"), *segments(crashed_once, "cold")]))
    content = path.read_bytes()
    offset = draw.draw(st.integers(0, len(content) - 1))
    found = found_after_flip(crashed_once, path, offset, draw.draw(st.integers(0, 7)))
    # The mark behind a checksum is the one byte of a frame that no checksum covers.
    assert found or is_mark(content, offset)


def is_mark(content: bytes, offset: int) -> bool:
    end = 0
    while end <= offset:
        end += int.from_bytes(content[end : end + 4], "little") + 4
    return offset == end - 1


@given(draw=st.data())
@settings(max_examples=effort(40))
def test_every_flipped_bit_of_an_index_is_found(crashed_once: Path, draw: st.DataObject) -> None:
    paths = [*segments(crashed_once, "data", ".idx"), *segments(crashed_once, "cold", ".idx")]
    path = draw.draw(st.sampled_from(paths))
    content = path.read_bytes()
    offset, bit = draw.draw(st.integers(0, len(content) - 1)), draw.draw(st.integers(0, 7))
    entry = content[offset // layout.INDEX_ENTRY_SIZE * layout.INDEX_ENTRY_SIZE :]
    found = found_after_flip(crashed_once, path, offset, bit)
    assert found or is_silent(entry, offset % layout.INDEX_ENTRY_SIZE, bit), (path, offset, bit)


def is_silent(entry: bytes, offset: int, bit: int) -> bool:
    """Whether a flip leaves something possible: the time of a hole, a delete that only the data has yet."""
    if entry[layout.INDEX_SIZE : layout.INDEX_SIZE + 4] == bytes(4):
        return layout.INDEX_TS <= offset < layout.INDEX_FLAGS
    is_deleted = entry[layout.INDEX_FLAGS] & layout.INDEX_FLAG_DELETED
    return bool(offset == layout.INDEX_FLAGS and 1 << bit == is_deleted)


def test_a_damaged_record_is_named_with_its_place(stopped: Path) -> None:
    path = segments(stopped, "cold")[0]
    first_size = int.from_bytes(path.read_bytes()[:4], "little") + 4
    flip_bit(path, first_size + layout.SEGMENT_HEADER_SIZE)
    finding = only(findings(stopped))
    assert (finding.path, finding.offset, finding.kind) == (str(path), first_size, "corrupt_frame")


def test_damage_that_a_snapshot_promised_is_an_error_even_at_the_tail(stopped: Path) -> None:
    path = segments(stopped, "data")[-1]
    flip_bit(path, len(path.read_bytes()) - 12)
    assert only(findings(stopped)).kind == "corrupt_frame"


def test_a_torn_tail_of_the_last_log_file_is_a_note(crashed: Path) -> None:
    path = files_with_frames(crashed)[-1]
    content = path.read_bytes().rstrip(b"\0")
    path.write_bytes(content[:-3])
    finding = only(findings(crashed))
    assert (finding.path, finding.kind, finding.is_note) == (str(path), "torn_tail", True)


def files_with_frames(root: Path) -> list[Path]:
    return [path for path in log_files(root) if any(path.read_bytes()[:4])]


def test_damage_in_an_earlier_log_file_is_an_error(crashed: Path) -> None:
    path = files_with_frames(crashed)[-2]
    flip_bit(path, len(path.read_bytes().rstrip(b"\0")) - 80)
    finding = only(errors(crashed))
    assert (finding.path, finding.kind) == (str(path), "corrupt_frame")


def test_an_earlier_log_file_without_its_end_is_an_error(crashed: Path) -> None:
    path = files_with_frames(crashed)[-2]
    content = path.read_bytes().rstrip(b"\0")
    end = content.rindex(bytes((layout.FrameType.FILE_END,)) + bytes(9)) - layout.LOG_TYPE
    path.write_bytes(content[:end])
    finding = only(errors(crashed))
    assert (finding.path, finding.offset, finding.kind) == (str(path), end, "unfinished_file")


def test_a_damaged_snapshot_is_found(stopped: Path) -> None:
    path = only_path(stopped / "data" / "meta")
    flip_bit(path, layout.SNAPSHOT_HEADER_SIZE + 1)
    finding = only(errors(stopped))
    assert (finding.path, finding.kind) == (str(path), "bad_snapshot")


def test_a_copy_whose_snapshot_was_removed_by_a_newer_one_is_a_leftover(stopped: Path) -> None:
    data = stopped / "data"
    number = layout.SNAPSHOT_FILE.number(only_path(data / "meta").name)
    assert number is not None
    older = data / layout.SNAPSHOT_COPY.name(number - 1)
    payload = control.encode(msgspec.structs.replace(EMPTY_SNAPSHOT, number=number - 1))
    Path(snapshot.write(OsFs(), str(data / "meta"), number - 1, [payload])).rename(older)
    finding = only(findings(stopped))
    assert (finding.path, finding.kind) == (str(older), "leftover")


def only_path(directory: Path) -> Path:
    (path,) = directory.iterdir()
    return path


@pytest.mark.parametrize("place", ["data", "data/meta", "data/wal", "data/topics", "cold/topics"])
def test_a_file_that_does_not_belong_there_is_found(stopped: Path, place: str) -> None:
    stranger = stopped / place / "notes.txt"
    stranger.write_text("x")
    finding = only(findings(stopped))
    assert (finding.path, finding.kind) == (str(stranger), "unknown_file")


@pytest.mark.parametrize(("suffix", "missing"), [(".data", "data"), (".idx", "index")])
def test_a_lost_part_of_a_segment_is_found(stopped: Path, suffix: str, missing: str) -> None:
    lost = segments(stopped, "data", suffix)[0]
    lost.unlink()
    finding = only(errors(stopped))
    assert finding.kind == "missing_part"
    assert missing in finding.message


def test_leftovers_are_notes(stopped: Path) -> None:
    topic = segments(stopped, "data")[0].parent
    for leftover in (
        stopped / "data" / "meta" / "snapshot-0000000000000099.bin.tmp",
        topic / "seg-0000000000000001.data.tmp",
    ):
        leftover.write_bytes(b"x")
    found = findings(stopped)
    assert [finding.kind for finding in found] == ["leftover", "leftover"]
    assert all(finding.is_note for finding in found)


def test_log_that_a_snapshot_has_made_unnecessary_is_a_note(crashed: Path) -> None:
    needed = log_files(crashed)[0]
    stale = needed.with_name(layout.WAL_FILE.name(1))
    assert not stale.exists()
    stale.write_bytes(b"\x01not a frame")
    notes = [finding for finding in findings(crashed) if finding.path == str(stale)]
    assert [finding.kind for finding in notes] == ["leftover"]


def test_a_segment_that_the_snapshot_lists_and_that_is_gone_is_found(stopped: Path) -> None:
    lost = segments(stopped, "data")[0]
    lost.unlink()
    lost.with_suffix(".idx").unlink()
    found = verify(str(stopped / "data"), OsFs(), str(stopped / "cold")).findings
    assert [(finding.path, finding.kind) for finding in found] == [(str(lost), "missing_part")]


def test_a_segment_that_is_gone_is_found_without_the_cold_directory_too(tmp_path: Path) -> None:
    data = stopped_directory(tmp_path)
    assert {finding.kind for finding in verify(str(data), OsFs()).errors} == {"missing_part"}


@pytest.mark.parametrize("is_crashed", [False, True])
def test_a_directory_without_a_snapshot_and_with_half_a_log_is_found(
    tmp_path: Path, is_crashed: bool
) -> None:
    (crashed_directory if is_crashed else stopped_directory)(tmp_path)
    for path in [*(tmp_path / "data").rglob("*.copy"), *(tmp_path / "data" / "meta").iterdir()]:
        path.unlink()
    assert "no_snapshot" in {finding.kind for finding in errors(tmp_path)}
    with pytest.raises(CorruptMetadata, match="no snapshot"):
        open_small(tmp_path)
