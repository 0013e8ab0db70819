"""History of queues: archived segments in tiers, readers over them, and what fills and keeps the archive.

`open_archive` reads any mixture of plain, compressed and remote segments as a queue is read. `segment_writer`
writes history without a live queue; `tiers` compresses and restores segments, `policies` says when. The
formats are in `layout`. `ArchiveTap` and `RawArchiver` copy live queues, `HistoryReader` goes on from their
copies into the live queue, `RemoteTier` keeps segments in an object store. An archive has no index of its
own: its directory tree is the index.
"""

from everlog.archive.history import HistoryReader
from everlog.archive.layout import ArchiveMeta, RemoteStub, StreamKey, symbol_code
from everlog.archive.policies import AgeAfter, IdleAfter, Immediate, Never, SizeThreshold, parse_policy
from everlog.archive.raw_archiver import RawArchiver
from everlog.archive.reader import ArchiveReader, open_archive
from everlog.archive.remote import RemoteTier
from everlog.archive.segment_writer import ArchiveSegmentWriter, DayWriter
from everlog.archive.snapshotter import Snapshotter
from everlog.archive.sources import replays
from everlog.archive.tap import ArchiveTap
from everlog.archive.tiers import ArchivedSegment, Tier

__all__ = [
    "AgeAfter",
    "ArchiveMeta",
    "ArchiveReader",
    "ArchiveSegmentWriter",
    "ArchiveTap",
    "ArchivedSegment",
    "DayWriter",
    "HistoryReader",
    "IdleAfter",
    "Immediate",
    "Never",
    "RawArchiver",
    "RemoteStub",
    "RemoteTier",
    "SizeThreshold",
    "Snapshotter",
    "StreamKey",
    "Tier",
    "open_archive",
    "parse_policy",
    "replays",
    "symbol_code",
]
