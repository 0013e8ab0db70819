"""Use at the wrong moment or of the wrong kind: it is refused, it loses nothing, and no process dies of it.

What used to kill the interpreter runs in one of its own.
"""

import gc
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from everlog.errors import Unsupported, WriterAlreadyActive
from everlog.queue import QueueWriter
from tests.support.command_lines import assert_survives
from tests.support.processes import eventually
from tests.support.queues import flip, open_reader, open_writer, payloads, read_all, segment_file

# -- closing what is in use ------------------------------------------------------------------

CLOSED_BY_A_SIGNAL_HANDLER = """
import signal, sys
from everlog.errors import ConcurrentUse
from everlog.queue import BusySpin, FanInReader, Queue, Sleep, SpinThenPark

directory, kind, victim_index = sys.argv[1], sys.argv[2], int(sys.argv[3])

def close_in_the_wait(number, frame):
    try:
        victim.heartbeat()
        return  # the wait has not begun
    except ConcurrentUse:
        pass
    try:
        victim.close()
    except ConcurrentUse:
        if "refused" not in outcomes:  # a slow machine may bring the next signal before the wait has ended
            outcomes.append("refused")
        raise

signal.signal(signal.SIGALRM, close_in_the_wait)
for strategy in (BusySpin(), SpinThenPark(spin_us=0), Sleep()):
    paths = [f"{directory}/{type(strategy).__name__}{i}" for i in range(2)]
    writers = [Queue.open_publisher(path, segment_size=1 << 16) for path in paths]
    readers = [Queue.open_subscriber(path, "reader", wait_strategy=strategy) for path in paths]
    source = FanInReader(readers) if kind == "fan-in" else readers[0]
    victim = readers[victim_index]
    outcomes = []
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    try:
        outcomes.append(source.wait(10))
    except ConcurrentUse:
        outcomes.append("told")
    signal.setitimer(signal.ITIMER_REAL, 0)
    writers[victim_index].append(1, b"after")
    assert source.wait(10)
    found = source.next()
    outcomes.append(bytes(found[1] if kind == "fan-in" else found))
    for each in (*readers, *writers):
        each.close()
    print(outcomes)
"""


@pytest.mark.parametrize(("kind", "victim"), [("reader", 0), ("fan-in", 0), ("fan-in", 1)])
def test_a_signal_handler_that_closes_a_waiting_reader_is_refused_and_the_reader_reads_on(
    tmp_path: Path, kind: str, victim: int
) -> None:
    printed = assert_survives(CLOSED_BY_A_SIGNAL_HANDLER, tmp_path, kind, victim)
    assert printed.splitlines() == ["['refused', 'told', b'after']"] * 3


CLOSED_WHILE_BLOCKED = """
import sys, threading
from everlog.errors import ConcurrentUse
from everlog.fs import OsFs
from everlog.queue import Queue

class Gate(OsFs):
    def __init__(self, point):
        self.point, self.user = point, None
        self.inside, self.go_on = threading.Event(), threading.Event()

    def pause(self, name):
        if name == self.point and threading.current_thread() is self.user:
            self.inside.set()
            self.go_on.wait()

    def allocate(self, fd, length):
        self.pause("allocate")
        super().allocate(fd, length)

    def fsync(self, fd):
        self.pause("fsync")
        super().fsync(fd)

    def msync(self, *arguments):
        self.pause("msync")
        super().msync(*arguments)

    def rename(self, source, target):
        self.pause("rename")
        super().rename(source, target)

def close_at(path, point):
    fs = Gate(point)
    writer = Queue.open_publisher(path, segment_size=1024, retention=False, fs=fs)
    writer.append(1, b"first")

    def build(view):
        fs.pause("build")
        view[:] = bytes(len(view))

    def use():
        writer.append(1, bytes(850))  # does not fit: rolls
        writer.append_in_place(1, 10, build)
        writer.flush_sync()

    fs.user = threading.Thread(target=use)
    fs.user.start()
    assert fs.inside.wait(30)
    try:
        writer.close()
        outcome = "closed under its user"
    except ConcurrentUse:
        outcome = "refused"
    fs.go_on.set()
    fs.user.join()
    writer.append(1, b"last")
    writer.close()
    with Queue.open_subscriber(path, None) as reader:
        print(point, outcome, [len(view) for view in reader], flush=True)

for point in sys.argv[2:]:
    close_at(f"{sys.argv[1]}/{point}", point)
"""


def test_a_writer_that_another_thread_uses_cannot_be_closed_at_any_point(tmp_path: Path) -> None:
    """The points where that thread lets others run: new segment, index, sync of a roll, builder, flush."""
    points = ["allocate", "rename", "fsync", "build", "msync"]
    printed = assert_survives(CLOSED_WHILE_BLOCKED, tmp_path, *points)
    assert printed.splitlines() == [f"{point} refused [5, 850, 10, 4]" for point in points]


