"""Schedules: records that are appended at the times of a cron expression, never twice for one instant.

Owns the definitions, when each fires next, and what is logged: each fire is in the log as an entry of the
same batch as its record, so both survive a crash or neither. They are due like topics, in `due_topics`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final, Literal, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from cronsim import CronSimError
from sortedcontainers import SortedDict

from everlog.errors import (
    EverlogError,
    InvalidRequest,
    LimitReached,
    ScheduleNotFound,
    StorageFailed,
    TopicFull,
)
from everlog.job_types import JobMembers, ScheduleState
from everlog.native.topics.log import RecordBatch
from everlog.topics import catalogue
from everlog.topics.append import append
from everlog.topics.commits import COMMITTED, ChangeEntry, Commit, nothing
from everlog.topics.config import TOPIC_NAME
from everlog.topics.core import CONTROL_ROOM
from everlog.topics.jobs.cron_times import instants
from everlog.topics.jobs.new_jobs import check_job_queue
from everlog.topics.jobs.options import options_of
from everlog.topics.records import NewRecord
from everlog.topics.storage.control import ScheduleFired, ScheduleRecord, encode
from everlog.topics.storage.layout import FrameType

if TYPE_CHECKING:
    from everlog.topics.core import Core

CatchUp = Literal["none", "one", "all"]
CATCH_UP_MAX: Final = 100
_ON_TIME_MS: Final = 60_000  # later than that an instant was missed, also without a restart
_RETRY_MS: Final = 1000
_json: Final = msgspec.json.Encoder()


class ScheduleChange(NamedTuple):
    """Answer of `put`, `show` and `delete`; no state: it is gone."""

    is_new: bool
    state: ScheduleState | None
    commit: Commit


class Schedule:
    """One schedule. It is due like a topic, under an id that no topic has."""

    __slots__ = ("_table", "deleted", "due_ms", "next_ts", "record", "topic_id")

    def __init__(self, table: Schedules, record: ScheduleRecord) -> None:
        self._table = table
        self.record = record
        self.due_ms = 0
        self.next_ts: int | None = None
        self.deleted = False
        self.topic_id = -record.instance

    def run_due(self, now_ms: int) -> None:
        """Fire what is due."""
        self._table.fire(self, now_ms)


def next_after(record: ScheduleRecord, after_ms: int) -> int | None:
    """The first instant behind a time; None if there is none."""
    return next(instants(record.cron, record.timezone, after_ms), None)


def _due_instants(record: ScheduleRecord, now_ms: int) -> list[int]:
    """What has to be fired now, oldest first."""
    newest = islice(instants(record.cron, record.timezone, now_ms, reverse=True), CATCH_UP_MAX)
    due = list(takewhile(lambda instant: instant > record.from_ts, newest))[::-1]
    if record.catch_up == "all":
        return due
    if record.catch_up == "none":
        due = [instant for instant in due if now_ms - instant < _ON_TIME_MS]
    return due[-1:]


class Schedules:
    """The schedules of an engine."""

    def __init__(self, core: Core, check_open: Callable[[], None]) -> None:
        self._core = core
        self._check_open = check_open
        self._by_name: SortedDict[str, Schedule] = SortedDict()
        self._last_instance = max((each.instance for each in core.schedules.values()), default=0)
        for record in core.schedules.values():
            self._enter(record, is_start=True)

    # --- Operations --------------------------------------------------------------------------------------

    def put(
        self,
        name: str,
        topic_name: str,
        cron: str,
        record: NewRecord,
        members: JobMembers | None = None,
        *,
        timezone: str = "UTC",
        catch_up: CatchUp = "one",
        paused: bool = False,
    ) -> ScheduleChange:
        """Create a schedule, or replace all but what has fired."""
        self._check_open()
        core, known = self._core, self._by_name.get(name)
        if TOPIC_NAME.fullmatch(name) is None:
            raise InvalidRequest(f"schedule name {name!r} is not allowed: as that of a topic")
        topic = catalogue.find(core, topic_name)
        limit = core.settings.max_schedules
        if known is None and limit and len(self._by_name) >= limit:
            raise LimitReached(
                f"there are {len(self._by_name)} schedules, as many as max_schedules allows; delete some",
                "max_schedules",
                limit,
            )
        now_ms = core.now_ms()
        before = None if known is None else known.record
        new = ScheduleRecord(
            name=name,
            instance=self._new_instance() if before is None else before.instance,
            topic=topic_name,
            topic_id=topic.topic_id,
            cron=cron,
            timezone=timezone,
            data=bytes(record.data),
            tag=record.tag,
            node=record.node,
            meta=None if record.meta is None else bytes(record.meta),
            members=members,
            catch_up=catch_up,
            paused=paused,
            paused_reason=None,
            from_ts=now_ms if before is None else before.from_ts,
            created_ts=now_ms if before is None else before.created_ts,
            last_ts=None if before is None else before.last_ts,
            last_seq=None if before is None else before.last_seq,
            fired_total=0 if before is None else before.fired_total,
        )
        if before is not None and _times(before) != _times(new):
            new = msgspec.structs.replace(new, from_ts=now_ms)
        _check(new, now_ms)
        if members is not None:
            check_job_queue(topic)

        def undo() -> None:
            if before is None:
                self._leave(name)
            else:
                self._enter(before)

        commit = self._log(new, undo)
        self._enter(new)
        return ScheduleChange(known is None, self._state(new), commit)

    def _new_instance(self) -> int:
        """A number that no other schedule has, also if the clock stands still."""
        self._last_instance = max(self._core.clock.wall_ns(), self._last_instance + 1)
        return self._last_instance

    def show(self, name: str) -> ScheduleChange:
        """Report a schedule."""
        self._check_open()
        return ScheduleChange(False, self._state(self._find(name).record), COMMITTED)

    def page(
        self,
        prefix: str = "",
        after: str | None = None,
        limit: int = 100,
        is_shown: Callable[[str], bool] = lambda _: True,
    ) -> list[ScheduleState]:
        """Report schedules in byte order of their names, beginning behind the name `after`.

        Only those whose name and topic are shown.
        """
        self._check_open()
        names = takewhile(
            lambda name: name.startswith(prefix), self._by_name.irange(max(after or "", prefix))
        )
        found = (self._by_name[name].record for name in names if name != after and is_shown(name))
        return [
            self._state(record) for record in islice((each for each in found if is_shown(each.topic)), limit)
        ]

    def late_ms(self) -> int:
        """How long the schedule that waits longest is overdue. 10,000 schedules take 2 ms."""
        waiting = (each.next_ts for each in self._by_name.values() if not each.record.paused)
        now_ms = self._core.now_ms()
        return max(0, now_ms - min((ts for ts in waiting if ts is not None), default=now_ms))

    def has(self, name: str) -> bool:
        """Whether there is a schedule of this name."""
        return name in self._by_name

    def delete(self, name: str) -> ScheduleChange:
        """Delete a schedule; an absent one is no error."""
        self._check_open()
        known = self._by_name.get(name)
        if known is None:
            return ScheduleChange(False, None, COMMITTED)
        record = known.record
        commit = self._log(msgspec.structs.replace(record, is_deleted=True), lambda: self._enter(record))
        self._leave(name)
        return ScheduleChange(True, None, commit)

    def _find(self, name: str) -> Schedule:
        found = self._by_name.get(name)
        if found is None:
            raise ScheduleNotFound(f"there is no schedule {name!r}", name)
        self._check_topic(found)
        return found

    def _state(self, record: ScheduleRecord) -> ScheduleState:
        shown: dict[str, object] = {"data": msgspec.Raw(record.data)}
        shown |= {name: value for name in ("tag", "node") if (value := getattr(record, name)) is not None}
        if record.meta is not None:
            shown["meta"] = msgspec.Raw(record.meta)
        if record.members is not None:
            members = msgspec.structs.asdict(record.members)
            shown |= {name: value for name, value in members.items() if value is not None}
        return ScheduleState(
            name=record.name,
            topic=record.topic,
            cron=record.cron,
            timezone=record.timezone,
            record=shown,
            catch_up=record.catch_up,
            paused=record.paused,
            paused_reason=record.paused_reason,
            next_ts=None if record.paused else self._by_name[record.name].next_ts,
            last_ts=record.last_ts,
            last_seq=record.last_seq,
            fired_total=record.fired_total,
            created_ts=record.created_ts,
        )

    # --- The log -----------------------------------------------------------------------------------------

    def _log(
        self, record: ScheduleRecord, undo: Callable[[], None] = nothing, *, needs_sync: bool = True
    ) -> Commit:
        """Log a definition. All of them are in the first shard, so that they are replayed in order."""
        core = self._core
        if not core.shards:
            return COMMITTED
        shard = core.shards[0]
        if shard.wal.read_only is not None:
            raise shard.wal.refusal(shard.wal.read_only)
        payload = encode(record)
        shard.reserve(len(payload) + CONTROL_ROOM)
        shard.wal.buffer.append_control(FrameType.SCHEDULE, 0, 0, 0, core.now_ms(), payload)
        entry = ChangeEntry(undo=undo, needs_sync=needs_sync)
        shard.gather(entry, 1)
        return entry.commit

    def _enter(self, record: ScheduleRecord, *, is_start: bool = False) -> None:
        """Take over a definition, and find out when it fires next."""
        core = self._core
        schedule = self._by_name.get(record.name)
        if schedule is None:
            schedule = self._by_name[record.name] = Schedule(self, record)
        if is_start and record.catch_up == "none":
            record = msgspec.structs.replace(record, from_ts=max(record.from_ts, core.now_ms()))
        schedule.record = core.schedules[record.name] = record
        self._expect(schedule)

    def _leave(self, name: str) -> None:
        schedule = self._by_name.pop(name, None)
        self._core.schedules.pop(name, None)
        if schedule is not None:
            schedule.deleted = True

    def _expect(self, schedule: Schedule) -> None:
        """Put a schedule in line for its next instant."""
        if schedule.record.paused:
            return
        next_ts = schedule.next_ts = next_after(schedule.record, schedule.record.from_ts)
        if next_ts is not None:
            self._core.totals.due.add(schedule, next_ts)

    # --- Firing ------------------------------------------------------------------------------------------

    def fire(self, schedule: Schedule, now_ms: int) -> None:
        """Append a record for every instant that is due, as `catch_up` says."""
        self._check_topic(schedule)
        record = schedule.record
        if record.paused:
            return
        try:
            for instant in _due_instants(record, now_ms):
                self._fire_at(schedule, instant)
        except (StorageFailed, LimitReached, TopicFull):
            self._core.totals.due.add(schedule, now_ms + _RETRY_MS)
            return
        except EverlogError as error:
            self._pause(schedule, str(error))
            return
        last = schedule.record
        schedule.record = self._core.schedules[last.name] = msgspec.structs.replace(
            last, from_ts=max(last.from_ts, now_ms // 1000 * 1000)
        )
        self._expect(schedule)

    def _fire_at(self, schedule: Schedule, instant: int) -> None:
        core, record = self._core, schedule.record
        topic = core.topics[record.topic]
        fired = ScheduleFired(record.instance, instant, topic.log.next_seq, record.fired_total + 1)
        members = None if record.members is None else {0: record.members}
        appended = append(
            core,
            record.topic,
            [_marked(record, instant)],
            None,
            f"schedule:{record.name}:{instant}",
            False,
            None,
            jobs=members,
            extras=((FrameType.SCHEDULE_FIRED, encode(fired)),),
        )
        seq = appended.seqs[0] if appended.seqs else appended.first_seq
        after = msgspec.structs.replace(
            record, from_ts=instant, last_ts=instant, last_seq=seq, fired_total=record.fired_total + 1
        )
        schedule.record = core.schedules[record.name] = after
        if not core.is_logged(topic) or not appended.count or appended.deduped:
            self._log(after, needs_sync=False)  # there is no batch to say it

        def undo(commit: Commit) -> None:
            if commit.error is not None and not schedule.deleted and schedule.record.from_ts >= instant:
                self._enter(msgspec.structs.replace(schedule.record, from_ts=record.from_ts))

        appended.commit.on_done(undo)

    def _check_topic(self, schedule: Schedule) -> None:
        """Pause a schedule whose topic is gone."""
        record = schedule.record
        topic = self._core.topics.get(record.topic)
        if not record.paused and (topic is None or topic.topic_id != record.topic_id):
            self._pause(schedule, f"topic {record.topic!r} was deleted; put the schedule again to go on")

    def _pause(self, schedule: Schedule, reason: str) -> None:
        paused = msgspec.structs.replace(schedule.record, paused=True, paused_reason=reason[:500])
        schedule.record = self._core.schedules[paused.name] = paused
        try:
            self._log(paused, needs_sync=False)
        except (StorageFailed, LimitReached):
            return  # the next start finds the same


def _times(record: ScheduleRecord) -> tuple[object, ...]:
    """What decides when a schedule fires."""
    return record.cron, record.timezone, record.paused, record.topic_id


def _marked(record: ScheduleRecord, instant: int) -> NewRecord:
    """The record that is appended for one instant."""
    marks = _json.encode({"$schedule": record.name, "$scheduled_ts": instant})
    meta = record.meta or b"{}"
    text = meta[:-1] + (b"," if len(meta) > len(b"{}") else b"") + marks[1:]
    return NewRecord(record.data, record.tag, record.node, text)


def _check(record: ScheduleRecord, now_ms: int) -> None:
    """Refuse what could never fire."""
    try:
        if record.timezone != "UTC":
            ZoneInfo(record.timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidRequest(
            f"timezone is {record.timezone!r}; it must be a name like Europe/Berlin"
        ) from None
    if len(record.cron) > 1000:
        raise InvalidRequest(f"cron has {len(record.cron)} characters; at most 1000 are allowed")
    try:
        first = next_after(record, now_ms)
    except CronSimError as error:
        raise InvalidRequest(
            f"cron is {record.cron!r}: {error}; write five fields, or six with seconds first"
        ) from None
    if first is None:
        raise InvalidRequest(f"cron is {record.cron!r}, which never comes")
    RecordBatch([_marked(record, now_ms)], None)
    if record.members is not None:
        options_of({0: record.members}, now_ms)
