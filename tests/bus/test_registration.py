"""ReaderRegistration: section 5.4, last sentence."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from everlog.bus import ReaderRegistration
from everlog.errors import InvalidName, Io
from everlog.fs import OsFs
from everlog.queue import Queue
from everlog.queue.reader_meta import ReaderPosition, list_readers
from tests.bus.conftest import Spawn

SEGMENT_SIZE = 4096


class RefusingFs(OsFs):
    """The real file system, except that nothing can be created or removed."""

    def makedirs(self, path: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    def unlink(self, path: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system")


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    """A queue with one message and no reader."""
    path = tmp_path / "queue"
    with Queue.open_publisher(path, segment_size=SEGMENT_SIZE) as writer:
        writer.append(1, b"one")
    return path


def test_it_creates_the_readers_directory(queue: Path) -> None:
    assert not (queue / "readers").exists()
    with ReaderRegistration(queue, "viewer"):
        assert (queue / "readers").is_dir()


def test_it_creates_the_readers_directory_of_a_queue_that_does_not_exist_yet(tmp_path: Path) -> None:
    with ReaderRegistration(tmp_path / "later", "viewer"):
        assert (tmp_path / "later" / "readers").is_dir()
        with Queue.open_publisher(tmp_path / "later", segment_size=SEGMENT_SIZE) as writer:
            writer.append(1, b"one")
        with Queue.open_subscriber(tmp_path / "later", "viewer") as reader:
            assert [bytes(message) for message in reader] == [b"one"]


def test_a_clean_exit_removes_the_meta_file_of_the_reader(queue: Path) -> None:
    registration = ReaderRegistration(queue, "viewer")
    with registration, Queue.open_subscriber(queue, "viewer") as reader:
        assert [bytes(message) for message in reader] == [b"one"]
        reader.commit()
        assert registration.meta_path == queue / "readers" / "viewer.meta"
        assert registration.meta_path.exists()
    assert not registration.meta_path.exists()


def test_a_reader_that_left_cleanly_starts_anew(queue: Path) -> None:
    for _ in range(2):
        with ReaderRegistration(queue, "viewer"), Queue.open_subscriber(queue, "viewer") as reader:
            assert [bytes(message) for message in reader] == [b"one"]
            reader.commit()


def test_the_meta_files_of_other_readers_stay(queue: Path) -> None:
    with Queue.open_subscriber(queue, "other") as other:
        other.commit()
        with ReaderRegistration(queue, "viewer"), Queue.open_subscriber(queue, "viewer") as reader:
            reader.commit()
    assert [path.name for path in (queue / "readers").iterdir()] == ["other.meta"]


def test_an_exit_by_exception_keeps_the_position(queue: Path) -> None:
    with (
        pytest.raises(RuntimeError),
        ReaderRegistration(queue, "viewer"),
        Queue.open_subscriber(queue, "viewer") as reader,
    ):
        assert [bytes(message) for message in reader] == [b"one"]
        reader.commit()
        raise RuntimeError
    with Queue.open_subscriber(queue, "viewer") as reader:
        assert list(reader) == []


def test_registering_never_leaves_an_empty_readers_directory_for_retention_to_act_on(queue: Path) -> None:
    for segment in range(1, 4):  # more segments, the oldest of which has been deleted
        (queue / "000000000.q").rename(queue / f"{segment:09d}.q")
        (queue / "000000000.q").touch()
    (queue / "000000000.q").unlink()
    with ReaderRegistration(queue, "viewer"):
        readers = list_readers(OsFs(), str(queue))
        assert readers is not None
        assert list(readers) == ["viewer"]
        position = readers["viewer"]
        assert isinstance(position, ReaderPosition)
        assert (position.segment_id, position.offset) == (1, 64)


def test_a_registration_keeps_a_position_that_exists_already(queue: Path) -> None:
    with Queue.open_subscriber(queue, "viewer") as reader:
        list(reader)
        reader.commit()
    with ReaderRegistration(queue, "viewer"), Queue.open_subscriber(queue, "viewer") as reader:
        assert list(reader) == []


def test_a_meta_file_in_use_is_left_alone(queue: Path) -> None:
    with Queue.open_subscriber(queue, "viewer") as successor:
        successor.commit()
        registration = ReaderRegistration(queue, "viewer")
        with registration:
            pass
        assert registration.meta_path.exists()
        assert registration.remove() is False
    assert registration.remove() is True
    assert registration.remove() is False


def test_a_meta_file_that_cannot_be_removed_is_no_error(queue: Path) -> None:
    with Queue.open_subscriber(queue, "viewer") as reader:
        reader.commit()
    registration = ReaderRegistration(queue, "viewer", fs=RefusingFs())
    with registration:
        pass
    assert registration.meta_path.exists()


def test_a_queue_directory_that_cannot_be_written_is_an_error_on_entry(queue: Path) -> None:
    with (
        pytest.raises(Io, match="cannot register reader 'viewer'") as caught,
        ReaderRegistration(queue, "viewer", fs=RefusingFs()),
    ):
        pass
    assert caught.value.errno == errno.EROFS


@pytest.mark.parametrize("name", ["", "..", "a/b", "a\0"])
def test_a_reader_name_obeys_the_rules_for_path_components(queue: Path, name: str) -> None:
    with pytest.raises(InvalidName, match="reader name"):
        ReaderRegistration(queue, name)


REGISTERED = """
import sys
from everlog.bus import ReaderRegistration
from everlog.queue import Queue
with ReaderRegistration(sys.argv[1], "viewer"), Queue.open_subscriber(sys.argv[1], "viewer") as reader:
    list(reader)
    reader.commit()
    print("committed", flush=True)
    sys.stdin.readline()
"""


def test_a_killed_process_leaves_its_meta_file_and_its_position(queue: Path, spawn: Spawn) -> None:
    child = spawn(REGISTERED, queue)
    assert child.read_line() == "committed"
    child.kill()
    with Queue.open_subscriber(queue, "viewer") as reader:
        assert list(reader) == []
