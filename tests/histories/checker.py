"""Whether overlapping operations can be explained by one order of them: linearizability of a history.

Owns the search; what an operation means is the model's business. The search is that of Wing and Gong,
done just in time as Lowe describes: events are read in the order of time, and an operation has to find
its place only when its answer comes. All states that are still possible are kept together with the
operations that have led to them, and each pair is visited once. See ADR 0022.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

S = TypeVar("S")
CONFIGURATIONS_MAX = 200_000
SHOWN_BEFORE = 6


class Illegal(Exception):
    """This operation cannot happen in this state; the text says why."""


class Action(Protocol):
    """What was asked and what was answered."""

    @property
    def is_query(self) -> bool:
        """Whether it changes nothing wherever it is legal: then the first place is as good as any."""
        ...


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a client. Without an answer it may have happened until `lapse`, or not at all."""

    number: int
    client: str
    call: int
    end: int | None
    action: Any
    lapse: int | None = None

    def __str__(self) -> str:
        last = f"{self.end}" if self.end is not None else "no answer"
        return f"[{self.call} .. {last}] {self.client}: {self.action}"


class Model(Protocol[S]):
    """What operations do to a state. States are compared and hashed."""

    def initial(self) -> S:
        """The state before the first operation."""
        ...

    def step(self, state: S, operation: Operation) -> S:
        """The state after an operation; raises `Illegal`."""
        ...


class NotLinearizable(AssertionError):
    """No order of these operations explains what was answered."""


class Undecided(AssertionError):
    """The search was given up: too many possible states."""


class Event(NamedTuple):
    """A call, or the end of one. At the same moment calls come first: then the two overlap."""

    time: int
    is_end: bool
    number: int


class Configuration(NamedTuple, Generic[S]):
    """A possible state, and which of the operations under way have led to it."""

    state: S
    done: frozenset[int]


class Search(Generic[S]):
    """One pass over a history."""

    def __init__(self, model: Model[S], name: str, configurations_max: int = CONFIGURATIONS_MAX) -> None:
        self._model = model
        self._name = name
        self._max = configurations_max
        self._pending: dict[int, Operation] = {}
        self._configurations: set[Configuration[S]] = {Configuration(model.initial(), frozenset())}
        self._before: list[Operation] = []
        self.visited = 0

    def run(self, operations: Iterable[Operation]) -> None:
        """Raise `NotLinearizable` unless there is an order."""
        known = {operation.number: operation for operation in operations}
        for event in sorted(_events(known.values())):
            operation = known[event.number]
            if not event.is_end:
                self._pending[operation.number] = operation
                self._configurations = {self._with_queries(c, (operation,)) for c in self._configurations}
            elif operation.end is None:
                self._lapse(operation)
            else:
                self._answer(operation)

    def _answer(self, operation: Operation) -> None:
        """Keep the configurations in which the operation has happened."""
        found = self._reach(operation)
        if not found:
            raise NotLinearizable(self._report(operation))
        self._configurations = found
        self._before.append(operation)
        self._forget(operation.number)
        # What has happened in every possible past is over, answered or not.
        for number in frozenset.intersection(*(c.done for c in self._configurations)):
            if self._pending[number].end is None:
                self._forget(number)

    def _lapse(self, operation: Operation) -> None:
        """An operation without an answer has happened by now, or never will."""
        if operation.number in self._pending:
            self._configurations |= self._reach(operation)
            self._forget(operation.number)

    def _reach(self, operation: Operation) -> set[Configuration[S]]:
        """Every configuration in which the operation has just happened, made from those that are possible."""
        waiting = list(self._configurations)
        seen = set(waiting)
        found: set[Configuration[S]] = set()
        while waiting:
            configuration = waiting.pop()
            if operation.number in configuration.done:
                found.add(configuration)
                continue
            for after in self._continuations(configuration):
                if after not in seen:
                    seen.add(after)
                    waiting.append(after)
            if len(seen) > self._max:
                raise Undecided(f"{self._name}: more than {self._max} states before {operation}")
        self.visited += len(seen)
        return found

    def _continuations(self, configuration: Configuration[S]) -> Iterator[Configuration[S]]:
        for operation in self._pending.values():
            if operation.number not in configuration.done:
                try:
                    state = self._model.step(configuration.state, operation)
                except Illegal:
                    continue
                after = Configuration(state, configuration.done | {operation.number})
                yield self._with_queries(after, self._pending.values())

    def _with_queries(
        self, configuration: Configuration[S], operations: Iterable[Operation]
    ) -> Configuration[S]:
        """Let the queries under way happen here if they can: they change nothing, so no order is lost."""
        state, done = configuration
        for operation in operations:
            if operation.end is not None and operation.action.is_query and operation.number not in done:
                try:
                    if self._model.step(state, operation) == state:
                        done |= {operation.number}
                except Illegal:
                    continue
        return Configuration(state, done)

    def _forget(self, number: int) -> None:
        if self._pending.pop(number, None) is not None:
            self._configurations = {Configuration(c.state, c.done - {number}) for c in self._configurations}

    def _report(self, operation: Operation) -> str:
        """Which operations cannot be ordered, and why not."""
        reasons: dict[str, None] = {}
        for configuration in list(self._configurations)[:SHOWN_BEFORE]:
            try:
                self._model.step(configuration.state, operation)
            except Illegal as error:
                reasons[f"after {configuration.state}: {error}"] = None
        others = [each for each in self._pending.values() if each is not operation]
        lines = [
            f"{self._name}: no order of the operations explains the answer to",
            f"  {operation}",
            *(f"    {reason}" for reason in reasons),
            "at the same time:",
            *(f"  {each}" for each in others),
            "answered just before:",
            *(f"  {each}" for each in self._before[-SHOWN_BEFORE:]),
        ]
        return "\n".join(lines)


def _events(operations: Iterable[Operation]) -> Iterator[Event]:
    for operation in operations:
        yield Event(operation.call, False, operation.number)
        last = operation.lapse if operation.end is None else operation.end
        if last is not None:
            yield Event(last, True, operation.number)


def check(model: Model[S], operations: Iterable[Operation], name: str) -> int:
    """Raise `NotLinearizable` unless one order explains every answer; return how many states were visited."""
    search = Search(model, name)
    search.run(operations)
    return search.visited
