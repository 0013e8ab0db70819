"""The operations of an engine on jobs: claim, ack, nack, extend, and what workers wait for.

Owns the public methods; `claims` does the work. The engine has the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from everlog.job_types import JobError
from everlog.topics import catalogue
from everlog.topics.jobs import claims
from everlog.topics.jobs.claims import ClaimRequest
from everlog.topics.results import Claimed, Settled

if TYPE_CHECKING:
    from everlog.topics.core import Core
    from everlog.topics.topic import Topic


class JobCalls(ABC):
    """The part of an engine that workers use."""

    _core: Core
    _closed: bool

    @abstractmethod
    def _check_open(self) -> None:
        """Raise if the engine is closed."""

    @abstractmethod
    def _touch(self, topic: Topic, now_ms: int) -> None:
        """The topic is being consumed."""

    @abstractmethod
    def _forward_pending(self, topic: Topic, block: bool) -> None:
        """Copy to a topic what its routers have pending."""

    @abstractmethod
    def _load_segment(self, source: int) -> bool:
        """Load a segment now."""

    @abstractmethod
    def _fetch_segment(self, source: int) -> bool:
        """Load a segment in the background; raises `ColdRead` until it is there."""

    def claim(
        self,
        name: str,
        node: str,
        max_jobs: int = 1,
        lease_ms: int | None = None,
        *,
        held: dict[int, int] | None = None,
        block: bool = True,
    ) -> Claimed:
        """Lease up to `max_jobs` jobs of a queue to `node`: reclaimed ones first, then in the order of seq.

        `held` always has those of the leases that are still alive (seq -> lease id). Without `block` a
        cold segment is fetched in the background: see `Claimed.incomplete`.
        """
        return self.claim_together(name, [ClaimRequest(node, max_jobs, lease_ms, held)], block=block)[0]

    def claim_together(
        self, name: str, requests: Sequence[ClaimRequest], *, block: bool = True
    ) -> list[Claimed]:
        """Serve several claimers in one pass, in which the jobs are dealt round-robin."""
        self._check_open()
        topic = catalogue.find(self._core, name)
        claims.check_queue(topic)
        self._touch(topic, self._core.now_ms())
        if topic.routes.feeders:
            self._forward_pending(topic, block)
        load = self._load_segment if block else self._fetch_segment
        answers = claims.claim(self._core, topic, requests, load)
        while block and all(answer.incomplete for answer in answers):
            answers = claims.claim(self._core, topic, requests, load)
        return answers

    def ack(
        self, name: str, node: str, seqs: Sequence[int], lease_ids: Sequence[str] | None = None
    ) -> Settled:
        """Delete the jobs that `node` holds; one whose `lease_id` names another lease is skipped too."""
        return self._settling(name, claims.ack, node, seqs, lease_ids)

    def nack(
        self,
        name: str,
        node: str,
        seqs: Sequence[int],
        lease_ids: Sequence[str] | None = None,
        *,
        delay_ms: int | None = None,
        error: JobError | None = None,
    ) -> Settled:
        """Return jobs, claimable at once or after a delay; None: that of `retry` in the configuration."""
        return self._settling(name, claims.nack, node, seqs, lease_ids, delay_ms, error)

    def extend(
        self,
        name: str,
        node: str,
        seqs: Sequence[int],
        lease_ids: Sequence[str] | None = None,
        *,
        lease_ms: int,
    ) -> Settled:
        """Move the end of leases to `lease_ms` from now."""
        return self._settling(name, claims.extend, node, seqs, lease_ids, lease_ms)

    def _settling(
        self,
        name: str,
        settle: Callable[..., Settled],
        node: str,
        seqs: Sequence[int],
        lease_ids: Sequence[str] | None,
        *more: object,
    ) -> Settled:
        self._check_open()
        fences = claims.check_settling(node, seqs, lease_ids)
        return settle(self._core, catalogue.find(self._core, name), node, seqs, fences, *more)

    def release(self, name: str, node: str, leases: dict[int, int]) -> None:
        """End exactly these leases (seq -> lease id); one that is over, or a missing topic, is no error."""
        topic = self._core.topics.get(name)
        if topic is not None and topic.leases is not None and not self._closed:
            claims.release(self._core, topic, node, leases)

    def on_jobs(self, name: str, callback: Callable[[], None]) -> None:
        """Call back once when there may be jobs to claim, a lease has ended, or the topic is gone.

        The end of a lease or delay by time alone does not call back: see `expire_jobs`. The same callback
        registered twice is called once for each of the two reasons (new records, leases) at most.
        """
        self._check_open()
        topic = catalogue.find(self._core, name)
        claims.check_queue(topic).waiters[callback] = None
        topic.schedule.waiters[callback] = None

    def forget_jobs(self, name: str, callback: Callable[[], None]) -> None:
        """Cancel an `on_jobs`; an absent topic is no error."""
        topic = self._core.topics.get(name)
        if topic is not None:
            topic.schedule.waiters.pop(callback, None)
            if topic.leases is not None:
                topic.leases.waiters.pop(callback, None)

    def claim_jitter_ms(self, name: str) -> int:
        """For how long claims of a queue are gathered before they are served together."""
        topic = catalogue.find(self._core, name)
        claims.check_queue(topic)
        return topic.config.claim_jitter_ms

    def expire_jobs(self, name: str) -> int | None:
        """End the leases and delays that are over; return the ms until the next one ends, None: none will."""
        self._check_open()
        return claims.expire(self._core, catalogue.find(self._core, name))
