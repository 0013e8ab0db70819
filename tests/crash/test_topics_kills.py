"""`kill -9` of a process that writes topics: everything it acknowledged is there afterwards, once and exact.

A kill is no power loss: what was written stays written, so even the classes that promise little must have
kept everything. Processes die while they write, while they recover and while they close, and the number of
shards changes from life to life.
"""

import contextlib
import multiprocessing
import os
import random
import select
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from everlog.api_types import Discard
from everlog.errors import TopicNotFound
from everlog.fs import OsFs
from everlog.topics import Engine, EngineSettings, TopicConfig
from everlog.topics.ack_policy import SEQ_RESERVATION
from everlog.topics.storage.syncs import InlineSyncs
from everlog.topics.storage.verify import verify
from tests.simulation.truth import (
    State,
    Step,
    append_step,
    brief,
    check_whole,
    configure_step,
    delete_step,
    describe,
    drop_step,
)
from tests.support.model_checks import Mismatch, Seen, expected, look, model_of, require, require_equal
from tests.support.processes import PATIENCE_S, Child, ChildFailed, fresh_seed
from tests.support.topics_model import Draft, ModelTopic
from tests.support.topics_worker import (
    CLASSES,
    CLOSED,
    CLOSING,
    OPEN,
    OPENING,
    Advance,
    Append,
    Begun,
    Delete,
    Drop,
    Kept,
    Line,
    Look,
    Note,
    Operation,
    Put,
    Refused,
    WallClock,
    WorkerPlan,
    decode_line,
    digest,
    random_settings,
    write_topics,
)

pytestmark = pytest.mark.crash

ROUNDS = int(os.environ.get("CRASH_ROUNDS", "300")) * 2 // 3

RUNNING, RECOVERING, STOPPING = "running", "recovering", "stopping"
KILLS = {RUNNING: (OPEN, 0.5), RECOVERING: (OPENING, 0.03), STOPPING: (CLOSING, 0.03)}
"""For each kind of kill: how far the process has come before, and the seconds that may pass until then."""

LOGGED = ("disk", "fsync")


class Lines:
    """What a worker writes to its pipe; a line that its death cut off was never said."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._rest = b""
        self.lines: list[Line] = []
        self._notes: set[str] = set()
        os.set_blocking(fd, False)

    def has_noted(self, text: str) -> bool:
        """Whether the worker has come so far."""
        return text in self._notes

    def read_until(self, deadline_s: float, note: str | None = None) -> None:
        """Take lines until the time has come, or the note."""
        while (left_s := deadline_s - time.monotonic()) > 0 and not (note and self.has_noted(note)):
            if select.select([self._fd], [], [], left_s)[0] and not self._read():
                return

    def read_rest(self) -> None:
        """Take what a dead worker has left in the pipe."""
        while self._read():
            pass

    def _read(self) -> bool:
        try:
            content = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return False
        *whole, self._rest = (self._rest + content).split(b"\n")
        lines = [decode_line(text) for text in whole]
        self.lines += lines
        self._notes |= {line.text for line in lines if isinstance(line, Note)}
        return bool(content)


def live_and_die(plan: WorkerPlan, kind: str, rng: random.Random) -> Lines:
    """Let a worker live until the kill that `kind` says; return what it said."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    with contextlib.closing(ours), Child(write_topics, plan, theirs) as worker:
        theirs.close()
        lines = Lines(ours.fileno())
        note, longest_s = KILLS[kind]
        lines.read_until(time.monotonic() + PATIENCE_S, note)
        if not lines.has_noted(note):
            code = worker.wait_for_death()
            with pytest.raises(ChildFailed) as failure:
                worker.receive()
            raise ChildFailed(f"before it was {note}, with code {code}: {failure.value}")
        lines.read_until(time.monotonic() + rng.random() ** 2 * longest_s)
        if not lines.has_noted(CLOSED):
            worker.check()
            worker.kill()
        lines.read_rest()
    return lines


