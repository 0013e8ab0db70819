"""A reader or writer belongs to the process that opened it: a forked child is refused."""

import os
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from everlog.errors import Closed
from everlog.queue import FanInReader
from tests.support.queues import open_reader, open_writer, payloads, read_all


def in_child(action: Callable[[], None]) -> None:
    """Run `action` in a forked child and insist that it returns there."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            action()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def refused(*calls: Callable[[], object]) -> Callable[[], None]:
    """An action for `in_child`: every call must be refused, and say why."""

    def action() -> None:
        for call in calls:
            with pytest.raises(Closed, match="belongs to the parent process; open a new one after fork"):
                call()

    return action


def test_a_childs_use_of_its_parents_writer_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q") as writer:
        writer.append(1, b"before")
        in_child(
            refused(
                lambda: writer.append(1, b"child"),
                lambda: writer.append_many(1, [b"child"]),
                lambda: writer.append_array(1, memoryview(b"child")),  # type: ignore[arg-type]
                lambda: writer.append_in_place(1, 5, lambda view: None),
                writer.flush_sync,
                writer.flush_async,
                writer.heartbeat,
            )
        )
        assert writer.append(1, b"after") == 1
        assert payloads(tmp_path / "q") == [b"before", b"after"]


def test_a_childs_use_of_its_parents_reader_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q") as writer, open_reader(tmp_path / "q") as reader:
        writer.append_many(1, [b"one", b"two"])
        in_child(
            refused(
                reader.next,
                lambda: list(reader),
                lambda: reader.read_batch(1),
                lambda: reader.drain(1),
                lambda: reader.wait(0),
                reader.commit,
                reader.heartbeat,
                reader.skip_corrupt,
                lambda: reader.seek_seq(1),
                lambda: reader.seek_timestamp(1),
                reader.writer_status,
                reader.detect_disconnect,
                FanInReader([reader]).next,
                lambda: FanInReader([reader]).wait(0),
            )
        )
        assert [bytes(view) for view in reader] == [b"one", b"two"]


def test_closing_in_a_child_takes_nothing_from_the_parent(tmp_path: Path) -> None:
    """Whether `close` is refused or releases the child's share, the parent goes on."""

    def close_both() -> None:
        for thing in (writer, reader):
            try:
                thing.close()
            except Closed:
                continue

    with open_writer(tmp_path / "q") as writer, open_reader(tmp_path / "q") as reader:
        writer.append(1, b"one")
        in_child(close_both)
        writer.append(1, b"two")
        assert [bytes(view) for view in reader] == [b"one", b"two"]
        reader.commit()


def test_a_child_that_opens_its_own_reader_reads_everything(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q") as writer, open_reader(tmp_path / "q") as reader:
        writer.append_many(1, [b"one", b"two"])

        def read() -> None:
            assert [message.payload for message in read_all(tmp_path / "q")] == [b"one", b"two"]

        in_child(read)
        assert len(list(reader)) == 2


def test_views_of_the_parent_stay_readable_in_a_child(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q") as writer, open_reader(tmp_path / "q") as reader:
        writer.append(1, b"one")
        view = reader.next()
        assert view is not None

        def look() -> None:
            assert (bytes(view), view.seq) == (b"one", 0)

        in_child(look)
