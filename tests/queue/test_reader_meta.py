"""Spec 1.6 and 4: the two-slot reader meta file and its lock."""

import contextlib
import errno
import os
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.errors import Closed, CorruptMetadata, InvalidName, ReaderAlreadyActive
from everlog.fault_fs import FaultFs, PowerLoss
from everlog.fs import Fs, OsFs
from everlog.queue import reader_meta
from everlog.queue.reader_meta import ReaderMetaFile, ReaderPosition, list_readers
from tests.support.command_lines import holding
from tests.support.effort import effort
from tests.support.files import descriptors_below, hooked_fs, interrupting_fs, tree

U64 = st.integers(0, 2**64 - 1)
positions = st.builds(ReaderPosition, U64, U64, U64, U64)

HOLD_READER = """
import sys
from everlog.fs import OsFs
from everlog.queue.reader_meta import ReaderMetaFile
meta = ReaderMetaFile.open(OsFs(), sys.argv[1], sys.argv[2])
meta.store(1, 64, 5, durable=False)
print("held", flush=True)
sys.stdin.read()
"""

RACE_TO_CREATE = """
import sys
from everlog.errors import ReaderAlreadyActive
from everlog.fs import OsFs
from everlog.queue.reader_meta import ReaderMetaFile
meta = ReaderMetaFile.open(OsFs(), sys.argv[1], sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
try:
    meta.create(int(sys.argv[3]), 64, 1)
    print("won", flush=True)
except ReaderAlreadyActive:
    print("refused", flush=True)
sys.stdin.read()
"""


def slot(segment: int, offset: int, heartbeat: int, generation: int) -> bytes:
    """A slot, field by field."""
    body = struct.pack("<QQQQ", segment, offset, heartbeat, generation)
    return body + struct.pack("<I", zlib.crc32(body)) + bytes(4)


def write_meta(root: Path, content: bytes, name: str = "alpha") -> Path:
    path = root / "readers" / f"{name}.meta"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


def open_meta(root: Path, fs: Fs | None = None, name: str = "alpha") -> ReaderMetaFile:
    return ReaderMetaFile.open(fs or OsFs(), str(root), name)


def saved(root: Path, name: str = "alpha") -> ReaderPosition | None:
    """What a reader that opens now would find, without taking its lock."""
    return reader_meta.load((root / "readers" / f"{name}.meta").read_bytes())


def empty_readers(root: Path, directory_exists: bool) -> None:
    shutil.rmtree(root / "readers", ignore_errors=True)
    if directory_exists:
        (root / "readers").mkdir()


# --- The format ------------------------------------------------------------------------------------------


def test_a_slot_has_the_bytes_of_the_format() -> None:
    assert reader_meta.encode_slot(ReaderPosition(7, 640, 123, 9)) == slot(7, 640, 123, 9)
    assert len(slot(7, 640, 123, 9)) == 40


@given(positions)
def test_a_slot_survives_encoding(position: ReaderPosition) -> None:
    assert reader_meta.decode_slot(reader_meta.encode_slot(position)) == position


@given(positions, st.integers(0, 35), st.integers(1, 255))
def test_a_slot_with_any_changed_byte_is_invalid(position: ReaderPosition, at: int, change: int) -> None:
    damaged = bytearray(reader_meta.encode_slot(position))
    damaged[at] ^= change
    assert reader_meta.decode_slot(bytes(damaged)) is None


def test_an_all_zero_slot_is_invalid_by_itself() -> None:
    assert zlib.crc32(bytes(32)) == 0x190A55AD
    assert reader_meta.decode_slot(bytes(40)) is None


@given(positions, positions)
def test_the_valid_slot_with_the_higher_generation_counts(
    left: ReaderPosition, right: ReaderPosition
) -> None:
    loaded = reader_meta.load(reader_meta.encode_slot(left) + reader_meta.encode_slot(right))
    assert loaded in (left, right)
    assert loaded.generation == max(left.generation, right.generation)


@pytest.mark.parametrize("damaged_slot", [0, 1])
def test_a_damaged_slot_leaves_the_other_one_whatever_its_generation(damaged_slot: int) -> None:
    slots = [slot(1, 64, 0, 2), slot(2, 128, 0, 3)]
    expected = reader_meta.decode_slot(slots[1 - damaged_slot])
    slots[damaged_slot] = b"\xff" * 40
    assert reader_meta.load(b"".join(slots)) == expected


