"""Spec section 7 between processes: what dead, lagging and legacy readers hold back, and live ones.

The writer's time is a `TestClock`, so nothing here depends on how fast the machine is.
"""

import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from everlog.clock import NS_PER_S, TestClock
from everlog.queue import Queue, QueueWriter
from tests.support.files import hooked_fs
from tests.support.processes import Child, eventually
from tests.support.workloads import serve_reader

SEGMENT = 1024
FILLING = b"x" * 800
"""One record of this fills a segment: record number n is in segment n."""

TTL_S = 30


class Retaining:
    """A writer whose retention passes can be awaited."""

    def __init__(self, queue: Path, **settings: Any) -> None:
        self.queue = queue
        self.clock = TestClock()
        self._looks = 0
        self._counting = threading.Lock()
        self.writer: QueueWriter = Queue.open_publisher(
            queue,
            clock=self.clock,
            fs=hooked_fs(self._count),
            segment_size=SEGMENT,
            reader_ttl_s=TTL_S,
            **settings,
        )

    def _count(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "listdir" and arguments[0].endswith("readers"):
            with self._counting:
                self._looks += 1

    def append(self, count: int) -> None:
        """Append records, one to a segment."""
        for _ in range(count):
            self.writer.append(1, FILLING)

    def settle(self) -> None:
        """Return when a pass has ended that looked at the readers since the call; it takes two appends."""
        for _ in range(2):  # the first look may have begun before the call
            looks = self._looks
            self.append(1)
            eventually("the retention worker looks at the readers", lambda: self._looks > looks)  # noqa: B023
        with self.writer._retention._passing:  # waits for the end of the pass, which looks more than once
            pass

    def advance_s(self, seconds: float) -> None:
        """Let the writer's time pass."""
        self.clock.advance_ns(int(seconds * NS_PER_S))

    @property
    def oldest(self) -> int:
        """The id of the oldest segment."""
        return min(int(file.stem) for file in self.queue.glob("*.q"))


@contextmanager
def retaining(queue: Path, **settings: Any) -> Iterator[Retaining]:
    retention = Retaining(queue, **settings)
    try:
        yield retention
    finally:
        retention.writer.close()


def ask(child: Child, request: str) -> Any:
    child.send(request)
    return child.receive()


def open_reader(queue: Path, name: str, start: str = "resume-strict") -> Child:
    child = Child(serve_reader, str(queue), name, start)
    assert child.receive() == "open"
    return child


def test_a_killed_reader_holds_back_deletion_for_its_time_to_live_and_no_longer(tmp_path: Path) -> None:
    with retaining(tmp_path / "queue") as retention:
        retention.append(5)
        with open_reader(retention.queue, "mortal") as reader:
            assert ask(reader, "read") == [0, 1, 2, 3, 4]
            assert ask(reader, "commit") == (4, 960)
            reader.kill()
        retention.append(5)
        retention.settle()
        assert retention.oldest == 4
        retention.advance_s(TTL_S)
        retention.settle()
        assert retention.oldest == 4
        retention.advance_s(0.001)
        retention.settle()
        assert retention.oldest > 4
        with pytest.raises(Exception, match="reader segment missing"):
            Queue.open_subscriber(retention.queue, "mortal")


def test_a_live_reader_that_gives_signs_of_life_holds_back_deletion_for_ever(tmp_path: Path) -> None:
    with retaining(tmp_path / "queue") as retention:
        retention.append(5)
        with open_reader(retention.queue, "alive") as reader, open_reader(retention.queue, "other") as other:
            for _ in range(4):
                retention.advance_s(TTL_S * 0.9)
                ask(reader, "heartbeat")
                ask(other, "read")
                ask(other, "commit")
                retention.settle()
                assert retention.oldest == 0
            assert ask(reader, "read") == list(range(retention.writer.next_seq))


def test_a_reader_that_reads_slowly_and_commits_nothing_is_alive(tmp_path: Path) -> None:
    with retaining(tmp_path / "queue") as retention:
        retention.append(40)
        with Queue.open_subscriber(retention.queue, "slow", clock=retention.clock) as reader:
            for seq in range(40):
                retention.advance_s(2)
                retention.settle()
                assert reader.next().seq == seq


def test_a_reader_that_lags_too_far_behind_is_not_waited_for(tmp_path: Path) -> None:
    with (
        retaining(tmp_path / "queue", max_reader_lag_bytes=8 * SEGMENT) as retention,
        open_reader(retention.queue, "lagging") as lagging,
        open_reader(retention.queue, "prompt") as prompt,
    ):
        retention.append(6)
        retention.settle()
        assert retention.oldest == 0
        assert ask(lagging, "read") == ask(prompt, "read") == list(range(8))
        assert ask(lagging, "commit") == (7, 960)
        for _ in range(5):
            retention.settle()
            ask(prompt, "read")
            ask(prompt, "commit")
        retention.settle()
        # Both were in segment 7; only the prompt one still counts.
        assert retention.oldest > 10
        assert ask(lagging, "read") == "segment_missing"
        assert ask(prompt, "read") == [retention.writer.next_seq - 2, retention.writer.next_seq - 1]


@pytest.mark.parametrize(
    ("meta", "segment"), [(struct.pack("<Q", 64), 0), (struct.pack("<QQ", 3, 64), 3)], ids=["8 B", "16 B"]
)
def test_a_legacy_reader_never_expires_and_resumes_where_it_stood(
    tmp_path: Path, meta: bytes, segment: int
) -> None:
    with retaining(tmp_path / "queue") as retention:
        retention.append(10)
        with open_reader(retention.queue, "today") as today:
            ask(today, "read")
            ask(today, "commit")
            (retention.queue / "readers" / "old.meta").write_bytes(meta)
            retention.settle()
            assert retention.oldest == segment
            retention.advance_s(1000 * TTL_S)
            retention.settle()
            assert retention.oldest == segment
        with open_reader(retention.queue, "old") as old:
            assert ask(old, "read") == list(range(segment, retention.writer.next_seq))
            ask(old, "commit")
            retention.settle()
            assert retention.oldest > segment
