"""What a server has promised about one topic, and whether that is what it has.

Owns the books: every batch that was sent, whether it was acknowledged and with which seqs, and every delete.
Knows the promises of the four classes for a process that is killed; knows no connection. Threads may share a
ledger.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

CLASSES = ("ephemeral", "memory", "disk", "fsync")
KEYED_CLASSES = ("disk", "fsync")
"""Those whose idempotency keys survive with their batches, so that a retry is safe."""
SEQ_RESERVATION = 256


class Deletion(NamedTuple):
    """A delete that was sent."""

    before_seq: int
    life: int


@dataclass(slots=True)
class Batch:
    """Records that were sent together; `first_seq` is known once they were acknowledged."""

    writer: int
    number: int
    size: int
    life: int
    first_seq: int | None = None

    @property
    def key(self) -> str:
        """The idempotency key."""
        return f"writer-{self.writer}-batch-{self.number}"

    def records(self) -> list[dict[str, Any]]:
        """What is sent."""
        return [
            {"data": place(self.writer, self.number, index), "tag": "even" if index % 2 == 0 else "odd"}
            for index in range(self.size)
        ]


class Ledger:
    """The books of one topic."""

    def __init__(self, topic: str, durability: str) -> None:
        self.topic = topic
        self.durability = durability
        self._lock = threading.Lock()
        self._batches: dict[tuple[int, int], Batch] = {}
        self._numbers: dict[int, int] = {}
        self._deleted_below = 0
        self._deletes_tried_below = 0
        self._life = 0
        self._sent = 0
        self.head_acked = 0

    # --- What happens ------------------------------------------------------------------------------------

    def begin(self, writer: int, size: int) -> Batch:
        """A writer is about to send a batch."""
        with self._lock:
            number = self._numbers.get(writer, 0)
            self._numbers[writer] = number + 1
            batch = Batch(writer, number, size, self._life)
            self._batches[writer, number] = batch
            self._sent += size
            return batch

    def acknowledged(self, batch: Batch, answer: Mapping[str, Any]) -> None:
        """A batch was acknowledged, for the first time or again."""
        with self._lock:
            if self._is_forgotten(batch.life):
                return
            first_seq = int(answer["first_seq"])
            assert batch.first_seq in (None, first_seq), f"{self.topic}: {batch} has other seqs now: {answer}"
            assert answer["count"] == batch.size, f"{self.topic}: {batch} became {answer}"
            assert answer["last_seq"] == first_seq + batch.size - 1, f"{self.topic}: {answer}"
            batch.first_seq = first_seq
            self.head_acked = max(self.head_acked, first_seq + batch.size - 1)

    def refused(self, batch: Batch) -> None:
        """A batch was not taken, and never will be."""
        with self._lock:
            self._batches.pop((batch.writer, batch.number), None)

    def delete_begun(self, before_seq: int) -> Deletion:
        """Records below a seq are about to be deleted."""
        with self._lock:
            self._deletes_tried_below = max(self._deletes_tried_below, before_seq)
            return Deletion(before_seq, self._life)

    def delete_acknowledged(self, deletion: Deletion) -> None:
        """They are."""
        with self._lock:
            if not self._is_forgotten(deletion.life):
                self._deleted_below = max(self._deleted_below, deletion.before_seq)

    def _is_forgotten(self, life: int) -> bool:
        """Whether an answer comes from a process that took everything with it."""
        return self.durability == "ephemeral" and life != self._life

    def server_ended(self) -> None:
        """The process is gone: what was in its memory only is no longer promised."""
        with self._lock:
            self._life += 1
            if self.durability == "ephemeral":
                self._batches.clear()
                self._deleted_below = self._deletes_tried_below = self.head_acked = 0

    # --- Whether it is there -----------------------------------------------------------------------------

    def acknowledged_seqs(self) -> dict[int, int]:
        """What must be at each seq, if it was not deleted."""
        with self._lock:
            return {
                batch.first_seq + index: place(batch.writer, batch.number, index)
                for batch in self._batches.values()
                if batch.first_seq is not None
                for index in range(batch.size)
            }

    def may_be_deleted(self, seq: int) -> bool:
        """Whether a delete of it was sent."""
        return seq < self._deletes_tried_below

    def check_records(self, records: Sequence[Mapping[str, Any]], head_seq: int) -> None:
        """Hold everything that can be read against the books; no writer may run meanwhile."""
        found = {int(record["$seq"]): int(record["data"]) for record in records}
        where = f"{self.topic} ({self.durability})"
        seqs = [int(record["$seq"]) for record in records]
        assert seqs == sorted(set(seqs)), f"{where}: seqs out of order"
        for seq, sent in self.acknowledged_seqs().items():
            if seq < self._deleted_below:
                assert seq not in found, f"{where}: deleted seq {seq} is there"
            elif not self.may_be_deleted(seq):
                assert found.get(seq) == sent, f"{where}: seq {seq} is {found.get(seq)}, was {sent}"
            else:
                assert found.get(seq, sent) == sent, f"{where}: seq {seq} is {found[seq]}, was {sent}"
        self._check_batches(found, where)
        low, high = self.head_acked, max([self.head_acked, *found]) + self._seqs_in_doubt()
        if self.durability == "ephemeral":
            high = self._sent  # the head may come back from a snapshot, the records never
        assert low <= head_seq <= high, f"{where}: head {head_seq}, not {low} to {high}"

    def _seqs_in_doubt(self) -> int:
        """How far the head may be above what is known: batches without an answer, and reserved seqs."""
        unknown = sum(batch.size for batch in self._batches.values() if batch.first_seq is None)
        return unknown + (SEQ_RESERVATION if self.durability == "disk" else 0)

    def _check_batches(self, found: Mapping[int, int], where: str) -> None:
        """No batch is there in part, twice, or out of order, and none that was never sent."""
        by_batch: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for seq, data in found.items():
            writer, number, index = data >> 48, data >> 16 & 0xFFFF_FFFF, data & 0xFFFF
            by_batch.setdefault((writer, number), []).append((index, seq))
        for name, members in by_batch.items():
            batch = self._batches.get(name)
            assert batch is not None, f"{where}: batch {name} was never sent"
            first_seqs = {seq - index for index, seq in members}
            assert len(first_seqs) == 1, f"{where}: {batch} is there twice or torn apart: {members}"
            missing = set(range(batch.size)) - {index for index, _ in members}
            first_seq = first_seqs.pop()
            torn = [index for index in missing if not self.may_be_deleted(first_seq + index)]
            assert torn == [], f"{where}: of {batch} the records {torn} are missing"

    def check_follower(self, follower: Followed) -> None:
        """A reader that followed to the end has got all there was, once and in order."""
        got = dict(zip(follower.seqs, follower.data, strict=True))
        for seq, sent in self.acknowledged_seqs().items():
            if seq in got:
                assert got[seq] == sent, f"{self.topic}: {follower.name} got {got[seq]} at {seq}, not {sent}"
            elif seq <= follower.cursor:
                assert self.may_be_deleted(seq), f"{self.topic}: {follower.name} did not get seq {seq}"


class Followed:
    """What a reader that follows a topic has got so far."""

    def __init__(self, topic: str, name: str) -> None:
        self.topic = topic
        self.name = name
        self.cursor = 0
        self.seqs = array("Q")
        self.data = array("Q")

    def take(self, records: Iterable[Mapping[str, Any]], from_seq: int, to_seq: int) -> None:
        """Records were delivered that lead from one cursor to another."""
        assert from_seq == self.cursor, f"{self.topic}: {self.name} is at {self.cursor}, not {from_seq}"
        for record in records:
            seq = record["$seq"]
            assert self.cursor < seq <= to_seq, f"{self.topic}: {self.name} got {seq} after {self.cursor}"
            self.cursor = seq
            self.seqs.append(seq)
            self.data.append(record["data"])
        self.cursor = to_seq


def place(writer: int, number: int, index: int) -> int:
    """The data of a record: where it comes from, as one number."""
    return writer << 48 | number << 16 | index
