"""Which routers there are, by name and by the topics at their ends, and the cycles they would close.

Owns the table and the router objects; what is logged about them and what they copy is decided elsewhere.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from everlog.api_types import Guarantee
from everlog.topics.commits import COMMITTED
from everlog.topics.routing.definitions import RouterState
from everlog.topics.storage.control import RouterRecord

if TYPE_CHECKING:
    from everlog.topics.filters import Filter
    from everlog.topics.routing.exactly_once import Evidence
    from everlog.topics.topic import Topic


REUSED_MAX: Final = 64
"""So many starts are remembered of which the destination still has copies."""


class Router:
    """One router. `cursor` counts pending copies as done, `committed_cursor` does not."""

    __slots__ = (
        "allow_cycle",
        "committed_cursor",
        "committed_total",
        "cursor",
        "dest",
        "evidence",
        "filter",
        "guarantee",
        "is_active",
        "is_committed",
        "is_paused",
        "is_uncertain",
        "last_commit",
        "name",
        "pending",
        "preserve_node",
        "preserve_tag",
        "reused",
        "router_id",
        "source",
        "stuck_seq",
        "total",
    )

    def __init__(self, router_id: int, name: str, source: Topic, dest: Topic, cursor: int) -> None:
        self.router_id = router_id
        self.name = name
        self.source = source
        self.dest = dest
        self.preserve_node = True
        self.preserve_tag = True
        self.allow_cycle = False
        self.guarantee = Guarantee.AT_LEAST_ONCE
        self.filter: Filter | None = None
        self.cursor = self.committed_cursor = cursor
        self.total = self.committed_total = 0
        self.pending = 0  # passes that are not committed
        self.is_committed = False
        self.is_active = False  # it is committed, and both topics are
        self.is_paused = False  # a topic at one of its ends is damaged: until a start finds it whole
        self.stuck_seq = 0  # the record of the source that could not be read last
        self.is_uncertain = False  # its newest copies could not be synced: a restart shows whether they are
        self.last_commit = COMMITTED  # of the newest copies
        self.evidence: Evidence | None = None
        self.reused: list[tuple[int, int]] = []  # see `RouterRecord`

    def on_commit(self) -> None:
        """Its definition is committed."""
        self.is_committed = True

    @property
    def is_behind(self) -> bool:
        """Whether it has something to copy and may do so."""
        return self.cursor < self.source.visible and not self.is_paused and not self.is_stuck

    @property
    def is_stuck(self) -> bool:
        """Whether the next record to copy is damaged; once that one is deleted or evicted it goes on."""
        seq = self.stuck_seq
        return seq > 0 and self.cursor >= seq - 1 and self.source.log.is_live(seq)

    def note_restart(self) -> None:
        """The source may give out seqs again that it had given out before this start."""
        self.reused = [pair for pair in self.reused if pair[1] >= self.dest.earliest_seq][-REUSED_MAX:]
        self.reused.append((self.source.visible, self.dest.visible))

    def record(self) -> RouterRecord:
        """The router as it is stored."""
        selection = self.filter
        tag = selection.tag if selection is not None and selection.is_tag_only else None
        return RouterRecord(
            router_id=self.router_id,
            name=self.name,
            source_id=self.source.topic_id,
            dest_id=self.dest.topic_id,
            cursor=self.committed_cursor,
            total=self.committed_total,
            preserve_node=self.preserve_node,
            preserve_tag=self.preserve_tag,
            allow_cycle=self.allow_cycle,
            exactly_once=self.guarantee is Guarantee.EXACTLY_ONCE,
            filter_tag=None if tag is None else tag.tag,
            filter_prefix=tag is not None and tag.prefix,
            reused=self.reused,
            filter="" if selection is None or tag is not None else selection.text,
        )

    def state(self) -> RouterState:
        """The router as it is reported."""
        return RouterState(
            router=self.name,
            source=self.source.name,
            dest=self.dest.name,
            preserve_node=self.preserve_node,
            preserve_tag=self.preserve_tag,
            filter=None if self.filter is None else msgspec.json.decode(self.filter.text),
            allow_cycle=self.allow_cycle,
            guarantee=self.guarantee,
            forwarded_total=self.committed_total,
            lag=max(0, self.source.visible - self.committed_cursor),
            paused=self.is_paused or self.is_stuck,
            corrupt_seq=self.stuck_seq if self.is_stuck else 0,
        )


class RouterTable:
    """All routers of an engine."""

    def __init__(self) -> None:
        self.by_name: dict[str, Router] = {}
        self.next_id = 1
        self.stuck: dict[int, Router] = {}
        """By id: those that have met a damaged record, and may be past it by now."""

    def __len__(self) -> int:
        return len(self.by_name)

    def __iter__(self) -> Iterator[Router]:
        return iter(self.by_name.values())

    def add(self, router: Router) -> None:
        """Put a router into the table; the topics at its ends know it from now on."""
        source, dest = router.source, router.dest
        self.by_name[router.name] = router
        source.routes.feeds = (*source.routes.feeds, router)
        dest.routes.feeders = (*dest.routes.feeders, router)
        dest.order_by_seq()

    def remove(self, router: Router) -> None:
        """Take a router out of the table; it copies nothing more."""
        router.is_active = False
        self.stuck.pop(router.router_id, None)
        if self.by_name.get(router.name) is router:
            del self.by_name[router.name]
        source, dest = router.source, router.dest
        source.routes.feeds = tuple(each for each in source.routes.feeds if each is not router)
        dest.routes.feeders = tuple(each for each in dest.routes.feeders if each is not router)

    def restore(self, router: Router) -> None:
        """Undo a removal that failed, unless a topic of the router is gone."""
        if router.name not in self.by_name and not (router.source.deleted or router.dest.deleted):
            self.add(router)
            router.is_active = router.is_committed

    def touching(self, topic: Topic) -> list[Router]:
        """The routers with this topic at either end, by name."""
        found = {router.name: router for router in (*topic.routes.feeds, *topic.routes.feeders)}
        return [found[name] for name in sorted(found)]

    def edges(self, without: str) -> dict[str, set[str]]:
        """Where records can go from each topic, not counting the router of this name."""
        edges: dict[str, set[str]] = {}
        for router in self.by_name.values():
            if router.name != without:
                edges.setdefault(router.source.name, set()).add(router.dest.name)
        return edges

    def page(
        self,
        prefix: str,
        source: str | None,
        dest: str | None,
        after: str | None,
        limit: int,
        is_shown: Callable[[str], bool],
    ) -> list[Router]:
        """Up to `limit` routers in byte order of their names, behind the name `after`.

        Only those whose name and ends are shown.
        """
        names = (
            name
            for name, router in self.by_name.items()
            if name.startswith(prefix)
            and (after is None or name > after)
            and (source is None or router.source.name == source)
            and (dest is None or router.dest.name == dest)
            and all(map(is_shown, (name, router.source.name, router.dest.name)))
        )
        return [self.by_name[name] for name in heapq.nsmallest(limit, names)]


def find_cycle(edges: Mapping[str, Iterable[str]], source: str, dest: str) -> list[str] | None:
    """Return the cycle that an edge from `source` to `dest` would close, `source` first and last.

    `edges` has the destinations of each topic, without the edge in question. None if there is no cycle.
    """
    if source == dest:
        return [source, dest]
    came_from: dict[str, str] = {dest: source}
    stack = [dest]
    while stack:
        name = stack.pop()
        for following in sorted(edges.get(name, ())):
            if following == source:
                return _path(came_from, source, name)
            if following not in came_from:
                came_from[following] = name
                stack.append(following)
    return None


def _path(came_from: dict[str, str], source: str, last: str) -> list[str]:
    """The names from `source` over `last` back to `source`."""
    path = [source]
    while last != source:
        path.append(last)
        last = came_from[last]
    return [*path, source][::-1]
