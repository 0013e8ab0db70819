"""Views, batches and arrays hold the mapping: whatever is closed, released or deleted, they stay valid."""

import gc
import os
import shutil
import weakref
from pathlib import Path

import numpy as np
import pytest

from everlog.errors import Closed
from everlog.native.queue.ring import Mapping
from everlog.queue import Batch, MessageView
from tests.native.mappings import map_bytes
from tests.support.command_lines import assert_survives
from tests.support.queues import open_reader, open_writer


def mappings_of(path: Path) -> int:
    """How many mappings of files below `path`, deleted ones included, this process has."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return sum(f"{path}/" in line for line in maps)


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    """A closed queue of ten records of eight bytes in two segments."""
    with open_writer(tmp_path / "q", retention=False) as writer:
        writer.append_array(1, np.arange(10, dtype="<u8"), np.arange(10, dtype="<u8") + 100)
    return tmp_path / "q"


def take_views(queue: Path) -> list[MessageView]:
    with open_reader(queue, None, "earliest") as reader:
        return list(reader)


def take_batch(queue: Path) -> Batch:
    with open_reader(queue, None, "earliest") as reader:
        return reader.read_batch()


def test_views_outlive_their_reader_and_their_files(queue: Path) -> None:
    views = take_views(queue)
    shutil.rmtree(queue)
    gc.collect()
    assert [view.seq for view in views] == list(range(10))
    assert [int.from_bytes(view.payload, "little") for view in views] == list(range(10))
    assert [view.timestamp_ns for view in views] == list(range(100, 110))
    assert {len(view) for view in views} == {8}


def test_payloads_outlive_their_views(queue: Path) -> None:
    payloads = [view.payload for view in take_views(queue)]
    shutil.rmtree(queue)
    gc.collect()
    assert [int.from_bytes(payload, "little") for payload in payloads] == list(range(10))
    assert all(payload.readonly for payload in payloads)


def test_arrays_outlive_batch_reader_and_files(queue: Path) -> None:
    batch = take_batch(queue)
    arrays = [batch.seq, batch.timestamp_ns, batch.type_id, batch.length, batch.view("<u8"), batch.payloads]
    batch.release()
    del batch
    shutil.rmtree(queue)
    gc.collect()
    assert [array[:3].tolist() for array in arrays[:5]] == [
        [0, 1, 2],
        [100, 101, 102],
        [1] * 3,
        [8] * 3,
        [0, 1, 2],
    ]
    assert arrays[5][2].tobytes() == (2).to_bytes(8, "little")


def test_a_slice_of_an_array_holds_the_mapping_too(queue: Path) -> None:
    part = take_batch(queue).view("<u8")[1:5][::-1]
    shutil.rmtree(queue)
    gc.collect()
    assert part.tolist() == [4, 3, 2, 1]


def test_nothing_stays_mapped_once_it_is_not_referenced(queue: Path) -> None:
    views, batch = take_views(queue), take_batch(queue)
    array = batch.seq
    assert mappings_of(queue) > 0
    batch.release()
    del views, array
    gc.collect()
    assert mappings_of(queue) == 0


def test_a_released_batch_makes_no_new_arrays_and_no_views(queue: Path) -> None:
    batch = take_batch(queue)
    batch.release()
    batch.release()
    for name in ("seq", "timestamp_ns", "type_id", "length", "payloads"):
        with pytest.raises(Closed, match="released"):
            getattr(batch, name)
    with pytest.raises(Closed, match="released"):
        batch.view("<u8")
    with pytest.raises(Closed, match="released"):
        list(batch)
    assert len(batch) > 0


def test_a_batch_is_released_by_its_with_block(queue: Path) -> None:
    with take_batch(queue) as batch:
        kept = batch.seq
    with pytest.raises(Closed):
        batch.seq  # noqa: B018 - looking is what must fail
    assert kept[0] == 0


def test_a_mapping_lives_as_long_as_a_buffer_over_it() -> None:
    mapping = map_bytes(b"abc" + bytes(61))
    view = memoryview(mapping)
    array = np.frombuffer(mapping, dtype=np.uint8, count=3)
    del mapping
    gc.collect()
    assert bytes(view[:3]) == array.tobytes() == b"abc"
    assert isinstance(view.obj, Mapping)


def test_a_view_is_no_part_of_a_reference_cycle(queue: Path) -> None:
    reader = open_reader(queue, None, "earliest")
    watcher = weakref.ref(reader)
    view = reader.next()
    gc.disable()
    try:
        del reader
        assert watcher() is None, "a view must not keep its reader alive"
    finally:
        gc.enable()
    assert view is not None
    assert view.seq == 0


def test_views_cannot_be_made_by_hand() -> None:
    with pytest.raises(TypeError, match="message views come from a reader"):
        MessageView()


NASTY = """
import gc, os, shutil, sys, threading
import numpy as np
from everlog.queue import Queue
path = sys.argv[1]
writer = Queue.open_publisher(path, segment_size=1024, retention=False)
kept = []
for round in range(300):
    writer.append_array(1, np.arange(5, dtype="<u8") + round * 5)
    reader = Queue.open_subscriber(path, None, "earliest")
    reader.seek_seq(round * 5)
    kept.append(reader.next())
    batch = reader.read_batch(2)
    kept.append(batch.view("<u8"))
    kept.append(batch.payloads[0])
    kept.append(memoryview(batch.seq))
    kept.append(iter(batch))
    (batch.release, reader.close, lambda: None)[round % 3]()
    if round % 7 == 0:
        del kept[: len(kept) // 2]
        gc.collect()
    if round == 200:
        shutil.rmtree(path, ignore_errors=True)  # the writer may be preparing a segment meanwhile
        break
del reader, batch, writer
gc.collect()
for item in kept:
    try:
        bytes(item) if not hasattr(item, "send") else list(item)
    except Exception as error:
        assert type(error).__name__ == "Closed", error
for thread in [threading.Thread(target=kept.clear) for _ in range(2)]:
    thread.start()
    thread.join()
print("alive")
"""

AT_EXIT = """
import sys
import numpy as np
from everlog.queue import Queue
writer = Queue.open_publisher(sys.argv[1], segment_size=1024)
writer.append_array(1, np.arange(50))
reader = Queue.open_subscriber(sys.argv[1], "alpha")
views = list(reader)
reader.seek_seq(0)
array = reader.read_batch().seq
sys.kept = (views, array, reader, writer)
print("alive")
"""


def test_an_interpreter_that_does_everything_wrong_survives(tmp_path: Path) -> None:
    assert assert_survives(NASTY, tmp_path / "q") == "alive\n"


def test_an_interpreter_that_ends_with_everything_open_ends_well(tmp_path: Path) -> None:
    assert assert_survives(AT_EXIT, tmp_path / "q") == "alive\n"
    assert os.path.exists(tmp_path / "q/readers/alpha.meta")


DAMAGED_LATER = """
import sys
import numpy as np
from everlog.queue import Queue
path = sys.argv[1]
with Queue.open_publisher(path, segment_size=4096) as writer:
    writer.append_many(1, [b"one", b"two" * 40, b"three"])
with Queue.open_subscriber(path, None, "earliest") as reader:
    views = list(reader)
    reader.seek_seq(0)
    batch = reader.read_batch()
with open(path + "/000000000.q", "r+b") as file:
    for offset in (64, 128, 192, 256, 320, 384):
        file.seek(offset)
        file.write(bytes.fromhex(sys.argv[2]))
for item in (*views, batch):
    for look in (bytes, len, list, repr, lambda item: item.payload, lambda item: bytes(item.payload),
                 lambda item: item.end_offset, lambda item: item.offset, lambda item: item.length,
                 lambda item: item.payloads.tobytes(), lambda item: item.seq,
                 lambda item: [bytes(view) for view in item]):
        try:
            look(item)
        except Exception as error:
            pass
print("alive")
"""


@pytest.mark.parametrize("commit_len", ["00000000", "ffffffff", "00000080", "00100000"])
def test_damage_that_comes_after_a_view_was_taken_cannot_end_the_interpreter(
    tmp_path: Path, commit_len: str
) -> None:
    assert assert_survives(DAMAGED_LATER, tmp_path / "q", commit_len) == "alive\n"
