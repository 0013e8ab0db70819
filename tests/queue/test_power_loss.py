"""Power is lost at every file operation in turn, and every page survives or not by chance.

What `flush_sync` had returned for is there afterwards, once, in order, without a gap; the queue opens again
and goes on. A failure prints the operation and the seed: put them into `CASES` to see it again.
"""

import contextlib
import os
import random
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from everlog.errors import Corrupt
from everlog.fault_fs import FaultFs, PowerLoss
from everlog.queue import Queue, QueueReader
from everlog.queue.layout import SEG_DATA_OFFSET
from everlog.queue.reader_meta import ReaderPosition, list_readers, sync_readers
from tests.support.files import UnsyncedFs
from tests.support.queues import segment_ids

SEGMENT_SIZE = 2048
PAGE = 512
"""Smaller than a segment, so that a segment can survive in part."""

RECORDS = 40
SEED = int(os.environ.get("POWER_LOSS_SEED", "20240229"))


def payload_of(seq: int) -> bytes:
    """Known for every seq; sizes of all kinds, some over several pages."""
    generator = random.Random(seq)
    return generator.randbytes(generator.choice([0, 10, 64, 200, 600, SEGMENT_SIZE - 128]))


@dataclass
class Life:
    """What a writer may rely on when the power goes."""

    flushed: set[int] = field(default_factory=set)
    """The seqs of everything that was flushed; they go on behind those that a power loss took."""
    damaged: bool = False
    """Whether a recovery has reported that published records are missing."""
    committed: int = 0
    """What the reader has committed durably; it may have been deleted since."""
    positions: dict[tuple[int, int], int] = field(default_factory=lambda: {(0, SEG_DATA_OFFSET): 0})
    """The next seq at every position that the reader has stored, or was about to."""
    objects: list[Any] = field(default_factory=list)

    def live(self, path: Path, fs: FaultFs, settings: dict[str, Any], *, reads: bool) -> None:
        """Append and flush; every roll, the opening and the closing included."""
        writer = Queue.open_publisher(path, segment_size=SEGMENT_SIZE, fs=fs, **settings)
        self.objects.append(writer)
        reader = None
        if reads:
            reader = Queue.open_subscriber(path, "alpha", fs=fs)
            self.objects.append(reader)
        start = writer.next_seq
        self.damaged = self.damaged or bool(writer.recovery.damage)
        survived = {seq for seq, _ in survivors(path)} if start else set()
        for seq in range(start, start + RECORDS):
            assert writer.append(1, payload_of(seq)) == seq
            if seq % 7 == 5:
                writer.flush_sync()
                self.flushed = survived | set(range(start, seq + 1))
            if reader is not None and seq % 5 == 3:
                self.read(reader)
        writer.close()

    def read(self, reader: QueueReader) -> None:
        """Consume everything and commit it, as far as it was flushed."""
        seqs = [message.seq for message in reader.drain(1000)]
        next_seq = seqs[-1] + 1 if seqs else self.committed
        self.positions[reader.position] = next_seq
        reader.commit()
        self.committed = next_seq

    def stored(self, path: Path) -> int:
        """The next seq where the reader resumes: a commit that the power loss cut off is stored or not."""
        position = (list_readers(UnsyncedFs(), str(path)) or {}).get("alpha")
        if position is None:
            return 0
        assert isinstance(position, ReaderPosition)
        return self.positions[position.segment_id, position.offset]

    def end(self) -> None:
        """The process is gone: no thread and no descriptor of it may reach into the next life."""
        for thing in self.objects:
            with contextlib.suppress(BaseException):
                thing.close()
        self.objects.clear()


