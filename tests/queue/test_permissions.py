"""Queue files are for their user or a group, lock files are no links, and errors name the holder."""

import fcntl
import grp
import os
import stat
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from everlog.bus import IpcLayout
from everlog.errors import Io, WriterAlreadyActive
from everlog.queue import Queue
from tests.support.processes import Child
from tests.support.queues import SMALL, open_writer


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    """What a mode must not depend on."""
    before = os.umask(0)
    yield
    os.umask(before)


def use(path: Path) -> None:
    """Let a writer and a reader create every kind of file."""
    with open_writer(path) as writer, Queue.open_subscriber(path, "alpha") as reader:
        for _ in range(30):
            writer.append(1, bytes(100))
        writer.flush_sync()
        reader.drain(5)
        reader.commit()


def modes(root: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in [root, *root.rglob("*")]}


def test_new_queues_are_for_their_user_only(tmp_path: Path) -> None:
    use(tmp_path / "deep/er/q")
    assert modes(tmp_path / "deep") == {0o700, 0o600}


def test_a_bus_with_a_group_is_open_to_the_group_and_to_no_one_else(tmp_path: Path) -> None:
    group = grp.getgrgid(os.getgid())
    layout = IpcLayout(tmp_path / "bus", group=group.gr_name)
    use(layout.streams().raw_queue_dir("venue"))
    assert modes(tmp_path / "bus") == {0o2770, 0o660}
    assert {path.stat().st_gid for path in (tmp_path / "bus").rglob("*")} == {group.gr_gid}


@pytest.mark.parametrize("name", ["writer.lock", "readers/alpha.meta"])
def test_a_lock_file_that_is_a_symbolic_link_is_refused(tmp_path: Path, name: str) -> None:
    use(tmp_path / "q")
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "q" / name).unlink()
    (tmp_path / "q" / name).symlink_to(victim)
    with pytest.raises(Io, match="symbolic link"):
        if name == "writer.lock":
            open_writer(tmp_path / "q")
        else:
            Queue.open_subscriber(tmp_path / "q", "alpha")
    assert victim.read_bytes() == b"precious"


def hold(peer: Connection, path: str) -> None:
    """Hold the lock without being a writer."""
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        peer.send("held")
        peer.recv()


def test_the_error_of_a_held_lock_names_the_process_that_holds_it(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", segment_size=SMALL):
        pass  # this process stays recorded as the last writer
    with Child(hold, str(tmp_path / "q/writer.lock")) as holder:
        assert holder.receive() == "held"
        words = rf"is held by process {holder.pid}, although it names process {os.getpid()}"
        with pytest.raises(WriterAlreadyActive, match=words):
            open_writer(tmp_path / "q")
        holder.send("end")
        holder.finish()