def creation(config: TopicConfig) -> Step:
    """A topic comes into being; its epoch is not known yet."""
    return Step("create", lambda _: ModelTopic(config))


class Witness:
    """One topic name over all lives: what was kept, and what was under way when the process died.

    `_steps` begin at `_base`, which was found at the last start; the first `_kept` of them were
    acknowledged, or came before one that was.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.now: State = None
        """The state once everything is kept."""
        self._base: State = None
        self._steps: list[Step] = []
        self._place: dict[int, int] = {}
        self._kept = 0
        self._last_epoch = 0
        self._is_numbered_ahead = False  # what was reserved is not given back when the class changes
        self._is_evicted_ahead = False
        self._alive_max = 0
        self._wanted: dict[int, dict[str, object]] = {}
        self._refusals: dict[int, type[Exception]] = {}

    def begin(self, number: int, operation: Operation, now_ms: int) -> None:
        """The worker was about to do this: work out what must come of it."""
        if isinstance(operation, Append):
            self._begin_append(number, operation, now_ms)
        elif isinstance(operation, Put):
            config = operation.config
            self._wanted[number] = {"created": self.now is None}
            self._take(number, creation(config) if self.now is None else configure_step(config, [now_ms]))
        elif isinstance(operation, Drop):
            self._wanted[number] = {"deleted": self.now is not None}
            if self.now is not None:
                self._take(number, drop_step())
        elif isinstance(operation, Look):
            self._begin_look(number, now_ms)
        elif isinstance(operation, Delete):
            before_seq = operation.bound
            if operation.before_seq is not None:
                before_seq = min(before_seq, operation.before_seq)
            self._take(number, delete_step(before_seq, operation.match, now_ms))

    def _begin_append(self, number: int, operation: Append, now_ms: int) -> None:
        created = self.now is None
        if created:
            self._take(number, creation(operation.config))
        assert self.now is not None
        known = self.now.remembered(operation.key, now_ms)
        if known is not None:
            first_seq, count = known.first_seq, known.length
        else:
            first_seq, count = self.now.head + 1, operation.count
            batch = self.now.stored(operation.drafts(), first_seq, now_ms, operation.node)
            probe = self.now.clone()
            probe.sweep(now_ms)
            try:
                probe.check_room(batch)
            except Exception as refusal:
                self._refusals[number] = type(refusal)
                return
            self._take(number, append_step(batch, now_ms, operation.key))
        self._wanted[number] = {
            "first_seq": first_seq,
            "last_seq": first_seq + count - 1,
            "count": count,
            "created": created,
            "deduped": known is not None,
        }

    def _begin_look(self, number: int, now_ms: int) -> None:
        if self.now is None:
            self._refusals[number] = TopicNotFound
            return
        probe = self.now.clone()
        probe.sweep(now_ms)
        self._wanted[number] = {"digest": digest(probe.records)}

    def _take(self, number: int, step: Step) -> None:
        self._steps.append(step)
        self._place[number] = len(self._steps)
        head = self.now.head if self.now else 0
        self.now = step.apply(self.now.clone() if self.now else None)
        if self.now is not None:
            self._alive_max = max(self._alive_max, len(self.now.records)) + max(0, self.now.head - head)
            self._note_reserves(self.now)

    def _note_reserves(self, topic: ModelTopic) -> None:
        config = topic.config
        if topic.durability == "disk":
            self._is_numbered_ahead = True
            has_caps = bool(config.cap_records or config.cap_bytes)
            self._is_evicted_ahead |= has_caps and config.discard is Discard.OLD

    def keep(self, kept: Kept) -> None:
        """The engine acknowledged an operation: its answer must be the expected one, and it must last."""
        for field, wanted in self._wanted.get(kept.number, {}).items():
            require_equal(f"{self.name}, operation {kept.number}: {field}", kept.answer[field], wanted)
        require(kept.number not in self._refusals, f"{self.name}: {kept} should have been refused")
        self._kept = max(self._kept, self._place.get(kept.number, 0))

    def refuse(self, refused: Refused) -> None:
        """The engine refused an operation: it must have had to."""
        wanted = self._refusals.get(refused.number)
        require(
            wanted is not None and wanted.__name__ == refused.error,
            f"{self.name}: {refused} instead of {wanted}",
        )

    def reconcile(self, seen: Seen | None, now_ms: int) -> str:
        """Hold what a start has brought against what may be there, go on from it; tell what was found."""
        complaints = []
        for steps, candidate in reversed(list(self._candidates())):
            try:
                self.now = self._accept(candidate, seen, now_ms)
                break
            except Mismatch as error:
                complaints.append(f"after {steps} steps: {error}")
        else:
            raise Mismatch(
                f"topic {self.name}: found {describe(seen)}; of {len(self._steps)} steps at least "
                f"{self._kept} must be there ({[step.what for step in self._steps[-40:]]}): "
                + "; or ".join(complaints)
            )
        survived = steps - self._kept
        found = "nothing under way" if len(self._steps) == self._kept else f"under way, {survived > 0}"
        self._base = self.now
        self._last_epoch = max(self._last_epoch, self.now.epoch if self.now else 0)
        self._alive_max = len(self.now.records) if self.now else 0
        self._steps.clear()
        self._place.clear()
        self._wanted.clear()
        self._refusals.clear()
        self._kept = 0
        return found

    def _candidates(self) -> Iterator[tuple[int, State]]:
        """The states that may be found: everything acknowledged, and any number of the steps after it."""
        state = self._base
        for number, step in enumerate(self._steps):
            if number >= self._kept:
                yield number, state
            state = step.apply(state.clone() if state else None)
        yield len(self._steps), state

    def _accept(self, candidate: State, seen: Seen | None, now_ms: int) -> State:
        if candidate is None or seen is None:
            require_equal("existence", seen is not None, candidate is not None)
            return None
        require_equal("config", seen.config, candidate.config)
        check_whole(seen)
        if candidate.epoch:
            require_equal("epoch", seen.epoch, candidate.epoch)
        else:
            require(seen.epoch > self._last_epoch, f"epoch {seen.epoch} after {self._last_epoch}")
        if candidate.durability == "ephemeral":
            require_equal("records of an ephemeral topic", seen.records, ())
            require(seen.head <= candidate.head, f"head {seen.head} above {candidate.head}")
            return model_of(seen)
        return self._accept_logged(candidate, seen, now_ms)

    def _accept_logged(self, candidate: ModelTopic, seen: Seen, now_ms: int) -> ModelTopic:
        """Head and cap floor of what was a disk topic may be a reservation ahead; all else is exact."""
        high = candidate.head + SEQ_RESERVATION * self._is_numbered_ahead
        require(candidate.head <= seen.head <= high, f"head {seen.head}, not {candidate.head} to {high}")
        low = candidate.cap_floor
        high = low + min(SEQ_RESERVATION, self._alive_max // 8) * self._is_evicted_ahead
        require(low <= seen.cap_floor <= high, f"cap floor {seen.cap_floor}, not {low} to {high}")
        found = candidate.clone()
        found.head, found.epoch = seen.head, seen.epoch
        found.evict_below(seen.cap_floor)
        found.sweep(now_ms)
        for what, got, wanted in zip(Seen._fields, seen, expected(found), strict=True):
            require(got == wanted, f"{what} {brief(got)} instead of {brief(wanted)}")
        return found


class Trial:
    """All the lives of one data directory."""

    def __init__(self, root: Path, seed: int) -> None:
        self.data_dir = root / "data"
        self.cold_dir = root / "cold"
        self.rng = random.Random(seed)
        self.wall_ms = 1_700_000_000_000
        self.witnesses = {name: Witness(name) for name in CLASSES}
        self.counts: Counter[str] = Counter()

    def round(self, kind: str) -> None:
        """One life that ends by SIGKILL, and what is found then."""
        rng = self.rng
        plan = WorkerPlan(
            str(self.data_dir),
            random_settings(rng, str(self.cold_dir)),
            rng.getrandbits(52),
            self.wall_ms,
            rng.randrange(200) if kind == STOPPING else None,
        )
        lines = live_and_die(plan, kind, rng)
        self.counts[f"{kind}: opened {lines.has_noted(OPEN)}, closed {lines.has_noted(CLOSED)}"] += 1
        self._take(lines.lines)
        self._check()

    def _take(self, lines: list[Line]) -> None:
        places: dict[int, Witness] = {}
        for line in lines:
            if isinstance(line, Begun):
                operation = line.operation
                self.counts[type(operation).__name__] += 1
                if isinstance(operation, Advance):
                    self.wall_ms = operation.wall_ms
                else:
                    places[line.number] = self.witnesses[operation.name]
                    places[line.number].begin(line.number, operation, self.wall_ms)
            elif isinstance(line, Kept):
                self.counts["kept"] += 1
                places[line.number].keep(line)
            elif isinstance(line, Refused):
                self.counts["refused"] += 1
                places[line.number].refuse(line)

    def _open(self) -> Engine:
        settings = EngineSettings(**random_settings(self.rng, str(self.cold_dir)))
        return Engine.open(self.data_dir, settings, clock=WallClock(self.wall_ms), syncs=InlineSyncs())

    def _check(self) -> None:
        """Recover here, compare every topic, and leave the directory closed or as after another kill."""
        engine = self._open()
        assert engine.recovery is not None
        require_equal("damage", engine.recovery.damage, [])
        self.counts["torn"] += engine.recovery.cut_bytes > 0
        seen = {name: look(engine, name) for name in CLASSES}
        for name, witness in self.witnesses.items():
            self.counts[witness.reconcile(seen[name], self.wall_ms)] += 1
            self._repeat_keys(engine, witness)
        if self.rng.random() < 0.2:
            engine.abandon()
            engine = self._open()
            again = {name: look(engine, name) for name in CLASSES}
            require_equal("a second recovery", again, seen)
        if self.rng.random() < 0.5:
            engine.abandon()
            return
        engine.close()
        findings = verify(str(self.data_dir), OsFs(), str(self.cold_dir)).findings
        require_equal("findings", [finding for finding in findings if not finding.is_note][:3], [])

    def _repeat_keys(self, engine: Engine, witness: Witness) -> None:
        """A retry after the crash appends nothing that is there already."""
        topic = witness.now
        if topic is None or topic.durability not in LOGGED or witness.name == "mixed":
            return
        for key in topic.keys:
            known = topic.remembered(key, self.wall_ms)
            if known is not None:
                again = engine.append(witness.name, [Draft("again").sent()], idempotency_key=key)
                found = (again.deduped, again.first_seq, again.count)
                require_equal(f"{witness.name} {key} again", found, (True, known.first_seq, known.length))
                self.counts["keys repeated"] += 1


def test_a_killed_engine_keeps_everything_it_acknowledged(tmp_path: Path) -> None:
    seed = fresh_seed("topics")
    trial = Trial(tmp_path, seed)
    for number in range(ROUNDS):
        kind = trial.rng.choices((RUNNING, RECOVERING, STOPPING), (6, 2, 2))[0]
        try:
            trial.round(kind)
        except Exception as error:
            raise AssertionError(f"TEST_SEED={seed}, round {number}, killed while {kind}: {error}") from error
    print(dict(sorted(trial.counts.items())))
    # The rounds were worth it: the processes came to write, and some died in the middle of something.
    assert trial.counts["kept"] > 20 * ROUNDS
    assert trial.counts["under way, True"] > 0
    assert trial.counts["under way, False"] > 0
    assert trial.counts["keys repeated"] > 0
