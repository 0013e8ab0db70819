"""Rounds of killing: a writer or reader dies by SIGKILL, and what is there afterwards is checked.

Owns when to kill and what must hold then. Writers acknowledge every call that returned in shared
memory; whatever is acknowledged must be there, and what is there beyond can only be the one call that
was under way.
"""

import dataclasses
import itertools
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

from everlog.queue import Queue, SpinThenPark
from tests.support.files import UnsyncedFs, tree
from tests.support.processes import Child, eventually, shared_words
from tests.support.stepping import Stepper, allow_tracing
from tests.support.workloads import (
    ABORTED,
    ACKED,
    ALL_KINDS,
    APPEND,
    ARRAY,
    IN_PLACE,
    MANY,
    OPENED,
    Checker,
    Payloads,
    ReaderPlan,
    WriterPlan,
    prepared_call,
    read_queue,
    write_once,
    write_queue,
)


@dataclass(frozen=True)
class CrashCase:
    """One kind of writer to kill."""

    name: str
    kinds: tuple[str, ...]
    length_max: int
    settings: dict[str, Any] = field(default_factory=dict)
    flush_every: int = 0
    synced: bool = False
    batch_max: int = 40
    while_preparing: bool = False
    """Kill when a segment is just being prepared."""

    def plan(self, payload_seed: int, seed: int) -> WriterPlan:
        """Return the plan of one writer."""
        return WriterPlan(
            payload_seed,
            self.length_max,
            seed,
            self.kinds,
            batch_max=self.batch_max,
            flush_every=self.flush_every,
            synced=self.synced,
            settings=self.settings,
        )


WRITER_CASES = [
    CrashCase(
        "rolling", ALL_KINDS, 300, {"segment_size": 512, "retention_check_interval_s": 0.001}, batch_max=10
    ),
    CrashCase(
        "flushing", (APPEND, MANY), 1000, {"segment_size": 16384}, flush_every=1, synced=True, batch_max=10
    ),
    CrashCase("building in place", (IN_PLACE, ABORTED), 3000, {"segment_size": 16384}),
    CrashCase("preparing", (APPEND,), 16000, {"segment_size": 1 << 20}, while_preparing=True),
    CrashCase("appending arrays", (ARRAY,), 100, {"segment_size": 8192}, batch_max=500),
    CrashCase(
        "syncing late",
        ALL_KINDS,
        1000,
        {"segment_size": 4096, "defer_seal_sync": True, "index_stride": 2, "index_flush_records": 3},
        synced=True,
    ),
]


@dataclass
class Outcome:
    """How many records are known to be there, at least and at most, and what the kills hit."""

    lowest: int = 0
    highest: int = 0
    before_open: int = 0
    in_flight: int = 0
    torn: int = 0

    def check_open(self, next_seq: int, where: str) -> None:
        """A writer has opened the queue: nothing acknowledged may be missing, nothing may be invented."""
        assert self.lowest <= next_seq <= self.highest, (
            f"{where}: {self.lowest} records were acknowledged and at most {self.highest - self.lowest} "
            f"under way, but the writer found {next_seq}"
        )
        self.in_flight += next_seq > self.lowest
        self.lowest = self.highest = next_seq


def crash_writers(queue: Path, case: CrashCase, rounds: int, seed: int) -> Outcome:
    """Kill one writer after the other while a reader in another process reads on."""
    rng = random.Random(seed)
    path = str(queue)
    outcome = Outcome()
    Queue.open_publisher(path, fs=UnsyncedFs(), **case.settings).close()
    reading = ReaderPlan(seed, case.length_max, "witness", "batch", commit_every=200, spin_us=0)
    with Child(read_queue, path, reading, shared_words(1)) as witness:
        assert witness.receive() == "open"
        for number in range(rounds):
            where = f"TEST_SEED={seed} {case.name} round {number}"
            _kill_one_writer(path, case.plan(seed, rng.randrange(2**32)), case, rng, outcome, where)
            if rng.random() < 0.5:
                _recover_here(path, case, outcome, where)
            witness.check()
        _recover_here(path, case, outcome, f"TEST_SEED={seed} {case.name} at the end")
        witness.send(outcome.lowest)
        assert witness.receive() == outcome.lowest
    return outcome


