"""Faults of routers, of changes of the durability class, and of job queues."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

ROUTING: Final = [
    Mutant(
        name="shards commit in the wrong order",
        file="topics/commits.py",
        old="        self._is_committed[entry] = True\n        self._publish()",
        new="        del self._is_committed[entry]\n        entry.publish()",
        breaks="Records that come through several shards become visible in the order of their seqs.",
        check="simulation",
    ),
    Mutant(
        name="a copy gets another seq after a restart",
        file="topics/routing/passes.py",
        old="                    first_seq=hole_seq,",
        new="                    first_seq=hole_seq + 1,",
        breaks="Copies are made again with the seqs under which they were read.",
        check="simulation",
    ),
    Mutant(
        name="a lost source leaves no gap in the destination",
        file="topics/routing/replay.py",
        old="            end.topic.note_trim(first_seq, first_seq + count - 1)\n",
        new="",
        breaks="No gap is silent: a destination reports what its source has lost.",
        check="routers",
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
        check="routers",
    ),
    Mutant(
        name="a router copies again what its destination has",
        file="topics/routing/passes.py",
        old="                if found and not any(",
        new="                if False and not any(",
        breaks="A router of guarantee exactly_once makes each copy once.",
        check="routers",
    ),
    Mutant(
        name="copies are shown before their records are synced",
        file="topics/routing/passes.py",
        old="                copy.originals = originals if copy.needs_sync else COMMITTED",
        new="                copy.originals = COMMITTED",
        breaks="A copy of class fsync that was read survives a power loss.",
        check="routers",
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

CHANGING_CLASS: Final = [
    Mutant(
        name="a class change is answered before copies are synced",
        file="topics/class_change.py",
        old="    return core.sync(core.shards)\n\n\ndef log_ahead",
        new="    return COMMITTED\n\n\ndef log_ahead",
        breaks="A class change makes what is visible as durable as the new class says before it is answered.",
        check="routers",
    ),
    Mutant(
        name="a class change does not log what is in memory",
        file="topics/catalogue.py",
        old="            class_change.log_memory(core, topic)\n",
        new="",
        breaks="A class change makes what is visible as durable as the new class says before it is answered.",
        check="simulation",
    ),
    Mutant(
        name="a class change does not log the cursors of routers",
        file="topics/catalogue.py",
        old="            waits_for.append(class_change.log_cursors(core, topic))\n",
        new="",
        breaks="A source that becomes durable is not copied twice.",
        check="simulation",
    ),
    Mutant(
        name="a class change does not log the head",
        file="topics/catalogue.py",
        old="        class_change.log_head(core, topic, durability)\n",
        new="",
        breaks="A seq that was given out in a durable class is not given out again.",
        check="routers",
    ),
    Mutant(
        name="a class change does not log the keys",
        file="topics/class_change.py",
        old="                _log_keys(core, topic, keys)\n",
        new="                pass\n",
        breaks="A key is remembered over a restart within its window.",
        check="simulation",
    ),
    Mutant(
        name="a configuration takes effect before it is synced",
        file="topics/catalogue.py",
        old="core.log_change(topic, FrameType.CONFIG_UPDATE, update, apply, undo))",
        new="core.log_change(topic, FrameType.CONFIG_UPDATE, update, apply, undo, needs_sync=False))",
        breaks="A configuration that was answered survives a power loss.",
        check="simulation",
    ),
]

LEASING: Final = [
    Mutant(
        name="an ack is not logged",
        file="topics/jobs/lease_log.py",
        old="    if not core.logs_changes(topic):\n        on_commit()",
        new="    if True:\n        on_commit()",
        breaks="A job that was acknowledged never comes back.",
        check="simulation",
    ),
    Mutant(
        name="an ack is answered before the sync",
        file="topics/jobs/lease_log.py",
        old="    needs_sync = topic.durability is Durability.FSYNC\n    try:\n",
        new="    needs_sync = False\n    try:\n",
        breaks="A job of class fsync that was acknowledged never comes back.",
        check="simulation",
    ),
    Mutant(
        name="jobs acked out of order are not marked in segments",
        file="topics/jobs/lease_log.py",
        old="        if begin < end:\n",
        new="        if False:\n",
        breaks="A job that was acknowledged never comes back.",
        check="simulation",
    ),
    Mutant(
        name="a lease ends one millisecond early",
        file="topics/jobs/lease_table.py",
        old="        while room > 0 and self._expiries and self._expiries[0][0] < now_ms:\n"
        "            deadline_ms, order, seqs = heappop(self._expiries)\n"
        "            if len(seqs) > room:\n"
        "                heappush(self._expiries, (deadline_ms, order, seqs[room:]))\n"
        "                seqs = seqs[:room]\n"
        "            room -= len(seqs)\n"
        "            self._expiring -= len(seqs)\n"
        "            for seq in seqs:\n"
        "                job = self.jobs.get(seq)\n"
        "                if job is not None and job.phase == LEASED and job.until_ms < now_ms:",
        new="        while room > 0 and self._expiries and self._expiries[0][0] <= now_ms:\n"
        "            deadline_ms, order, seqs = heappop(self._expiries)\n"
        "            if len(seqs) > room:\n"
        "                heappush(self._expiries, (deadline_ms, order, seqs[room:]))\n"
        "                seqs = seqs[:room]\n"
        "            room -= len(seqs)\n"
        "            self._expiring -= len(seqs)\n"
        "            for seq in seqs:\n"
        "                job = self.jobs.get(seq)\n"
        "                if job is not None and job.phase == LEASED and job.until_ms <= now_ms:",
        breaks="A lease runs up to its deadline, that millisecond included.",
        check="jobs",
    ),
    Mutant(
        name="the ack of a stale lease is accepted",
        file="topics/jobs/lease_table.py",
        old=" and (fence is None or self.lease_id == fence)",
        new="",
        breaks="A lease that is over cannot acknowledge the job of the next one.",
        check="jobs",
    ),
    Mutant(
        name="deliveries are not counted",
        file="topics/jobs/lease_table.py",
        old="            job.deliveries += 1\n",
        new="",
        breaks="A job that was delivered too often becomes a dead letter.",
        check="jobs",
    ),
    Mutant(
        name="an older lease changes a newer one",
        file="topics/jobs/lease_table.py",
        old="        elif stored.lease_id < job.lease_id:\n            return False\n",
        new="",
        breaks="The newest lease of a job counts after a restart.",
        check="jobs",
    ),
    Mutant(
        name="leases are not restored from the log",
        file="topics/jobs/lease_log.py",
        old="        if table.restore(stored, ts, entry.outcome, entry.error) and rate is not None:",
        new="        if rate is not None:",
        breaks="Durable leases survive a restart, so that no job is given to two workers.",
        check="jobs",
    ),
    Mutant(
        name="a job is deleted before its dead letter is kept",
        file="topics/jobs/dead_letters.py",
        old="    appended.commit.on_done(copied)\n",
        new="    copied(COMMITTED)\n",
        breaks="A job is never lost on its way to the dead-letter topic.",
        check="jobs",
    ),
    Mutant(
        name="lease ids are given out again after a restart",
        file="topics/core.py",
        old="        self.next_lease_id = number << _LEASES_PER_MS_BITS\n",
        new="        self.next_lease_id = 1\n",
        breaks="A lease of an earlier run cannot acknowledge a job of this one.",
        check="jobs",
    ),
]

ROUTER_AND_JOB_FAULTS: Final = [*ROUTING, *CHANGING_CLASS, *LEASING]
