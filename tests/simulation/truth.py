"""What may be found of one topic after a crash: kept from what the engine promised, checked after restart.

Knows the promises of the four classes; knows no engine and no file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from everlog.topics import TopicConfig
from tests.support.model_checks import Mismatch, Seen, expected, model_of, require, require_equal
from tests.support.topics_model import Match, ModelRecord, ModelTopic

RESERVATION = 256  # how far head and cap floor of a disk topic may be ahead after a crash
FAILED_STEPS_MAX = 12  # each may be there or not, so the states that are allowed double with each

State = ModelTopic | None


class Impossible(Exception):
    """This step cannot have followed those before it, so this past did not happen."""


class Step(NamedTuple):
    """One change of a topic; `apply` may change the state it is given."""

    what: str
    apply: Callable[[State], State]


def _copy(state: State) -> State:
    return None if state is None else state.clone()


def _existing(state: State) -> ModelTopic:
    if state is None:
        raise Impossible
    return state


@dataclass
class Birth:
    """One instance of a topic; its epoch is 0 until it is asked for."""

    number: int = 0
    epoch: int = 0


def create_step(config: TopicConfig, birth: Birth) -> Step:
    """The topic comes into being."""
    return Step("create", lambda _: ModelTopic(config, birth.epoch))


def configure_step(config: TopicConfig, times_ms: list[int]) -> Step:
    """The topic gets another configuration: logged at the first of these times, in force from the last."""

    def apply(state: State) -> State:
        _existing(state).configure(config, times_ms[0], times_ms[-1])
        return state

    return Step("configure", apply)


def append_step(batch: list[ModelRecord], now_ms: int, key: str | None) -> Step:
    """A batch is appended."""

    def apply(state: State) -> State:
        if batch[0].seq <= _existing(state).head:
            raise Impossible
        _existing(state).append(batch, now_ms, key)
        return state

    return Step(f"append {batch[0].seq}..{batch[-1].seq}", apply)


def delete_step(before_seq: int, match: Match, now_ms: int) -> Step:
    """Records are deleted; `before_seq` is at most one past the last that could be seen then."""

    def apply(state: State) -> State:
        _existing(state).delete(before_seq, match, now_ms)
        return state

    return Step(f"delete before {before_seq} match {match}", apply)


def ack_step(seqs: list[int]) -> Step:
    """Exactly these jobs are done."""

    def apply(state: State) -> State:
        _existing(state).remove(set(seqs))
        return state

    return Step(f"ack {seqs}", apply)


def sweep_step(now_ms: int) -> Step:
    """Records are found too old."""

    def apply(state: State) -> State:
        _existing(state).sweep(now_ms)
        return state

    return Step("sweep", apply)


def drop_step() -> Step:
    """The topic is deleted."""
    return Step("drop", lambda _: None)


@dataclass
class _Entry:
    """A step that the engine was given, in the order of the log."""

    step: Step
    status: str = "open"  # or "kept": acknowledged; or "failed"
    durable: bool = False
    is_written: bool = False  # of one that failed: it is in the log, but could not be synced


class TopicTruth:
    """One topic name over all lives of the machine.

    `_base` certainly survives a power loss. The entries came after it, in the order of the log, so what
    survives of them is a beginning: at least up to the last one that is durable; one that was not
    acknowledged may be there or not. `now` is what readers see: the base and all that was acknowledged.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.now: State = None
        self._base: State = None
        self._entries: list[_Entry] = []
        self.last_epoch = 0
        self._saved = (0, 0)  # epoch and head when they were last in a snapshot
        self.highest_failed = 0
        self.head_may_jump = False
        self.floor_may_jump = False
        self.birth = Birth()
        self.written: set[ModelRecord] = set()
        self._acked_seqs: set[tuple[int, int]] = set()

    @property
    def is_logged(self) -> bool:
        """Whether the topic exists and is of a class that promises something after a crash."""
        return self.now is not None and self.now.durability in ("disk", "fsync")

    @property
    def has_open(self) -> bool:
        """Whether the engine has not decided about some step."""
        return any(entry.status == "open" for entry in self._entries)

    @property
    def is_changing(self) -> bool:
        """Whether the topic is about to be deleted or made, so that `now` is not the instance that counts."""
        return any(
            entry.status == "open" and entry.step.what in ("create", "drop") for entry in self._entries
        )

    def planned(self) -> State:
        """The state once everything in flight is kept; a copy."""
        state = _copy(self._base)
        for entry in self._entries:
            if entry.status != "failed":
                state = entry.step.apply(state)
        return state

    def begin(self, step: Step) -> None:
        """Hand a step to the engine."""
        self._entries.append(_Entry(step))

    def replace(self, step: Step, by: Step) -> None:
        """The engine did not do quite what was expected, but something allowed."""
        self._entries[self._index(step)].step = by

    def forget(self, step: Step) -> None:
        """The engine refused the step before it did anything."""
        del self._entries[self._index(step)]

    def _index(self, step: Step) -> int:
        return next(i for i, entry in enumerate(self._entries) if entry.step is step)

    def keep(self, step: Step, *, synced: bool = False) -> None:
        """The engine acknowledged the step: readers see it."""
        index = self._index(step)
        entry = self._entries[index]
        entry.status = "kept"
        is_ephemeral = self.now is not None and self.now.durability == "ephemeral" and not synced
        if not is_ephemeral:
            # What could not be written is not in the log, and what is written behind it shows that.
            self._entries = [
                each for each in self._entries[:index] if each.status != "failed" or each.is_written
            ] + self._entries[index:]
        self.now = self._visible()
        entry.durable = synced or self.now is None or self.now.durability == "fsync"
        self._collapse()
        self._note_configuration()

    def _visible(self) -> State:
        state = _copy(self._base)
        for entry in self._entries:
            if entry.status == "kept":
                state = entry.step.apply(state)
        return state

    def _collapse(self) -> None:
        """Take over into the base what is certain, or of what nothing is promised."""
        unpromised = self.now is not None and self.now.durability in ("ephemeral", "memory")
        durable = [i for i, entry in enumerate(self._entries) if entry.durable]
        certain = len(self._entries) if unpromised else durable[-1] + 1 if durable else 0
        while certain and self._entries[0].status == "kept":
            self._base = self._entries.pop(0).step.apply(self._base)
            certain -= 1

    def settle(self) -> None:
        """Everything acknowledged so far is certainly on disk."""
        for entry in self._entries:
            entry.durable |= entry.status == "kept"
        self._collapse()

    def fail(self, step: Step, *, is_written: bool = False) -> None:
        """The engine said that the step failed: readers do not see it, a restart may bring it."""
        entry = self._entries[self._index(step)]
        entry.status, entry.is_written = "failed", is_written
        failed = [entry for entry in self._entries if entry.status == "failed"]
        if len(failed) > FAILED_STEPS_MAX:
            self._entries.remove(failed[0])

    def begin_instance(self) -> None:
        """A new instance is about to be made; everything known of the one before is over."""
        self.birth = Birth(self.birth.number + 1)
        if self._entries:
            return  # an earlier one is not over yet, or failed, so that it may still come
        self.highest_failed = 0
        self.head_may_jump = self.floor_may_jump = False
        self.written.clear()

    def note_saved(self) -> None:
        """A snapshot has the state that can be seen now."""
        self._saved = (0, 0) if self.now is None else (self.now.epoch, self.now.head)

    def learn_epoch(self, epoch: int) -> None:
        """The epoch of the visible instance, as the engine reports it."""
        assert self.now is not None
        if self.now.epoch == 0:
            require(epoch > self.last_epoch, f"topic {self.name}: epoch {epoch} after {self.last_epoch}")
            self.birth.epoch = self.now.epoch = epoch
            if self._base is not None and self._base.epoch == 0:
                self._base.epoch = epoch
        require_equal(f"epoch of {self.name}", epoch, self.now.epoch)
        self.last_epoch = epoch

    def note_written(self, batch: list[ModelRecord]) -> None:
        """These records were handed to the engine."""
        self.written.update(batch)

    def note_acked(self, birth: Birth, batch: list[ModelRecord]) -> None:
        """These seqs were given out in this instance; on a logged class never again."""
        given = {(birth.number, record.seq) for record in batch}
        if self.is_logged:
            again = sorted(given & self._acked_seqs)
            require(not again, f"topic {self.name}: seqs {again} were given out a second time")
        self._acked_seqs |= given

    def _forget_acked(self) -> None:
        """Seqs behind the head of a topic of a class that promises none may be given out again."""
        if self.now is not None and not self.is_logged:
            head, number = self.now.head, self.birth.number
            self._acked_seqs = {given for given in self._acked_seqs if given[0] != number or given[1] <= head}

    def _note_configuration(self) -> None:
        if self.now is not None:
            self.head_may_jump |= self.now.durability == "disk"
            self.floor_may_jump |= bool(
                self.now.durability == "disk" and (self.now.config.cap_records or self.now.config.cap_bytes)
            )

    def candidates(self, how: str) -> list[State]:
        """Every state that may be found, the most complete one first."""
        certain = [
            i
            for i, entry in enumerate(self._entries)
            if entry.durable or (entry.status == "kept" and how != "power")
        ]
        first_open = certain[-1] + 1 if certain else 0
        states = [_copy(self._base)]
        for entry in self._entries[:first_open]:
            # One that is not acknowledged lies in the log before one that is certain, so it is there too. One
            # that failed after the certain one was acknowledged is in the log as well, synced or not.
            if entry.status != "failed":
                states = [entry.step.apply(state) for state in states]
                continue
            for state in tuple(states):
                with suppress(Impossible):
                    states.append(entry.step.apply(_copy(state)))
        later = self._entries[first_open:]
        return [each for state in states for each in [state, *self._continuations(state, later)][::-1]]

    def _continuations(self, state: State, entries: list[_Entry]) -> Iterator[State]:
        """What further steps can make of a state: each may be the last; failed ones may be missing."""
        if not entries:
            return
        first, rest = entries[0], entries[1:]
        if first.status == "failed":
            yield from self._continuations(state, rest)
        try:
            after = first.step.apply(_copy(state))
        except Impossible:
            return
        yield after
        yield from self._continuations(after, rest)

    def reconcile(self, seen: Seen | None, now_ms: int, how: str) -> None:
        """Check what a restart brought against the promises, and go on from there.

        `how` is the end of the life before: `clean`, `killed` (files as written) or `power`.
        """
        complaints = []
        for candidate in self.candidates(how):
            try:
                self.now = self._accept(candidate, seen, now_ms, how)
                break
            except Mismatch as error:
                complaints.append(str(error))
        else:
            raise Mismatch(
                f"topic {self.name} after {how} stop: found {describe(seen)}, which is none of "
                f"{len(complaints)} allowed states: " + "; or ".join(dict.fromkeys(complaints))
            )
        self._entries.clear()
        self._forget_acked()
        self._note_unsure(how)
        self._base = _copy(self.now)
        self.highest_failed = 0
        self._note_configuration()
        self.note_saved()
        if self.now is not None:
            self.last_epoch = self.now.epoch

    def _note_unsure(self, how: str) -> None:
        """A missing record was deleted, or lost together with its deletion; the two look alike.

        What was deleted in an ephemeral topic was never on disk: its seqs are holes.
        """
        if self.now is not None and self.now.deleted is not None and how != "clean":
            base = self._base
            is_on_disk = base is not None and base.durability != "ephemeral"
            certain = base.deleted if base is not None and is_on_disk else None
            self.now.unsure |= self.now.deleted - (certain or set())

    def _accept(self, candidate: State, seen: Seen | None, now_ms: int, how: str) -> State:
        if candidate is None or seen is None:
            require_equal("existence", seen is not None, candidate is not None)
            return None
        require_equal("config", seen.config, candidate.config)
        if candidate.epoch:
            require_equal("epoch", seen.epoch, candidate.epoch)
        else:
            require(seen.epoch > self.last_epoch, f"epoch {seen.epoch} after {self.last_epoch}")
        check_whole(seen)
        if candidate.durability == "ephemeral":
            return self._accept_ephemeral(candidate, seen, how)
        if candidate.durability == "memory":
            return self._accept_memory(candidate, seen, how)
        return self._accept_logged(candidate, seen, now_ms, how)

    def _accept_ephemeral(self, candidate: ModelTopic, seen: Seen, how: str) -> ModelTopic:
        require_equal("records of an ephemeral topic", seen.records, ())
        epoch, saved_head = self._saved
        low = saved_head if epoch and epoch == candidate.epoch else 0
        if how == "clean":
            low = candidate.head
        require(
            low <= seen.head <= candidate.head,
            f"head of an ephemeral topic: {seen.head}, not {low} to {candidate.head}",
        )
        return model_of(seen)

    def _accept_memory(self, candidate: ModelTopic, seen: Seen, how: str) -> ModelTopic:
        allowed = set(candidate.records) if how == "clean" else self.written
        invented = [record for record in seen.records if record not in allowed]
        require(not invented, f"invented or returned records of a memory topic: {invented[:3]}")
        require(seen.head <= candidate.head, f"head of a memory topic: {seen.head} above {candidate.head}")
        return model_of(seen)

    def _accept_logged(self, candidate: ModelTopic, seen: Seen, now_ms: int, how: str) -> ModelTopic:
        """Head and cap floor may be a reservation ahead; all else must be as in the candidate."""
        # Epoch 0 is not known yet: that of the instance before and that of the new one look the same then.
        is_same = self.now is not None and candidate.epoch != 0 and self.now.epoch == candidate.epoch
        visible = self.now if self.now is not None and is_same else candidate
        jump = 0 if how == "clean" else RESERVATION
        is_disk = candidate.durability == "disk"
        low = max(candidate.head, visible.head)
        high = candidate.head + jump * (self.head_may_jump or is_disk)
        require(low <= seen.head <= high, f"head {seen.head}, not {low} to {high}")
        low = max(candidate.cap_floor, visible.cap_floor)
        high = low + jump * (self.floor_may_jump or is_disk)
        require(low <= seen.cap_floor <= high, f"cap floor {seen.cap_floor}, not {low} to {high}")
        found = candidate.clone()
        found.head = seen.head
        found.evict_below(seen.cap_floor)
        found.sweep(now_ms)
        # Records that were found too old before the crash may be lost to the reserved floor as well.
        swept = candidate.clone()
        swept.sweep(now_ms)
        if found.ttl_floor < seen.ttl_floor <= swept.ttl_floor:
            found.ttl_floor = seen.ttl_floor
        found.epoch = seen.epoch
        for what, got, wanted in zip(Seen._fields, seen, expected(found), strict=True):
            require(got == wanted, f"{what} {brief(got)} instead of {brief(wanted)}")
        return found


