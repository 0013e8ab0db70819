"""Bad input and faults: each gives a clear error, and whatever was committed is intact afterwards."""

import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everlog.clock import NS_PER_S, TestClock
from everlog.errors import (
    Corrupt,
    CorruptMetadata,
    EverlogError,
    InvalidName,
    InvalidTypeId,
    Io,
    PayloadTooLarge,
    ReaderAlreadyActive,
    SegmentMissing,
    UnsupportedVersion,
    WriterAlreadyActive,
)
from everlog.fault_fs import FaultFs
from everlog.queue import DisconnectReason, Queue
from everlog.queue.writer_lock import process_start_ticks
from tests.support.command_lines import holding, run_python
from tests.support.files import UnsyncedFs, tree
from tests.support.processes import eventually
from tests.support.queues import (
    SMALL,
    flip,
    open_reader,
    open_writer,
    overwrite,
    read_all,
    segment_file,
    segment_ids,
)
from tests.support.small_disks import (
    UNPRIVILEGED_UID,
    CannotMount,
    directory_for_all_users,
    remount_read_only,
    small_tmpfs,
)

COUNT = 20
EXPECTED = [(seq, f"message {seq}".encode()) for seq in range(COUNT)]


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    """A closed queue of three segments with seven records each, the last one not full."""
    path = tmp_path / "q"
    with open_writer(path, retention=False) as writer:
        for _, payload in EXPECTED:
            writer.append(1, payload)
        writer.flush_sync()
    for segment_id in segment_ids(path)[3:]:
        segment_file(path, segment_id).unlink()
    return path


def contents(path: Path) -> list[tuple[int, bytes]]:
    """Everything a new reader finds."""
    return [(message.seq, message.payload) for message in read_all(path)]


def assert_refused(
    path: Path, action: Callable[[], object], error: type[EverlogError], code: str, *words: str
) -> None:
    """The action raises this error with all these words in it, and not a byte of the queue changes."""
    before = stored_files(path)
    with pytest.raises(error) as raised:
        action()
    assert type(raised.value) is error
    assert raised.value.code == code
    for word in words:
        assert word in str(raised.value), f"{word!r} not in {raised.value}"
    assert stored_files(path) == before


def stored_files(path: Path) -> dict[str, bytes]:
    """The files that hold something: neither the lock nor segments that are merely being prepared."""
    files = (file for file in path.rglob("*") if not file.name.startswith(("writer.lock", "000000003")))
    return {str(file.relative_to(path)): file.read_bytes() for file in files if file.is_file()}


def open_all_ways(path: Path) -> list[Callable[[], object]]:
    """Every way to open a queue."""
    return [
        lambda: open_writer(path),
        lambda: open_reader(path, "alpha"),
        lambda: open_reader(path, None, "latest"),
        lambda: Queue.try_open_subscriber(path, "alpha"),
    ]


# -- control block -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "data", "error", "code", "words"),
    [
        (0, b"JUNK", CorruptMetadata, "corrupt_metadata", ("control.meta", "magic 0x4b4e554a", "0x4348524e")),
        (
            4,
            b"\x02\0\0\0",
            UnsupportedVersion,
            "unsupported_version",
            ("version 2", "knows 3"),
        ),
        (4, b"\x04\0\0\0", UnsupportedVersion, "unsupported_version", ("version 4", "knows 3")),
        (24, struct.pack("<Q", 0), CorruptMetadata, "corrupt_metadata", ("impossible segment_size of 0",)),
        (
            24,
            struct.pack("<Q", 1000),
            CorruptMetadata,
            "corrupt_metadata",
            ("segment_size of 1000",),
        ),
        (24, struct.pack("<Q", 2**40), CorruptMetadata, "corrupt_metadata", ("impossible segment_size",)),
    ],
)
def test_a_wrong_magic_version_or_size_of_the_control_block_is_refused(
    queue: Path, offset: int, data: bytes, error: type[EverlogError], code: str, words: tuple[str, ...]
) -> None:
    original = (queue / "control.meta").read_bytes()
    overwrite(queue / "control.meta", offset, data)
    for action in open_all_ways(queue):
        assert_refused(queue, action, error, code, *words)
    (queue / "control.meta").write_bytes(original)
    assert contents(queue) == EXPECTED


def test_the_error_of_an_unknown_version_carries_it(queue: Path) -> None:
    overwrite(queue / "control.meta", 4, b"\x09\0\0\0")
    with pytest.raises(UnsupportedVersion) as raised:
        open_reader(queue)
    assert raised.value.version == 9


