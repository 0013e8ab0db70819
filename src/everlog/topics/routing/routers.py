"""Which routers there are: create, change, list, delete.

Owns the refusals and the control frames that keep the table. Every change waits for a sync.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from everlog.api_types import Guarantee
from everlog.errors import (
    InvalidRequest,
    LimitReached,
    RouterCycle,
    RouterIncompatible,
    RouterNotFound,
    TopicNotFound,
)
from everlog.topics import catalogue
from everlog.topics.commits import COMMITTED, Commit, together
from everlog.topics.config import TopicConfig
from everlog.topics.routing.definitions import RouterConfig, RouterDeleted, RouterPut
from everlog.topics.routing.table import Router, find_cycle
from everlog.topics.storage.control import RouterDelete, encode
from everlog.topics.storage.layout import FrameType

if TYPE_CHECKING:
    from everlog.topics.core import Core
    from everlog.topics.filters import Filter
    from everlog.topics.topic import Topic


def find(core: Core, name: str) -> Router:
    """Return the router; `RouterNotFound` if there is none."""
    router = core.routers.by_name.get(name)
    if router is None:
        raise RouterNotFound(f"there is no router {name!r}; create it or check the name")
    return router


def put_router(core: Core, name: str, config: RouterConfig) -> RouterPut:
    """Copy what comes to a topic to another one from now on, or change how an existing router does so."""
    selection = config.check(name)
    existing = core.routers.by_name.get(name)
    if existing is not None:
        _check_ends(existing, config)
        _check_cycle(core, name, config)
        return _change(core, existing, config, selection)
    _check_fan_in(core, config)
    _check_cycle(core, name, config)
    _check_limits(core, config)
    source, source_commit = _topic(core, config.source)
    dest, dest_commit = _topic(core, config.dest)
    router = Router(core.routers.next_id, name, source, dest, source.visible)
    core.routers.next_id += 1
    _define(router, config, selection)
    commit = core.log_change(source, FrameType.ROUTER_CREATE, encode(router.record()), router.on_commit)
    core.routers.add(router)
    whole = together((source_commit, dest_commit, commit))

    def done(commit: Commit) -> None:
        if commit.error is not None:
            core.routers.remove(router)
        elif core.routers.by_name.get(name) is router:
            router.is_active = True

    whole.on_done(done)
    return RouterPut(True, router.state(), whole)


def _check_ends(router: Router, config: RouterConfig) -> None:
    ends = (router.source.name, router.dest.name)
    if ends != (config.source, config.dest):
        raise RouterIncompatible(
            f"router {router.name!r} leads from {ends[0]!r} to {ends[1]!r}, which cannot be changed to "
            f"{config.source!r} and {config.dest!r}; delete it first or use another name",
            "router_repoint_forbidden",
            ends,
            router.name,
        )


def _check_fan_in(core: Core, config: RouterConfig) -> None:
    dest = core.topics.get(config.dest)
    for router in dest.routes.feeders if dest is not None else ():
        if router.source.name != config.source:
            raise RouterIncompatible(
                f"topic {config.dest!r} already gets the records of {router.source.name!r} through router "
                f"{router.name!r}; those of two sources would have no common order, use another destination",
                "router_dest_fan_in",
                (router.source.name, config.dest),
                router.name,
            )


def _check_cycle(core: Core, name: str, config: RouterConfig) -> None:
    if config.allow_cycle:
        return
    cycle = find_cycle(core.routers.edges(without=name), config.source, config.dest)
    if cycle is not None:
        raise RouterCycle(
            f"router {name!r} would close the cycle {' -> '.join(cycle)}; leave it open, or set allow_cycle",
            tuple(cycle),
        )


def _check_limits(core: Core, config: RouterConfig) -> None:
    """Refuse before anything is created."""
    for end in (config.source, config.dest):
        if end not in core.topics:
            catalogue.check_served(core, end)
    limit = core.settings.max_routers
    if limit and len(core.routers) >= limit:
        raise LimitReached(
            f"there are {len(core.routers)} routers, as many as max_routers allows; delete some",
            "max_routers",
            limit,
        )
    if not config.create_dest and config.dest not in core.topics:
        raise TopicNotFound(
            f"there is no topic {config.dest!r}, and this router may not create it", config.dest
        )
    missing = sum(name not in core.topics for name in (config.source, config.dest))
    if core.settings.max_topics and len(core.topics) + missing > core.settings.max_topics:
        raise LimitReached(
            f"there are {len(core.topics)} topics, and the router needs {missing} more than there are; "
            f"max_topics allows {core.settings.max_topics}",
            "max_topics",
            core.settings.max_topics,
        )


def _topic(core: Core, name: str) -> tuple[Topic, Commit]:
    """A topic at one end of a router, created if there is none."""
    topic = core.topics.get(name)
    if topic is not None:
        return topic, COMMITTED
    topic = catalogue.new_topic(core, name, True, TopicConfig())
    return topic, catalogue.log_create(core, topic)


def _define(router: Router, config: RouterConfig, selection: Filter | None) -> None:
    router.preserve_node = config.preserve_node
    router.preserve_tag = config.preserve_tag
    router.allow_cycle = config.allow_cycle
    router.guarantee = Guarantee(config.guarantee)
    router.filter = selection


def _change(core: Core, router: Router, config: RouterConfig, selection: Filter | None) -> RouterPut:
    """Change the definition of a router once that is committed; its cursor stays."""
    changed = Router(router.router_id, router.name, router.source, router.dest, router.committed_cursor)
    changed.total = changed.committed_total = router.committed_total
    changed.reused = router.reused
    _define(changed, config, selection)

    def apply() -> None:
        _define(router, config, selection)

    commit = core.log_change(router.source, FrameType.ROUTER_CREATE, encode(changed.record()), apply)
    return RouterPut(False, changed.state(), commit)


def delete_router(core: Core, name: str) -> RouterDeleted:
    """Delete a router, if there is one; it copies nothing more, and what it has copied stays."""
    router = core.routers.by_name.get(name)
    if router is None:
        return RouterDeleted(False, COMMITTED)
    frame = encode(RouterDelete(router.router_id))
    commit = core.log_change(
        router.source, FrameType.ROUTER_DELETE, frame, undo=partial(core.routers.restore, router)
    )
    core.routers.remove(router)
    return RouterDeleted(True, commit)


def list_routers(
    core: Core,
    prefix: str,
    source: str | None,
    dest: str | None,
    after: str | None,
    limit: int,
    is_shown: Callable[[str], bool],
) -> list[Router]:
    """Return up to `limit` routers in byte order of their names, of those whose name and ends are shown."""
    if limit < 1:
        raise InvalidRequest(f"a list of {limit} routers was asked for; the limit must be at least 1")
    return core.routers.page(prefix, source, dest, after, limit, is_shown)
