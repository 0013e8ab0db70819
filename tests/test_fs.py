"""The disk seam: the operating system's files, and `FaultFs` without faults, against a dict."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from everlog import fs as fs_module
from everlog.fault_fs import FaultFs
from everlog.fs import Fs, OsFs
from tests.support.fault_files import CREATE, write
from tests.support.files import tree

NAMES = st.sampled_from(["a", "b", "c"])
OFFSETS = st.integers(0, 30)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory that a test works in."""
    return tmp_path


class FilesMachine(RuleBasedStateMachine):
    """File operations against a dict of names to contents; a handle keeps its content when renamed."""

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.mkdtemp()
        self.fs: Fs = self.make_fs()
        self.files: dict[str, bytearray] = {}
        self.handles: list[tuple[int, bytearray]] = []

    def make_fs(self) -> Fs:
        return OsFs()

    def teardown(self) -> None:
        for fd, _ in self.handles:
            self.fs.close(fd)
        shutil.rmtree(self.root)

    def path(self, name: str) -> str:
        return os.path.join(self.root, name)

    @rule(name=NAMES, flags=st.sampled_from([0, os.O_CREAT, os.O_CREAT | os.O_EXCL, os.O_CREAT | os.O_TRUNC]))
    def open(self, name: str, flags: int) -> None:
        if name not in self.files and not flags & os.O_CREAT:
            with pytest.raises(FileNotFoundError):
                self.fs.open(self.path(name), os.O_RDWR)
        elif name in self.files and flags & os.O_EXCL:
            with pytest.raises(FileExistsError):
                self.fs.open(self.path(name), os.O_RDWR | flags)
        else:
            content = self.files.setdefault(name, bytearray())
            if flags & os.O_TRUNC:
                content.clear()
            self.handles.append((self.fs.open(self.path(name), os.O_RDWR | flags), content))

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), content=st.binary(max_size=20), offset=OFFSETS)
    def pwrite(self, data: st.DataObject, content: bytes, offset: int) -> None:
        fd, model = data.draw(st.sampled_from(self.handles))
        self.fs.pwrite(fd, content, offset)
        if content:
            model.extend(bytes(max(0, offset - len(model))))
            model[offset : offset + len(content)] = content

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), length=st.integers(0, 40), offset=OFFSETS)
    def pread(self, data: st.DataObject, length: int, offset: int) -> None:
        fd, model = data.draw(st.sampled_from(self.handles))
        assert self.fs.pread(fd, length, offset) == bytes(model[offset : offset + length])

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), length=st.integers(1, 40), shrink=st.booleans())
    def truncate_or_allocate(self, data: st.DataObject, length: int, shrink: bool) -> None:
        fd, model = data.draw(st.sampled_from(self.handles))
        (self.fs.truncate if shrink else self.fs.allocate)(fd, length)
        model[length if shrink else max(length, len(model)) :] = bytes(max(0, length - len(model)))

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.handles) - 1))
        self.fs.close(self.handles.pop(index)[0])

    @rule(name=NAMES, other=NAMES, replace=st.booleans())
    def rename(self, name: str, other: str, replace: bool) -> None:
        rename = self.fs.rename if replace else self.fs.rename_noreplace
        if name not in self.files:
            with pytest.raises(FileNotFoundError):
                rename(self.path(name), self.path(other))
        elif other in self.files and not replace:
            with pytest.raises(FileExistsError):
                rename(self.path(name), self.path(other))
        else:
            rename(self.path(name), self.path(other))
            self.files[other] = self.files.pop(name)

    @rule(name=NAMES)
    def unlink(self, name: str) -> None:
        if self.files.pop(name, None) is not None:
            self.fs.unlink(self.path(name))
        else:
            with pytest.raises(FileNotFoundError):
                self.fs.unlink(self.path(name))

    @invariant()
    def the_files_are_those_of_the_model(self) -> None:
        assert self.fs.listdir(self.root) == sorted(self.files)
        assert {name for name in "abc" if self.fs.exists(self.path(name))} == set(self.files)
        assert tree(Path(self.root)) == {name: bytes(content) for name, content in self.files.items()}
        assert [self.fs.size(fd) for fd, _ in self.handles] == [len(model) for _, model in self.handles]


