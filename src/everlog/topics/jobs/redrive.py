"""Bring dead letters back to their job queues.

Owns the order: the copies and a note of which letters they are go into the log as one batch of the target;
then the letters are deleted. If a crash comes in between, recovery finds the note and deletes them, so no
letter is brought back twice and none is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from everlog.api_types import Durability, TopicType
from everlog.errors import LimitReached, RecordTooLarge, StorageFailed, TopicFull
from everlog.topics.append import append
from everlog.topics.commits import Commit
from everlog.topics.filters import Filter
from everlog.topics.jobs.dead_letters import PROVENANCE, with_marks
from everlog.topics.jobs.job_states import Selection, StoredRow, look
from everlog.topics.jobs.lease_log import apply_delete_seqs, lease_table_of, runs_of
from everlog.topics.jobs.lease_table import DELETING, LEASED
from everlog.topics.jobs.steps import Load, Steps, Turn, check_there
from everlog.topics.records import NewRecord
from everlog.topics.storage.control import DeleteSeqs, Redriven, encode
from everlog.topics.storage.layout import FrameType

if TYPE_CHECKING:
    from everlog.topics.core import Core
    from everlog.topics.topic import Topic

REDRIVEN_FROM: Final = "$redriven_from"
TIME_MAX_MS: Final = 30_000
_STEP_LETTERS: Final = 250
_FROM: Final = f"{PROVENANCE}from"
_metas: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_PENDING_MAX: Final = 8
"""Batches that may wait for the disk at a time."""


class Redrive(NamedTuple):
    """What is to be brought back: where to (None: where each came from), which, and how many at most.

    `allows` says whether a topic may be written to.
    """

    to: str | None = None
    filter: Filter | None = None
    limit: int | None = None
    dry_run: bool = False
    allows: Callable[[str], bool] = lambda _: True


class Redrove(NamedTuple):
    """How many letters were brought back, and how many that were meant are left."""

    moved: int
    left: int
    queues: dict[str, int]
    """The moved ones by where they went."""


def redrive(core: Core, topic: Topic, wanted: Redrive, load: Load) -> Steps[Redrove]:
    """Bring back the letters that there are now; after half a minute it ends with what is left."""
    turn = Turn(core.clock)
    until_ms = core.now_ms() + TIME_MAX_MS
    after_seq, end_seq = 0, topic.visible
    moved = _Moved(core, topic)
    left = 0
    while after_seq < end_seq:
        if core.now_ms() >= until_ms:
            left += topic.log.live_in(after_seq + 1, end_seq + 1)[0]
            break
        rows, after_seq = yield from look(
            core,
            topic,
            Selection(filter=wanted.filter),
            load,
            after_seq,
            end_seq,
            with_data=True,
            limit=_STEP_LETTERS,
        )
        room = len(rows) if wanted.limit is None else max(0, wanted.limit - moved.begun)
        groups, skipped = _targets(core, topic, wanted, rows)
        left += skipped
        for name, letters in groups.items():
            taken = letters[:room]
            if wanted.dry_run:
                moved.queues[name] = moved.queues.get(name, 0) + len(taken)
                fitting = len(taken)
            else:
                fitting = moved.move(name, taken)
            room -= fitting
            left += len(letters) - fitting
            moved.begun += fitting
        while len(moved.pending) >= _PENDING_MAX:
            yield moved.pending[0]
            moved.drop_finished()
        if turn.is_over:
            yield None
            turn.begin()
            check_there(topic)
    while moved.pending:
        yield moved.pending[0]
        moved.drop_finished()
    if moved.refusal is not None and not moved.begun:
        raise moved.refusal
    return Redrove(sum(moved.queues.values()), left, moved.queues)


def _targets(
    core: Core, topic: Topic, wanted: Redrive, rows: list[StoredRow]
) -> tuple[dict[str, list[StoredRow]], int]:
    """The letters by where they go, and how many cannot go anywhere now."""
    groups: dict[str, list[StoredRow]] = {}
    skipped = 0
    table = lease_table_of(topic) if topic.config.type is TopicType.QUEUE else None
    for row in rows:
        job = None if table is None else table.jobs.get(row.seq)
        target = wanted.to or _origin(row)
        if (
            target is None
            or target == topic.name
            or not _is_queue(core, target)
            or not wanted.allows(target)
            or (job is not None and job.phase in (LEASED, DELETING))
        ):
            skipped += 1
        else:
            groups.setdefault(target, []).append(row)
    return groups, skipped


def _is_queue(core: Core, name: str) -> bool:
    topic = core.topics.get(name)
    return topic is not None and topic.config.type is TopicType.QUEUE


def _origin(row: StoredRow) -> str | None:
    """Where a letter came from, None if it does not say."""
    text = bytes(row.meta)
    if _FROM.encode() not in text:
        return None
    try:
        return msgspec.json.decode(_metas.decode(text)[_FROM], type=str)
    except (msgspec.MsgspecError, KeyError):
        return None


class _Moved:
    """Letters of one topic that are brought back, in batches."""

    def __init__(self, core: Core, topic: Topic) -> None:
        self._core = core
        self._topic = topic
        self.begun = 0
        self.queues: dict[str, int] = {}
        """Those of the begun ones that are committed, by where they went."""
        self.pending: list[Commit] = []
        self.refusal: TopicFull | None = None
        """What the first job queue without room said."""
        self._full: set[str] = set()

    def move(self, target: str, letters: list[StoredRow]) -> int:
        """Append letters to their job queue, as many as it has room for; how many.

        They are deleted when that is committed.
        """
        if not letters or target in self._full:
            return 0
        try:
            self._move(target, letters)
            return len(letters)
        except (TopicFull, RecordTooLarge) as error:
            half = len(letters) // 2
            if not half:
                if isinstance(error, TopicFull):
                    self._full.add(target)
                    self.refusal = self.refusal or error
                return 0
        return self.move(target, letters[:half]) + self.move(target, letters[half:])

    def _move(self, target: str, letters: list[StoredRow]) -> None:
        core, topic = self._core, self._topic
        mark: dict[str, object] = {REDRIVEN_FROM: topic.name}
        records = [NewRecord(row.data, row.tag, row.node, _marked(bytes(row.meta), mark)) for row in letters]
        seqs = [row.seq for row in letters]
        times = {row.seq: row.ts for row in letters}
        runs = [(first, count, times[first], times[first + count - 1]) for first, count in runs_of(seqs)]
        note = Redriven(topic.topic_id, runs)
        table = lease_table_of(topic) if topic.config.type is TopicType.QUEUE else None
        appended = append(
            core, target, records, None, None, False, None, extras=((FrameType.REDRIVEN, encode(note)),)
        )
        if table is not None:
            for seq in seqs:
                table.begin_delete(seq)
        self.pending.append(appended.commit)

        def done(commit: Commit) -> None:
            if commit.error is None:
                self.queues[target] = self.queues.get(target, 0) + len(seqs)
                _delete_moved(core, topic, seqs)
            elif table is not None:
                for seq in seqs:
                    table.abort_delete(seq)

        appended.commit.on_done(done)

    def drop_finished(self) -> None:
        """Forget the batches that are done; raise what one failed with."""
        self.pending = [commit for commit in self.pending if not commit.done or commit.error]
        for commit in self.pending:
            if commit.done and commit.error is not None:
                raise commit.error


def _marked(meta: bytes, mark: dict[str, object]) -> bytes:
    """The meta of a letter as it was before, and where it has been."""
    if REDRIVEN_FROM.encode() in meta:
        values = {name: value for name, value in _metas.decode(meta).items() if name != REDRIVEN_FROM}
        meta = msgspec.json.encode(values)
    return with_marks(meta or None, mark)


def _delete_moved(core: Core, topic: Topic, seqs: list[int]) -> None:
    """Delete letters that are committed elsewhere. At once: the note in the log says it already."""
    if topic.deleted:
        return
    entry = DeleteSeqs(runs_of(seqs))
    apply_delete_seqs(topic, entry)
    if not core.logs_changes(topic):
        return
    try:
        core.log_change(
            topic, FrameType.DELETE_SEQS, encode(entry), needs_sync=topic.durability is Durability.FSYNC
        )
    except (StorageFailed, LimitReached):
        return  # the note deletes them again at the next start
