"""The route about the lake that the server was started with (`--lake`): its tables, and what jobs reported.

Owns how a table is measured: by the names and sizes of its files. Nothing of a table is opened, and the look
runs on the thread on which queues are looked at, because the files may be on a disk that hangs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Final

from everlog.lake_reports import ArchiveProgress, AuditSummary, read_report
from everlog.server.answers import LakeState, LakeTableState
from everlog.server.app import App, Call, Route
from everlog.server.auth import Scope
from everlog.server.queue_routes import QueueRoutes

TABLES_MAX: Final = 200
FILES_MAX: Final = 20_000
"""Counted of all tables together by one look."""
LOG: Final = "_delta_log"
COMMIT_DIGITS: Final = 20


class LakeRoutes:
    """The handler of /v0/lake."""

    def __init__(self, app: App, queues: QueueRoutes) -> None:
        self._queues = queues
        self._root = app.settings.lake
        app.add("GET", "/v0/lake", Route(Scope.READ, self.lake, needs_poll=False))

    def lake(self, call: Call) -> None:
        """GET /v0/lake."""
        self._queues.check_key(call)
        self._queues.look(call, partial(lake_state, self._root))


def lake_state(root: str | None) -> LakeState:
    """The tables below the root of a lake; none if the root is not there."""
    if root is None:
        return LakeState(root=None, tables=[])
    counted = iter(range(FILES_MAX))
    names = [name for name in sorted(_folders(root)) if _is_table(root, name)]
    return LakeState(root=root, tables=[_table(root, name, counted) for name in names[:TABLES_MAX]])


def _folders(root: str) -> list[str]:
    try:
        with os.scandir(root) as entries:
            return [
                entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(("_", "."))
            ]
    except OSError:
        return []


def _is_table(root: str, name: str) -> bool:
    return os.path.isdir(os.path.join(root, name, LOG))


def _table(root: str, name: str, counted: Iterator[int]) -> LakeTableState:
    files = size = 0
    is_counted = True
    for found in _data_files(os.path.join(root, name)):
        if next(counted, None) is None:
            is_counted = False
            break
        files += 1
        size += found
    return LakeTableState(
        table=name,
        version=_version(os.path.join(root, name, LOG)),
        files=files,
        bytes_on_disk=size,
        is_counted=is_counted,
        archive=read_report(root, name, ArchiveProgress),
        audit=read_report(root, name, AuditSummary),
    )


def _data_files(path: str) -> Iterator[int]:
    """The sizes of the Parquet files below a table; partitions are folders."""
    rest = [path]
    while rest:
        try:
            with os.scandir(rest.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name != LOG:
                            rest.append(entry.path)
                    elif entry.name.endswith(".parquet"):
                        yield entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue  # removed since it was listed


def _version(log: str) -> int:
    """The number of the last commit, -1 if there is none."""
    try:
        names = os.listdir(log)
    except OSError:
        return -1
    return max((int(name[:COMMIT_DIGITS]) for name in names if _is_commit(name)), default=-1)


def _is_commit(name: str) -> bool:
    return (
        len(name) == COMMIT_DIGITS + len(".json")
        and name.endswith(".json")
        and name[:COMMIT_DIGITS].isdigit()
    )