@pytest.mark.parametrize("length", [0, 1, 11, 12, 300, 511])
def test_a_short_control_block_is_refused(queue: Path, length: int) -> None:
    original = (queue / "control.meta").read_bytes()
    (queue / "control.meta").write_bytes(original[:length])
    for action in open_all_ways(queue):
        assert_refused(queue, action, CorruptMetadata, "corrupt_metadata", f"{length} bytes, expected 512")
    (queue / "control.meta").write_bytes(original)
    assert contents(queue) == EXPECTED


def test_a_missing_control_block_beside_segments_is_not_papered_over(queue: Path) -> None:
    """A new one would begin an empty queue on top of the old one."""
    original = (queue / "control.meta").read_bytes()
    (queue / "control.meta").unlink()
    words = ("3 segments but no control.meta", "restore it from a backup")
    assert_refused(queue, lambda: open_writer(queue), CorruptMetadata, "corrupt_metadata", *words)
    (queue / "control.meta").write_bytes(original)
    assert contents(queue) == EXPECTED


# -- segments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "data", "error", "code", "words"),
    [
        (0, b"JUNK", Corrupt, "corrupt", ("000000002.q", "magic 0x4b4e554a", "expected 0x53454730")),
        (
            4,
            b"\x01\0\0\0",
            UnsupportedVersion,
            "unsupported_version",
            ("version 1", "knows 2"),
        ),
        (8, b"\x07\0\0\0", Corrupt, "corrupt", ("000000002.q", "says it is segment 7")),
    ],
)
def test_a_wrong_magic_version_or_id_of_a_segment_is_refused(
    queue: Path, offset: int, data: bytes, error: type[EverlogError], code: str, words: tuple[str, ...]
) -> None:
    original = segment_file(queue, 2).read_bytes()
    overwrite(segment_file(queue, 2), offset, data)
    assert_refused(queue, lambda: open_writer(queue), error, code, *words)
    assert_refused(queue, lambda: open_reader(queue, None, "latest"), error, code, *words)
    with open_reader(queue, None, "earliest") as reader:
        for seq in range(14):
            assert reader.drain(1)[0].seq == seq
        assert_refused(queue, reader.next, error, code, *words)
        segment_file(queue, 2).write_bytes(original)
        assert [message.seq for message in reader.drain(100)] == list(range(14, COUNT))
    with open_writer(queue) as writer:
        assert writer.append(1, b"next") == COUNT


@pytest.mark.parametrize("length", [0, 63, 64, SMALL - 1, SMALL + 64, 2 * SMALL])
def test_a_segment_of_the_wrong_size_is_refused(queue: Path, length: int) -> None:
    original = segment_file(queue, 2).read_bytes()
    os.truncate(segment_file(queue, 2), length)
    words = ("000000002.q", f"has {length} bytes", f"segment_size is {SMALL}")
    assert_refused(queue, lambda: open_writer(queue), Corrupt, "corrupt", *words)
    assert_refused(queue, lambda: open_reader(queue, None, "latest"), Corrupt, "corrupt", *words)
    segment_file(queue, 2).write_bytes(original)
    assert contents(queue) == EXPECTED


def test_a_segment_that_is_no_file_is_refused(queue: Path) -> None:
    segment_file(queue, 2).unlink()
    segment_file(queue, 2).mkdir()
    for action in (lambda: open_writer(queue), lambda: open_reader(queue, None, "latest")):
        with pytest.raises((Io, Corrupt), match=r"000000002\.q"):
            action()
    assert segment_ids(queue) == [0, 1, 2]


# -- records -------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit_len", [SMALL, 2**31, 2**32 - 1])
def test_a_corrupt_commit_length_is_reported_and_everything_else_is_readable(
    queue: Path, commit_len: int
) -> None:
    offset = 64 + 3 * 128
    overwrite(segment_file(queue, 1), offset, struct.pack("<I", commit_len))
    with open_reader(queue, None, "earliest") as reader:
        assert [reader.drain(1)[0].seq for _ in range(10)] == list(range(10))
        words = (f"record at offset {offset} of segment 1", f"{commit_len - 1} bytes", f"{SMALL} bytes")
        for _ in range(2):
            assert_refused(queue, reader.next, Corrupt, "corrupt", *words)
            assert_refused(queue, reader.read_batch, Corrupt, "corrupt", *words)
        assert reader.seek_seq(14) is True
        assert [(m.seq, m.payload) for m in reader.drain(100)] == EXPECTED[14:]
    with open_writer(queue, retention=False) as writer:
        assert writer.append(1, b"next") == COUNT
    overwrite(segment_file(queue, 1), offset, struct.pack("<I", len(EXPECTED[10][1]) + 1))
    assert contents(queue) == [*EXPECTED, (COUNT, b"next")], "a writer has not touched the sealed segment"


