"""Replays of what lies at a path: a queue, an archive queue, an archive root, or part of one.

Owns which reader fits. A merge and a replay do not know whether they read a queue or an archive.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Final

from everlog.archive import layout
from everlog.archive.history import HistoryReader
from everlog.archive.reader import ArchiveReader, archive_directories, open_archive, select_directories
from everlog.archive.remote import RemoteTier, is_url
from everlog.archive.tiers import Tier, list_segments
from everlog.errors import InvalidConfig
from everlog.fs import Fs, OsFs
from everlog.market.replay import MessageReader, Replay
from everlog.queue.layout import CONTROL_FILE

Kind = tuple[str | None, str | None, str | None]
"""Venue, symbol and stream of directories."""

_ALL: Final[Kind] = (None, None, None)


def replays(
    path: str | os.PathLike[str],
    *,
    venue: str | None = None,
    symbol: str | None = None,
    stream: str | None = None,
    first_date: str | None = None,
    last_date: str | None = None,
    cache: str | None = None,
    fs: Fs | None = None,
) -> list[Replay]:
    """Return a replay of a queue, or of each stream of an archive, in the order of their names.

    `path` may be an address such as `s3://bucket/prefix`. `venue`, `symbol`, `stream` and the days, both
    included, choose among the directories of an archive. `cache` is the directory that keeps blocks of
    segments in object stores.
    """
    root, files = os.fspath(path), fs or OsFs()
    root = root.rstrip("/") if is_url(root) else root
    chosen = (venue, symbol, stream, first_date, last_date)

    def opener(kind: Kind, first: str | None = None, last: str | None = None) -> Callable[[], ArchiveReader]:
        return partial(
            open_archive,
            root,
            venue=kind[0],
            symbol=kind[1],
            stream=kind[2],
            first_date=first,
            last_date=last,
            remote=RemoteTier(files, cache_directory=cache),
            fs=files,
        )

    if not is_url(root) and files.exists(os.path.join(root, CONTROL_FILE)):
        if any(value is not None for value in chosen):
            raise InvalidConfig(f"{root} is a queue; venue, symbol, stream and days choose within an archive")
        if all(one.tier is Tier.PLAIN for one in list_segments(files, root)):
            return [Replay(root)]
        return [Replay(root, reader=_history(opener(_ALL), root))]
    found = []
    if is_url(root) or files.exists(root):
        found = archive_directories(files, root, RemoteTier(files))
    if root in found:
        return [Replay(root, reader=opener(_ALL))]
    directories = select_directories(found, *chosen)
    if not directories:
        raise InvalidConfig(f"there is neither a queue nor a matching archive at {root}; check the path")
    keys = [layout.parse_directory(directory) for directory in directories]
    kinds: set[Kind] = {(key.venue, key.symbol, key.stream) for key in keys if key is not None}
    kinds = kinds or {(venue, symbol, stream)}
    return [
        Replay(root, reader=opener(kind, first_date, last_date))
        for kind in sorted(kinds, key=lambda kind: tuple(part or "" for part in kind))
    ]


def _history(archive: Callable[[], ArchiveReader], queue: str) -> Callable[[], MessageReader]:
    """Read the compressed segments of an archive queue, then its open one."""
    return lambda: HistoryReader(archive, queue)
