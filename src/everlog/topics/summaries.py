"""What a topic holds in short: the newest record of each tag, and how many records there are by time.

Owns how these are found in the indexes; nothing of it is stored. Long work is done in steps that the caller
repeats, so that none takes longer than a few milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from everlog.api_types import HistogramBucket
from everlog.errors import InvalidRequest
from everlog.topics import catalogue
from everlog.topics.config import U64_MAX
from everlog.topics.retention import sweep

if TYPE_CHECKING:
    from everlog.topics.core import Core
    from everlog.topics.topic import Topic

BUCKETS_MAX: Final = 1000
_STEP_NS: Final = 3_000_000
_STEP_SEQS: Final = 100_000
_NEWEST_STEPS: Final = 1000


class Summaries:
    """Questions about topics that are answered from the indexes alone."""

    def __init__(self, core: Core, check_open: Callable[[], None]) -> None:
        self._core = core
        self._check_open = check_open

    def names(self, prefix: str, after: str | None, limit: int) -> list[str]:
        """Up to `limit` names of topics that begin with `prefix`, in byte order, behind the name `after`."""
        return [topic.name for topic in catalogue.list_topics(self._core, prefix, after, limit)]

    def newest_of_tag(self, name: str, tag: str) -> int:
        """The seq of the newest live record with exactly this tag; 0 if there is none."""
        self._check_open()
        topic = catalogue.find(self._core, name)
        sweep(self._core, topic, self._core.now_ms())
        text, bound = tag.encode("utf-8", "surrogatepass"), topic.visible + 1
        seqs, rest = topic.log.search_tag(text, False, bound, _NEWEST_STEPS)
        while not len(seqs) and rest is not None:  # the newest are dead, or not visible yet
            seqs, rest = topic.log.search_tag(text, False, bound, _NEWEST_STEPS, rest)
        return int(seqs[-1]) if len(seqs) else 0

    def histogram(
        self, name: str, from_ms: int | None = None, to_ms: int | None = None, buckets: int = 60
    ) -> Histogram:
        """Live records by time; call its `step` until that is true."""
        self._check_open()
        return Histogram(self._core, catalogue.find(self._core, name), from_ms, to_ms, buckets)


class Histogram:
    """Live records by time: `buckets` of equal length from `from_ms` up to before `to_ms`."""

    def __init__(
        self, core: Core, topic: Topic, from_ms: int | None, to_ms: int | None, buckets: int
    ) -> None:
        """Without bounds it spans everything that is there."""
        if not 1 <= buckets <= BUCKETS_MAX:
            raise InvalidRequest(f"buckets is {buckets}; it must be from 1 to {BUCKETS_MAX}")
        now_ms = core.now_ms()
        sweep(core, topic, now_ms)
        log = topic.log
        first_ms = log.timestamp(log.first_live) if log.first_live <= topic.visible else now_ms
        self.from_ms = first_ms if from_ms is None else from_ms
        self.to_ms = max(now_ms, log.last_ts, self.from_ms) + 1 if to_ms is None else to_ms
        if not 0 <= self.from_ms < self.to_ms <= U64_MAX:
            raise InvalidRequest(f"from_ms is {self.from_ms} and to_ms {self.to_ms}; the first must be lower")
        self._core = core
        self._topic = topic
        self._count = buckets
        self._end_seq = topic.visible + 1
        self._seq = log.find_ts(self.from_ms, self._end_seq)
        self._records = self._bytes = 0
        self.buckets: list[HistogramBucket] = []

    def _bound_ms(self, number: int) -> int:
        return self.from_ms + (self.to_ms - self.from_ms) * number // self._count

    def step(self) -> bool:
        """Count for a while; whether all is counted."""
        clock, log = self._core.clock, self._topic.log
        stop_ns = clock.monotonic_ns() + _STEP_NS
        while len(self.buckets) < self._count:
            number = len(self.buckets)
            bucket_end = max(log.find_ts(self._bound_ms(number + 1), self._end_seq), self._seq)
            end_seq = min(bucket_end, self._seq + _STEP_SEQS)
            first_seq = max(self._seq, log.base_seq)
            if first_seq < end_seq:
                records, size = log.live_in(first_seq, end_seq)
                self._records += records
                self._bytes += size
            self._seq = end_seq
            if end_seq == bucket_end:
                self.buckets.append(HistogramBucket(self._bound_ms(number), self._records, self._bytes))
                self._records = self._bytes = 0
            if clock.monotonic_ns() >= stop_ns:
                break
        return len(self.buckets) == self._count
