"""The lives of one simulated engine: starts, ends of every kind, and what was in flight when they came.

Owns the running engine and the truths that each new life is held against; which operations there are is
`simulator`'s business.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from everlog.errors import Io, OutcomeUnknown
from everlog.fault_fs import PowerLoss
from everlog.fs import OsFs
from everlog.topics import Engine, EngineSettings
from everlog.topics.commits import Commit
from everlog.topics.storage.syncs import InlineSyncs
from everlog.topics.storage.verify import verify
from tests.simulation.classed import ClassedTruth
from tests.simulation.consumed import ConsumedTruth
from tests.simulation.jobbed import JobbedTruth
from tests.simulation.machine import Machine
from tests.simulation.routed import PREFIX, RoutedTruth
from tests.simulation.truth import Birth, Step, TopicTruth
from tests.support.model_checks import Mismatch, look, require, require_equal
from tests.support.topics_model import ModelRecord

NAMES = ("eph", "mem", "disk.a", "disk.b", "fsync:a", "fsync:b")
QUEUES = ("mem", "disk.b", "fsync:b")  # those of them that hold jobs
SETTLE_ROUNDS = 2000
SYNCED_STEPS = ("create", "configure", "drop")  # kept only when they are on disk, whatever the class


class Flight(NamedTuple):
    """A change that the engine has not acknowledged yet; an append has a batch."""

    truth: TopicTruth
    birth: Birth
    steps: list[Step]
    batch: list[ModelRecord]
    commit: Commit
    created: bool


class Lives:
    """An engine that is started, stopped and crashed, and checked after each start."""

    def __init__(self, seed: int, root: str, *, verbose: bool = False) -> None:
        self.seed = seed
        self.verbose = verbose
        self.operation = 0
        self.rng = random.Random(seed)
        self.machine = Machine(self.rng, root)
        self.cold_dir = os.path.join(root, "cold") if self.rng.random() < 0.5 else None
        self.data_dir = os.path.join(root, "data")
        self.truths = {name: TopicTruth(name) for name in NAMES}
        self.routed = RoutedTruth(self.rng)
        self.classed = ClassedTruth(self.rng)
        self.consumed = ConsumedTruth(self.rng)
        self.jobbed = JobbedTruth(self.rng, self.machine)
        self.windows_ms = {name: self.rng.choice((1000, 120_000)) for name in NAMES}
        self.flights: list[Flight] = []
        self.engine: Engine | None = None
        self.must_restart = False
        self.how = "clean"
        self.current = "start"
        self.counts: Counter[str] = Counter()

    def _guard(self, action: Callable[[], None]) -> None:
        """Do something; when the power goes, go on after the restart."""
        try:
            action()
        except PowerLoss:
            while True:
                try:
                    self._lose_power()
                    return
                except PowerLoss:
                    self.counts["power lost in recovery"] += 1

    def _say(self, what: str) -> None:
        self.current = what
        self.counts[what] += 1
        self._tell(what)

    def _tell(self, what: object) -> None:
        if self.verbose:
            print(
                f"{self.operation:4} {self.machine.now_ms} call {self.machine.fs.calls}: {what}", flush=True
            )

    @property
    def live(self) -> Engine:
        """The running engine."""
        assert self.engine is not None
        return self.engine

    def _settings(self) -> EngineSettings:
        return EngineSettings(
            shards=self.rng.randint(1, 3),
            file_bytes=self.rng.choice((4096, 16384)),
            segment_max_events=self.rng.choice((20, 64)),
            segment_max_bytes=self.rng.choice((2048, 65536)),
            hot_retain_segments=1,
            cold_dir=self.cold_dir,
            snapshot_log_bytes=self.rng.choice((8192, 65536)),
        )

    def _open(self) -> Engine:
        engine = Engine.open(
            self.data_dir,
            self._settings(),
            clock=self.machine.clock,
            fs=self.machine.fs,
            syncs=InlineSyncs(),
            fills_later=self.operation % 2 == 0,
        )
        try:
            engine.wait_filled()
        except BaseException:
            engine.abandon()
            raise
        return engine

    def _start(self) -> None:
        """Open the engine, whatever it takes, and check what is there."""
        while True:
            self._tell(f"  start after {self.how} stop")
            try:
                self.engine = self._open()
                self._compare_all()
                if not self.machine.flaky.failures:
                    break
                # What failed while copies were made was not reported, and may have stopped a shard.
                self._drop_engine()
                self._calm()
                self.how = "killed"
            except Io as error:
                require(self.machine.flaky.failures > 0, f"no start although nothing failed: {error}")
                self._drop_engine()
                self._calm()
                self.counts["refused start"] += 1
                self._tell(f"  refused start: {error}")
        self._calm()
        self.must_restart = False
        self.how = "killed"  # unless another end of this life is announced

    def _is_faulty(self) -> bool:
        return self.machine.flaky.failures > 0

    def _calm(self) -> None:
        self.machine.flaky.disarm()
        self.machine.flaky.failures = 0

    def _compare_all(self) -> None:
        """Hold every topic against what may be there, and go on from what is."""
        for truth in self.truths.values():
            truth.reconcile(look(self.live, truth.name), self.machine.now_ms, self.how)
        self.routed.check(self.live, self.how, is_faulty=self._is_faulty)
        self.classed.check(self.live, self.how, is_faulty=self._is_faulty)
        self.consumed.check(self.live, self.how)
        self.jobbed.check(self.live, self.how)
        self._check_list()

    def _check_list(self) -> None:
        expected = sorted(truth.name for truth in self.truths.values() if truth.now is not None)
        found = [state.topic for state in self.live.topics() if not state.topic.startswith(PREFIX)]
        require_equal("topics", found, expected)
        require_equal(
            "second page",
            [s.topic for s in self.live.topics(after="eph") if not s.topic.startswith(PREFIX)],
            [name for name in expected if name > "eph"],
        )
        require_equal(
            "prefix",
            [state.topic for state in self.live.topics(prefix="disk")],
            [name for name in expected if name.startswith("disk")],
        )

    def _lose_power(self) -> None:
        self._say("power loss")
        self._fold()
        self._end_flights()
        with contextlib.suppress(PowerLoss):
            self._drop_engine()
        self.machine.flaky.disarm()
        self.machine.fs.restore(self.rng)
        self.how = "power"
        self._verify()
        if self.rng.random() < 0.2:
            self.machine.plan_power_loss(60)
        self._start()

    def _kill(self) -> None:
        """End the process without a word; the files stay as written."""
        self._fold()
        self._end_flights()
        self._drop_engine()
        self._verify()
        if self.rng.random() < 0.2:
            self.machine.plan_power_loss(60)
        self._start()

    def _verify(self) -> None:
        """Whatever stopped the engine, what it left must look right to `verify`."""
        if self.rng.random() < 0.3 and os.path.isdir(self.data_dir):
            found = verify(self.data_dir, OsFs(), self.cold_dir).findings
            wrong = [finding for finding in found if self.how == "clean" or not finding.is_note]
            require(not wrong, f"verify after {self.how} stop: {wrong[:3]}")

    def _drop_engine(self) -> None:
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.abandon()

    def _restart(self) -> None:
        """Stop in good order and start again."""
        if self._stop():
            self._verify()
            self._start()
        else:
            self._kill()

    def _stop(self) -> bool:
        """Stop in good order; False if that failed."""
        self._settle_flights()
        try:
            self.live.close()
        except Io:
            require(self.machine.flaky.failures > 0, "close failed although nothing failed")
            return False
        self.engine = None
        # If something failed, log files may have stayed, and replaying them is as after a crash.
        self.how = "killed" if self.machine.flaky.failures else "clean"
        if self.how == "clean":
            for truth in self.truths.values():
                truth.settle()
        return True

    def _drive(self) -> None:
        """One turn of the loop that owns the engine."""
        self.live.write()
        self.live.poll()
        self._fold()

    def _settle_flights(self) -> None:
        for _ in range(SETTLE_ROUNDS):
            self._drive()
            if not self.flights:
                return
            self.machine.advance_ms(1)
        raise Mismatch(f"{len(self.flights)} appends are never acknowledged")

    def _fold(self) -> None:
        """Take over what the engine has decided about the appends in flight."""
        decided: list[Flight] = []
        undecided: list[Flight] = []
        for flight in self.flights:
            # An ephemeral topic made anew answers at once, before the drop of the old one is committed.
            waits = any(earlier.truth is flight.truth for earlier in undecided)
            (decided if flight.commit.done and not waits else undecided).append(flight)
        self.flights = undecided
        for flight in decided:
            truth = flight.truth
            if flight.commit.error is None:
                for step in flight.steps:
                    truth.keep(step, synced=step.what in SYNCED_STEPS)
                truth.note_acked(flight.birth, flight.batch)
            elif flight.batch:
                truth.highest_failed = max(truth.highest_failed, flight.batch[-1].seq)
                self._fail_append(
                    truth, flight.steps, flight.created, isinstance(flight.commit.error, OutcomeUnknown)
                )
            else:
                self._fail_change(truth, flight.steps[0])

    def _fail_change(self, truth: TopicTruth, step: Step) -> None:
        """A delete failed: readers of this life may see it or not. Only a restart tells."""
        self._tell(f"  {truth.name} {step.what} FAILED")
        truth.fail(step)
        self.must_restart = True

    def _fail_append(
        self, truth: TopicTruth, steps: list[Step], created: bool, is_written: bool = False
    ) -> None:
        """An append failed; if it was to create its topic, that may have worked by itself."""
        self.counts["failed appends"] += 1
        self._tell(f"  {truth.name} {[step.what for step in steps]} FAILED")
        for step in steps:
            truth.fail(step, is_written=is_written)
        if created and steps and truth.now is None:
            # Some failures leave the topic without the batch; which ones is not promised.
            self.must_restart = True

    def _end_flights(self) -> None:
        """What is in flight at a crash stays open in the truth."""
        self.flights.clear()
