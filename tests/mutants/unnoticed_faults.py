"""Faults that no check notices yet: holes in the checks, not in the engine. `make mutants` does not run them.

To close one, make a check stronger until it notices, and move the fault to the list of its kind. That the
cursor of a router is saved before the copy may make no difference: a snapshot is made only while no copy is
under way.
"""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

UNNOTICED_FAULTS: Final = [
    Mutant(
        name="a key is logged apart from its batch",
        file="topics/append.py",
        old="        FrameType.IDEMPOTENCY_KEY, FLAG_BATCH_CONTINUES, topic.topic_id, first_seq, ts, payload",
        new="        FrameType.IDEMPOTENCY_KEY, 0, topic.topic_id, first_seq, ts, payload",
        breaks="A repeated write is answered as known only if the first one counts.",
        check="simulation",
    ),
    Mutant(
        name="what a kill left in the page cache is shown without a sync",
        file="topics/storage/recovery.py",
        old="            sync_path(fs, file.path)\n            return map_file(fs, file.path)",
        new="            return map_file(fs, file.path)",
        breaks="What was read after a restart is not lost by the next power loss.",
        check="simulation",
    ),
    Mutant(
        name="records deleted while they are saved come back",
        file="topics/storage/checkpoint.py",
        old="            if len(died):\n",
        new="            if False:\n",
        breaks="A record whose delete was answered does not come back.",
        check="simulation",
    ),
    Mutant(
        name="the cursor of a router is saved before the copy",
        file="topics/routing/passes.py",
        old="        router.cursor = step.cursor\n        router.total += step.copies + step.holes",
        new="        router.cursor = router.committed_cursor = step.cursor\n"
        "        router.total += step.copies + step.holes",
        breaks="Every record of a source is copied.",
        check="routers",
    ),
    Mutant(
        name="a router does not go back to copies that failed",
        file="topics/routing/passes.py",
        old="        router.cursor = min(router.cursor, self._cursor_before)\n",
        new="",
        breaks="Every record of a source is copied.",
        check="simulation",
    ),
    Mutant(
        name="a router copies again what its destination has",
        file="topics/routing/passes.py",
        old="                if found and not any(",
        new="                if False and not any(",
        breaks="A router of guarantee exactly_once makes each copy once.",
        check="simulation",
    ),
    Mutant(
        name="copies are shown before their records are synced",
        file="topics/routing/passes.py",
        old="                copy.originals = originals if copy.needs_sync else COMMITTED",
        new="                copy.originals = COMMITTED",
        breaks="A copy of class fsync that was read survives a power loss.",
        check="simulation",
    ),
    Mutant(
        name="routers go on while a checkpoint begins",
        file="topics/routing/forwarding.py",
        old="router.cursor < self._held.get(router.source.topic_id, 0):",
        new="False:",
        breaks="Copies that a snapshot does not have can be made again from the log behind it.",
        check="routers",
    ),
    Mutant(
        name="the floor of a destination is not restored",
        file="topics/routing/replay.py",
        old="                if entry.cap_floor > topic.floors.cap:",
        new="                if False:",
        breaks="A record that was evicted does not come back.",
        check="routers",
    ),
]
