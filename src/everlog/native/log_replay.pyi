"""Types of the native log replay."""

from typing_extensions import Buffer

from everlog.native.frames import LogFrame
from everlog.native.topic_log import TopicLog

class LogReplay:
    appended: int
    skipped: int
    gaps: list[tuple[int, int, int]]
    def __init__(self, buffer: Buffer, start: int, source: int, logs: dict[int, TopicLog]) -> None: ...
    @property
    def position(self) -> int: ...
    @property
    def outcome(self) -> str: ...
    def run(self) -> LogFrame | None: ...