def test_both_slots_all_zero_is_a_new_reader() -> None:
    assert reader_meta.load(bytes(80)) is None


@pytest.mark.parametrize("at", [0, 31, 32, 39, 40, 79])
def test_both_slots_invalid_otherwise_is_corrupt_metadata(at: int) -> None:
    data = bytearray(80)
    data[at] = 1
    with pytest.raises(CorruptMetadata, match="both slots"):
        reader_meta.load(bytes(data))


@given(U64, U64)
def test_legacy_lengths_are_an_offset_in_segment_zero_or_segment_and_offset(
    segment: int, offset: int
) -> None:
    assert reader_meta.load(struct.pack("<Q", offset)) == ReaderPosition(0, offset, 0, 0)
    assert reader_meta.load(struct.pack("<QQ", segment, offset)) == ReaderPosition(segment, offset, 0, 0)


@pytest.mark.parametrize("length", [0, 1, 7, 9, 15, 17, 40, 79, 81, 160])
def test_any_other_length_is_corrupt_metadata(length: int) -> None:
    with pytest.raises(CorruptMetadata, match=f"{length} bytes"):
        reader_meta.load(bytes(length))


# --- Opening and creating --------------------------------------------------------------------------------


def test_opening_a_reader_without_a_file_writes_nothing(tmp_path: Path) -> None:
    meta = open_meta(tmp_path)
    assert meta.position is None
    assert not meta.exists
    meta.close()
    assert tree(tmp_path) == {}


def test_the_first_store_creates_the_file_with_generation_one_in_slot_one(tmp_path: Path) -> None:
    meta = open_meta(tmp_path)
    meta.store(3, 640, 77, durable=True)
    assert tree(tmp_path) == {"readers": None, "readers/alpha.meta": bytes(40) + slot(3, 640, 77, 1)}
    assert meta.exists


def test_each_store_takes_the_next_generation_and_the_other_slot(tmp_path: Path) -> None:
    meta = open_meta(tmp_path)
    for generation in range(1, 6):
        meta.store(generation, 64, 1000 + generation, durable=False)
    content = (tmp_path / "readers/alpha.meta").read_bytes()
    assert content == slot(4, 64, 1004, 4) + slot(5, 64, 1005, 5)


@given(st.lists(st.tuples(U64, U64, U64, st.booleans(), st.booleans()), min_size=1, max_size=12))
@settings(max_examples=effort(50))
def test_the_last_store_is_what_the_next_reader_of_that_name_finds(
    tmp_path_factory: pytest.TempPathFactory, stores: list[tuple[int, int, int, bool, bool]]
) -> None:
    root = tmp_path_factory.mktemp("queue")
    meta = open_meta(root)
    for generation, (segment, offset, heartbeat, durable, reopen) in enumerate(stores, start=1):
        meta.store(segment, offset, heartbeat, durable)
        expected = ReaderPosition(segment, offset, heartbeat, generation)
        assert meta.position == saved(root) == expected
        if reopen:
            meta.close()
            meta = open_meta(root)
            assert meta.position == expected
    meta.close()


def test_only_a_durable_store_is_forced_to_disk(tmp_path: Path) -> None:
    fs = FaultFs(str(tmp_path))
    meta = open_meta(tmp_path, fs)
    meta.create(0, 64, 1)
    before = fs.calls
    meta.store(0, 128, 2, durable=False)
    meta.store(0, 192, 3, durable=True)
    assert [call.name for call in fs.log if call.number > before] == ["pwrite", "pwrite", "fsync"]


def test_create_keeps_what_an_existing_file_says(tmp_path: Path) -> None:
    write_meta(tmp_path, slot(4, 64, 9, 6) + slot(3, 64, 8, 5))
    meta = open_meta(tmp_path)
    assert meta.create(0, 64, 1) == meta.position == ReaderPosition(4, 64, 9, 6)