@pytest.mark.parametrize("segment_id", [0, 1, 2])
def test_a_bad_checksum_in_the_middle_is_reported_and_left_alone(queue: Path, segment_id: int) -> None:
    bad = segment_id * 7 + 3
    file, offset = segment_file(queue, segment_id), 64 + 3 * 128
    flip(file, offset + 64)
    with open_writer(queue, retention=False) as writer:
        assert writer.append(1, b"next") == COUNT
    with open_reader(queue, None, "earliest") as reader:
        assert [reader.drain(1)[0].seq for _ in range(bad)] == list(range(bad))
        words = (f"offset {offset} of segment {segment_id}", "checksum", "skip_corrupt()")
        assert_refused(queue, reader.next, Corrupt, "corrupt", *words)
        reader.skip_corrupt()
        assert [(m.seq, m.payload) for m in reader.drain(100)] == [*EXPECTED[bad + 1 :], (COUNT, b"next")]
    flip(file, offset + 64)
    assert contents(queue) == [*EXPECTED, (COUNT, b"next")]


def test_recovery_reports_damage_in_the_middle_of_what_it_scans(queue: Path) -> None:
    (queue / "index.meta").unlink()
    flip(segment_file(queue, 2), 64 + 2 * 128 + 64)
    flip(segment_file(queue, 2), 64 + 3 * 128 + 64)
    with open_writer(queue) as writer:
        (damage,) = writer.recovery.damage
        assert (damage.segment_id, damage.first_offset, damage.records) == (2, 64 + 2 * 128, 2)
        assert writer.recovery.torn_tails == []
        assert writer.next_seq == COUNT


def test_a_bad_checksum_at_the_tail_is_a_torn_write_if_it_was_never_published(queue: Path) -> None:
    """A power loss tore the last record: neither index.meta nor the control block cover it."""
    (queue / "index.meta").unlink()
    overwrite(queue / "control.meta", 256, struct.pack("<Q", 64))
    offset = 64 + 5 * 128
    flip(segment_file(queue, 2), offset + 64)
    with open_reader(queue, None, "earliest") as reader:
        assert len([reader.next() for _ in range(COUNT - 1)]) == COUNT - 1
        assert_refused(queue, reader.next, Corrupt, "corrupt", f"offset {offset} of segment 2", "checksum")
    with open_writer(queue, retention=False) as writer:
        assert writer.recovery.torn_tails == [(2, offset)]
        assert writer.append(1, b"instead") == COUNT - 1
        assert writer.segment_id == 3
    assert contents(queue) == [*EXPECTED[:-1], (COUNT - 1, b"instead")]