def _kill_one_writer(
    path: str, plan: WriterPlan, case: CrashCase, rng: random.Random, outcome: Outcome, where: str
) -> None:
    words = shared_words(2)
    with Child(write_queue, path, plan, words) as writer:
        if rng.random() < 0.8:
            eventually(f"{where}: the writer opens the queue", lambda: words[OPENED] or writer.check())
            if case.while_preparing:
                _await_preparation(path, time.monotonic() + 0.1)
            else:
                time.sleep(rng.random() ** 2 * 0.02)
        else:
            time.sleep(rng.random() * 0.015)
        writer.kill()
    if words[OPENED] == 0:
        # It may have died at any point of recovery, which publishes no record.
        outcome.before_open += 1
        return
    outcome.check_open(words[OPENED] - 1, where)
    outcome.lowest = max(outcome.lowest, words[ACKED])
    outcome.highest = outcome.lowest + plan.in_flight_max


def _await_preparation(path: str, until_s: float) -> None:
    while time.monotonic() < until_s and not any(name.endswith(".q.tmp") for name in os.listdir(path)):
        pass


def _recover_here(path: str, case: CrashCase, outcome: Outcome, where: str) -> None:
    with Queue.open_publisher(path, fs=UnsyncedFs(), **case.settings) as writer:
        outcome.check_open(writer.next_seq, where)
        assert writer.recovery.damage == [], f"{where}: {writer.recovery.damage}"
        outcome.torn += len(writer.recovery.torn_tails)


def check_no_leftovers(queue: Path) -> None:
    """No half-made file of a segment outlives the next open of a writer, and no index its segment."""
    half_made = sorted(file.name for file in queue.glob("[0-9]*.tmp"))
    assert half_made == [], f"left behind: {half_made}"
    segments = {file.stem for file in queue.glob("*.q")}
    orphans = {file.stem for file in queue.glob("*.idx")} - segments
    assert orphans == set(), f"indexes without a segment: {sorted(orphans)}"


def check_whole_queue(queue: Path, payload_seed: int, length_max: int, total: int) -> None:
    """Everything from the very first record on is there once, in order and intact, up to `total`."""
    with Queue.open_subscriber(queue, None, "earliest") as reader:
        checker = Checker(Payloads(payload_seed, length_max))
        for view in reader:
            checker.see(view)
        assert checker.next_seq == total, (
            f"TEST_SEED={payload_seed}: {total} records were written, {checker.next_seq} can be read"
        )


# --- A writer that dies at a chosen call of the file system ----------------------------------------------


def die_at_call(queue: Path, plan: WriterPlan, outcome: Outcome) -> bool:
    """Let a writer run that kills itself at the plan's call; tell whether it came that far."""
    where = f"{queue.name}, TEST_SEED={plan.payload_seed}, killed at call {plan.kill_at_call}"
    words = shared_words(2)
    with Child(write_queue, str(queue), plan, words) as writer:
        died = writer.wait_for_death() == -signal.SIGKILL
        if not died:
            assert writer.receive() == plan.total
    if words[OPENED]:
        outcome.check_open(words[OPENED] - 1, where)
        outcome.lowest = max(outcome.lowest, words[ACKED])
        outcome.highest = outcome.lowest + plan.in_flight_max if died else outcome.lowest
    return died


