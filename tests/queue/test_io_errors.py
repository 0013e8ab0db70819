"""One file operation after the other fails: always an error of everlog, never a loss, never a stuck queue."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from everlog.errors import EverlogError
from everlog.fault_fs import Call, FaultFs
from everlog.queue import Queue
from tests.support.files import UnsyncedFs
from tests.support.queues import SMALL, open_reader, open_writer, payloads, read_all

STEPS = 12


def life(path: Path, fs: FaultFs) -> Iterator[int]:
    """A life of a queue, with rolls, flushes and a reader; yields after each append how many there are."""
    with (
        Queue.open_publisher(path, segment_size=SMALL, fs=fs) as writer,
        Queue.open_subscriber(path, "alpha", fs=fs) as reader,
    ):
        for step in range(STEPS):
            writer.append(1, bytes([step]) * 150)
            yield step + 1
            if step % 4 == 3:
                writer.flush_sync()
                reader.drain(3)
                reader.commit()
                reader.seek_seq(2)
                reader.detect_disconnect()


def live_with_failure(root: Path, number: int, error: int) -> tuple[int, Call | None]:
    """Live, with one failing call; return how many records were committed and which call it was."""
    fs = FaultFs(root, inner=UnsyncedFs())
    fs.fail_at(number, error)
    committed = 0
    try:
        for done in life(root / "q", fs):
            committed = done
    except EverlogError as raised:
        assert raised.code in ("io", "segment_missing"), f"call {number}: {raised!r}"
        assert isinstance(raised.__cause__, OSError) or raised.code == "segment_missing"
    return committed, next((call for call in fs.log if call.number == number), None)


def count_calls(root: Path) -> int:
    """How many calls a life takes; a little more or less next time, as workers run along."""
    fs = FaultFs(root, inner=UnsyncedFs())
    assert list(life(root / "q", fs))[-1] == STEPS
    return fs.calls


@pytest.mark.parametrize(
    ("error", "first", "step"), [(errno.EIO, 1, 3), (errno.ENOSPC, 2, 9), (errno.EACCES, 6, 9)]
)
def test_a_failure_of_any_operation_is_an_io_error_and_loses_nothing(
    tmp_path: Path, error: int, first: int, step: int
) -> None:
    (tmp_path / "dry").mkdir()
    for number in range(first, count_calls(tmp_path / "dry") + 1, step):
        root = tmp_path / f"{number}"
        root.mkdir()
        try:
            committed, call = live_with_failure(root, number, error)
        except OSError as raised:
            raise AssertionError(f"call {number} failed and a plain OSError came out: {raised}") from raised
        with Queue.open_publisher(root / "q", segment_size=SMALL, fs=UnsyncedFs()) as writer:
            next_seq = writer.next_seq
        assert next_seq >= committed, f"{call}: records were lost"
        found = [(message.seq, message.payload) for message in read_all(root / "q")]
        expected = [(seq, bytes([seq]) * 150) for seq in range(next_seq)]
        assert found == expected[len(expected) - len(found) :], f"{call}: not what was appended"
        assert found or committed == 0, f"{call}: nothing is left"


@pytest.mark.parametrize("name", ["000000000.q", "control.meta", "writer.lock"])
def test_a_writer_whose_close_fails_still_lets_go_of_the_queue(tmp_path: Path, name: str) -> None:
    fs = FaultFs(tmp_path, inner=UnsyncedFs())
    writer = open_writer(tmp_path / "q", fs=fs)
    writer.append(1, b"x")
    fs.fail_when("close", errno.EIO, path=f"/{name}")
    try:
        writer.close()
    except EverlogError as error:
        assert error.code == "io"
    writer.close()
    with open_writer(tmp_path / "q") as following:
        assert following.append(1, b"y") == 1
    assert payloads(tmp_path / "q") == [b"x", b"y"]


@pytest.mark.parametrize("name", ["control.meta", "alpha.meta"])
def test_a_reader_whose_close_fails_still_lets_go_of_its_name(tmp_path: Path, name: str) -> None:
    fs = FaultFs(tmp_path, inner=UnsyncedFs())
    open_writer(tmp_path / "q").close()
    reader = open_reader(tmp_path / "q", fs=fs)
    fs.fail_when("close", errno.EIO, path=f"/{name}")
    try:
        reader.close()
    except EverlogError as error:
        assert error.code == "io"
    reader.close()
    open_reader(tmp_path / "q").close()
