"""What `FaultFs` does to files: planned failures, and what is left after a power loss."""

from __future__ import annotations

import errno
import gc
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.fault_fs import Call, FaultFs, PowerLoss
from everlog.fs import Fs, OsFs, replace_file
from tests.support.fault_files import CREATE, SEEDS, Image, MappedFile, contents, images, mapped, write
from tests.support.files import descriptors_below, tree

PAGE = 4096
NAMES = st.sampled_from(["a", "b", "c"])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory that a test works in."""
    return tmp_path


@pytest.fixture
def fs(root: Path) -> FaultFs:
    """A `FaultFs` over the empty root."""
    return FaultFs(root)


OPERATIONS = sorted({name for name in vars(Fs) if not name.startswith("_")} - {"close"})


@contextmanager
def operations(fs: FaultFs, root: Path) -> Iterator[dict[str, Callable[[], object]]]:
    """One call of every operation but `close`, ready to be made on files that exist, but without effect."""
    file, other, fresh, empty = (str(root / name) for name in ("file", "other", "fresh", "empty"))
    OsFs().makedirs(empty)
    write(OsFs(), root / "file", bytes(PAGE))
    write(OsFs(), root / "other", b"other")
    fd = os.open(file, os.O_RDWR)
    mapping = MappedFile(fd)
    before = tree(root), descriptors_below(root)
    try:
        yield {
            "open": lambda: fs.open(fresh, CREATE),
            "pread": lambda: fs.pread(fd, 1, 0),
            "pwrite": lambda: fs.pwrite(fd, b"new", 0),
            "size": lambda: fs.size(fd),
            "truncate": lambda: fs.truncate(fd, 1),
            "allocate": lambda: fs.allocate(fd, 2 * PAGE),
            "write_zeros": lambda: fs.write_zeros(fd, 0, PAGE),
            "fsync": lambda: fs.fsync(fd),
            "fdatasync": lambda: fs.fdatasync(fd),
            "fsync_dir": lambda: fs.fsync_dir(str(root)),
            "sync_file_system": lambda: fs.sync_file_system(str(root)),
            "msync": lambda: fs.msync(mapping, fd, 0, PAGE, True),
            "rename": lambda: fs.rename(file, other),
            "rename_noreplace": lambda: fs.rename_noreplace(file, fresh),
            "unlink": lambda: fs.unlink(file),
            "makedirs": lambda: fs.makedirs(fresh),
            "rmdir": lambda: fs.rmdir(empty),
            "listdir": lambda: fs.listdir(str(root)),
            "exists": lambda: fs.exists(file),
            "boot_id": fs.boot_id,
            "try_lock": lambda: fs.try_lock(fd),
            "unlock": lambda: fs.unlock(fd),
        }
        assert (tree(root), descriptors_below(root)) == before
    finally:
        os.close(fd)


def failing_calls(fs: FaultFs, count: int) -> list[int]:
    failed = []  # the numbers of those of `count` calls of `exists` that fail
    for _ in range(count):
        try:
            fs.exists("x")
        except OSError:
            failed.append(fs.calls)
    return failed


class TestPlannedFailures:
    def test_every_call_is_counted_and_logged_with_its_present_path(self, fs: FaultFs, root: Path) -> None:
        assert (fs.calls, fs.log) == (0, [])
        path, moved = str(root / "file"), str(root / "moved")
        fd = fs.open(path, CREATE)
        fs.pwrite(fd, b"x", 0)
        fs.rename(path, moved)
        fs.size(fd)
        fs.close(fd)
        with pytest.raises(FileNotFoundError):
            fs.unlink(path)
        paths = [path, path, f"{path} -> {moved}", moved, moved, path]
        names = ["open", "pwrite", "rename", "size", "close", "unlink"]
        assert fs.log == [Call(*call) for call in zip(range(1, 7), names, paths, strict=True)]
        assert fs.calls == 6

    def test_all_threads_are_counted_and_the_last_10_000_calls_logged(self, fs: FaultFs, root: Path) -> None:
        threads = [threading.Thread(target=failing_calls, args=(fs, 2_501)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [call.number for call in fs.log] == list(range(5, 10_005))

    @pytest.mark.parametrize("name", OPERATIONS)
    def test_the_nth_call_fails_with_the_chosen_errno_and_changes_nothing(
        self, root: Path, name: str
    ) -> None:
        fs = FaultFs(root)
        with operations(fs, root) as calls:
            fs.exists("x")
            fs.fail_at(2, errno.ENOSPC)
            with pytest.raises(OSError, match="planned for call 2") as caught:
                calls[name]()
            assert caught.value.errno == errno.ENOSPC
            assert fs.log[-1][:2] == (2, name)

    def test_only_the_chosen_calls_fail(self, fs: FaultFs, root: Path) -> None:
        fs.fail_at(2, errno.EIO)
        fs.fail_when(lambda call: call.number % 3 == 0, errno.EIO, times=2)
        assert failing_calls(fs, 12) == [2, 3, 6]

    def test_calls_fail_by_operation_and_path_as_often_as_chosen(self, root: Path) -> None:
        reader, writer = root / "reader.meta", root / "writer.lock"
        reader.touch()
        writer.touch()
        fs = FaultFs(root)
        fs.fail_when("unlink", errno.EACCES, path="reader", times=2)
        for _ in range(2):
            assert fs.exists(str(reader))
            with pytest.raises(PermissionError):
                fs.unlink(str(reader))
        fs.unlink(str(writer))
        for part in (reader.name, writer.name):
            fs.fail_when("rename", errno.EIO, path=part)
            with pytest.raises(OSError, match="planned"):
                fs.rename(str(reader), str(writer))
        fs.rename(str(reader), str(writer))

    def test_a_failed_sync_makes_nothing_durable(self, fs: FaultFs, root: Path) -> None:
        write(fs, root / "file", b"o" * PAGE, sync=True)
        fs.rename(str(root / "file"), str(root / "moved"))
        with mapped(fs, root / "moved") as (fd, mapping):
            mapping.memory[:] = b"n" * PAGE
            fs.fail_when(lambda call: "sync" in call.name, errno.EIO, times=3)
            with pytest.raises(OSError, match="planned"):
                fs.fsync(fd)
            with pytest.raises(OSError, match="planned"):
                fs.msync(mapping, fd, 0, PAGE, True)
        with pytest.raises(OSError, match="planned"):
            fs.fsync_dir(str(root))
        assert contents(fs, "file") == {b"o" * PAGE, b"n" * PAGE, None}

    def test_a_fault_that_could_never_happen_is_refused(self, root: Path) -> None:
        fs = FaultFs(root)
        fs.exists("x")
        for plan in (fs.lose_power_at, fs.tear_at, partial(fs.fail_at, errno=errno.EIO)):
            with pytest.raises(ValueError, match="call 1 is over; the next one has number 2"):
                plan(1)
        with pytest.raises(ValueError, match="'fsink' is no operation"):
            fs.fail_when("fsink", errno.EIO)
        with pytest.raises(NotADirectoryError, match="must be an existing directory"):
            FaultFs(root / "absent")


class TestPowerLoss:
    @pytest.mark.parametrize("name", OPERATIONS)
    def test_power_is_lost_before_the_chosen_call_and_stays_lost(
        self, fs: FaultFs, root: Path, name: str
    ) -> None:
        with operations(fs, root) as calls:
            fs.lose_power_at(1)
            with pytest.raises(PowerLoss, match=f"number=1, name='{name}'"):
                calls[name]()
            for call in calls.values():
                with pytest.raises(PowerLoss):
                    call()

    def test_restore_brings_power_back_and_recovery_can_be_hit(self, fs: FaultFs, root: Path) -> None:
        fs.lose_power_at(2)
        fs.lose_power_at(5)
        for last_call in (3, 6):
            assert fs.exists(str(root))
            for _ in range(2):
                with pytest.raises(PowerLoss):
                    fs.exists(str(root))
            fs.restore()
            assert fs.calls == last_call

    def test_a_power_loss_names_the_seed_and_passes_error_handlers(self, root: Path) -> None:
        assert not issubclass(PowerLoss, Exception)
        fs = FaultFs(root, seed=4711)
        assert "seed=4711" in repr(fs)
        fs.lose_power_at(1)
        for _ in range(2):
            with pytest.raises(PowerLoss, match="seed 4711"):
                fs.exists("x")

    def test_a_descriptor_is_closed_silently_after_power_loss(self, fs: FaultFs, root: Path) -> None:
        first, second = (fs.open(str(root / "file"), CREATE) for _ in range(2))
        fs.lose_power_at(3)
        with pytest.raises(PowerLoss):
            fs.size(first)
        fs.close(first)
        assert descriptors_below(root) == 1
        fs.restore()
        fs.close(second)
        assert descriptors_below(root) == 0

    def test_a_close_that_loses_power_closes_its_descriptor_once(self, fs: FaultFs, root: Path) -> None:
        fd = fs.open(str(root / "file"), CREATE)
        fs.lose_power_at(2)
        with pytest.raises(PowerLoss):
            fs.close(fd)
        os.dup2(0, fd)  # the number is reused
        fs.close(fd)
        os.fstat(fd)
        fs.restore()
        with pytest.raises(OSError, match="not open in this FaultFs"):
            fs.close(fd)
        os.close(fd)

    def test_a_torn_write_leaves_a_prefix_and_loses_power(self, root: Path) -> None:
        content = b"0123456789"
        lengths = set()
        for seed in SEEDS:
            fs = FaultFs(root, seed=seed)
            fs.tear_at(2)
            with pytest.raises(PowerLoss, match="name='pwrite'"):
                write(fs, root / str(seed), content)
            with pytest.raises(PowerLoss):
                fs.exists("x")
            found = (root / str(seed)).read_bytes()
            assert content.startswith(found)
            lengths.add(len(found))
        assert max(lengths) < len(content)
        assert len(lengths) > 3

    def test_the_same_seed_gives_the_same_state(self, root: Path) -> None:
        def state(life: Path, seed: int) -> Image:
            (life / "x").mkdir(parents=True)
            fs = FaultFs(life, seed=seed)
            fs.makedirs(str(life / "x" / "y"))
            for name in ("a", "b", "x/c", "x/y/d"):
                write(fs, life / name, name[-1:].encode() * 3 * PAGE)
            fs.rename(str(life / "a"), str(life / "x" / "a"))
            fs.restore()
            return tree(life)

        first, second = ([state(root / f"{name}{seed}", seed) for seed in range(9)] for name in "ab")
        assert first == second
        assert len({str(image) for image in first}) > 1

    def test_no_descriptor_is_left_when_a_fault_fs_is_gone(self, root: Path) -> None:
        gc.collect()  # or what failed calls of other tests still hold is released halfway
        before = len(os.listdir("/proc/self/fd"))
        fs = FaultFs(root)
        write(fs, root / "kept", b"x", sync=True)
        write(fs, root / "deleted", b"x")
        fs.unlink(str(root / "deleted"))
        assert len(os.listdir("/proc/self/fd")) > before
        fs.restore()
        del fs
        assert len(os.listdir("/proc/self/fd")) == before


PAGES = 4
PAGE_STEPS = ["pwrite", "store", "fsync", "msync", "msync without waiting"]


class TestContentsAfterPowerLoss:
    @pytest.mark.parametrize("page_size", [512, PAGE])
    @given(
        seed=st.integers(0, 2**32),
        steps=st.lists(
            st.tuples(st.sampled_from(PAGE_STEPS), st.integers(0, PAGES - 1), st.integers(1, 255)),
            max_size=25,
        ),
    )
    def test_every_page_is_as_last_synced_or_as_last_written(
        self, page_size: int, seed: int, steps: list[tuple[str, int, int]]
    ) -> None:
        with tempfile.TemporaryDirectory() as root:
            path = Path(root) / "file"
            path.write_bytes(bytes(PAGES * page_size))
            fs = FaultFs(root, seed=seed, page_size=page_size)
            synced, written = [0] * PAGES, [0] * PAGES
            with mapped(fs, path) as (fd, mapping):
                for step, page, fill in steps:
                    offset = page * page_size
                    if step == "pwrite":
                        fs.pwrite(fd, bytes([fill]) * page_size, offset)
                        written[page] = fill
                    elif step == "store":
                        mapping.memory[offset : offset + page_size] = bytes([fill]) * page_size
                        written[page] = fill
                    elif step == "fsync":
                        fs.fsync(fd)
                        synced = list(written)
                    else:
                        fs.msync(mapping, fd, offset + 1, 1, step == "msync")
                        if step == "msync":
                            synced[page] = written[page]
                fs.restore()
            content = path.read_bytes()
            assert len(content) == PAGES * page_size
            for page in range(PAGES):
                found = content[page * page_size : (page + 1) * page_size]
                assert found in (bytes([synced[page]]) * page_size, bytes([written[page]]) * page_size)

    def test_a_synced_page_always_survives_power_loss(self, fs: FaultFs, root: Path) -> None:
        write(fs, root / "file", b"s" * 2 * PAGE, sync=True)
        write(fs, root / "file", b"n" * PAGE, PAGE)
        assert contents(fs, "file") == {b"s" * 2 * PAGE, b"s" * PAGE + b"n" * PAGE}

    @pytest.mark.parametrize("page_size", [512, PAGE])
    def test_an_unsynced_page_may_be_old_or_new(self, root: Path, page_size: int) -> None:
        write(OsFs(), root / "file", b"o" * 2 * page_size)
        fs = FaultFs(root, page_size=page_size)
        write(fs, root / "file", b"n" * 2 * page_size)
        old, new = b"o" * page_size, b"n" * page_size
        assert contents(fs, "file") == {old + old, old + new, new + old, new + new}

    def test_a_store_into_a_mapping_is_lost_or_kept_until_a_sync_waits(self, fs: FaultFs, root: Path) -> None:
        write(fs, root / "file", b"o" * PAGE, sync=True)
        with mapped(fs, root / "file") as (fd, mapping):
            mapping.memory[:] = b"n" * PAGE
            for wait, expected in ((False, {b"o" * PAGE, b"n" * PAGE}), (True, {b"n" * PAGE})):
                fs.msync(mapping, fd, 0, PAGE, wait)
                assert contents(fs, "file") == expected

    def test_a_waiting_msync_keeps_its_pages_and_the_length_up_to_them(self, fs: FaultFs, root: Path) -> None:
        write(fs, root / "file", b"", sync=True)
        write(fs, root / "file", b"n" * 4 * PAGE)
        with mapped(fs, root / "file") as (fd, mapping):
            fs.msync(mapping, fd, PAGE + 7, PAGE, True)
        found = [content or b"" for content in contents(fs, "file")]
        assert {content[PAGE : 3 * PAGE] for content in found} == {b"n" * 2 * PAGE}
        assert {content[:PAGE] for content in found} == {bytes(PAGE), b"n" * PAGE}
        assert {len(content) for content in found} == {3 * PAGE, 4 * PAGE}

    @pytest.mark.parametrize(("synced", "present"), [(100, 3 * PAGE + 100), (3 * PAGE + 100, 100)])
    def test_an_unsynced_length_is_old_or_new_or_between(
        self, fs: FaultFs, root: Path, synced: int, present: int
    ) -> None:
        write(fs, root / "file", b"x" * synced, sync=True)
        fd = fs.open(str(root / "file"), os.O_RDWR)
        fs.truncate(fd, present)
        fs.close(fd)
        found = [content or b"" for content in contents(fs, "file")]
        assert {len(content) for content in found} == {100, PAGE, 2 * PAGE, 3 * PAGE, 3 * PAGE + 100}
        assert {content[:100] for content in found} == {b"x" * 100}

    def test_an_unsynced_unlink_may_bring_the_file_back(self, fs: FaultFs, root: Path) -> None:
        write(fs, root / "file", b"o", sync=True)
        fd = fs.open(str(root / "file"), os.O_RDWR)
        fs.unlink(str(root / "file"))
        fs.pwrite(fd, b"n", 0)
        fs.fsync(fd)
        fs.close(fd)
        assert contents(fs, "file") == {b"n", None}


class TestNamesAfterPowerLoss:
    @given(
        seed=st.integers(0, 2**32),
        steps=st.lists(
            st.tuples(st.sampled_from(["create", "unlink", "rename", "sync"]), NAMES, NAMES),
            max_size=20,
        ),
    )
    def test_a_directory_is_as_it_was_at_some_moment_since_its_last_sync(
        self, seed: int, steps: list[tuple[str, str, str]]
    ) -> None:
        with tempfile.TemporaryDirectory() as root:
            fs = FaultFs(root, seed=seed)
            moments: list[Image] = [{}]
            for number, (step, name, other) in enumerate(steps):
                files = dict(moments[-1])
                path, target = os.path.join(root, name), os.path.join(root, other)
                if step == "sync":
                    fs.fsync_dir(root)
                    moments.clear()
                elif step == "create" and name not in files:
                    fd = fs.open(path, CREATE)
                    fs.pwrite(fd, str(number).encode(), 0)
                    fs.fsync(fd)
                    fs.close(fd)
                    files[name] = str(number).encode()
                elif step == "unlink" and name in files:
                    fs.unlink(path)
                    del files[name]
                elif step == "rename" and name in files:
                    (fs.rename if other in files else fs.rename_noreplace)(path, target)
                    files[other] = files.pop(name)
                moments.append(files)
            fs.restore()
            assert tree(Path(root)) in moments

    def test_unsynced_names_survive_up_to_any_point_and_in_order(self, fs: FaultFs, root: Path) -> None:
        fs.makedirs(str(root / "a"))
        for name in "bc":
            write(fs, root / name, b"")
        assert {"".join(sorted(image)) for image in images(fs)} == {"", "a", "ab", "abc"}
        assert tree(root) == {"a": None, "b": b"", "c": b""}, "drawing an image changes no file"

    @pytest.mark.parametrize("by_descriptor", [False, True])
    def test_syncing_the_directory_keeps_a_name(self, root: Path, by_descriptor: bool) -> None:
        fs = FaultFs(root)
        file, directory = fs.open(str(root / "file"), CREATE), fs.open(str(root), os.O_RDONLY)
        fs.fsync(file)
        assert contents(fs, "file") == {b"", None}
        fs.fsync(directory) if by_descriptor else fs.fsync_dir(str(root))
        assert contents(fs, "file") == {b""}
        fs.close(file)
        fs.close(directory)

    def test_directories_keep_or_lose_their_operations_independently(self, root: Path) -> None:
        for name in "xy":
            (root / name).mkdir()
        fs = FaultFs(root)
        for name in "xy":
            write(fs, root / name / "file", b"")
        found = {("x/file" in image, "y/file" in image) for image in images(fs)}
        assert found == {(True, True), (True, False), (False, True), (False, False)}

    def test_a_rename_between_directories_is_never_half_done(self, root: Path) -> None:
        for name in "xy":
            (root / name).mkdir()
        write(OsFs(), root / "x" / "file", b"1")
        fs = FaultFs(root)
        write(fs, root / "y" / "before", b"")
        fs.rename(str(root / "x" / "file"), str(root / "y" / "file"))
        write(fs, root / "y" / "later", b"")
        found = {" ".join(sorted(name for name in image if "/" in name)) for image in images(fs)}
        moved = "y/before y/file"
        assert found == {"x/file", "x/file y/before", moved, f"{moved} y/later"}
        fs.fsync_dir(str(root / "x"))
        found = {" ".join(sorted(name for name in image if "/" in name)) for image in images(fs)}
        assert found == {moved, f"{moved} y/later"}

    def test_a_directory_moves_with_all_it_holds(self, root: Path) -> None:
        (root / "x").mkdir()
        write(OsFs(), root / "x" / "synced", b"1")
        fs = FaultFs(root)
        write(fs, root / "x" / "unsynced", b"")
        fs.rename(str(root / "x"), str(root / "y"))
        fs.fsync_dir(str(root))
        assert contents(fs, "y/synced") == {b"1"}
        assert contents(fs, "y/unsynced") == {b"", None}

    def test_a_new_directory_is_lost_unless_its_parent_is_synced(self, fs: FaultFs, root: Path) -> None:
        fs.makedirs(str(root / "x" / "y"))
        write(fs, root / "x" / "y" / "file", b"1", sync=True)
        found = {tuple(sorted(image)) for image in images(fs)}
        assert found == {(), ("x",), ("x", "x/y", "x/y/file")}
        fs.fsync_dir(str(root / "x"))
        fs.fsync_dir(str(root))
        assert contents(fs, "x/y/file") == {b"1"}


class TestNextLife:
    def test_what_was_there_before_and_what_was_restored_is_durable(self, root: Path) -> None:
        (root / "x").mkdir()
        write(OsFs(), root / "x" / "file", b"1" * 2 * PAGE)
        fs = FaultFs(root)
        assert all(image == tree(root) for image in images(fs))
        write(fs, root / "x" / "file", b"2" * 2 * PAGE)
        fs.restore()
        assert all(image == tree(root) for image in images(fs))

    def test_nothing_of_the_old_life_touches_the_next(self, fs: FaultFs, root: Path) -> None:
        write(fs, root / "file", bytes(PAGE), sync=True)
        with mapped(fs, root / "file") as (old, mapping):
            assert fs.try_lock(old)
            fs.restore()
            mapping.memory[0] = 1
            fs.pwrite(old, b"2", 1)
            fs.fsync(old)
            assert tree(root) == {"file": bytes(PAGE)}
            with mapped(fs, root / "file") as (new, _):
                assert fs.try_lock(new)

    def test_changes_made_past_the_fault_fs_count_as_not_synced(self, root: Path) -> None:
        for name in ("changed", "deleted", "replaced"):
            (root / name).write_bytes(b"o")
        fs = FaultFs(root)
        (root / "changed").write_bytes(b"n")
        (root / "deleted").unlink()
        (root / "new").write_bytes(b"n")
        os.replace(root / "new", root / "replaced")
        (root / "x").mkdir()
        write(fs, root / "x" / "file", b"1", sync=True)
        assert contents(fs, "changed") == {b"o", b"n"}
        assert contents(fs, "deleted") == {b"o", None}
        assert contents(fs, "replaced") >= {b"o", b"n"}
        assert contents(fs, "x/file") == {b"1", None}
        (root / "late").touch()
        fs.fsync_dir(str(root))
        assert contents(fs, "late") == {b""}
        assert contents(fs, "deleted") == {None}
        assert contents(fs, "x/file") == {b"1"}

    def test_files_outside_the_root_are_served_but_never_rewritten(self, tmp_path: Path) -> None:
        root, outside = tmp_path / "root", tmp_path / "root-like" / "file"
        root.mkdir()
        outside.parent.mkdir()
        fs = FaultFs(root)
        write(fs, outside, b"x", sync=True)
        fs.rename(str(outside), str(root / "inside"))
        fs.rename(str(root / "inside"), str(outside))
        write(fs, outside, b"y")
        for _ in SEEDS:
            fs.restore()
        assert outside.read_bytes() == b"y"

    def test_a_root_behind_a_link_is_the_directory_it_leads_to(self, tmp_path: Path) -> None:
        root, link = tmp_path / "root", tmp_path / "link"
        root.mkdir()
        link.symlink_to(root)
        fs = FaultFs(link)
        write(fs, root / "direct", b"1", sync=True)
        write(fs, link / "linked", b"2", sync=True)
        fs.restore()
        assert tree(root) == {"direct": b"1", "linked": b"2"}


OLD, NEW = b"o" * 2 * PAGE, b"n" * 3 * PAGE
CALLS_OF_REPLACE_FILE = ["open", "pwrite", "fsync", "close", "rename", "fsync_dir"]


class TestReplaceFile:
    @pytest.mark.parametrize("durable", [True, False])
    def test_it_leaves_the_new_content_and_no_temp_file(self, root: Path, durable: bool) -> None:
        (root / "file.tmp").write_bytes(b"left over by a crash, and longer than the new content")
        for content in (b"old", b"new"):
            replace_file(OsFs(), str(root / "file"), content, durable=durable)
            assert tree(root) == {"file": content}

    def test_it_accepts_a_bare_name(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(root)
        replace_file(OsFs(), "file", b"new")
        assert tree(root) == {"file": b"new"}

    @pytest.mark.parametrize("fault", ["lose_power_at", "tear_at"])
    def test_replace_file_is_old_or_new_after_power_loss_at_every_call(self, root: Path, fault: str) -> None:
        found: set[tuple[str, bytes | None]] = set()
        for seed in SEEDS:
            for number, name in enumerate([*CALLS_OF_REPLACE_FILE, "no fault"], start=1):
                replace_file(OsFs(), str(root / "file"), OLD)
                fs = FaultFs(root, seed=seed)
                getattr(fs, fault)(number)
                expected_loss = pytest.raises(PowerLoss, match=f"name='{name}'")
                with nullcontext() if name == "no fault" else expected_loss:
                    replace_file(fs, str(root / "file"), NEW)
                fs.restore()
                found.add((name, tree(root)["file"]))
        # Only a loss between the rename and the end of the directory sync leaves it to chance.
        expected = {(name, OLD) for name in CALLS_OF_REPLACE_FILE}
        assert found == expected | {("fsync_dir", NEW), ("no fault", NEW)}

    def test_without_durability_it_may_tear_so_tearing_is_seen(self, fs: FaultFs, root: Path) -> None:
        write(fs, root / "file", OLD, sync=True)
        replace_file(fs, str(root / "file"), NEW, durable=False)
        assert OLD in contents(fs, "file")
        assert contents(fs, "file") - {OLD, NEW, None}

    def test_a_failure_leaves_old_or_new_and_no_descriptor(self, root: Path) -> None:
        for number, name in enumerate(CALLS_OF_REPLACE_FILE, start=1):
            replace_file(OsFs(), str(root / "file"), OLD)
            fs = FaultFs(root)
            fs.fail_at(number, errno.EIO)
            with pytest.raises(OSError, match="planned"):
                replace_file(fs, str(root / "file"), NEW)
            assert tree(root)["file"] == (NEW if name == "fsync_dir" else OLD)
            assert descriptors_below(root) == 0