def check_whole(seen: Seen) -> None:
    """What holds for every topic at any time."""
    seqs = [record.seq for record in seen.records]
    require(seqs == sorted(set(seqs)), f"seqs not ascending: {seqs}")
    require_equal("count", seen.live, len(seen.records))
    require_equal("bytes", seen.bytes, sum(record.size for record in seen.records))
    require_equal("earliest", seen.earliest, seqs[0] if seqs else seen.head + 1)
    require(
        max(seen.cap_floor, seen.ttl_floor) <= seen.earliest, f"evict floor above earliest: {describe(seen)}"
    )
    stamps = [record.ts for record in seen.records]
    require(stamps == sorted(stamps), f"timestamps not ascending: {stamps}")


def brief(value: object) -> str:
    """A value of `Seen` in few words: records by their seqs."""
    if isinstance(value, tuple | list) and value and isinstance(value[0], ModelRecord):
        return "records " + ranges([record.seq for record in value])
    return repr(value)


def ranges(seqs: list[int]) -> str:
    """Seqs as runs: 1..3,5..9."""
    runs: list[list[int]] = []
    for seq in seqs:
        if runs and seq == runs[-1][1] + 1:
            runs[-1][1] = seq
        else:
            runs.append([seq, seq])
    return ",".join(f"{first}..{last}" for first, last in runs) or "none"


def describe(seen: Seen | None) -> str:
    """A topic in one line."""
    if seen is None:
        return "no topic"
    return (
        f"{seen.config.durability} topic epoch {seen.epoch} head {seen.head} floors cap {seen.cap_floor} "
        f"ttl {seen.ttl_floor} {brief(seen.records)}"
    )