def test_a_file_with_two_zero_slots_is_opened_as_new_and_filled_by_create(tmp_path: Path) -> None:
    write_meta(tmp_path, bytes(80))
    meta = open_meta(tmp_path)
    assert meta.position is None
    assert meta.create(2, 128, 5) == saved(tmp_path) == ReaderPosition(2, 128, 5, 1)


def test_a_corrupt_file_is_refused_by_name_and_left_as_it_is(tmp_path: Path) -> None:
    path = write_meta(tmp_path, b"\xff" * 80)
    before = descriptors_below(tmp_path)
    with pytest.raises(CorruptMetadata, match=str(path)):
        open_meta(tmp_path)
    assert descriptors_below(tmp_path) == before
    assert path.read_bytes() == b"\xff" * 80


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\0b"])
def test_reader_names_obey_the_rules_for_path_components(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidName):
        open_meta(tmp_path, name=name)


@pytest.mark.parametrize("name", ["x.q", "x.meta", "x.tmp", ".hidden", "größe", "a b"])
def test_odd_but_allowed_names_work(tmp_path: Path, name: str) -> None:
    open_meta(tmp_path, name=name).store(1, 64, 1, durable=True)
    assert list_readers(OsFs(), str(tmp_path)) == {name: ReaderPosition(1, 64, 1, 1)}
    assert sorted(tree(tmp_path)) == ["readers", f"readers/{name}.meta"]


def test_remove_deletes_the_file_and_frees_the_name(tmp_path: Path) -> None:
    meta = open_meta(tmp_path)
    meta.create(0, 64, 1)
    meta.remove()
    assert tree(tmp_path) == {"readers": None}
    assert open_meta(tmp_path).position is None


def test_a_closed_file_refuses_to_store(tmp_path: Path) -> None:
    meta = open_meta(tmp_path)
    meta.close()
    meta.close()
    with pytest.raises(Closed):
        meta.store(0, 64, 1, durable=False)
    assert tree(tmp_path) == {}


# --- One reader per name ---------------------------------------------------------------------------------


def test_a_second_reader_of_the_same_name_is_refused_in_one_process(tmp_path: Path) -> None:
    meta = open_meta(tmp_path)
    meta.create(0, 64, 1)
    before = descriptors_below(tmp_path)
    with pytest.raises(ReaderAlreadyActive, match="'alpha'"):
        open_meta(tmp_path)
    assert descriptors_below(tmp_path) == before
    meta.close()
    open_meta(tmp_path).close()


def test_a_second_reader_of_the_same_name_is_refused_while_another_process_has_it(tmp_path: Path) -> None:
    with holding(HOLD_READER, str(tmp_path), "alpha") as holder:
        assert holder.read_line() == "held"
        with pytest.raises(ReaderAlreadyActive):
            open_meta(tmp_path)
        open_meta(tmp_path, name="beta").close()
    assert open_meta(tmp_path).position == ReaderPosition(1, 64, 5, 1)


def test_a_killed_reader_frees_its_name(tmp_path: Path) -> None:
    with holding(HOLD_READER, str(tmp_path), "alpha") as holder:
        assert holder.read_line() == "held"
        holder.kill()
        assert open_meta(tmp_path).position == ReaderPosition(1, 64, 5, 1)


def race_to_create(root: Path, reader_names: list[str]) -> list[str]:
    """Let one process per name create its file at the same time; reader number n stores segment n."""
    with contextlib.ExitStack() as stack:
        racers = [
            stack.enter_context(holding(RACE_TO_CREATE, str(root), name, str(number)))
            for number, name in enumerate(reader_names)
        ]
        assert [racer.read_line() for racer in racers] == ["ready"] * len(racers)
        for racer in racers:
            racer.send_line("go")
        return [racer.read_line() for racer in racers]


@pytest.mark.parametrize("directory_exists", [False, True])
def test_of_many_processes_that_create_one_name_at_once_exactly_one_gets_it(
    tmp_path: Path, directory_exists: bool
) -> None:
    empty_readers(tmp_path, directory_exists)
    results = race_to_create(tmp_path, ["alpha"] * 4)
    assert sorted(results) == ["refused"] * 3 + ["won"]
    winner = results.index("won")
    assert tree(tmp_path) == {"readers": None, "readers/alpha.meta": bytes(40) + slot(winner, 64, 1, 1)}


