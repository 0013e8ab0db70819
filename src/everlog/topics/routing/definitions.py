"""The configuration and the reported state of a router. Holds no state and touches no file."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from everlog.api_types import Guarantee
from everlog.errors import InvalidRequest
from everlog.topics.commits import Commit
from everlog.topics.config import check_topic_name
from everlog.topics.filters import Filter, compile_filter
from everlog.topics.records import parse_match

HOP_LIMIT: Final = 8
RECORDS_PER_PASS: Final = 1024
INTERVAL_NS: Final = 50_000_000

ROUTER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}")


class RouterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A router as it is requested."""

    source: str
    dest: str
    preserve_node: bool = True
    preserve_tag: bool = True
    create_dest: bool = True
    filter: str | list[Any] | None = None
    allow_cycle: bool = False
    guarantee: Guarantee = Guarantee.AT_LEAST_ONCE

    def check(self, name: str) -> Filter | None:
        """Check every field; returns the filter, whose old form is a string or a term about the tag."""
        if ROUTER_NAME.fullmatch(name) is None:
            raise InvalidRequest(
                f"router name {name!r} is not allowed: 1 to 255 of A-Z a-z 0-9 . _ : > -, first a letter or "
                f"digit"
            )
        check_topic_name(self.source)
        check_topic_name(self.dest)
        if self.source == self.dest:
            raise InvalidRequest(f"a router cannot lead from {self.source!r} to itself; name two topics")
        if self.guarantee not in set(Guarantee):
            raise InvalidRequest(f"guarantee is {self.guarantee!r}; it must be one of {', '.join(Guarantee)}")
        if self.filter is None:
            return None
        is_old = isinstance(self.filter, str) or (self.filter[:1] == ["tag"] and self.filter[1:2] != ["In"])
        wanted = parse_match(self.filter).canonical() if is_old else self.filter
        return compile_filter(msgspec.json.encode(wanted))


class RouterState(msgspec.Struct, frozen=True):
    """What is reported about a router; `lag` is how many seqs of the source it is behind.

    It is `paused` while a topic at one of its ends is damaged and not served, or while the next record of its
    source, `corrupt_seq`, cannot be read.
    """

    router: str
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    filter: list[Any] | None
    allow_cycle: bool
    guarantee: Guarantee
    forwarded_total: int
    lag: int
    paused: bool = False
    corrupt_seq: int = 0


class RouterPut(msgspec.Struct, frozen=True):
    """Answer of `put_router`."""

    created: bool
    state: RouterState
    commit: Commit


class RouterDeleted(msgspec.Struct, frozen=True):
    """Answer of `delete_router`."""

    deleted: bool
    commit: Commit
