"""The replay of a log file in short steps, on a thread beside one that serves.

Owns the steps: each holds the interpreter for about a millisecond. What the frames mean is the caller's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from everlog.native.topics.log import LogFrame, LogReplay, TopicLog

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from everlog.clock import Clock

_STEP_BYTES: Final = 1 << 18


class SteppedReplay:
    """As `LogReplay` of the bytes from `start` up to before `end`; other threads go on between two steps."""

    def __init__(
        self, content: Buffer, start: int, end: int, source: int, logs: dict[int, TopicLog], clock: Clock
    ) -> None:
        self._view = memoryview(content)
        self._end = end
        self._source = source
        self._logs = logs
        self._clock = clock
        self._step = _STEP_BYTES
        self._appended = 0
        self.gaps: list[tuple[int, int, int]] = []
        self._begin(start)

    def _begin(self, start: int) -> None:
        self._start = start
        self._step_end = min(start + self._step, self._end)
        self._replay = LogReplay(self._view[: self._step_end], start, self._source, self._logs)

    def run(self) -> LogFrame | None:
        """Apply appends up to the next control frame and return that one; None at the end."""
        while True:
            frame = self._replay.run()
            self.gaps += self._replay.gaps
            self._replay.gaps.clear()
            if frame is not None or self._step_end == self._end:
                return frame
            # The step ended inside of a batch, perhaps of one that is longer than a step.
            self._step = _STEP_BYTES if self._replay.position > self._start else 2 * self._step
            self._appended += self._replay.appended
            self._clock.sleep_ns(0)
            self._begin(self._replay.position)

    @property
    def position(self) -> int:
        """Offset behind the last frame that was applied, skipped or returned."""
        return self._replay.position

    @property
    def outcome(self) -> str:
        """Why the walk has ended, "running" if it has not."""
        return self._replay.outcome

    @property
    def appended(self) -> int:
        """How many records were applied."""
        return self._appended + self._replay.appended
