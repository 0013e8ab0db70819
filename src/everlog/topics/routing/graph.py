"""Where records can go: the topics as nodes, the routers as edges. Pure, knows names only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


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
                return _way(came_from, source, name)
            if following not in came_from:
                came_from[following] = name
                stack.append(following)
    return None


def _way(came_from: dict[str, str], source: str, last: str) -> list[str]:
    """The names from `source` over `last` back to `source`."""
    way = [source]
    while last != source:
        way.append(last)
        last = came_from[last]
    return [*way, source][::-1]
