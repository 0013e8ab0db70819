"""Work that is too much for one turn of the loop, as a generator: it yields between two turns.

A step yields a commit to go on when that is done, and None to go on with the next turn. The engine runs steps
to the end; a server lets requests have their turns in between.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Final, TypeVar

from everlog.errors import TopicNotFound
from everlog.topics.commits import Commit
from everlog.topics.reading import ColdRead

if TYPE_CHECKING:
    from everlog.clock import Clock
    from everlog.topics.topic import Topic

T = TypeVar("T")
Steps = Generator[Commit | None, None, T]
Load = Callable[[int], bool]
SLICE_NS: Final = 3_000_000


class Turn:
    """The time that is left of a turn."""

    __slots__ = ("_clock", "_until_ns")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_ns = clock.monotonic_ns() + SLICE_NS

    @property
    def is_over(self) -> bool:
        """Whether others should have a turn; it is the next one then."""
        now_ns = self._clock.monotonic_ns()
        if now_ns < self._until_ns:
            return False
        self._until_ns = now_ns + SLICE_NS
        return True

    def begin(self) -> None:
        """A new turn begins."""
        self._until_ns = self._clock.monotonic_ns() + SLICE_NS


def loaded(load: Load, source: int) -> Steps[None]:
    """Bring a segment into memory."""
    try:
        load(source)
    except ColdRead as read:
        yield read.commit


def check_there(topic: Topic) -> None:
    """Raise if the topic was deleted meanwhile."""
    if topic.deleted:
        raise TopicNotFound(f"topic {topic.name!r} was deleted meanwhile", topic.name)
