"""Faults of the memory-mapped queue: flush, recovery, retention, positions of readers."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

QUEUE_FAULTS: Final = [
    Mutant(
        name="flush_sync does not wait for the disk",
        file="queue/writer.py",
        old="                self._msync(wait=True)\n",
        new="                self._msync(wait=False)\n",
        breaks="What was flushed survives a power loss.",
        check="queue power",
    ),
    Mutant(
        name="flush_sync leaves out the segments of a killed writer",
        file="queue/writer.py",
        old="                    sync_path(self._fs, segment_path(self.path, self._inherited[0]))\n",
        new="",
        breaks="What was flushed survives a power loss.",
        check="queue power",
    ),
    Mutant(
        name="flush_sync leaves out segments that were rolled away from",
        file="queue/writer.py",
        old="            self._sync_left()\n            self._sync.drain()\n            if self._sync",
        new="            if self._sync",
        breaks="What was flushed survives a power loss.",
        check="queue power",
    ),
    Mutant(
        name="a failed sync is forgotten",
        file="queue/writer.py",
        old="            if self._sync.failure is not None:\n                raise self._sync.failure",
        new="            self._sync.failure = None",
        breaks="After a failed sync no flush is answered as a success.",
        check="queue faults",
    ),
    Mutant(
        name="a torn tail is not replaced by padding",
        file="queue/recovery.py",
        old="        self.report.torn_tails.append((segment.segment_id, records.end))\n"
        "        self._pad(segment, records)\n        return None",
        new="        self.report.torn_tails.append((segment.segment_id, records.end))\n"
        "        return records.end",
        breaks="A half-written record is never delivered.",
        check="queue faults",
    ),
    Mutant(
        name="seqs of the lost end of a queue are given out again",
        file="queue/recovery.py",
        old="                    lost += (self.size - records.end) // RECORD_ALIGN\n",
        new="",
        breaks="A seq is never given out twice, whatever the disk has lost.",
        check="queue damage",
    ),
    Mutant(
        name="published records that are lost are overwritten",
        file="queue/recovery.py",
        old="        if records.end < self._published_end(segment.segment_id):",
        new="        if False:",
        breaks="Records that were published are missed, not replaced without a word.",
        check="queue faults",
    ),
    Mutant(
        name="recovery stops at the control block",
        file="queue/recovery.py",
        old="        if self.checkpoint.segment_id in self.ids:\n"
        "            known = max(known, self.checkpoint.segment_id)\n",
        new="",
        breaks="A damaged segment below the flushed position is reported and stops no writer.",
        check="queue power",
    ),
    Mutant(
        name="damage is not reported",
        file="queue/recovery.py",
        old="            self.report.damage.append(damage)\n",
        new="",
        breaks="Damage that was recognised is reported.",
        check="queue faults",
    ),
    Mutant(
        name="retention deletes the segment that a reader is in",
        file="queue/retention.py",
        old="    return min(end, head_segment, head_segment if keep_from is None else keep_from)",
        new="    return min(end + 1, head_segment, head_segment if keep_from is None else keep_from)",
        breaks="No segment is deleted that a live reader still needs.",
        check="queue faults",
    ),
    Mutant(
        name="retention deletes the last record",
        file="queue/retention.py",
        old="    return min(end, head_segment, head_segment if keep_from is None else keep_from)",
        new="    return min(end, head_segment)",
        breaks="Seqs go on after a restart although all older segments were deleted.",
        check="queue power",
    ),
    Mutant(
        name="an older position of a reader wins",
        file="queue/reader_meta.py",
        old="        return max(valid, key=lambda slot: slot.generation)",
        new="        return min(valid, key=lambda slot: slot.generation)",
        breaks="A reader resumes at its last commit.",
        check="queue faults",
    ),
    Mutant(
        name="a durable commit is not synced",
        file="queue/reader.py",
        old="                self._meta.store(*position, self._clock.wall_ns(), durable=durable)",
        new="                self._meta.store(*position, self._clock.wall_ns(), durable=False)",
        breaks="A durable commit of a reader survives a power loss.",
        check="queue power",
    ),
]