def test_processes_that_create_different_names_at_once_all_get_theirs(tmp_path: Path) -> None:
    reader_names = [f"reader{number}" for number in range(4)]
    assert race_to_create(tmp_path, reader_names) == ["won"] * 4
    assert sorted(tree(tmp_path)) == ["readers", *(f"readers/{name}.meta" for name in reader_names)]


STEPS_BEFORE_THE_LOCK = [
    (False, "open"),
    (False, "exists"),
    (False, "makedirs"),
    (False, "try_lock"),
    (True, "open"),
    (True, "exists"),
    (True, "try_lock"),
]
STEPS_UNDER_THE_LOCK = [
    (False, "pwrite"),
    (False, "fsync"),
    (False, "rename"),
    (False, "fsync_dir"),
    (True, "pwrite"),
    (True, "rename_noreplace"),
    (True, "fsync_dir"),
]


@pytest.mark.parametrize(("directory_exists", "step"), STEPS_BEFORE_THE_LOCK)
def test_the_loser_of_a_race_to_create_is_refused_while_the_winner_is_open(
    tmp_path: Path, directory_exists: bool, step: str
) -> None:
    empty_readers(tmp_path, directory_exists)
    winner = open_meta(tmp_path)
    armed: list[Callable[[], object]] = []
    loser = open_meta(tmp_path, interrupting_fs(step, armed))
    armed.append(lambda: winner.create(1, 64, 5))
    before = descriptors_below(tmp_path)
    with pytest.raises(ReaderAlreadyActive):
        loser.create(2, 128, 6)
    assert not armed
    assert descriptors_below(tmp_path) == before + 1  # the winner's
    assert tree(tmp_path) == {"readers": None, "readers/alpha.meta": bytes(40) + slot(1, 64, 5, 1)}


@pytest.mark.parametrize(("directory_exists", "step"), STEPS_BEFORE_THE_LOCK)
def test_the_loser_of_a_race_to_create_takes_over_what_a_closed_winner_left(
    tmp_path: Path, directory_exists: bool, step: str
) -> None:
    empty_readers(tmp_path, directory_exists)
    winner = open_meta(tmp_path)

    def come_and_go() -> None:
        winner.create(1, 64, 5)
        winner.close()

    armed: list[Callable[[], object]] = []
    loser = open_meta(tmp_path, interrupting_fs(step, armed))
    armed.append(come_and_go)
    assert loser.create(2, 128, 6) == ReaderPosition(1, 64, 5, 1)
    assert not armed
    with pytest.raises(ReaderAlreadyActive):
        open_meta(tmp_path)
    assert tree(tmp_path) == {"readers": None, "readers/alpha.meta": bytes(40) + slot(1, 64, 5, 1)}
    loser.store(2, 128, 6, durable=False)
    assert saved(tmp_path) == ReaderPosition(2, 128, 6, 2)


def test_a_directory_that_another_reader_of_the_name_moved_into_place_is_noticed(tmp_path: Path) -> None:
    winner = open_meta(tmp_path)

    def come_and_go() -> None:
        assert (tmp_path / "readers.alpha.meta.tmp").is_dir()
        winner.create(1, 64, 5)
        winner.close()

    pending: list[Callable[[], object]] = [lambda: None, lambda: None, come_and_go]
    loser = open_meta(tmp_path, interrupting_fs("open", pending))
    assert loser.create(2, 128, 6) == ReaderPosition(1, 64, 5, 1)
    assert not pending
    assert tree(tmp_path) == {"readers": None, "readers/alpha.meta": bytes(40) + slot(1, 64, 5, 1)}


@pytest.mark.parametrize(("directory_exists", "step"), STEPS_UNDER_THE_LOCK)
def test_a_reader_that_comes_during_a_creation_is_refused(
    tmp_path: Path, directory_exists: bool, step: str
) -> None:
    empty_readers(tmp_path, directory_exists)
    late = open_meta(tmp_path)

    def try_to_create() -> None:
        with pytest.raises(ReaderAlreadyActive):
            late.create(2, 128, 6)

    armed: list[Callable[[], object]] = [try_to_create]
    open_meta(tmp_path, interrupting_fs(step, armed)).create(1, 64, 5)
    assert not armed
    assert descriptors_below(tmp_path) == 1
    assert tree(tmp_path) == {"readers": None, "readers/alpha.meta": bytes(40) + slot(1, 64, 5, 1)}