def check_what_is_left(queue: Path, plan: WriterPlan, outcome: Outcome) -> int:
    """A subscriber may come at once; a writer recovers, goes on, and everything is there.

    Returns how many records the dead writer has left.
    """
    where = f"TEST_SEED={plan.payload_seed}, killed at call {plan.kill_at_call}"
    early = Queue.try_open_subscriber(queue, None, "earliest")
    payloads = Payloads(plan.payload_seed, plan.length_max)
    checker = Checker(payloads)
    for view in early or ():
        checker.see(view)
    assert checker.next_seq >= outcome.lowest, f"{where}: a reader that came before the writer missed some"
    with Queue.open_publisher(queue, fs=UnsyncedFs(), **plan.settings) as writer:
        left = writer.next_seq
        outcome.check_open(left, where)
        assert writer.recovery.damage == [], f"{where}: {writer.recovery.damage}"
        rng = random.Random(plan.seed)
        endless = dataclasses.replace(plan, total=None)
        while writer.next_seq < left + 20:
            write_once(writer, rng.choice(plan.kinds), payloads, rng, endless)
        total = writer.next_seq
        check_whole_queue(queue, plan.payload_seed, plan.length_max, total)
        if early is not None:
            for view in early:
                checker.see(view)
            assert checker.next_seq == total, f"{where}: a reader that came before the writer stopped"
            early.close()
    return left


def crash_at_calls(root: Path, seed: int, step: int) -> int:
    """Kill writers at every `step`-th call between open and close; return how many calls that takes.

    Each dies once on a queue of its own, which it has just created, and once on a queue that a reader
    in another process reads all the time.
    """
    settings = {"segment_size": 1024}
    fresh = WriterPlan(seed, 300, seed, batch_max=5, total=20, flush_every=6, settings=settings)
    shared, so_far = root / "shared", Outcome()
    Queue.open_publisher(shared, fs=UnsyncedFs(), **settings).close()
    reading = ReaderPlan(seed, fresh.length_max, "witness", commit_every=20, spin_us=0)
    with Child(read_queue, str(shared), reading, shared_words(1)) as witness:
        assert witness.receive() == "open"
        for call in itertools.count(1 + seed % step, step):
            queue, outcome = root / str(call), Outcome()
            plan = dataclasses.replace(fresh, kill_at_call=call)
            died = die_at_call(queue, plan, outcome)
            check_what_is_left(queue, plan, outcome)
            plan = dataclasses.replace(plan, seed=call, total=so_far.highest + 20)
            died_too = die_at_call(shared, plan, so_far)
            witness.check()
            if not died and not died_too:
                break
        with Queue.open_publisher(shared, fs=UnsyncedFs()) as writer:
            so_far.check_open(writer.next_seq, f"TEST_SEED={seed} at the end")
        witness.send(so_far.lowest)
        assert witness.receive() == so_far.lowest
    return call


def write_in_steps(channel: Connection, path: str, plan: WriterPlan) -> None:
    """For each request (a kind and how many records), stop and make that call; answers next_seq."""
    allow_tracing()
    payloads = Payloads(plan.payload_seed, plan.length_max)
    with Queue.open_publisher(path, fs=UnsyncedFs(), **plan.settings) as writer:
        channel.send(writer.next_seq)
        while (request := channel.recv()) is not None:
            kind, count = request
            call = prepared_call(writer, kind, payloads, count)
            signal.raise_signal(signal.SIGSTOP)
            call()
            channel.send(writer.next_seq)


def kill_at_every_instruction(
    queue: Path, plan: WriterPlan, kinds: Sequence[str], libraries: Sequence[ModuleType]
) -> int:
    """Step through one call of each kind; what a kill would leave is checked whenever it has changed.

    A killed process leaves its files as they are at that moment, so a copy of them stands for the kill.
    Returns how many different states were checked.
    """
    states = 0
    with Child(write_in_steps, str(queue), plan) as writer:
        next_seq = writer.receive()
        with Stepper(writer.pid, *libraries) as stepper:
            for kind in kinds:
                writer.send((kind, plan.batch_max))
                stepper.await_mark()
                outcome = Outcome(lowest=next_seq, highest=next_seq + plan.batch_max)
                left = _files_of(queue)
                for _ in stepper.steps_inside(writer.has_answered):
                    now = _files_of(queue)
                    if now != left:
                        left = now
                        states += 1
                        # What was there once is there for ever.
                        outcome.lowest = _check_copy(queue, now, plan, outcome)
                next_seq = writer.receive()
                assert outcome.lowest == next_seq, f"{kind} returned {next_seq}, {outcome.lowest} were there"
    return states