@pytest.fixture(autouse=True)
def _quiet_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker whose machine has lost power dies of it, as expected."""
    original = threading.excepthook

    def hook(arguments: threading.ExceptHookArgs) -> None:
        if not issubclass(arguments.exc_type, PowerLoss):
            original(arguments)

    monkeypatch.setattr(threading, "excepthook", hook)


def survivors(path: Path) -> list[tuple[int, bytes]]:
    """Every sound record; what is reported as damaged or missing is stepped over, as a user would."""
    found: list[tuple[int, bytes]] = []
    with Queue.open_subscriber(path, None, "earliest", fs=UnsyncedFs()) as reader:
        while True:
            try:
                view = reader.next()
            except Corrupt:
                if not reader.skip_damage():
                    return found
                continue
            if view is None:
                return found
            found.append((view.seq, bytes(view)))


def check(path: Path, life: Life, settings: dict[str, Any]) -> None:
    """Open the queue again, without deleting anything more, and compare."""
    settings = {**settings, "retention": False}
    with Queue.open_publisher(path, segment_size=SEGMENT_SIZE, fs=UnsyncedFs(), **settings) as writer:
        life.damaged = life.damaged or bool(writer.recovery.damage)
        found = survivors(path)
        seqs = [seq for seq, _ in found]
        assert seqs == sorted(set(seqs)), f"not once and in order: {seqs}"
        assert all(data == payload_of(seq) for seq, data in found), "another content than was appended"
        stored = life.stored(path)
        assert stored >= life.committed, "a commit was lost"
        Queue.open_subscriber(path, "alpha", fs=UnsyncedFs()).close()  # what it needs next is there
        needed = {seq for seq in life.flushed if seq >= stored}
        assert needed <= set(seqs), f"flushed and lost: {sorted(needed - set(seqs))}"
        if not life.damaged and not settings.get("defer_seal_sync") and seqs:
            assert seqs == list(range(seqs[0], seqs[-1] + 1)), f"a gap: {seqs}"
        assert writer.next_seq > max(life.flushed, default=-1), "a seq would be given twice"
        assert writer.next_seq >= stored, "a seq that a reader has committed would be given twice"
        assert not seqs or writer.next_seq > seqs[-1]
        first = writer.next_seq
        for seq in range(first, first + 10):
            assert writer.append(1, payload_of(seq)) == seq
        assert [seq for seq, _ in survivors(path)][-10:] == list(range(first, first + 10))


def try_life(root: Path, number: int, seed: int, settings: dict[str, Any], *, reads: bool) -> bool:
    """Lose power at one call and check; False when the life was over before that call."""
    root.mkdir()
    fs = FaultFs(root, seed=seed, inner=UnsyncedFs(), page_size=PAGE)
    generator = random.Random(seed)
    (fs.tear_at if generator.random() < 0.3 else fs.lose_power_at)(number)
    life = Life()
    lost = False
    try:
        life.live(root / "q", fs, settings, reads=reads)
    except PowerLoss:
        lost = True
    finally:
        life.end()
    fs.restore(generator)
    check(root / "q", life, settings)
    return lost


VARIANTS: dict[str, tuple[dict[str, Any], bool]] = {
    "keeping everything": ({"retention": False}, False),
    "deleting what was read": ({}, True),
    "syncing in the background": ({"retention": False, "defer_seal_sync": True}, False),
}

CASES = [
    ("keeping everything", 154, 2607330852),
    ("deleting what was read", 187, 2151093638),
    ("deleting what was read", 263, 3298573291),
    ("syncing in the background", 292, 2183675157),
]
"""(variant, call, seed) of failures that were found and fixed."""


def numbers(variant: str) -> Iterator[int]:
    """The calls to lose power at; each variant begins elsewhere and no two runs take the same."""
    step = 12
    yield from range(1 + (SEED + list(VARIANTS).index(variant)) % step, 10_000, step)


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_was_flushed_survives_a_power_loss_at_any_call(tmp_path: Path, variant: str) -> None:
    settings, reads = VARIANTS[variant]
    generator = random.Random(SEED)
    for number in numbers(variant):
        seed = generator.randrange(2**32)
        try:
            if not try_life(tmp_path / f"{number}", number, seed, settings, reads=reads):
                return
        except BaseException as error:
            raise AssertionError(f"CASES += [({variant!r}, {number}, {seed})]: {error}") from error


@pytest.mark.parametrize(("variant", "number", "seed"), CASES)
def test_a_power_loss_that_was_survived_badly_once_is_survived(
    tmp_path: Path, variant: str, number: int, seed: int
) -> None:
    settings, reads = VARIANTS[variant]
    try_life(tmp_path / "root", number, seed, settings, reads=reads)


def test_power_lost_again_during_every_call_of_the_recovery_is_survived(tmp_path: Path) -> None:
    generator = random.Random(SEED)
    for number in range(1, 1000, 3):
        seed = generator.randrange(2**32)
        root = tmp_path / f"{number}"
        root.mkdir()
        fs = FaultFs(root, seed=seed, inner=UnsyncedFs(), page_size=PAGE)
        life = Life()
        fs.lose_power_at(150 + seed % 300)
        with contextlib.suppress(PowerLoss):
            life.live(root / "q", fs, {"retention": False}, reads=False)
        life.end()
        fs.restore()
        fs.lose_power_at(fs.calls + number)
        try:
            lost = False
            try:
                opened = Queue.open_publisher(root / "q", segment_size=SEGMENT_SIZE, fs=fs, retention=False)
                life.damaged = bool(opened.recovery.damage)
                opened.close()
            except PowerLoss:
                lost = True
            fs.restore()
            check(root / "q", life, {"retention": False})
        except Exception as error:
            raise AssertionError(f"call {number} of the recovery, seed {seed}: {error}") from error
        if not lost:
            return


@pytest.mark.parametrize("seed", range(12))
def test_many_lives_and_power_losses_in_a_row_lose_nothing_that_was_flushed(
    tmp_path: Path, seed: int
) -> None:
    generator = random.Random(SEED + seed)
    fs = FaultFs(tmp_path, seed=seed, inner=UnsyncedFs(), page_size=PAGE)
    life = Life()
    for _ in range(4):
        fs.lose_power_at(fs.calls + generator.randint(1, 400))
        with contextlib.suppress(PowerLoss):
            life.live(tmp_path / "q", fs, {"retention": False}, reads=False)
        life.end()
        fs.restore(generator)
    check(tmp_path / "q", life, {"retention": False})


# -- the single promises -------------------------------------------------------------------------------


def lose_power(root: Path, act: Callable[[FaultFs], object], *seeds: int) -> Iterator[Path]:
    """Act, lose power right afterwards, and yield each state that chance leaves."""
    for seed in seeds or range(12):
        place = root / f"{seed}"
        place.mkdir()
        fs = FaultFs(place, seed=seed, inner=UnsyncedFs(), page_size=PAGE)
        with contextlib.suppress(PowerLoss):
            act(fs)
        fs.restore()
        yield place


def cut(fs: FaultFs) -> None:
    """Lose power now, before anything is closed: closing might sync what should have been synced before."""
    fs.lose_power_at(fs.calls + 1)


def test_a_new_queue_directory_survives_once_something_was_flushed(tmp_path: Path) -> None:
    """Its name is an entry of its parent, which must be synced as well."""

    def act(fs: FaultFs) -> None:
        with Queue.open_publisher(root_of(fs) / "deep/er/q", segment_size=SEGMENT_SIZE, fs=fs) as writer:
            writer.append(1, b"x")
            writer.flush_sync()
            cut(fs)

    for place in lose_power(tmp_path, act):
        assert survivors(place / "deep/er/q") == [(0, b"x")]


def root_of(fs: FaultFs) -> Path:
    """The directory that a FaultFs owns."""
    return Path(fs._root_path)


def test_flush_sync_covers_segments_that_a_killed_writer_left_unsynced(tmp_path: Path) -> None:
    """Its records are visible, so they count as appended, and a later writer promises them too."""

    def act(fs: FaultFs) -> None:
        path = root_of(fs) / "q"
        settings: dict[str, Any] = {"segment_size": SEGMENT_SIZE, "fs": fs, "retention": False}
        killed = Queue.open_publisher(path, defer_seal_sync=True, **settings)
        killed._sync._turn = lambda: time.sleep(0.001)  # type: ignore[method-assign] # killed before it syncs
        killed.append_many(1, [payload_of(seq) for seq in range(10)])
        assert killed.segment_id > 0
        killed._sync.drain = lambda: None  # type: ignore[method-assign] # and closing must not sync either
        killed.close()
        with Queue.open_publisher(path, **settings) as writer:
            writer.flush_sync()
            cut(fs)

    for place in lose_power(tmp_path, act):
        assert survivors(place / "q") == [(seq, payload_of(seq)) for seq in range(10)]


@pytest.mark.parametrize("deferred", [False, True])
def test_flush_sync_covers_every_segment_since_the_last(tmp_path: Path, deferred: bool) -> None:
    def act(fs: FaultFs) -> None:
        with Queue.open_publisher(
            root_of(fs) / "q", segment_size=SEGMENT_SIZE, fs=fs, retention=False, defer_seal_sync=deferred
        ) as writer:
            writer._sync._turn = lambda: time.sleep(0.001)  # type: ignore[method-assign] # it never gets there
            writer.append_many(1, [payload_of(seq) for seq in range(30)])
            writer.flush_sync()
            writer.append_many(1, [payload_of(seq) for seq in range(30, 33)])
            cut(fs)

    for place in lose_power(tmp_path, act):
        found = survivors(place / "q")
        assert found[:30] == [(seq, payload_of(seq)) for seq in range(30)]


def test_flush_async_promises_nothing_but_breaks_nothing(tmp_path: Path) -> None:
    def act(fs: FaultFs) -> None:
        with Queue.open_publisher(root_of(fs) / "q", segment_size=SEGMENT_SIZE, fs=fs) as writer:
            writer.append_many(1, [payload_of(seq) for seq in range(5)])
            writer.flush_sync()
            writer.append_many(1, [payload_of(seq) for seq in range(5, 8)])
            writer.flush_async()
            cut(fs)

    for place in lose_power(tmp_path, act):
        with Queue.open_publisher(place / "q", fs=UnsyncedFs()) as writer:
            assert writer.next_seq >= 5
        found = survivors(place / "q")
        assert found[:5] == [(seq, payload_of(seq)) for seq in range(5)]


def test_a_durable_commit_survives_and_an_ordinary_one_may_not(tmp_path: Path) -> None:
    def act(fs: FaultFs) -> None:
        path = root_of(fs) / "q"
        with (
            Queue.open_publisher(path, segment_size=SEGMENT_SIZE, fs=fs) as writer,
            Queue.open_subscriber(path, "alpha", fs=fs) as reader,
        ):
            writer.append_many(1, [b"x"] * 9)
            writer.flush_sync()
            reader.drain(4)
            reader.commit()
            reader.drain(2)
            reader.commit(durable=False)
            cut(fs)

    resumed = set()
    for place in lose_power(tmp_path, act):
        with Queue.open_subscriber(place / "q", "alpha", fs=UnsyncedFs()) as reader:
            resumed.add(reader.drain(1)[0].seq)
    assert resumed <= {4, 6}
    assert 4 in resumed


@pytest.mark.parametrize("legacy", [False, True])
def test_nothing_is_deleted_for_a_position_that_a_power_loss_takes_back(tmp_path: Path, legacy: bool) -> None:
    """A commit is seen by retention before it is on disk: at once, and for long if it is not durable."""

    def act(fs: FaultFs) -> None:
        path = root_of(fs) / "q"
        with Queue.open_publisher(path, segment_size=SEGMENT_SIZE, fs=fs) as writer:
            if legacy:
                (path / "readers").mkdir()
                (path / "readers" / "alpha.meta").write_bytes(struct.pack("<QQ", 0, SEG_DATA_OFFSET))
                sync_readers(fs, str(path), ["alpha"])
                fs.fsync_dir(str(path))
            with Queue.open_subscriber(path, "alpha", fs=fs) as reader:
                for seq in range(30):
                    writer.append(1, payload_of(seq))
                writer.flush_sync()
                reader.drain(20)
                reader.commit(durable=False)
                writer._tick()  # as the worker does before each pass
                writer._retention.run_pass()
                assert min(segment_ids(path)) > 0
                cut(fs)

    for place in lose_power(tmp_path, act):
        with Queue.open_subscriber(place / "q", "alpha", fs=UnsyncedFs()) as reader:
            seqs = [message.seq for message in reader.drain(100)]
        assert seqs == list(range(seqs[0], 30))


def test_a_reader_does_not_skip_records_that_replace_lost_ones(tmp_path: Path) -> None:
    """It had committed records that were never flushed and did not survive."""

    def act(fs: FaultFs) -> None:
        path = root_of(fs) / "q"
        with (
            Queue.open_publisher(path, segment_size=SEGMENT_SIZE, fs=fs) as writer,
            Queue.open_subscriber(path, "alpha", fs=fs) as reader,
        ):
            writer.append_many(1, [b"x" * 10] * 4)
            writer.flush_sync()
            writer.append_many(1, [b"y" * 200] * 3)
            reader.drain(7)
            reader.commit()
            cut(fs)

    for place in lose_power(tmp_path, act):
        with Queue.open_publisher(place / "q", fs=UnsyncedFs()) as writer:
            new = [writer.append(1, b"z" * 70) for _ in range(20)]
            with Queue.open_subscriber(place / "q", "alpha", fs=UnsyncedFs()) as reader:
                assert [message.seq for message in reader.drain(100)] == new


def test_deleted_segments_do_not_make_a_stale_control_block_start_anew(tmp_path: Path) -> None:
    """Nothing was ever flushed, so only the records themselves tell where the queue stands."""

    def act(fs: FaultFs) -> None:
        path = root_of(fs) / "q"
        with (
            Queue.open_publisher(path, segment_size=SEGMENT_SIZE, fs=fs) as writer,
            Queue.open_subscriber(path, "alpha", fs=fs) as reader,
        ):
            for seq in range(60):
                writer.append(1, payload_of(seq))
                reader.drain(100)
                reader.commit()
            writer._retention.run_pass()
            cut(fs)

    for place in lose_power(tmp_path, act):
        oldest = min(segment_ids(place / "q"), default=0)
        with Queue.open_publisher(place / "q", fs=UnsyncedFs()) as writer:
            assert writer.segment_id >= oldest
            next_seq = writer.next_seq
        # Retention goes on while there is a writer, and would delete what is read.
        found = survivors(place / "q")
        assert not found or next_seq > found[-1][0]
        assert oldest == 0 or next_seq > 0, "segments were deleted, so there have been records"