CLOSED_IN_A_RACE = """
import itertools, sys, threading, time
from everlog.errors import Closed, ConcurrentUse
from everlog.queue import Queue
from everlog.fs import OsFs

class UnsyncedFs(OsFs):
    def fsync(self, fd): pass
    def fsync_dir(self, path): pass

sys.setswitchinterval(1e-5)
for number in range(25):
    directory = f"{sys.argv[1]}/{number}"
    writer = Queue.open_publisher(directory, segment_size=1024, retention=False, fs=UnsyncedFs())
    appended = 0
    ends = []

    def append():
        global appended
        try:
            for _ in itertools.repeat(None, 100_000):
                writer.append(1, bytes(200))
                appended += 1
        except (Closed, ConcurrentUse) as error:
            ends.append(error)

    user = threading.Thread(target=append)
    user.start()
    while appended <= number:
        time.sleep(0)
    while True:
        try:
            writer.close()
            break
        except ConcurrentUse:
            time.sleep(0)
    user.join()
    assert len(ends) == 1, "the appends ended by themselves"
    with Queue.open_subscriber(directory, None) as reader:
        assert [view.seq for view in reader] == list(range(appended)), appended
print("survived")
"""


def test_a_writer_closed_while_another_thread_appends_closes_or_refuses_and_loses_nothing(
    tmp_path: Path,
) -> None:
    assert assert_survives(CLOSED_IN_A_RACE, tmp_path).strip() == "survived"


# -- a fan-in over a queue that is read-only here --------------------------------------------

FAN_IN_OVER_A_READ_ONLY_QUEUE = """
import errno, os, sys, threading
from everlog.fault_fs import FaultFs
from everlog.queue import FanInReader, Queue, SpinThenPark

def wait_for(directory, read_only, source):
    os.mkdir(directory)
    writers = [Queue.open_publisher(f"{directory}/{i}", segment_size=1 << 16) for i in range(3)]
    fs = FaultFs(directory)
    readers = []
    for index, writer in enumerate(writers):
        if index in read_only:
            fs.fail_when("open", errno.EACCES, path="control.meta", times=1)
        readers.append(
            Queue.open_subscriber(writer.path, None, wait_strategy=SpinThenPark(spin_us=0), fs=fs)
        )
    fan_in = FanInReader(readers)
    outcomes = [fan_in.wait(0.01)]
    waiting = threading.Thread(target=lambda: outcomes.append(fan_in.wait(30)))
    waiting.start()
    writers[source].append(1, b"polled")
    waiting.join()
    index, view = fan_in.next()
    print(read_only, outcomes, index, bytes(view), flush=True)
    for each in (*readers, *writers):
        each.close()

for read_only in ([0], [1], [2], [0, 1, 2]):
    for source in (0, 2):
        wait_for(f"{sys.argv[1]}/{read_only}{source}", read_only, source)
"""


def test_a_fan_in_with_a_reader_of_a_read_only_queue_polls_and_finds_every_message(tmp_path: Path) -> None:
    printed = assert_survives(FAN_IN_OVER_A_READ_ONLY_QUEUE, tmp_path)
    assert printed.splitlines() == [
        f"{read_only} [False, True] {source} b'polled'"
        for read_only in ([0], [1], [2], [0, 1, 2])
        for source in (0, 2)
    ]


# -- a view kept by a builder ----------------------------------------------------------------

APPENDS: dict[str, Callable[[QueueWriter], int]] = {
    "append": lambda writer: writer.append(1, b"good"),
    "append_many": lambda writer: writer.append_many(1, [b"good"]),
    "append_array": lambda writer: writer.append_array(1, np.frombuffer(b"good", "S4")),
    "append_in_place": lambda writer: writer.append_in_place(1, 4, fill),
}


def fill(view: memoryview) -> None:
    view[:] = b"good"


@pytest.mark.parametrize("use", APPENDS)
def test_a_view_that_a_builder_kept_blocks_every_append_until_it_is_let_go(tmp_path: Path, use: str) -> None:
    kept: list[NDArray[np.uint8]] = []
    with open_writer(tmp_path / "q", segment_size=8192) as writer:
        writer.append(1, b"before")
        with pytest.raises(Unsupported, match="kept a view"):
            writer.append_in_place(1, 1000, lambda view: kept.append(np.frombuffer(view, np.uint8)))
        for _ in range(2):
            with pytest.raises(Unsupported, match="let go"):
                APPENDS[use](writer)
            assert writer.next_seq == 1
        writer.flush_sync()  # what is there already can be flushed all the same
        kept[0][:] = 0xEE
        kept.clear()
        assert APPENDS[use](writer) == 1
        assert writer.append(1, b"after") == 2
    assert payloads(tmp_path / "q") == [b"before", b"good", b"after"]


