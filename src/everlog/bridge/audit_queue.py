"""The audit of a queue: every seq from 0 to the last is there, intact, or was deleted by retention.

It reads the queue without a reader name: it holds back no retention and changes nothing.

    live         the message can be read and its checksum matches
    deleted      it was before the oldest segment: retention deleted it
    unexplained  it is missing between two others, or damaged
"""

from __future__ import annotations

from typing import Final

from everlog.bridge.audit_topic import Audit
from everlog.errors import Corrupt, SegmentMissing, UnsupportedVersion
from everlog.queue import Queue, QueueReader, StartMode

BATCH_MAX: Final = 65536


class QueueAudit(Audit):
    """The account of a queue. It balances: `assigned` is the sum of the others."""

    queue: str
    assigned: int = 0
    live: int = 0
    deleted: int = 0
    unexplained: int = 0
    damaged: int = 0

    @property
    def is_sound(self) -> bool:
        """Whether everything is explained."""
        return self.unexplained == 0 and self.damaged == 0


def audit_queue(path: str) -> QueueAudit:
    """Account for every seq of a queue up to its present end."""
    audit = QueueAudit(path)
    with Queue.open_subscriber(path, None, StartMode.LATEST) as reader:
        # The published head as well: where records are missing before it, the last one is not the end.
        end = max(reader.position, reader.published_head)
    with Queue.open_subscriber(path, None, StartMode.EARLIEST) as reader:
        expected = 0
        while reader.position < end:
            seqs = _next_seqs(reader, audit, expected)
            if seqs is None:
                break
            if not seqs:
                continue
            expected = _add(audit, seqs, expected)
        if reader.position[0] < end[0] and not audit.damaged:
            audit.damaged += 1
            at = f"segment {reader.position[0]}, offset {reader.position[1]}"
            reason = f"readers stop at {at}, and the head is in segment {end[0]}; run `everlog queue doctor`"
            audit.problem(expected, expected, reason)
    audit.assigned = expected
    return audit


def _next_seqs(reader: QueueReader, audit: QueueAudit, expected: int) -> list[int] | None:
    """The seqs of the next messages; empty after damage was stepped over, None at the end."""
    try:
        batch = reader.read_batch(BATCH_MAX)
        return batch.seq.tolist() or None
    except SegmentMissing:
        # Retention deleted the segment meanwhile: its seqs count as deleted.
        return [] if reader.seek_seq(expected) else None
    except (Corrupt, UnsupportedVersion) as error:
        audit.damaged += 1
        audit.problem(expected, expected, str(error))
        return [] if reader.skip_damage() else None


def _add(audit: QueueAudit, seqs: list[int], expected: int) -> int:
    """Count messages; return the next expected seq."""
    if seqs[0] > expected:
        missing = seqs[0] - expected
        if audit.live == 0 and audit.damaged == 0:
            audit.deleted += missing
        else:
            audit.unexplained += missing
            audit.problem(expected, seqs[0] - 1, "missing between two messages")
    following = seqs[0] + len(seqs)
    if seqs[0] < expected or seqs[-1] != following - 1:
        audit.damaged += 1
        audit.problem(seqs[0], seqs[-1], "seqs do not follow each other")
        following = max(expected, seqs[-1] + 1)
    audit.live += len(seqs)
    return following