def test_creation_never_replaces_a_file_that_appeared_in_between(tmp_path: Path) -> None:
    (tmp_path / "readers").mkdir()
    content = slot(8, 64, 7, 6) + bytes(40)
    fs = interrupting_fs("rename_noreplace", [lambda: write_meta(tmp_path, content)])
    meta = open_meta(tmp_path, fs)
    assert meta.create(1, 64, 5) == ReaderPosition(8, 64, 7, 6)
    assert tree(tmp_path) == {"readers": None, "readers/alpha.meta": content}
    assert descriptors_below(tmp_path) == 1


@pytest.mark.parametrize("step", ["exists", "makedirs", "open", "pwrite", "rename", "fsync_dir"])
def test_a_reader_of_another_name_may_create_the_directory_in_between(tmp_path: Path, step: str) -> None:
    beta = open_meta(tmp_path, name="beta")
    armed: list[Callable[[], object]] = []
    alpha = open_meta(tmp_path, interrupting_fs(step, armed))
    armed.append(lambda: beta.create(2, 128, 6))
    alpha.create(1, 64, 5)
    assert not armed
    assert tree(tmp_path) == {
        "readers": None,
        "readers/alpha.meta": bytes(40) + slot(1, 64, 5, 1),
        "readers/beta.meta": bytes(40) + slot(2, 128, 6, 1),
    }


def test_a_crash_during_creation_is_cleaned_up_by_the_next_attempt(tmp_path: Path) -> None:
    staging = tmp_path / "readers.alpha.meta.tmp"
    staging.mkdir()
    (staging / "alpha.meta").write_bytes(b"x" * 100)
    open_meta(tmp_path).create(1, 64, 5)
    assert tree(tmp_path) == {"readers": None, "readers/alpha.meta": bytes(40) + slot(1, 64, 5, 1)}
    (tmp_path / "readers/beta.meta.tmp").write_bytes(b"x" * 100)
    open_meta(tmp_path, name="beta").create(1, 64, 5)
    assert sorted(tree(tmp_path)) == ["readers", "readers/alpha.meta", "readers/beta.meta"]


def test_a_file_removed_between_open_and_lock_is_not_taken_for_the_readers_own(tmp_path: Path) -> None:
    first = open_meta(tmp_path)
    first.create(1, 64, 5)
    late = open_meta(tmp_path, interrupting_fs("try_lock", [first.remove]))
    assert late.position is None
    late.create(2, 64, 6)
    with pytest.raises(ReaderAlreadyActive):
        open_meta(tmp_path)


def test_retries_are_bounded_when_the_file_is_replaced_again_and_again(tmp_path: Path) -> None:
    path = write_meta(tmp_path, slot(1, 64, 0, 2) + bytes(40))
    replaced: list[str] = []

    def replace(name: str, _: tuple[Any, ...]) -> None:
        if name == "try_lock":
            path.rename(path.with_name(f"old{len(replaced)}"))
            path.write_bytes(slot(1, 64, 0, 2) + bytes(40))
            replaced.append(name)

    before = descriptors_below(tmp_path)
    with pytest.raises(ReaderAlreadyActive):
        open_meta(tmp_path, hooked_fs(replace))
    assert 1 < len(replaced) < 100
    assert descriptors_below(tmp_path) == before


# --- Legacy files ----------------------------------------------------------------------------------------

LEGACY = [(struct.pack("<Q", 640), (0, 640)), (struct.pack("<QQ", 5, 640), (5, 640))]


@pytest.mark.parametrize(("content", "place"), LEGACY, ids=["8", "16"])
def test_a_legacy_file_is_left_alone_until_the_first_store_rewrites_it(
    tmp_path: Path, content: bytes, place: tuple[int, int]
) -> None:
    write_meta(tmp_path, content)
    meta = open_meta(tmp_path)
    assert meta.position == ReaderPosition(*place, heartbeat_ns=0, generation=0)
    assert tree(tmp_path)["readers/alpha.meta"] == content
    meta.store(6, 128, 9, durable=True)
    assert tree(tmp_path) == {"readers": None, "readers/alpha.meta": bytes(40) + slot(6, 128, 9, 1)}
    meta.store(7, 64, 10, durable=True)
    assert tree(tmp_path)["readers/alpha.meta"] == slot(7, 64, 10, 2) + slot(6, 128, 9, 1)


