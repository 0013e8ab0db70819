"""Recording what clients do: calls with the moments of call and answer, one history for each topic and job.

Owns the moments and the parts of a history. Threads may share one; the time comes from one clock for all
of them.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tests.histories.checker import Operation, check
from tests.histories.lease_model import Ended, LeaseModel
from tests.histories.log_model import WINDOW_MS, Crash, LogModel, without_lost


class Part(NamedTuple):
    """What an operation is about: a topic, or one job of it. What concerns two parts is recorded in both."""

    topic: str
    job: int | None = None

    def __str__(self) -> str:
        return f"topic {self.topic}" if self.job is None else f"job {self.job} of {self.topic}"


@dataclass(frozen=True, slots=True)
class Totals:
    """What was checked."""

    histories: int = 0
    operations: int = 0
    unanswered: int = 0
    states: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.histories + other.histories,
            self.operations + other.operations,
            self.unanswered + other.unanswered,
            self.states + other.states,
        )


class Call:
    """An operation that has begun."""

    def __init__(self, history: History, client: str, moment: int) -> None:
        self._history = history
        self._client = client
        self._moment = moment

    def answered(self, part: Part, action: Any) -> None:
        """It was answered."""
        self._history.add(part, self._client, self._moment, self._history.now(), action)

    def unanswered(self, part: Part, action: Any) -> None:
        """No answer came, or one that leaves the outcome open."""
        self._history.add(part, self._client, self._moment, None, action)


class History:
    """All operations of a run."""

    def __init__(self, now: Callable[[], int] = time.monotonic_ns) -> None:
        self.now = now
        self._lock = threading.Lock()
        self._parts: dict[Part, list[Operation]] = defaultdict(list)
        self._numbers = 0
        self._lost_claims: Counter[str] = Counter()

    def call(self, client: str) -> Call:
        """An operation begins now."""
        return Call(self, client, self.now())

    def add(self, part: Part, client: str, call: int, end: int | None, action: Any) -> None:
        """Record an operation."""
        with self._lock:
            self._numbers += 1
            self._parts[part].append(Operation(self._numbers, client, call, end, action))

    def adopt(self, part: Part, operation: Operation) -> None:
        """Take over an operation that was recorded elsewhere; its number must be new."""
        self._parts[part].append(operation)

    def claim_unanswered(self, topic: str) -> None:
        """A claim was not answered: some jobs may have been delivered once more."""
        with self._lock:
            self._lost_claims[topic] += 1

    def parts(self) -> list[Part]:
        """What was recorded so far."""
        return list(self._parts)

    def operations(self, part: Part) -> list[Operation]:
        """The history of one part."""
        return list(self._parts[part])

    def check(self, window_ms: int = WINDOW_MS) -> Totals:
        """Raise `NotLinearizable` unless there is an order for every part."""
        totals = Totals()
        for part, recorded in sorted(self._parts.items(), key=str):
            operations = [_lapsed(each, recorded) for each in recorded]
            if part.job is None:
                visited = check(LogModel(operations, window_ms), without_lost(operations), str(part))
            else:
                visited = check(LeaseModel(self._lost_claims[part.topic]), operations, str(part))
            unanswered = sum(operation.end is None for operation in operations)
            totals += Totals(1, len(operations), unanswered, visited)
        return totals


def _lapsed(operation: Operation, operations: list[Operation]) -> Operation:
    """What a server has not answered when it ends has happened by then, or never will."""
    if operation.end is not None or operation.lapse is not None:
        return operation
    ends = [
        each.end
        for each in operations
        if isinstance(each.action, Crash | Ended) and each.end is not None and each.end > operation.call
    ]
    return replace(operation, lapse=min(ends) - 1) if ends else operation