@pytest.mark.parametrize("flushed", [True, False])
def test_a_published_record_with_a_bad_checksum_at_the_tail_is_left_and_its_seq_is_not_given_again(
    queue: Path, flushed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if not flushed:
        (queue / "index.meta").unlink()
    offset = 64 + 5 * 128
    flip(segment_file(queue, 2), offset + 64)
    damaged = segment_file(queue, 2).read_bytes()
    with open_writer(queue, retention=False) as writer:
        (damage,) = writer.recovery.damage
        assert (damage.segment_id, damage.first_offset) == (2, offset)
        assert ("flushed" if flushed else "published") in damage.reason
        assert str(damage) in caplog.text
        assert writer.append(1, b"next") >= COUNT
        assert writer.segment_id == 3
    assert segment_file(queue, 2).read_bytes()[64:] == damaged[64:], "nothing of it was overwritten"


# -- reader meta ---------------------------------------------------------------------------------


def test_a_torn_reader_meta_falls_back_to_the_slot_before(queue: Path) -> None:
    with open_reader(queue) as reader:
        reader.drain(3)
        reader.commit()
        reader.drain(3)
        reader.commit()
    meta = (queue / "readers/alpha.meta").read_bytes()
    newest = max((0, 40), key=lambda slot: struct.unpack_from("<Q", meta, slot + 24))
    overwrite(queue / "readers/alpha.meta", newest + 8, b"\xff\xff")
    with open_reader(queue) as reader:
        assert reader.drain(1)[0].seq == 3
    assert contents(queue) == EXPECTED


@pytest.mark.parametrize("content", [b"\xff" * 80, b"x" * 79, b"x" * 81, b"", b"x" * 40])
def test_a_reader_meta_without_a_valid_slot_is_refused(queue: Path, content: bytes) -> None:
    (queue / "readers").mkdir()
    (queue / "readers/alpha.meta").write_bytes(content)
    for start in ("resume-strict", "resume-latest", "earliest", "latest"):
        assert_refused(
            queue,
            lambda start=start: open_reader(queue, "alpha", start),  # type: ignore[misc]
            CorruptMetadata,
            "corrupt_metadata",
            "readers/alpha.meta",
            "delete the file",
        )
    (queue / "readers/alpha.meta").unlink()
    with open_reader(queue) as reader:
        assert [(m.seq, m.payload) for m in reader.drain(100)] == EXPECTED


# -- locks ---------------------------------------------------------------------------------------

HOLD_WRITER = """
import sys
from everlog.queue import Queue
writer = Queue.open_publisher(sys.argv[1])
print(writer.epoch, flush=True)
sys.stdin.read()
"""

HOLD_READER = """
import sys
from everlog.queue import Queue
reader = Queue.open_subscriber(sys.argv[1], "alpha")
print("open", flush=True)
sys.stdin.read()
"""


def test_a_stale_lock_with_a_reused_pid_does_not_keep_a_writer_out(queue: Path) -> None:
    """The pid in the lock runs, but it started at another time: it is another process."""
    started = process_start_ticks(os.getpid())
    assert started is not None
    (queue / "writer.lock").write_bytes(f"{os.getpid()} {started - 1} 5\n".encode())
    with open_writer(queue) as writer:
        assert writer.epoch == 6, "and the epoch goes on from there"
        assert writer.append(1, b"next") == COUNT
    assert contents(queue) == [*EXPECTED, (COUNT, b"next")]


def test_a_second_writer_is_refused_in_the_same_process(queue: Path) -> None:
    with open_writer(queue) as writer:
        words = (str(os.getpid()), "held by the live process", "close that writer first")
        assert_refused(
            queue, lambda: open_writer(queue), WriterAlreadyActive, "writer_already_active", *words
        )
        assert writer.append(1, b"next") == COUNT
    assert contents(queue) == [*EXPECTED, (COUNT, b"next")]


def test_a_second_writer_is_refused_in_another_process_until_the_first_dies(queue: Path) -> None:
    with holding(HOLD_WRITER, str(queue)) as holder:
        assert holder.read_line() == "2"
        words = (str(holder.process.pid), "held by the live process")
        assert_refused(
            queue, lambda: open_writer(queue), WriterAlreadyActive, "writer_already_active", *words
        )
        holder.kill()
        with open_writer(queue) as writer:
            assert writer.epoch == 3
    assert contents(queue) == EXPECTED


def test_a_second_reader_of_the_same_name_is_refused_until_the_first_dies(queue: Path) -> None:
    with holding(HOLD_READER, str(queue)) as holder:
        assert holder.read_line() == "open"
        words = ("reader 'alpha' is already open", "choose another name")
        assert_refused(
            queue, lambda: open_reader(queue), ReaderAlreadyActive, "reader_already_active", *words
        )
        open_reader(queue, "beta").close()
        holder.kill()
        with open_reader(queue) as reader:
            assert [(m.seq, m.payload) for m in reader.drain(100)] == EXPECTED


def test_a_reader_whose_segment_was_deleted_is_told_and_can_go_on_with_a_gap(queue: Path) -> None:
    with open_reader(queue) as reader:
        reader.drain(2)
        reader.commit()
        segment_file(queue, 0).unlink()
        segment_file(queue, 1).unlink()
        assert reader.detect_disconnect() is DisconnectReason.SEGMENT_MISSING
        assert [reader.drain(1)[0].seq for _ in range(5)] == list(range(2, 7)), "what is mapped stays"
        words = ("reader segment missing", "segment 1", "alpha")
        assert_refused(queue, reader.next, SegmentMissing, "segment_missing", *words)
    words = ("reader segment missing", "segment 0", "resume-snapshot", "resume-latest")
    assert_refused(queue, lambda: open_reader(queue), SegmentMissing, "segment_missing", *words)
    with open_reader(queue, "alpha", "resume-snapshot") as reader:
        assert [(m.seq, m.payload) for m in reader.drain(100)] == EXPECTED[14:]


# -- disks ---------------------------------------------------------------------------------------


def fill_until_refused(path: Path, fs: Any = None) -> int:
    """Append until the disk is full at a roll; insist that all before is intact; return how many went in."""
    options = {} if fs is None else {"fs": fs}
    with Queue.open_publisher(path, segment_size=65536, retention=False, **options) as writer:
        sent = 0
        with pytest.raises(Io) as raised:
            while sent < 10_000:
                writer.append(1, struct.pack("<Q", sent) * 100)
                sent += 1
        assert raised.value.code == "io"
        assert raised.value.errno == errno.ENOSPC
        assert f"cannot roll {path} to segment {writer.segment_id + 1}" in str(raised.value)
        assert "the disk is full; free space" in str(raised.value)
        assert writer.next_seq == sent
        for _ in range(3):  # and again, as long as there is no space
            with pytest.raises(Io):
                writer.append(1, bytes(60_000))
        small = 0
        while writer.offset + 64 <= writer.segment_size:
            writer.append(2, b"")  # what still fits into the segment still goes in
            small += 1
        assert [message.payload for message in read_all(path)] == [
            *(struct.pack("<Q", seq) * 100 for seq in range(sent)),
            *[b""] * small,
        ]
        return sent + small


def test_a_full_disk_at_a_roll_is_an_error_and_loses_nothing(tmp_path: Path) -> None:
    """On a real file system of one MiB where this user may mount one; simulated otherwise."""
    try:
        with small_tmpfs(tmp_path / "disk", 1024) as disk:
            ballast = disk / "ballast"
            ballast.write_bytes(bytes(400_000))
            sent = fill_until_refused(disk / "q")
            ballast.unlink()
            with Queue.open_publisher(disk / "q", retention=False) as writer:
                assert writer.append(1, bytes(60_000)) == sent
            assert read_all(disk / "q")[-1].seq == sent
    except CannotMount as reason:
        print(f"no real file system to fill ({reason}); a simulated one must do")
        simulate_full_disk(tmp_path)


def test_a_simulated_full_disk_at_a_roll_is_an_error_and_loses_nothing(tmp_path: Path) -> None:
    simulate_full_disk(tmp_path)


def simulate_full_disk(tmp_path: Path) -> None:
    """The allocation of segment 3 fails from now on, in every thread."""
    root = tmp_path / "simulated"
    root.mkdir()
    fs = FaultFs(root, inner=UnsyncedFs())
    fs.fail_when("allocate", errno.ENOSPC, path="000000003.q", times=2000)
    sent = fill_until_refused(root / "q", fs)
    with Queue.open_publisher(root / "q", retention=False) as writer:
        assert writer.append(1, bytes(60_000)) == sent
    assert read_all(root / "q")[-1].seq == sent


def test_space_that_comes_back_is_used_by_the_same_writer(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    fs = FaultFs(root, inner=UnsyncedFs())
    with open_writer(root / "q", fs=fs, retention=False) as writer:
        fs.fail_when("allocate", errno.ENOSPC, path="000000001.q", times=6)
        writer.append(1, bytes(800))
        eventually("space to come back", lambda: fills(writer.append))
        assert writer.next_seq == 2
    assert [message.seq for message in read_all(root / "q")] == [0, 1]


def fills(append: Callable[..., int]) -> bool:
    """Try to append; whether it went in."""
    try:
        append(1, bytes(800))
    except Io as error:
        assert error.errno == errno.ENOSPC
        return False
    return True


TRY_ALL = """
import os, sys
from everlog.errors import Io
from everlog.queue import Queue
path, user = sys.argv[1], int(sys.argv[2])
if os.geteuid() == 0 and user:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)  # and with it all rights of root
for name, action in {
    "writer": lambda: Queue.open_publisher(path),
    "reader": lambda: Queue.open_subscriber(path, "alpha"),
    "new": lambda: Queue.open_publisher(path + "/new"),
}.items():
    try:
        action()
        print(name, "opened")
    except Io as error:
        print(name, error.code, error.errno, error)
with Queue.open_subscriber(path, None, "earliest") as reader:
    print("anonymous", [int(bytes(view).split()[1]) for view in reader])
    print("wait", reader.wait(0.01))
"""


def assert_only_anonymous_reading(output: str, number: int, *words: str) -> None:
    """All that must write were refused with this error; the reader without a name read everything."""
    lines = output.splitlines()
    for line, name in zip(lines, ("writer", "reader", "new"), strict=False):
        assert line.startswith(f"{name} io {number} cannot "), line
        for word in words:
            assert word in line
    assert lines[3:] == [f"anonymous {list(range(COUNT))}", "wait False"]


def test_a_directory_of_another_user_is_refused_and_read_without_a_name(tmp_path: Path) -> None:
    """Root may do everything, so a child without its rights tries."""
    with directory_for_all_users() as shared:
        fill_queue(shared / "q")
        for path in [*(shared / "q").rglob("*"), shared / "q"]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        before = tree(shared / "q")
        ended = run_python(TRY_ALL, shared / "q", UNPRIVILEGED_UID)
        assert ended.returncode == 0, ended.stderr
        assert_only_anonymous_reading(ended.stdout, errno.EACCES, "Permission denied", "check owner and mode")
        assert tree(shared / "q") == before


def fill_queue(path: Path) -> None:
    """The same messages as in the fixture."""
    with open_writer(path, retention=False) as writer:
        for _, payload in EXPECTED:
            writer.append(1, payload)


def test_a_read_only_file_system_is_refused_and_read_without_a_name(tmp_path: Path) -> None:
    """On a real one where this user may mount one; otherwise on a directory of another user."""
    try:
        with small_tmpfs(tmp_path / "disk", 1024) as disk:
            fill_queue(disk / "q")
            remount_read_only(disk)
            ended = run_python(TRY_ALL, disk / "q", 0)
            assert ended.returncode == 0, ended.stderr
            assert_only_anonymous_reading(ended.stdout, errno.EROFS, "Read-only file system", "read-only;")
            assert contents(disk / "q") == EXPECTED
    except CannotMount as reason:
        print(f"no file system to make read-only ({reason}); another user's directory must do")
        test_a_directory_of_another_user_is_refused_and_read_without_a_name(tmp_path)


# -- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["..", ".", "../escaped", "a/../b", "/absolute", "a\\b", "", "nul\0"])
def test_path_components_that_could_climb_are_refused(queue: Path, name: str) -> None:
    assert_refused(queue, lambda: open_reader(queue, name), InvalidName, "invalid_name", "reader name")
    assert sorted(path.name for path in queue.parent.iterdir()) == ["q"]
    assert contents(queue) == EXPECTED


@pytest.mark.parametrize("length", [SMALL - 127, SMALL, 10**6])
def test_a_payload_too_large_is_refused(queue: Path, length: int) -> None:
    with open_writer(queue) as writer:
        words = (f"payload of {length} bytes", f"{SMALL - 128} bytes", f"segment_size {SMALL}")
        action = lambda: writer.append(1, bytes(length))  # noqa: E731 - it is named once
        assert_refused(queue, action, PayloadTooLarge, "payload_too_large", *words)
        assert writer.append(1, b"next") == COUNT
    assert contents(queue) == [*EXPECTED, (COUNT, b"next")]


def test_type_id_0xffff_is_refused(queue: Path) -> None:
    with open_writer(queue) as writer:
        words = ("0..0xFFFE", "padding", "65535")
        assert_refused(queue, lambda: writer.append(0xFFFF, b"x"), InvalidTypeId, "invalid_type_id", *words)
        assert writer.append(1, b"next") == COUNT
    assert contents(queue) == [*EXPECTED, (COUNT, b"next")]


# -- time ----------------------------------------------------------------------------------------


def test_a_clock_that_goes_back_changes_no_order_and_expires_no_reader(tmp_path: Path) -> None:
    clock = TestClock(wall_ns=10_000 * NS_PER_S)
    with (
        open_writer(tmp_path / "q", clock=clock) as writer,
        open_reader(tmp_path / "q", clock=clock) as reader,
    ):
        for seq in range(30):
            clock.set_wall_ns((10_000 - seq * 300) * NS_PER_S)
            assert writer.append(1, b"x") == seq
            assert reader.detect_disconnect() is None
            assert reader.writer_status().alive
            reader.heartbeat()
        assert [message.seq for message in reader.drain(100)] == list(range(30))
        reader.commit()
        assert writer.metrics.retention_errors == 0
    stamps = [message.timestamp_ns for message in read_all(tmp_path / "q")]
    assert stamps == sorted(stamps, reverse=True)
    with open_writer(tmp_path / "q", clock=TestClock(wall_ns=1)) as writer:
        assert writer.append(1, b"x") == 30