def test_the_lock_is_held_before_during_and_after_the_upgrade_of_a_legacy_file(tmp_path: Path) -> None:
    write_meta(tmp_path, LEGACY[1][0])
    refused: list[str] = []

    def before(name: str, _: tuple[Any, ...]) -> None:
        if meta_opened:
            with pytest.raises(ReaderAlreadyActive):
                open_meta(tmp_path)
            refused.append(name)

    meta_opened = False
    meta = open_meta(tmp_path, hooked_fs(before))
    meta_opened = True
    before("now", ())
    meta.store(6, 128, 9, durable=True)
    before("after", ())
    assert {"now", "truncate", "rename", "close", "fsync", "fsync_dir", "after"} <= set(refused)


def test_a_reader_that_opened_the_legacy_file_before_its_upgrade_locks_the_new_one(tmp_path: Path) -> None:
    write_meta(tmp_path, LEGACY[1][0])
    first = open_meta(tmp_path)

    def upgrade_and_close() -> None:
        first.store(6, 128, 9, durable=True)
        first.close()

    late = open_meta(tmp_path, interrupting_fs("try_lock", [upgrade_and_close]))
    assert late.position == ReaderPosition(6, 128, 9, 1)
    with pytest.raises(ReaderAlreadyActive):
        open_meta(tmp_path)


# --- Failing disks ---------------------------------------------------------------------------------------


def fail_each_call(root: Path, prepare: Callable[[], object], action: Callable[[Fs], None]) -> list[str]:
    """Run `action` once per call it makes, letting that call fail; returns the calls that failed it.

    A failing close may be survived, so every call is tried, not only those up to the first success.
    """
    prepare()
    counting = FaultFs(str(root))
    action(counting)
    failed = []
    for number in range(1, counting.calls + 1):
        prepare()
        fs = FaultFs(str(root))
        fs.fail_at(number, errno.EIO)
        try:
            action(fs)
        except OSError:
            failed.append(counting.log[number - 1].name)
    return failed


@pytest.mark.parametrize("directory_exists", [False, True])
def test_a_creation_that_fails_at_any_call_leaves_nothing_behind(
    tmp_path: Path, directory_exists: bool
) -> None:
    def create(fs: Fs) -> None:
        before = tree(tmp_path)
        try:
            meta = open_meta(tmp_path, fs)
            meta.create(1, 64, 5)
        except OSError:
            assert tree(tmp_path) == before
            assert descriptors_below(tmp_path) == 0
            raise
        os.close(cast(int, meta._fd))

    failed = fail_each_call(tmp_path, lambda: empty_readers(tmp_path, directory_exists), create)
    steps = ["open", "open", "exists", "open", "try_lock", "truncate", "pwrite", "fsync"]
    if directory_exists:
        assert failed == [*steps, "rename_noreplace", "fsync_dir"]
    else:
        assert failed == [*steps[:3], "makedirs", *steps[3:], "fsync_dir", "rename", "fsync_dir"]


def test_the_readers_directory_never_appears_without_a_reader_in_it(tmp_path: Path) -> None:
    """Retention deletes everything below the head once `readers/` exists without a counting reader."""
    seen: list[dict[str, ReaderPosition | CorruptMetadata] | None] = []

    def before(_: str, __: tuple[Any, ...]) -> None:
        seen.append(list_readers(OsFs(), str(tmp_path)))

    open_meta(tmp_path, hooked_fs(before)).create(1, 64, 5)
    before("after", ())
    assert seen[0] is None
    assert seen[-1] == {"alpha": ReaderPosition(1, 64, 5, 1)}
    assert {} not in seen


