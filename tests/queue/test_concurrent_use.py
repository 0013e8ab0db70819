"""One object, one thread at a time: wrong use raises and corrupts nothing."""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from everlog.errors import ConcurrentUse
from everlog.queue import BusySpin, QueueReader, QueueWriter, Sleep, SpinThenPark, WaitStrategy
from tests.support.processes import eventually
from tests.support.queues import open_reader, open_writer, payloads, read_all

WRITER_USES: dict[str, Callable[[QueueWriter], object]] = {
    "append": lambda writer: writer.append(1, b"intruder"),
    "append_many": lambda writer: writer.append_many(1, [b"intruder"]),
    "append_array": lambda writer: writer.append_array(1, np.zeros(1)),
    "append_in_place": lambda writer: writer.append_in_place(1, 1, lambda view: None),
    "flush_sync": lambda writer: writer.flush_sync(),
    "flush_async": lambda writer: writer.flush_async(),
    "heartbeat": lambda writer: writer.heartbeat(),
    "close": lambda writer: writer.close(),
}

READER_USES: dict[str, Callable[[QueueReader], object]] = {
    "next": lambda reader: reader.next(),
    "iterating": list,
    "read_batch": lambda reader: reader.read_batch(),
    "drain": lambda reader: reader.drain(1),
    "wait": lambda reader: reader.wait(0),
    "commit": lambda reader: reader.commit(),
    "heartbeat": lambda reader: reader.heartbeat(),
    "skip_corrupt": lambda reader: reader.skip_corrupt(),
    "seek_seq": lambda reader: reader.seek_seq(0),
    "seek_timestamp": lambda reader: reader.seek_timestamp(0),
    "writer_status": lambda reader: reader.writer_status(),
    "detect_disconnect": lambda reader: reader.detect_disconnect(),
    "close": lambda reader: reader.close(),
}


def refused(use: Callable[[], object]) -> bool:
    """Whether a use is refused now."""
    try:
        use()
    except ConcurrentUse as error:
        assert "another thread or a callback is using this object" in str(error)
        return True
    return False


@pytest.mark.parametrize("use", WRITER_USES)
def test_a_builder_may_not_use_its_writer(tmp_path: Path, use: str) -> None:
    with open_writer(tmp_path / "q") as writer:
        with pytest.raises(ConcurrentUse):
            writer.append_in_place(1, 8, lambda view: WRITER_USES[use](writer))
        assert (writer.next_seq, writer.offset) == (0, 64)
        assert writer.append(1, b"after") == 0
    assert payloads(tmp_path / "q") == [b"after"]


@pytest.mark.parametrize("use", WRITER_USES)
def test_another_thread_may_not_use_a_writer_inside_a_builder(tmp_path: Path, use: str) -> None:
    outcome: list[bool] = []

    def build(view: memoryview) -> None:
        thread = threading.Thread(target=lambda: outcome.append(refused(lambda: WRITER_USES[use](writer))))
        thread.start()
        thread.join()
        view[:] = b"built"

    with open_writer(tmp_path / "q") as writer:
        assert writer.append_in_place(1, 5, build) == 0
    assert outcome == [True]
    assert payloads(tmp_path / "q") == [b"built"]


def test_another_thread_may_not_use_a_writer_during_append_array(tmp_path: Path) -> None:
    """The array is appended without the GIL, so that the other thread really runs meanwhile."""
    numbers = np.arange(400_000, dtype="<u8")
    refusals = 0
    appended = 0
    done = threading.Event()
    started = threading.Event()

    def intrude() -> None:
        nonlocal refusals, appended
        started.set()
        while not done.is_set():
            if refused(lambda: writer.append(2, b"intruder", 0)):
                refusals += 1
            else:
                appended += 1

    with open_writer(tmp_path / "q", segment_size=2**26) as writer:
        thread = threading.Thread(target=intrude)
        thread.start()
        started.wait()
        rounds = 0
        while refusals == 0 and rounds < 50:
            rounds += 1
            while refused(lambda: writer.append_array(1, numbers)):
                pass
        done.set()
        thread.join()
        assert refusals > 0
        assert writer.next_seq >= rounds * len(numbers)
        with open_reader(tmp_path / "q", None) as reader:
            seqs = 0
            while len(batch := reader.read_batch()):
                assert np.array_equal(batch.seq, np.arange(seqs, seqs + len(batch), dtype="<u8"))
                seqs += len(batch)
            assert seqs == writer.next_seq == rounds * len(numbers) + appended


@pytest.mark.parametrize("strategy", [BusySpin(), SpinThenPark(), Sleep()])
def test_another_thread_may_not_use_a_reader_that_waits(tmp_path: Path, strategy: WaitStrategy) -> None:
    with open_writer(tmp_path / "q") as writer, open_reader(tmp_path / "q", wait_strategy=strategy) as reader:
        outcome: list[bool] = []
        waiter = threading.Thread(target=lambda: outcome.append(reader.wait(60)))
        waiter.start()
        eventually("the wait to begin", lambda: refused(reader.next))
        for use in READER_USES.values():
            # Between two stretches of a spin the reader is free for an instant: then the use succeeds.
            if use is not READER_USES["close"] and use is not READER_USES["skip_corrupt"]:
                eventually("a refusal", lambda use=use: refused(lambda: use(reader)))  # type: ignore[misc]
        writer.append(1, b"x")
        waiter.join()
        assert outcome == [True]
        assert [bytes(view) for view in reader] == [b"x"]


@pytest.mark.parametrize("use", READER_USES)
def test_a_reader_asleep_may_not_even_be_closed(tmp_path: Path, use: str) -> None:
    with open_writer(tmp_path / "q") as writer, open_reader(tmp_path / "q") as reader:
        waiter = threading.Thread(target=lambda: reader.wait(60))
        waiter.start()
        control = tmp_path / "q/control.meta"
        eventually("the reader to sleep", lambda: control.read_bytes()[388] == 1)
        assert refused(lambda: READER_USES[use](reader))
        writer.append(1, b"x")
        waiter.join()
        assert [bytes(view) for view in reader] == [b"x"]


def test_threads_that_take_turns_are_fine(tmp_path: Path) -> None:
    lock = threading.Lock()

    def work(number: int) -> None:
        for _ in range(100):
            with lock:
                writer.append(number, b"x")

    with open_writer(tmp_path / "q", segment_size=2**20) as writer:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    messages = read_all(tmp_path / "q")
    assert [message.seq for message in messages] == list(range(400))
    assert {number: [m.type_id for m in messages].count(number) for number in range(4)} == dict.fromkeys(
        range(4), 100
    )


def test_threads_that_do_not_take_turns_corrupt_nothing(tmp_path: Path) -> None:
    """Each append either happens wholly or is refused."""
    appended: list[list[int]] = [[], [], []]
    start = threading.Barrier(3)

    def work(number: int) -> None:
        start.wait()
        for count in range(300):
            try:
                appended[number].append(writer.append_in_place(number, 8, lambda view: view.tolist()))
                appended[number].append(writer.append(number, count.to_bytes(8, "little")))
            except ConcurrentUse:
                continue

    with open_writer(tmp_path / "q", segment_size=4096, retention=False) as writer:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    messages = read_all(tmp_path / "q")
    assert [message.seq for message in messages] == list(range(len(messages)))
    assert sorted(seq for seqs in appended for seq in seqs) == list(range(len(messages)))
    for number in range(3):
        assert [m.seq for m in messages if m.type_id == number] == appended[number]
