"""A shard does everything it can in any order, fails and loses power, against a list of what it was given."""

from __future__ import annotations

import contextlib
import errno
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from everlog.errors import ReadOnly, StorageFailed
from everlog.fault_fs import PowerLoss
from everlog.topics.storage.wal import BACKGROUND_SYNC_NS, Position
from tests.support.effort import effort
from tests.topics.storage.wal_samples import LogBench

lengths = st.lists(st.integers(4, 300) | st.sampled_from([700, 932, 933, 1500]), min_size=1, max_size=4)


class ShardMachine(RuleBasedStateMachine):
    """Everything an engine does with a shard, every failure a disk has, and power losses in between."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="everlog-test-"))
        self.waiting: list[tuple[Position, list[StorageFailed | None]]] = []
        self.told_order: list[Position] = []

    @initialize(seed=st.integers(0, 1000))
    def open(self, seed: int) -> None:
        self.bench = LogBench(self.root, seed=seed)

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.shard.abandon()
        shutil.rmtree(self.root)

    def attempt(self, step: str, *arguments: int) -> None:
        """A step that a failing disk may refuse; refusing is fine, lying is not."""
        try:
            getattr(self.bench, step)(*arguments)
        except StorageFailed as error:
            assert isinstance(error, ReadOnly) == (self.bench.shard.read_only is not None)

    @rule(lengths=lengths)
    def gather(self, lengths: list[int]) -> None:
        self.attempt("gather", *lengths)

    @rule()
    def write(self) -> None:
        self.attempt("write")

    @rule(lengths=lengths)
    def append(self, lengths: list[int]) -> None:
        self.attempt("append", *lengths)

    @rule()
    def rotate(self) -> None:
        self.attempt("rotate")

    @rule()
    def sync(self) -> None:
        position = self.bench.shard.position
        answer: list[StorageFailed | None] = []
        self.waiting.append((position, answer))

        def done(error: StorageFailed | None) -> None:
            assert not answer, "told twice"
            answer.append(error)
            self.told_order.append(position)
            assert (error is None) == (position <= self.bench.shard.synced)

        self.bench.shard.sync(done)

    @rule()
    def request_sync(self) -> None:
        self.bench.shard.request_sync()

    @rule(nanoseconds=st.sampled_from([0, 100_000, 1_000_000, BACKGROUND_SYNC_NS]))
    def poll(self, nanoseconds: int) -> None:
        self.bench.clock.advance_ns(nanoseconds)
        self.bench.poll()

    @rule()
    def poll_shard(self) -> None:
        self.bench.shard.poll()

    @rule()
    def settle(self) -> None:
        self.bench.settle()
        assert all(answer for _, answer in self.waiting), "a waiter was never called"

    @rule(back=st.integers(0, 2))
    def trim(self, back: int) -> None:
        synced = self.bench.shard.synced
        before = Position(max(0, synced.file_number - back), synced.offset)
        self.bench.trimmed_before = max(before, self.bench.trimmed_before)
        assert all(number <= before.file_number for number in self.bench.trim(before))

    @precondition(lambda self: self.bench.disk.fail_write is None)
    @rule(eighths=st.integers(0, 8))
    def let_the_next_write_fail(self, eighths: int) -> None:
        self.bench.disk.fail_write = eighths

    @rule(operation=st.sampled_from(["allocate", "allocate", "open", "truncate", "fdatasync", "fsync_dir"]))
    def let_an_operation_fail(self, operation: str) -> None:
        self.bench.fs.fail_when(operation, errno.ENOSPC, path="/wal")

    @rule(calls=st.integers(1, 12), torn=st.booleans(), lengths=lengths)
    def lose_power_while_appending(self, calls: int, torn: bool, lengths: list[int]) -> None:
        fs = self.bench.fs
        last_call = fs.calls + calls
        (fs.tear_at if torn else fs.lose_power_at)(last_call)
        with contextlib.suppress(PowerLoss):
            for _ in range(calls):
                self.attempt("append", *lengths)
                self.sync()
                self.bench.poll()
            while fs.calls < last_call:  # a shard that is read-only does nothing; the power goes all the same
                fs.exists(self.bench.directory)
        self.lose_power()

    @rule()
    def lose_power(self) -> None:
        self.bench.lose_power()
        self.begin_a_new_life()

    @rule()
    def close(self) -> None:
        with contextlib.suppress(StorageFailed):
            self.bench.close()
        assert all(answer for _, answer in self.waiting), "a waiter was never called"
        # A power loss leaves descriptors of its life behind; they mean nothing after it.
        assert all(number < self.bench.first_number for number in self.bench.open_files())
        self.bench.lose_power()
        self.begin_a_new_life()

    def begin_a_new_life(self) -> None:
        self.waiting.clear()
        self.told_order.clear()
        while True:
            try:
                self.bench.open()
                return
            except StorageFailed:  # a failure planned before is still to come; each comes once
                continue

    @invariant()
    def told_in_order(self) -> None:
        assert self.told_order == sorted(self.told_order)
        answers = [bool(answer) for _, answer in self.waiting]
        assert answers == sorted(answers, reverse=True), "a later waiter was told first"

    @invariant()
    def as_the_model(self) -> None:
        if hasattr(self, "bench"):
            self.bench.check()


TestShardMachine = ShardMachine.TestCase
TestShardMachine.settings = settings(max_examples=effort(60), stateful_step_count=40)