@given(st.booleans(), st.integers(0, 2**32), st.integers(1, 14))
def test_a_power_loss_during_creation_leaves_a_valid_file_or_none(
    tmp_path_factory: pytest.TempPathFactory, directory_exists: bool, seed: int, call: int
) -> None:
    root = tmp_path_factory.mktemp("queue")
    empty_readers(root, directory_exists)
    fs = FaultFs(str(root), seed, page_size=16)
    fs.tear_at(call)
    created = False
    with contextlib.suppress(PowerLoss):
        open_meta(root, fs).create(1, 64, 5)
        created = True
    fs.restore()
    readers = list_readers(OsFs(), str(root))
    if created:
        assert readers == {"alpha": ReaderPosition(1, 64, 5, 1)}
    else:
        nothing: dict[str, ReaderPosition] | None = {} if directory_exists else None
        assert readers in (nothing, {"alpha": ReaderPosition(1, 64, 5, 1)})
    # What the crash left aside does not disturb the next attempt.
    meta = open_meta(root)
    meta.store(2, 128, 6, durable=True)
    assert list_readers(OsFs(), str(root)) == {"alpha": meta.position}


@given(st.integers(0, 2**32), st.integers(1, 6), st.data())
def test_a_power_loss_never_loses_a_durable_store_even_if_slots_are_torn(
    tmp_path_factory: pytest.TempPathFactory, seed: int, stores: int, data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("queue")
    fs = FaultFs(str(root), seed, page_size=8)
    meta = open_meta(root, fs)
    meta.create(0, 64, 1)
    fs.tear_at(fs.calls + data.draw(st.integers(1, 2 * stores)))
    acknowledged = 1
    with pytest.raises(PowerLoss):
        for generation in range(2, stores + 2):
            meta.store(generation, 64 * generation, generation, durable=True)
            acknowledged = generation
    fs.restore()
    found = saved(root)
    assert found is not None
    assert found.generation in (acknowledged, acknowledged + 1)
    assert found.generation == 1 or found.offset == 64 * found.generation


@pytest.mark.parametrize("failing", ["pwrite", "fsync"])
def test_a_store_after_a_failed_store_spares_the_slot_that_is_known_to_be_good(
    tmp_path: Path, failing: str
) -> None:
    fs = FaultFs(str(tmp_path))
    meta = open_meta(tmp_path, fs)
    meta.create(1, 64, 5)
    for offset in (128, 192, 256):
        fs.fail_when(failing, errno.EIO)
        with pytest.raises(OSError, match="planned"):
            meta.store(1, offset, 6, durable=True)
        assert (tmp_path / "readers/alpha.meta").read_bytes()[40:] == slot(1, 64, 5, 1)
        assert meta.position == ReaderPosition(1, 64, 5, 1)
    meta.store(1, 320, 7, durable=True)
    assert saved(tmp_path) == ReaderPosition(1, 320, 7, 2)


@pytest.mark.parametrize("only_valid_slot", [0, 1])
@pytest.mark.parametrize("generation", [4, 5])
def test_a_torn_store_never_loses_the_other_slot_wherever_it_is(
    tmp_path: Path, only_valid_slot: int, generation: int
) -> None:
    slots = [b"\xff" * 40, b"\xff" * 40]
    slots[only_valid_slot] = slot(1, 64, 5, generation)
    path = write_meta(tmp_path, b"".join(slots))
    meta = open_meta(tmp_path)
    meta.store(2, 128, 6, durable=True)
    content = path.read_bytes()
    assert content[40 * only_valid_slot :][:40] == slots[only_valid_slot]
    assert saved(tmp_path) == meta.position
    assert meta.position is not None
    assert meta.position.segment_id == 2


@pytest.mark.parametrize(("content", "place"), LEGACY, ids=["8", "16"])
def test_an_upgrade_that_fails_at_any_call_keeps_a_position_and_the_lock(
    tmp_path: Path, content: bytes, place: tuple[int, int]
) -> None:
    old, new = ReaderPosition(*place, 0, 0), ReaderPosition(6, 128, 9, 1)

    def upgrade(fs: Fs) -> None:
        with contextlib.closing(open_meta(tmp_path)) as meta:
            meta._fs = fs  # the faults are meant for the store alone
            try:
                meta.store(6, 128, 9, durable=True)
            except OSError:
                assert saved(tmp_path) in (old, new)
                with pytest.raises(ReaderAlreadyActive):
                    open_meta(tmp_path)
                upgraded = saved(tmp_path) == new
                meta.store(7, 192, 10, durable=True)
                assert saved(tmp_path) == ReaderPosition(7, 192, 10, 2 if upgraded else 1)
                raise
            finally:
                meta._fs = OsFs()
        assert sorted(tree(tmp_path)) == ["readers", "readers/alpha.meta"]

    failed = fail_each_call(tmp_path, lambda: write_meta(tmp_path, content), upgrade)
    assert failed == ["open", "try_lock", "truncate", "pwrite", "fsync", "rename", "fsync", "fsync_dir"]


@given(st.sampled_from(LEGACY), st.integers(0, 2**32), st.integers(1, 12))
def test_a_power_loss_during_an_upgrade_leaves_the_old_position_or_the_new(
    tmp_path_factory: pytest.TempPathFactory,
    legacy: tuple[bytes, tuple[int, int]],
    seed: int,
    call: int,
) -> None:
    root = tmp_path_factory.mktemp("queue")
    write_meta(root, legacy[0])
    fs = FaultFs(str(root), seed, page_size=8)
    meta = open_meta(root, fs)
    fs.tear_at(fs.calls + call)
    stored = False
    with contextlib.suppress(PowerLoss):
        meta.store(6, 128, 9, durable=True)
        stored = True
    fs.restore()
    new = ReaderPosition(6, 128, 9, 1)
    assert saved(root) in ((new,) if stored else (new, ReaderPosition(*legacy[1], 0, 0)))


# --- Listing ---------------------------------------------------------------------------------------------


def test_no_readers_directory_is_told_apart_from_an_empty_one(tmp_path: Path) -> None:
    assert list_readers(OsFs(), str(tmp_path)) is None
    (tmp_path / "readers").mkdir()
    assert list_readers(OsFs(), str(tmp_path)) == {}


def test_the_listing_ignores_temp_files_and_foreign_names(tmp_path: Path) -> None:
    for name in ("alpha.meta.tmp", ".meta", "notes.txt", "meta"):
        write_meta(tmp_path, b"x", name).rename(tmp_path / "readers" / name)
    write_meta(tmp_path, slot(1, 64, 5, 2) + bytes(40))
    assert list_readers(OsFs(), str(tmp_path)) == {"alpha": ReaderPosition(1, 64, 5, 2)}


def test_the_listing_reports_a_damaged_file_beside_the_good_ones(tmp_path: Path) -> None:
    write_meta(tmp_path, slot(1, 64, 5, 2) + bytes(40))
    write_meta(tmp_path, b"short", "broken")
    (tmp_path / "readers/folder.meta").mkdir()
    readers = list_readers(OsFs(), str(tmp_path))
    assert readers is not None
    assert list(readers) == ["alpha", "broken", "folder"]
    assert readers["alpha"] == ReaderPosition(1, 64, 5, 2)
    for name in ("broken", "folder"):
        assert isinstance(readers[name], CorruptMetadata)
        assert f"{name}.meta" in str(readers[name])


def test_the_listing_skips_a_reader_that_vanishes_while_listing(tmp_path: Path) -> None:
    write_meta(tmp_path, slot(1, 64, 5, 2) + bytes(40))
    gone = write_meta(tmp_path, slot(1, 64, 5, 2) + bytes(40), "gone")
    fs = interrupting_fs("open", [gone.unlink])
    assert list_readers(fs, str(tmp_path)) == {"alpha": ReaderPosition(1, 64, 5, 2)}


def test_a_new_reader_without_a_store_is_listed_at_the_very_beginning(tmp_path: Path) -> None:
    write_meta(tmp_path, bytes(80))
    assert list_readers(OsFs(), str(tmp_path)) == {"alpha": ReaderPosition(0, 64, 0, 0)}


def test_listing_takes_no_lock_and_keeps_no_file_open(tmp_path: Path) -> None:
    meta = open_meta(tmp_path)
    meta.create(1, 64, 5)
    fs = FaultFs(str(tmp_path))
    assert list_readers(fs, str(tmp_path)) == {"alpha": ReaderPosition(1, 64, 5, 1)}
    assert [call.name for call in fs.log] == ["listdir", "open", "pread", "close"]
