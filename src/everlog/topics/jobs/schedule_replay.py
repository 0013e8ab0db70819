"""Schedules in the log: the definitions, and up to which instant each has fired."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from everlog.topics.storage.control import ScheduleFired, ScheduleRecord, decode
from everlog.topics.storage.layout import FrameType

if TYPE_CHECKING:
    from everlog.native.topics.log import LogFrame
    from everlog.topics.core import Core


class ScheduleReplay:
    """Fires are in the shards of their topics, so they may come before their definition."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._fired: dict[int, ScheduleFired] = {}  # by instance: the last one

    def apply(self, frame: LogFrame) -> None:
        """Replay one entry."""
        if frame.type == FrameType.SCHEDULE:
            record = decode(frame.data, ScheduleRecord)
            if record.is_deleted:
                self._core.schedules.pop(record.name, None)
            else:
                self._core.schedules[record.name] = record
            return
        fired = decode(frame.data, ScheduleFired)
        known = self._fired.get(fired.instance)
        if known is None or fired.ts > known.ts:
            self._fired[fired.instance] = fired

    def finish(self) -> None:
        """Apply the fires to the definitions that are left."""
        for name, record in self._core.schedules.items():
            fired = self._fired.get(record.instance)
            if fired is not None and fired.ts > (record.last_ts or 0):
                self._core.schedules[name] = msgspec.structs.replace(
                    record,
                    from_ts=max(record.from_ts, fired.ts),
                    last_ts=fired.ts,
                    last_seq=fired.seq,
                    fired_total=max(record.fired_total, fired.fired_total),
                )
