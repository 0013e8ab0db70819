"""Reads an archive whole and says what is wrong with it. Changes nothing.

Of a plain segment every record is checked, of a compressed one every block as well, of a remote one, if
wanted, the SHA-256 of the object. Inside a directory seq must go on from each segment to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from everlog.archive.policies import as_everlog_error
from everlog.archive.reader import ArchiveReader
from everlog.archive.remote import RemoteTier
from everlog.archive.tiers import ArchivedSegment, Tier
from everlog.archive.windows import LocalBlocks, check_blocks
from everlog.errors import Corrupt, EverlogError
from everlog.fs import Fs


@dataclass(slots=True)
class Verification:
    """What was read and what was wrong, by file."""

    segments: int = 0
    messages: int = 0
    skipped: int = 0
    """Segments in object stores that were not to be read."""
    failed: dict[str, EverlogError] = field(default_factory=dict)


def verify_segments(
    fs: Fs,
    segments: list[ArchivedSegment],
    remote: RemoteTier | None = None,
    advance: Callable[[ArchivedSegment], None] = lambda segment: None,
) -> Verification:
    """Check segments in their order; without `remote` those in object stores are left out."""
    result = Verification()
    expected: tuple[str, int] | None = None
    for segment in segments:
        after = expected[1] if expected is not None and expected[0] == segment.directory else None
        expected = None
        if segment.tier is Tier.REMOTE and remote is None:
            result.skipped += 1
        else:
            try:
                messages, following = _verify(fs, segment, remote, after)
            except (EverlogError, OSError) as error:
                result.failed[segment.path] = as_everlog_error(error, f"read {segment.path}")
            else:
                result.segments += 1
                result.messages += messages
                expected = None if following is None else (segment.directory, following)
        advance(segment)
    return result


def _verify(
    fs: Fs, segment: ArchivedSegment, remote: RemoteTier | None, expected: int | None
) -> tuple[int, int | None]:
    """Return how many messages a segment has, and the seq that must follow."""
    if segment.tier is Tier.COMPRESSED:
        check_blocks(LocalBlocks(fs, segment.directory, segment.segment_id))
    elif segment.tier is Tier.REMOTE and remote is not None:
        remote.verify(segment.directory, segment.segment_id)
    messages = 0
    with ArchiveReader(lambda: [segment], remote=remote, fs=fs) as reader:
        while len(batch := reader.read_batch()):
            first = int(batch.seq[0])
            if expected is not None and first != expected:
                raise Corrupt(
                    f"it begins with seq {first}, expected {expected}: messages are missing before it"
                )
            messages += len(batch)
            expected = int(batch.seq[-1]) + 1
    return messages, expected