def _files_of(queue: Path) -> dict[str, bytes | None]:
    while True:
        try:
            return tree(queue)
        except FileNotFoundError:
            continue  # a worker of the writer has renamed it meanwhile


def _check_copy(queue: Path, files: dict[str, bytes | None], plan: WriterPlan, outcome: Outcome) -> int:
    copy = queue.with_name(queue.name + "-copy")
    copy.mkdir()
    for name, content in files.items():
        if content is not None:
            (copy / name).write_bytes(content)
    left = check_what_is_left(copy, plan, dataclasses.replace(outcome))
    shutil.rmtree(copy)
    return left


# --- Readers that die ------------------------------------------------------------------------------------

DELIVERED, COMMITTING, COMMITTED, RESUMED = 0, 1, 2, 3
"""Words a mortal reader shares: next seq after the last delivered message, before and after the last
commit, and the first seq it was given + 1 (0: none yet)."""


def read_and_commit(channel: Connection, path: str, plan: ReaderPlan, seed: int, words: Any) -> None:
    """Read for ever and commit now and then, telling in `words` what happened."""
    rng = random.Random(seed)
    payloads = Payloads(plan.payload_seed, plan.length_max)
    checker: Checker | None = None
    with Queue.open_subscriber(path, plan.name, wait_strategy=SpinThenPark(spin_us=0)) as reader:
        channel.send("open")
        while True:
            reader.wait()
            for view in reader:
                if checker is None:
                    checker = Checker(payloads, view.seq)
                    words[RESUMED] = view.seq + 1
                checker.see(view)
                words[DELIVERED] = checker.next_seq
                if rng.random() < 0.1:
                    words[COMMITTING] = checker.next_seq
                    reader.commit(durable=rng.random() < 0.2)
                    words[COMMITTED] = checker.next_seq


class MortalReader:
    """A reader that lives several lives under one name; each must resume where the last one committed."""

    def __init__(self, path: str, plan: ReaderPlan, rng: random.Random) -> None:
        self._path = path
        self._plan = plan
        self._rng = rng
        self._words = shared_words(4)
        self._committed = 0
        self._committing = 0
        self.lives = 0
        Queue.open_subscriber(path, plan.name).close()  # known before anything could be deleted

    @property
    def delivered(self) -> int:
        """The seq after the last message of this life."""
        return self._words[DELIVERED]

    @property
    def committed(self) -> int:
        """The seq after the last message that is known to be committed."""
        return self._committed

    @contextmanager
    def living(self) -> Iterator[Child]:
        """One life, from opening to SIGKILL; what it did is checked at the end."""
        self.lives += 1
        self._words = shared_words(4)
        seed = self._rng.randrange(2**32)
        with Child(read_and_commit, self._path, self._plan, seed, self._words) as reader:
            assert reader.receive() == "open"
            yield reader
            reader.check()
            reader.kill()
        words = self._words
        if words[RESUMED] == 0:
            return
        resumed = words[RESUMED] - 1
        assert resumed in (self._committed, self._committing), (
            f"TEST_SEED={self._plan.payload_seed}, life {self.lives}: resumed at seq {resumed}, but "
            f"{self._committed} was committed and {self._committing} the last that may have been"
        )
        self._committed = max(resumed, words[COMMITTED])
        self._committing = max(self._committed, words[COMMITTING])


def crash_readers(queue: Path, rounds: int, seed: int) -> int:
    """Kill one reader of the same name after the other while a writer writes; return the last commit."""
    rng = random.Random(seed)
    limits = {"max_segments": 8, "backpressure": "block", "block_timeout_s": 60.0}
    plan = WriterPlan(seed, 500, seed, batch_max=10, settings={"segment_size": 4096, **limits})
    Queue.open_publisher(queue, fs=UnsyncedFs(), **plan.settings).close()
    mortal = MortalReader(str(queue), ReaderPlan(seed, plan.length_max, "mortal"), rng)
    with Child(write_queue, str(queue), plan, shared_words(2)) as writer:
        for _ in range(rounds):
            with mortal.living():
                time.sleep(rng.random() ** 2 * 0.02)
            writer.check()
    return mortal.committed