def test_a_view_kept_by_a_builder_that_failed_blocks_appends_too(tmp_path: Path) -> None:
    kept: list[memoryview] = []

    def keep_and_fail(view: memoryview) -> None:
        kept.append(view[:])
        raise LookupError

    with open_writer(tmp_path / "q") as writer:
        with pytest.raises(LookupError):
            writer.append_in_place(1, 100, keep_and_fail)
        with pytest.raises(Unsupported, match="let go"):
            writer.append(1, b"x")
        kept.clear()
        assert writer.append(1, b"x") == 0
    assert payloads(tmp_path / "q") == [b"x"]


def test_after_a_kept_view_the_capacity_limit_is_what_it_was(tmp_path: Path) -> None:
    """The block must not be lifted by forgetting the limit that was in force before."""
    kept: list[memoryview] = []
    with (
        open_writer(tmp_path / "q", segment_size=8192, max_bytes=1024) as writer,
        open_reader(tmp_path / "q"),
    ):
        writer.append(1, b"x")
        with pytest.raises(Unsupported):
            writer.append_in_place(1, 8, lambda view: kept.append(view[:]))
        kept.clear()
        appended = 0
        with pytest.raises(Exception, match="is full"):
            for _ in range(100):
                writer.append(1, b"x")
                appended += 1
        assert appended == 1024 // 128 - 1


def test_a_writer_with_a_kept_view_can_be_closed(tmp_path: Path) -> None:
    kept: list[memoryview] = []
    writer = open_writer(tmp_path / "q")
    with pytest.raises(Unsupported):
        writer.append_in_place(1, 8, lambda view: kept.append(view[:]))
    writer.close()
    with open_writer(tmp_path / "q") as successor:
        assert successor.append(1, b"next") == 0
    assert payloads(tmp_path / "q") == [b"next"]


# -- writers that were forgotten --------------------------------------------------------------


def assert_free(path: Path) -> None:
    """The lock of a queue is released, soon if not at once."""

    def opens() -> bool:
        try:
            open_writer(path).close()
        except WriterAlreadyActive:
            return False
        return True

    eventually("the lock to be released", opens, timeout_s=10)


def warnings_of(caught: list[warnings.WarningMessage]) -> list[tuple[type[Warning], str]]:
    return [(warning.category, str(warning.message)) for warning in caught]


def test_a_forgotten_writer_in_a_reference_cycle_releases_the_lock_and_warns(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cycle: list[object] = [open_writer(tmp_path / "q")]
        cycle.append(cycle)
        del cycle
        gc.collect()
        assert_free(tmp_path / "q")
    assert warnings_of(caught) == [(ResourceWarning, f"writer of {tmp_path / 'q'} was not closed")]


def test_a_forgotten_writer_whose_last_user_is_its_retention_thread_releases_the_lock_and_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, go_on = threading.Event(), threading.Event()
    tick = QueueWriter._tick
    troubles: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", troubles.append)

    def slow_tick(writer: QueueWriter) -> None:
        inside.set()
        go_on.wait()
        tick(writer)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        monkeypatch.setattr(QueueWriter, "_tick", slow_tick)
        writer = open_writer(tmp_path / "q")
        writer.append(1, b"kept")
        writer._retention.wake()
        assert inside.wait(30)
        monkeypatch.setattr(QueueWriter, "_tick", tick)
        del writer
        go_on.set()
        assert_free(tmp_path / "q")
    assert warnings_of(caught) == [(ResourceWarning, f"writer of {tmp_path / 'q'} was not closed")]
    assert troubles == [], "closing in that thread is no special case"
    assert payloads(tmp_path / "q") == [b"kept"]


COLLECTED_IN_A_WORKER = """
import gc, os, sys, threading
from everlog.fs import OsFs
from everlog.queue import Queue, writer as writer_module

directory, thread_name = sys.argv[1:]
gc.disable()
sys.unraisablehook = lambda trouble: print("trouble:", trouble.exc_value)
writer_module._tick_of = lambda writer: lambda: None  # or the retention thread holds it for a moment
inside, forgotten, collected = threading.Event(), threading.Event(), threading.Event()

class CollectingFs(OsFs):
    def fsync(self, fd):
        if threading.current_thread().name == thread_name and not inside.is_set():
            inside.set()
            forgotten.wait()
            gc.collect()
            collected.set()
        super().fsync(fd)

writer = Queue.open_publisher(directory, segment_size=1024, defer_seal_sync=True, fs=CollectingFs())
writer.append(1, bytes(800))
if thread_name == "everlog-sync":
    writer.append(1, bytes(800))
assert inside.wait(30)
cycle = [writer]
cycle.append(cycle)
del writer, cycle
forgotten.set()
if not collected.wait(5):
    print("the worker hangs", flush=True)
    os._exit(1)
Queue.open_publisher(directory).close()
print("free")
"""


@pytest.mark.parametrize("worker", ["everlog-prepare", "everlog-sync"])
def test_a_forgotten_writer_that_is_collected_in_one_of_its_workers_releases_the_lock(
    tmp_path: Path, worker: str
) -> None:
    assert assert_survives(COLLECTED_IN_A_WORKER, tmp_path / "q", worker).strip() == "free"


# -- arrays -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "array",
    [
        np.array([object(), object()]),
        np.zeros(2, dtype=[("price", "f8"), ("note", "O")]),
        np.zeros(2, dtype=[("inner", [("note", "O")])]),
        np.zeros(2, dtype=[("notes", "O", (3,))]),
        np.array([object(), object()]).data,
        np.zeros(2, dtype=[("price", "f8"), ("note", "O")]).data,
    ],
    ids=["objects", "a field", "an inner field", "an array in a field", "a view", "a view of a field"],
)
def test_an_array_that_holds_python_objects_anywhere_is_refused(tmp_path: Path, array: Any) -> None:
    with open_writer(tmp_path / "q") as writer:
        with pytest.raises(Unsupported, match="Python objects"):
            writer.append_array(1, array)
        assert writer.next_seq == 0
    assert payloads(tmp_path / "q") == []


