"""Reading with a filter: records are looked at in slices, and those that do not match only move the cursor.

Owns how much one slice and one call look at. What a filter means is in `filters`; who calls again for the
next slice is the engine's or the server's matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from everlog.native.topics.log import Rendered, select_records
from everlog.topics.filters import Filter, Row, rows_of

if TYPE_CHECKING:
    from everlog.topics.core import Core
    from everlog.topics.reading import ReadOptions
    from everlog.topics.results import Diff
    from everlog.topics.topic import Topic

SCANNED_MAX: Final = 100_000
"""Records that one call looks at."""
_SLICE_NS: Final = 3_000_000
_SLICE_STEPS: Final = 16
_STEP_RECORDS: Final = 500
_STEP_BYTES: Final = 256 * 1024
_STEP_SEQS: Final = 20_000  # of which the kernel compares the tags


class Scan:
    """One slice: what was found from `from_seq` on, and where it stopped; `after` has the earlier slices."""

    def __init__(
        self,
        core: Core,
        topic: Topic,
        from_seq: int,
        end_seq: int,
        options: ReadOptions,
        after: Diff | None,
    ) -> None:
        assert options.filter is not None, "without a filter records are rendered at once"
        self._core = core
        self._topic = topic
        self._filter: Filter = options.filter
        self._options = options
        self._nodes = options.nodes if topic.config.dedupe_node else ()
        self._end_seq = end_seq
        self._pieces: list[bytes] = []
        self._scan_max = SCANNED_MAX - (0 if after is None else after.scanned)
        self._room = options.limit - (0 if after is None else after.delivered)
        self._bytes_left = options.max_bytes - (0 if after is None else len(after.records))
        self._has_any = after is not None and after.delivered > 0
        self._is_full = False
        self.position = from_seq
        self.delivered = 0
        self.scanned = 0
        self.missing_source = 0
        self.corrupt_seq = 0

    @property
    def records(self) -> bytes:
        """What was found, as a JSON array."""
        return b"[%b]" % b",".join(self._pieces)

    @property
    def is_over(self) -> bool:
        """Whether the call needs no further slice: it has enough, or has looked at enough."""
        return self._is_full or self.position >= self._end_seq or self.scanned >= self._scan_max

    def run(self) -> None:
        """Look at records until the time of a slice is over, or there is a reason to stop."""
        clock = self._core.clock
        stop_ns = clock.monotonic_ns() + _SLICE_NS
        for _ in range(_SLICE_STEPS):
            if self.is_over:
                return
            self._step_tagged() if self._filter.tag is not None else self._step()
            if self.missing_source or self.corrupt_seq or clock.monotonic_ns() >= stop_ns:
                return

    def _step(self) -> None:
        """Look at the next few records, whatever their tags are."""
        records = min(_STEP_RECORDS, self._scan_max - self.scanned)
        found = self._whole(self.position, self._end_seq, records, _STEP_BYTES)
        self.missing_source, self.corrupt_seq = found.missing_source, found.corrupt_seq
        self.scanned += found.scanned
        if not self._take_matching(rows_of(found.json) if found.delivered else []):
            self.position = found.next_from_seq

    def _step_tagged(self) -> None:
        """Let the kernel find the next few records with the tag, and look at those only."""
        core, log, tag = self._core, self._topic.log, self._filter.tag
        assert tag is not None
        end_seq = min(self._end_seq, self.position + _STEP_SEQS) + 1
        found = select_records(
            core.sources, log, self.position + 1, end_seq, tag.tag, tag.prefix, _STEP_RECORDS, _STEP_BYTES
        )
        if not found.runs and found.next_seq < end_seq and not found.missing_source and not found.corrupt_seq:
            self._step()  # a record larger than a step
            return
        self.scanned += log.live_in(self.position + 1, found.next_seq)[0]
        if self._filter.is_tag_only:
            is_full = not all(self._append(first, first + count - 1, count) for first, count in found.runs)
        else:
            is_full = self._take_matching(rows_of(b"[%b]" % b",".join(self._rendered(found.runs))))
        if not is_full:
            self.position = found.next_seq - 1
            self.missing_source, self.corrupt_seq = found.missing_source, found.corrupt_seq

    def _whole(self, from_seq: int, end_seq: int, limit: int, max_bytes: int) -> Rendered:
        """Records with all that a filter may ask for."""
        log, sources = self._topic.log, self._core.sources
        return log.render(sources, from_seq, end_seq, limit, max_bytes, self._nodes, True, True, True)

    def _rendered(self, runs: list[tuple[int, int]]) -> Iterator[bytes]:
        for first, count in runs:
            found = self._whole(first - 1, first + count - 1, count, 0)
            if found.delivered:
                yield found.json[1:-1]

    def _take_matching(self, rows: list[Row]) -> bool:
        """Add the rows that match, in runs of neighbours; whether there was no room for all of them."""
        matches = self._filter.matches
        first = 0
        is_match = [matches(row) for row in rows]
        while first < len(rows):
            if not is_match[first]:
                first += 1
                continue
            end = first + 1
            # Rows that the kernel chose by their tag may have others between them.
            while self._filter.tag is None and end < len(rows) and is_match[end]:
                end += 1
            if not self._append(rows[first]["$seq"], rows[end - 1]["$seq"], end - first):
                return True
            first = end
        return False

    def _append(self, first_seq: int, last_seq: int, count: int) -> bool:
        """Add records as the reader wants them; False if there was no room for all of them."""
        options, log = self._options, self._topic.log
        if self._has_any and int(log.sizes(first_seq, 1)[0]) > self._bytes_left:
            self._is_full = True
            return False
        found = log.render(
            self._core.sources,
            first_seq - 1,
            last_seq,
            min(self._room, count),
            max(self._bytes_left, 1),
            self._nodes,
            options.include_tags,
            options.include_meta,
            options.include_data,
        )
        if found.delivered:
            self._pieces.append(found.json[1:-1])
            self.delivered += found.delivered
            self._room -= found.delivered
            self._bytes_left -= len(found.json)
            self._has_any = True
            self.position = found.next_from_seq
        # What has no room is read by the next call, from the position behind the last record here.
        self._is_full = self._room <= 0 or found.next_from_seq < last_seq
        self.corrupt_seq = self.corrupt_seq or found.corrupt_seq
        return not self._is_full


def matching_runs(
    core: Core, topic: Topic, selection: Filter, runs: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Of runs of first seq and length those parts whose records match; a record that cannot be read does."""
    found: list[tuple[int, int]] = []
    for first_seq, length in runs:
        from_seq, end_seq = first_seq - 1, first_seq + length - 1
        while from_seq < end_seq:
            page = topic.log.render(
                core.sources, from_seq, end_seq, _STEP_RECORDS, _STEP_BYTES, (), True, True, True
            )
            for row in rows_of(page.json) if page.delivered else []:
                if selection.matches(row):
                    _add_to_runs(found, row["$seq"], 1)
            if page.next_from_seq <= from_seq:
                _add_to_runs(found, from_seq + 1, end_seq - from_seq)  # the copy meets the same error
                break
            from_seq = page.next_from_seq
    return found


def _add_to_runs(runs: list[tuple[int, int]], seq: int, length: int) -> None:
    if runs and sum(runs[-1]) == seq:
        runs[-1] = (runs[-1][0], runs[-1][1] + length)
    else:
        runs.append((seq, length))