class FaultlessMachine(FilesMachine):
    """`FaultFs` without a planned fault is the file system it wraps, and keeps what is synced."""

    def make_fs(self) -> Fs:
        return FaultFs(self.root)

    @rule()
    def lose_power_after_syncing_everything(self) -> None:
        assert isinstance(self.fs, FaultFs)
        for name in self.files:
            write(self.fs, Path(self.root, name), b"", sync=True)
        self.fs.fsync_dir(self.root)
        self.fs.restore()
        # The old handles now belong to files of the life before, the names to those of the next.
        self.files = {name: bytearray(content) for name, content in self.files.items()}


TestOsFsAgainstDict = FilesMachine.TestCase
TestFaultlessFaultFsAgainstDict = FaultlessMachine.TestCase
TestOsFsAgainstDict.settings = TestFaultlessFaultFsAgainstDict.settings = settings(stateful_step_count=30)


class TestOsFs:
    def test_a_short_write_is_continued_until_all_is_written(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole_pwrite = os.pwrite
        lengths: list[int] = []

        def short_pwrite(fd: int, data: memoryview, offset: int) -> int:
            lengths.append(len(data))
            return whole_pwrite(fd, data[:3], offset)

        monkeypatch.setattr(os, "pwrite", short_pwrite)
        write(OsFs(), root / "file", b"0123456789")
        assert (root / "file").read_bytes() == b"0123456789"
        assert lengths == [10, 7, 4, 1]

    def test_descriptors_are_not_inherited_by_other_programs(self, root: Path) -> None:
        fd = OsFs().open(str(root / "file"), CREATE)
        assert os.get_inheritable(fd) is False
        OsFs().close(fd)

    @pytest.mark.parametrize("missing", [errno.EINVAL, errno.ENOSYS])
    def test_rename_noreplace_never_replaces_on_old_kernels(
        self, root: Path, monkeypatch: pytest.MonkeyPatch, missing: int
    ) -> None:
        class OldLibc:
            def renameat2(self, *_: object) -> int:
                ctypes.set_errno(missing)
                return -1

        monkeypatch.setattr(fs_module, "_libc", OldLibc())
        (root / "a").write_bytes(b"a")
        (root / "b").write_bytes(b"b")
        with pytest.raises(FileExistsError, match=r"a' -> .*b'"):
            OsFs().rename_noreplace(str(root / "a"), str(root / "b"))
        assert tree(root) == {"a": b"a", "b": b"b"}
        OsFs().rename_noreplace(str(root / "a"), str(root / "c"))
        assert tree(root) == {"c": b"a", "b": b"b"}

    def test_makedirs_creates_parents_and_accepts_existing_ones(self, root: Path) -> None:
        for _ in range(2):
            OsFs().makedirs(str(root / "a" / "b"))
        assert tree(root) == {"a": None, os.path.join("a", "b"): None}

    @pytest.mark.parametrize("wrapped", [False, True], ids=["OsFs", "FaultFs"])
    def test_only_one_descriptor_holds_the_lock_of_a_file(self, root: Path, wrapped: bool) -> None:
        fs: Fs = FaultFs(root) if wrapped else OsFs()
        first, second = (fs.open(str(root / "lock"), CREATE) for _ in range(2))
        assert fs.try_lock(first) is True
        assert fs.try_lock(second) is False
        fs.close(first)
        assert fs.try_lock(second) is True
        fs.close(second)


@pytest.mark.parametrize("flags", [os.O_CREAT, os.O_CREAT | os.O_TRUNC])
@pytest.mark.parametrize("is_there", [False, True])
def test_a_file_that_may_be_created_is_not_written_through_a_link(
    tmp_path: Path, flags: int, is_there: bool
) -> None:
    victim, link = tmp_path / "victim", tmp_path / "link"
    if is_there:
        victim.write_text("precious")
    link.symlink_to(victim)
    with pytest.raises(OSError, match="link") as refused:
        OsFs().open(str(link), os.O_RDWR | flags)
    assert refused.value.errno == errno.ELOOP
    assert victim.exists() is is_there
    assert not is_there or victim.read_text() == "precious"