@pytest.mark.parametrize(
    "dtype",
    [
        [("Open", "<f8"), ("High", "<f8")],
        [("OrderId", "<u8")],
        "M8[ns]",
        "m8[us]",
        [("time", "M8[ns]"), ("price", "<f8")],
    ],
    ids=["a field called Open", "a field called OrderId", "times", "durations", "a time in a field"],
)
def test_an_array_of_plain_data_is_appended_whatever_its_fields_are_called(
    tmp_path: Path, dtype: object
) -> None:
    array = np.frombuffer(bytes(range(160)), "V16")[: 160 // 16].copy()
    items = np.frombuffer(array.tobytes(), np.dtype(dtype))  # type: ignore[call-overload]
    with open_writer(tmp_path / "q", segment_size=8192) as writer:
        assert writer.append_array(1, items) == 0
    assert payloads(tmp_path / "q") == [item.tobytes() for item in items]


# -- seeks and skips --------------------------------------------------------------------------


def test_a_seek_to_a_number_that_no_record_can_have_stands_at_the_end_or_the_start(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", retention=False) as writer, open_reader(tmp_path / "q") as reader:
        for number in range(20):
            writer.append(1, b"x", 100 + number)
        for seek in (reader.seek_seq, reader.seek_timestamp):
            for beyond in (2**64 - 1, 2**64, 2**200):
                assert seek(beyond) is False
                assert reader.position == (writer.segment_id, writer.offset)
            for before in (-1, -(2**64), -(2**200)):
                assert seek(before) is True
                assert reader.position == (0, 64)


@pytest.mark.parametrize("verify", [True, False])
def test_skip_corrupt_on_a_sound_record_is_unsupported_and_skips_nothing(
    tmp_path: Path, verify: bool
) -> None:
    with open_writer(tmp_path / "q") as writer, open_reader(tmp_path / "q", verify=verify) as reader:
        with pytest.raises(Unsupported, match="no damaged record"):
            reader.skip_corrupt()  # nothing there at all
        writer.append_many(1, [b"one", b"two", b"three"])
        for _ in range(2):
            with pytest.raises(Unsupported, match="no damaged record"):
                reader.skip_corrupt()
            assert reader.position == (0, 64)
        flip(segment_file(tmp_path / "q", 0), 64 + 64)
        reader.skip_corrupt()
        with pytest.raises(Unsupported, match="no damaged record"):
            reader.skip_corrupt()
        assert [bytes(view) for view in reader] == [b"two", b"three"]


def test_skip_corrupt_on_a_sound_record_behind_padding_skips_neither(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", retention=False) as writer, open_reader(tmp_path / "q") as reader:
        writer.append(1, b"one")
        assert reader.next() is not None
        writer.append(1, bytes(850))
        with pytest.raises(Unsupported, match="no damaged record"):
            reader.skip_corrupt()
        assert reader.position == (0, 192)
        assert [len(view) for view in reader] == [850]
    assert [message.seq for message in read_all(tmp_path / "q")] == [0, 1]
