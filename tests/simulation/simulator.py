"""One simulation: an engine on a faulty machine, driven and checked by what one seed says.

Owns the choice of operations and the comparison; what may be found after a crash is `truth`'s
business, faults are `machine`'s. A seed always gives the same run.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from everlog.errors import (
    Corrupt,
    EverlogError,
    Io,
    ReadOnly,
    RecordTooLarge,
    TopicDamaged,
    TopicFull,
    TopicNotEmpty,
    TopicNotFound,
)
from everlog.fault_fs import PowerLoss
from everlog.fs import OsFs
from everlog.topics import TopicConfig
from everlog.topics.commits import Commit
from everlog.topics.config import Discard
from everlog.topics.storage.verify import verify
from tests.simulation.damage import StoredRecord, flipped, place_in, stored_records
from tests.simulation.lives import NAMES, QUEUES, SYNCED_STEPS, Flight, Lives
from tests.simulation.truth import (
    Step,
    TopicTruth,
    ack_step,
    append_step,
    brief,
    configure_step,
    create_step,
    delete_step,
    drop_step,
    sweep_step,
)
from tests.support.model_checks import (
    Mismatch,
    Query,
    ask_diff,
    ask_state,
    check_account,
    check_diff,
    check_state,
    read_all,
    require,
    require_equal,
)
from tests.support.topics_model import Draft, Match, ModelKey, ModelRecord, ModelTopic

TAGS = (None, "a", "a:1", "a:2", "b", "b:1")
NODES = (None, "n1", "n2")
KEYS = ("k1", "k2", "k3")
OPERATIONS_PER_SEED = 120


class SimulationFailure(AssertionError):
    """A promise was broken; the text says which one and how to see it again."""


class AppendPlan(NamedTuple):
    """An append that was drawn, and what must come of it."""

    drafts: list[Draft]
    node: str | None
    key: str | None
    create: bool | None
    config: TopicConfig | None
    now_ms: int
    creation: list[Step]
    known: ModelKey | None
    batch: list[ModelRecord]
    refusal: type[EverlogError] | None


class Simulation(Lives):
    """All lives of one machine and what happens in them."""

    def __init__(
        self, seed: int, root: str, operations: int = OPERATIONS_PER_SEED, *, verbose: bool = False
    ) -> None:
        super().__init__(seed, root, verbose=verbose)
        self.operations = operations

    def run(self) -> Counter[str]:
        """Run to the end; raises `SimulationFailure`."""
        try:
            self._guard(self._start)
            for number in range(1, self.operations + 1):
                self.operation = number
                self._guard(self._operate)
            self._guard(self._finish)
        except Exception as error:
            raise SimulationFailure(
                f"seed {self.seed}, operation {self.operation} ({self.current}): "
                f"{type(error).__name__}: {error}\n"
                f"to see it again: python -m tests.simulation --seeds {self.seed}..{self.seed}"
                f" --operations {self.operations} --verbose"
            ) from error
        finally:
            with contextlib.suppress(PowerLoss):
                self._drop_engine()
        return self.counts

    def _damage(self) -> None:
        """A flipped bit in stored records or in the only snapshot must be noticed, never be served."""
        self.machine.flaky.disarm()
        if self.machine.flaky.failures or not self._stop():
            return self._kill()
        roots = [self.data_dir] if self.cold_dir is None else [self.data_dir, self.cold_dir]
        records = stored_records(roots)
        meta_dir = os.path.join(self.data_dir, "meta")
        if not records or self.rng.random() < 0.2:
            path = os.path.join(meta_dir, min(os.listdir(meta_dir)))
            offset, bit = self.rng.randrange(os.path.getsize(path)), self.rng.randrange(8)
            with flipped(path, offset, bit):
                self._expect_copy(path, offset)
        else:
            record = self.rng.choice(records)
            offset, bit = place_in(record, self.rng)
            with flipped(record.path, offset, bit):
                found = verify(self.data_dir, OsFs(), self.cold_dir).findings
                require(bool(found), f"verify does not see bit {bit} at {offset} of {record.path}")
                self._expect_corrupt(record)
        self._drop_engine()
        self._start()

    def _expect_copy(self, path: str, offset: int) -> None:
        """The copy of the snapshot stands in for it, and the damage is reported."""
        self.engine = self._open()
        report = self.engine.recovery
        require(
            report is not None and bool(report.damage),
            f"nothing is reported although byte {offset} of {path} is damaged",
        )
        self.how = "killed"
        self._compare_all()

    def _expect_corrupt(self, record: StoredRecord) -> None:
        """No start, or an error at the damaged record and everything before it unharmed."""
        try:
            self.engine = self._open()
        except Corrupt:
            return
        self.how = "killed"
        for truth in self.truths.values():
            if truth.now is None or truth.now.durability == "ephemeral":
                continue  # what its files have from before it became ephemeral is not loaded
            wanted = truth.now.records
            damaged = [r for r in wanted if (r.seq, r.ts, r.data) == (record.seq, record.ts, record.data)]
            if not damaged or self._is_expired(truth, damaged[0]):
                continue
            records: list[ModelRecord] = []
            try:
                read_all(self.live, truth.name, records)
            except TopicDamaged:
                return  # found at the start, so nothing of the topic is served
            except Corrupt:
                complete = [r for r in wanted if r.seq < record.seq and not self._is_expired(truth, r)]
                require_equal(f"{truth.name} before the damage", brief(records), brief(complete))
                return
            raise Mismatch(f"{truth.name} was read although record {record.seq} is damaged: {brief(records)}")

    def _is_expired(self, truth: TopicTruth, record: ModelRecord) -> bool:
        ttl_ms = truth.now.config.ttl_ms if truth.now else 0
        return bool(ttl_ms) and self.machine.now_ms - record.ts > ttl_ms

    def _recover_twice(self) -> None:
        """Recovery of what recovery left must change nothing."""
        self._kill()
        before = {truth.name: self._floors(truth) for truth in self.truths.values()}
        self._drop_engine()
        self._start()
        for truth in self.truths.values():
            require_equal(f"{truth.name} after a second recovery", self._floors(truth), before[truth.name])

    def _floors(self, truth: TopicTruth) -> tuple[int, int] | None:
        return None if truth.now is None else (truth.now.head, truth.now.cap_floor)

    def _finish(self) -> None:
        self.machine.flaky.disarm()
        self._kill()
        self._restart()

    def _operate(self) -> None:
        names, weights = zip(*OPERATIONS, strict=True)
        name = self.rng.choices(names, weights)[0]
        self._say(name)
        try:
            getattr(self, f"_{name}")()
        except Io as error:
            require(self.machine.flaky.failures > 0, f"{name} failed although nothing failed: {error}")
            self.counts["failed operations"] += 1
        if self.must_restart:
            self._say("kill after failure")
            self._kill()
        elif self.machine.flaky.failures and self.rng.random() < 0.15:
            self._say("restart after failure")
            self.rng.choice((self._kill, self._restart))()

    def _some_truth(self) -> TopicTruth:
        return self.truths[self.rng.choice(NAMES)]

    def _some_config(self, name: str, *, is_change: bool = False) -> TopicConfig:
        """A configuration of the class that the name says; a change may be to any class."""
        rng = self.rng
        durability = {"e": "ephemeral", "m": "memory"}.get(name[0]) or rng.choice(("disk", "fsync"))
        if name[0] in "df" and rng.random() < 0.8:
            durability = "disk" if name[0] == "d" else "fsync"
        if is_change and rng.random() < 0.4:
            durability = rng.choice(("ephemeral", "memory", "disk", "fsync"))
        return msgspec.convert(
            {
                "type": "queue" if name in QUEUES else "log",
                "leases_durable": rng.random() < 0.5,
                "durability": durability,
                "ttl_ms": rng.choice((0, 0, 0, 500, 20_000)),
                "cap_records": rng.choice((0, 0, 0, 3, 30)),
                "cap_bytes": rng.choice((0, 0, 0, 300, 3000)),
                "discard": "reject" if rng.random() < 0.2 else "old",
                # The same for all instances: a key that was forgotten under a short window stays so.
                "idempotency_window_ms": self.windows_ms[name],
                "dedupe_node": rng.random() < 0.8,
            },
            TopicConfig,
        ).resolved(name)

    def _some_drafts(self) -> list[Draft]:
        rng = self.rng
        return [
            Draft(
                {"n": rng.getrandbits(30), "x": "y" * rng.choice((0, 0, 5, 60, 400))},
                {"m": rng.getrandbits(8)} if rng.random() < 0.2 else None,
                rng.choice(TAGS),
                rng.choice(NODES),
                rng.random() < 0.1,
            )
            for _ in range(rng.choice((1, 1, 2, 3, 8)))
        ]

    def _append(self) -> None:
        self._submit_append(self._some_truth())
        self._settle_flights()

    def _burst(self) -> None:
        """Appends without waiting, and readers who must not see them too early."""
        for _ in range(self.rng.randint(2, 8)):
            truth = self._some_truth()
            if truth.now is not None:
                self._submit_append(truth)
            if self.rng.random() < 0.3:
                self.live.write()
            if self.rng.random() < 0.2:
                self._drive()
                self._check(self._some_truth())
        self._settle_flights()

    def _plan_append(self, truth: TopicTruth) -> AppendPlan:
        """Draw an append and work out what must come of it."""
        rng, now_ms = self.rng, self.machine.now_ms
        drafts, node = self._some_drafts(), rng.choice(NODES)
        key = rng.choice(KEYS) if rng.random() < 0.4 else None
        create = rng.choice((None, None, True, False))
        config = self._some_config(truth.name) if rng.random() < 0.3 else None
        state = truth.planned()
        creation: list[Step] = []
        if state is None:
            # Which of the two comes first, the topic or the refusal of the batch, is left open.
            config = msgspec.structs.replace(config or self._some_config(truth.name), discard=Discard.OLD)
            state = ModelTopic(config)
            truth.begin_instance()
            creation = [create_step(config, truth.birth)]
        known = state.remembered(key, now_ms)
        state.sweep(now_ms)
        batch = state.stored(drafts, state.head + 1, now_ms, node)
        refusal = self._refusal(state, batch, bool(creation) and create is False, known is not None)
        return AppendPlan(drafts, node, key, create, config, now_ms, creation, known, batch, refusal)

    def _submit_append(self, truth: TopicTruth) -> None:
        """Hand an append to the engine, check its answer, and leave it in flight."""
        self._fold()
        plan = self._plan_append(truth)
        steps: list[Step] = []
        if plan.refusal is None and plan.known is None:
            steps = [*plan.creation, append_step(plan.batch, plan.now_ms, plan.key)]
            truth.note_written(plan.batch)
        for step in steps:
            truth.begin(step)
        try:
            answer = self.live.append(
                truth.name,
                [draft.sent() for draft in plan.drafts],
                node=plan.node,
                idempotency_key=plan.key,
                create=plan.create,
                config=plan.config,
            )
        except ReadOnly:
            for step in steps:
                truth.forget(step)  # refused before it reached the log
            raise
        except Io:
            self._fail_append(truth, steps, bool(plan.creation))
            raise
        except EverlogError as error:
            require(type(error) is plan.refusal, f"append to {truth.name} was refused: {error!r}")
            return
        require(plan.refusal is None, f"append to {truth.name} was not refused with {plan.refusal}")
        found = (answer.first_seq, answer.count, answer.head_seq, answer.created, answer.deduped)
        if plan.known is not None:
            first_seq, count = plan.known.first_seq, plan.known.length
            wanted = (first_seq, count, first_seq + count - 1, False, True)
            require_equal(f"key {plan.key} of {truth.name} again", found, wanted)
            return
        batch = self._take_seqs(truth, steps, plan, answer.first_seq)
        wanted = (batch[0].seq, len(batch), batch[-1].seq, bool(plan.creation), False)
        require_equal(f"append to {truth.name} (first seq, count, head, created, deduped)", found, wanted)
        self._tell(f"  {truth.name} {steps[-1].what} key {plan.key}")
        self.flights.append(Flight(truth, truth.birth, steps, batch, answer.commit, bool(plan.creation)))

    def _refusal(
        self, state: ModelTopic, batch: list[ModelRecord], may_not_create: bool, is_known: bool
    ) -> type[EverlogError] | None:
        if may_not_create:
            return TopicNotFound
        if is_known:
            return None
        try:
            state.check_room(batch)
        except (TopicFull, RecordTooLarge) as error:
            return type(error)
        return None

    def _take_seqs(
        self, truth: TopicTruth, steps: list[Step], plan: AppendPlan, first_seq: int
    ) -> list[ModelRecord]:
        """The engine gave these seqs; failed batches may have left a hole below."""
        wanted = plan.batch[0].seq
        if not wanted < first_seq <= truth.highest_failed + 1:
            return plan.batch
        batch = [record._replace(seq=record.seq + first_seq - wanted) for record in plan.batch]
        moved = append_step(batch, plan.now_ms, plan.key)
        truth.replace(steps[-1], moved)
        truth.note_written(batch)
        steps[-1] = moved
        return batch

    def _commit(self, truth: TopicTruth, step: Step, action: Callable[[], Commit]) -> None:
        """Do a change that is not an append and wait for it."""
        truth.begin(step)
        commit: Commit | None = None
        try:
            commit = action()
            self.live.wait_for(commit)
        except Io as error:
            self._tell(f"  {truth.name} {step.what} FAILED: {error}")
            if commit is None and isinstance(error, ReadOnly):
                truth.forget(step)  # refused before it reached the log
            else:
                truth.fail(step)
                self.must_restart = True  # whether it is in the log only a restart tells
            raise
        except EverlogError:
            truth.forget(step)
            raise
        self._tell(f"  {truth.name} {step.what} kept")
        truth.keep(step, synced=step.what in SYNCED_STEPS)

    def _put(self) -> None:
        self._settle_flights()
        truth = self._some_truth()
        is_new = truth.now is None
        config = self._some_config(truth.name, is_change=not is_new)
        if is_new:
            truth.begin_instance()
        times_ms = [self.machine.now_ms]
        step = create_step(config, truth.birth) if is_new else configure_step(config, times_ms)

        def put() -> Commit:
            answer = self.live.put_topic(truth.name, config)
            require_equal("put_topic", (answer.created, answer.config), (is_new, config))
            answer.commit.on_done(lambda _: times_ms.append(self.machine.now_ms))
            return answer.commit

        self._commit(truth, step, put)
        self._check(truth)

    def _delete(self) -> None:
        self._settle_flights()
        truth = self._some_truth()
        if truth.now is not None:
            self._submit_delete(truth)
            self._settle_flights()
            if not self.must_restart:
                self._check(truth)

    def _submit_delete(self, truth: TopicTruth) -> None:
        """Delete records of those that can be seen now, and leave that in flight.

        A delete writes what is gathered before it: then that can be seen, too.
        """
        self.live.write()
        self._fold()
        if self.must_restart or truth.now is None:
            return
        rng, now, now_ms = self.rng, truth.now, self.machine.now_ms
        before_seq = rng.choice((None, now.head - rng.randint(-3, 20), now.earliest + rng.randint(0, 4)))
        before_seq = None if before_seq is None else max(0, before_seq)
        match: Match = rng.choice(
            (None, ("Eq", "a"), ("Eq", "b:1"), ("Glob", "a*"), ("Glob", "a:*"), ("Glob", "*"))
        )
        if before_seq is None and match is None:
            before_seq = now.earliest + 1
        bound = now.head + 1
        step = delete_step(bound if before_seq is None else min(before_seq, bound), match, now_ms)
        is_alone = not truth.has_open
        planned = now.clone()
        removed = planned.delete(before_seq, match, now_ms)
        truth.begin(step)
        try:
            answer = self.live.delete_records(
                truth.name, before_seq=before_seq, match=None if match is None else ("tag", *match)
            )
        except Io:
            self._fail_change(truth, step)
            raise
        self._tell(f"  {truth.name} {step.what}")
        self.flights.append(Flight(truth, truth.birth, [step], [], answer.commit, False))
        if is_alone:
            found = (answer.deleted, answer.earliest_seq, answer.head_seq, answer.count, answer.bytes)
            wanted = (removed, planned.earliest, planned.head, len(planned.records), planned.bytes)
            require_equal("delete (deleted, earliest, head, count, bytes)", found, wanted)

    def _work(self) -> None:
        """Claim jobs, give some back and acknowledge others; what was acknowledged never comes back."""
        self._settle_flights()
        truth, rng = self.truths[self.rng.choice(QUEUES)], self.rng
        if truth.now is None:
            return
        self._sweep(truth)
        node = rng.choice(("w1", "w2"))
        claimed = self.live.claim(truth.name, node, rng.choice((1, 3, 10)), rng.choice((None, 100, 5000)))
        self.live.wait_for(claimed.commit)
        live = {record.seq: record for record in truth.now.records}
        for seq, text in zip(claimed.leases, claimed.jobs, strict=True):
            require(seq in live and b',"data":' + live[seq].data in text, f"{truth.name} gave {text!r}")
        if rng.random() < 0.3:
            given_back = [seq for seq in claimed.leases if rng.random() < 0.5]
            self.live.wait_for(
                self.live.nack(truth.name, node, given_back, delay_ms=rng.choice((0, 500))).commit
            )
        done = [seq for seq in claimed.leases if rng.random() < 0.7 and self._holds(truth, node, seq)]
        if done:
            self._commit(truth, ack_step(done), lambda: self._ack(truth, node, done))
        self._check(truth)

    def _holds(self, truth: TopicTruth, node: str, seq: int) -> bool:
        """Whether a lease is still there: extending it tells."""
        answer = self.live.extend(truth.name, node, [seq], lease_ms=5000)
        self.live.wait_for(answer.commit)
        return bool(answer.done)

    def _ack(self, truth: TopicTruth, node: str, seqs: list[int]) -> Commit:
        answer = self.live.ack(truth.name, node, seqs)
        require_equal(f"ack of {truth.name}", (answer.done, answer.skipped), (seqs, []))
        return answer.commit

    def _route(self) -> None:
        """Send records to a topic whose routers copy them to others."""
        self._settle_flights()
        self.routed.step(self.live)

    def _classes(self) -> None:
        """Change the classes of topics that routers connect, and look at what they hold."""
        self._settle_flights()
        self.classed.step(self.live, self._is_faulty)

    def _consumers(self) -> None:
        """Commit, reset, acquire and delete consumers of topics whose caps evict what is not held."""
        self._settle_flights()
        self.consumed.step(self.live)

    def _jobs(self) -> None:
        """Enqueue jobs with options, claim and finish them, and look at what a schedule has appended."""
        self._settle_flights()
        self.jobbed.step(self.live)

    def _mix(self) -> None:
        """Appends, deletes, and topics made anew, none of them waiting for the one before."""
        self._settle_flights()
        for _ in range(self.rng.randint(3, 8)):
            truth = self._some_truth()
            chance = self.rng.random()
            self._fold()
            if self.must_restart or truth.now is None:
                continue
            if chance < 0.5:
                self._submit_append(truth)
            elif chance < 0.75 and not truth.is_changing:
                self._submit_delete(truth)
            elif chance < 0.85 and truth.is_logged and not truth.has_open:
                self._submit_drop(truth)
                if self.rng.random() < 0.7:
                    self._submit_append(truth)
            elif chance < 0.95:
                self.live.write()
            else:
                self._drive()
        self._settle_flights()
        if not self.must_restart:
            self._check_all()

    def _submit_drop(self, truth: TopicTruth) -> None:
        step = drop_step()
        truth.begin(step)
        try:
            answer = self.live.delete_topic(truth.name)
        except Io:
            self._fail_change(truth, step)
            raise
        self._tell(f"  {truth.name} drop")
        self.flights.append(Flight(truth, truth.birth, [step], [], answer.commit, False))

    def _delete_topic(self) -> None:
        self._settle_flights()
        truth = self._some_truth()
        if_empty = self.rng.random() < 0.3
        if truth.now is None:
            require_equal("delete of no topic", self.live.delete_topic(truth.name).deleted, False)
            return
        state = truth.now.clone()
        state.sweep(self.machine.now_ms)
        try:
            self._commit(
                truth, drop_step(), lambda: self.live.delete_topic(truth.name, if_empty=if_empty).commit
            )
        except TopicNotEmpty:
            require(if_empty and bool(state.records), f"topic {truth.name} is empty")

    def _diff(self) -> None:
        self._settle_flights()
        truth, rng = self._some_truth(), self.rng
        if truth.now is None:
            return
        head = truth.now.head
        query = Query(
            rng.choice((0, head, head + 1, rng.randint(0, head), max(0, truth.now.earliest - 2))),
            rng.choice((1, 3, 256, 0, 5000)),
            rng.choice(((), ("n1",), ("n1", "n2"), ("other",))),
            rng.random() < 0.5,
            rng.random() < 0.8,
            rng.choice((0, 0, 100, 1000)),
        )
        self._sweep(truth)
        now_ms = self.machine.now_ms
        check_diff(truth.now.clone(), now_ms, query, ask_diff(self.live, truth.name, query))

    def _sweep(self, truth: TopicTruth) -> None:
        """Let the engine find what is too old; the floors that a read moves are synced before its answer."""
        assert truth.now is not None
        now_ms = self.machine.now_ms
        if truth.now.clone().sweep(now_ms):
            self._commit(
                truth,
                sweep_step(now_ms),
                lambda: self.live.diff(truth.name, from_seq=truth.now.head if truth.now else 0).commit,
            )
            truth.settle()

    def _check(self, truth: TopicTruth) -> None:
        """Hold state and a read against what readers must see."""
        if truth.now is None:
            try:
                ask_state(self.live, truth.name)
            except TopicNotFound:
                return
            raise Mismatch(f"topic {truth.name} should not exist")
        if truth.now.config.ttl_ms and any(flight.truth is truth for flight in self.flights):
            return  # the append in flight has let old records go, but may not have shown that yet
        self._sweep(truth)
        now_ms = self.machine.now_ms
        state = ask_state(self.live, truth.name)
        truth.learn_epoch(state.epoch)
        check_state(truth.now.clone(), now_ms, state)
        accounted = truth.now.clone()
        accounted.sweep(self.machine.now_ms)
        check_account(accounted, self.live, truth.name)
        query = Query(max(0, truth.now.head - 5))
        check_diff(truth.now.clone(), now_ms, query, ask_diff(self.live, truth.name, query))

    def _check_all(self) -> None:
        self._settle_flights()
        self._check_list()
        for truth in self.truths.values():
            self._check(truth)

    def _advance(self) -> None:
        self._settle_flights()
        self.machine.advance_ms(self.rng.choice((1, 50, 400, 3000, 30_000)))
        self._drive()

    def _quiesce(self) -> None:
        """After some quiet time everything of class disk is synced too."""
        self._settle_flights()
        for _ in range(6):
            self.machine.advance_ms(11)
            self._drive()
        if not self.machine.flaky.failures:
            for truth in self.truths.values():
                truth.settle()

    def _checkpoint(self) -> None:
        self._settle_flights()
        self.live.checkpoint()
        for truth in self.truths.values():
            truth.settle()
            truth.note_saved()

    def _relocate(self) -> None:
        self._settle_flights()
        self.live.relocate()

    def _power(self) -> None:
        """Lose power some time soon."""
        self.machine.plan_power_loss(40)

    def _failure(self) -> None:
        """Let a call fail some time soon."""
        self._tell(f"  failure planned in {self.machine.plan_failure()}")

    def _disk_full(self) -> None:
        self.machine.flaky.is_full = not self.machine.flaky.is_full


OPERATIONS = (
    ("append", 30),
    ("burst", 10),
    ("mix", 8),
    ("delete", 8),
    ("put", 6),
    ("work", 8),
    ("route", 8),
    ("classes", 12),
    ("consumers", 10),
    ("jobs", 10),
    ("delete_topic", 2),
    ("diff", 10),
    ("check_all", 3),
    ("advance", 6),
    ("quiesce", 2),
    ("checkpoint", 4),
    ("relocate", 2),
    ("kill", 2),
    ("restart", 2),
    ("recover_twice", 1),
    ("damage", 1),
    ("power", 4),
    ("failure", 3),
    ("disk_full", 1),
)
