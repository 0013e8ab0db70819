"""The graph of routers against plain reachability: a cycle is named exactly when there is one."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from everlog.topics.routing.table import find_cycle

names = st.sampled_from("abcdef")
graphs = st.dictionaries(names, st.sets(names, max_size=4), max_size=6)


def reachable(edges: dict[str, set[str]], start: str) -> set[str]:
    """Every topic to which records of `start` can get."""
    found: set[str] = set()
    while more := {name for each in (start, *found) for name in edges.get(each, ())} - found:
        found |= more
    return found


@given(graphs, names, names)
def test_a_cycle_is_found_exactly_when_the_destination_leads_back(
    edges: dict[str, set[str]], source: str, dest: str
) -> None:
    cycle = find_cycle(edges, source, dest)
    assert (cycle is not None) == (source == dest or source in reachable(edges, dest))


@given(graphs, names, names)
def test_a_named_cycle_begins_and_ends_with_the_source_and_follows_edges(
    edges: dict[str, set[str]], source: str, dest: str
) -> None:
    cycle = find_cycle(edges, source, dest)
    if cycle is None:
        return
    assert cycle[0] == cycle[-1] == source
    assert cycle[1] == dest
    steps = list(itertools.pairwise(cycle))[1:]
    assert all(following in edges[name] for name, following in steps)
    assert len(set(cycle[:-1])) == len(cycle) - 1
