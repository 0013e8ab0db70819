"""Writers and readers in processes of their own: order, content, crashes, wakes, retention, forks.

The long versions of the crash tests are in tests/crash.
"""

from pathlib import Path

import pytest

from everlog.queue import Queue
from tests.support.processes import Child, fresh_seed, shared_words
from tests.support.workloads import (
    ABORTED,
    ALL_KINDS,
    APPEND,
    ARRAY,
    IN_PLACE,
    MANY,
    ReaderPlan,
    UnsyncedFs,
    WriterPlan,
    read_queue,
    write_queue,
)

SEGMENT = 4096
LENGTH_MAX = 1000


# --- Two processes and more, through many rolls ----------------------------------------------------------


@pytest.mark.parametrize(
    ("kinds", "how"),
    [
        ((APPEND,), "next"),
        ((IN_PLACE, ABORTED), "iterate"),
        ((MANY,), "drain"),
        ((ARRAY,), "batch"),
        (ALL_KINDS, "batch"),
    ],
)
def test_a_reader_in_another_process_sees_every_record_through_a_thousand_rolls(
    tmp_path: Path, kinds: tuple[str, ...], how: str
) -> None:
    seed = fresh_seed("rolls")
    path = str(tmp_path / "queue")
    settings = {"segment_size": SEGMENT}
    total = 35_000 if kinds == (ARRAY,) else 9_000
    plan = WriterPlan(seed, LENGTH_MAX, seed, kinds, total=total, settings=settings)
    Queue.open_publisher(path, fs=UnsyncedFs(), **settings).close()
    with (
        Child(read_queue, path, ReaderPlan(seed, LENGTH_MAX, "reader", how, 500), shared_words(1)) as reader,
        Child(write_queue, path, plan, shared_words(2)) as writer,
    ):
        assert reader.receive() == "open"
        reader.send(total)
        assert writer.receive() == total
        assert reader.receive() == total
    last = max(int(file.stem) for file in (tmp_path / "queue").glob("*.q"))
    assert last > 1000
