"""What operators do with the jobs of a job queue: look, cancel, retry, pause, purge, redrive.

Owns these public operations. Those that may take long are steps, see `steps`; `Engine.run_steps` runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from everlog.api_types import TopicType
from everlog.errors import InvalidRequest, NotAQueue, TopicNotFound
from everlog.job_types import JobCounts, JobState
from everlog.topics import catalogue
from everlog.topics.filters import Filter
from everlog.topics.jobs import job_changes
from everlog.topics.jobs.claims import check_queue, expire
from everlog.topics.jobs.job_changes import JobsChanged
from everlog.topics.jobs.job_states import JobPage, Selection, counts_of, one, page
from everlog.topics.jobs.redrive import Redrive, Redrove, redrive
from everlog.topics.jobs.steps import Load, Steps
from everlog.topics.retention import sweep

if TYPE_CHECKING:
    from everlog.topics.core import Core
    from everlog.topics.results import TopicPut
    from everlog.topics.topic import Topic


class JobAdmin:
    """The jobs of all job queues of an engine. `fetch` loads a segment in the background."""

    def __init__(
        self, core: Core, check_open: Callable[[], None], fetch: Load, forward: Callable[[Topic], object]
    ) -> None:
        self._core = core
        self._check_open = check_open
        self._fetch = fetch
        self._forward = forward

    def page(
        self,
        name: str,
        selection: Selection | None = None,
        *,
        after_seq: int = 0,
        limit: int = 100,
        with_data: bool = False,
    ) -> Steps[JobPage]:
        """Report jobs by seq, beginning behind `after_seq`."""
        topic = self._queue(name)
        return page(
            self._core, topic, selection or Selection(), self._fetch, after_seq, limit, with_data=with_data
        )

    def show(self, name: str, seq: int) -> Steps[JobState]:
        """Report one job with its data and attempts."""
        return one(self._core, self._queue(name), seq, self._fetch)

    def counts(self, name: str) -> JobCounts:
        """Count the jobs in each state."""
        return counts_of(self._queue(name))

    def cancel(
        self, name: str, seqs: Sequence[int] | None = None, filter: Filter | None = None
    ) -> Steps[JobsChanged]:
        """Delete jobs by seq or filter; a leased one when its lease ends, unless it is acknowledged."""
        return self._change(name, job_changes.cancel, seqs, filter)

    def retry(
        self, name: str, seqs: Sequence[int] | None = None, filter: Filter | None = None
    ) -> Steps[JobsChanged]:
        """Make delayed jobs due, by seq or filter."""
        return self._change(name, job_changes.retry, seqs, filter)

    def purge(
        self, name: str, filter: Filter | None = None, *, all_jobs: bool = False, dry_run: bool = False
    ) -> Steps[JobsChanged]:
        """Delete all jobs that there are now, or those that pass the filter; leased ones too."""
        if all_jobs == (filter is not None):
            raise InvalidRequest("a purge needs a filter, or all: true, one of them")
        topic = self._queue(name)
        step = job_changes.count_only if dry_run else job_changes.delete
        return job_changes.change(self._core, topic, step, None, filter, self._fetch)

    def _change(
        self, name: str, step: job_changes.Change, seqs: Sequence[int] | None, selection: Filter | None
    ) -> Steps[JobsChanged]:
        job_changes.check_selection(seqs, selection)
        return job_changes.change(self._core, self._queue(name), step, seqs, selection, self._fetch)

    def pause(self, name: str, is_paused: bool) -> TopicPut:
        """Let claims give nothing, or jobs again."""
        config = self._queue(name).config
        return catalogue.put_topic(self._core, name, msgspec.structs.replace(config, paused=is_paused))

    def redrive(self, name: str, wanted: Redrive) -> Steps[Redrove]:
        """Bring the letters of a dead-letter topic, a log or a job queue, back to their job queues."""
        self._check_open()
        topic = catalogue.find(self._core, name)
        if wanted.to is not None:
            self._check_target(name, wanted.to)
        if wanted.limit is not None and wanted.limit < 0:
            raise InvalidRequest(f"limit is {wanted.limit}; it must be 0 or more")
        self._forward(topic)
        sweep(self._core, topic, self._core.now_ms())
        return redrive(self._core, topic, wanted, self._fetch)

    def _check_target(self, name: str, to: str) -> None:
        target = self._core.topics.get(to)
        if target is None:
            raise TopicNotFound(f"there is no topic {to!r} to bring jobs back to", to)
        if to == name:
            raise InvalidRequest(f"to names the topic {name!r} itself; name another one")
        if target.config.type is not TopicType.QUEUE:
            error = NotAQueue(
                f"to names the topic {to!r}, which is a log; jobs are brought back to a job queue"
            )
            error.detail = {"topic": to}
            raise error

    def _queue(self, name: str) -> Topic:
        self._check_open()
        topic = catalogue.find(self._core, name)
        check_queue(topic)
        self._forward(topic)
        expire(self._core, topic)
        return topic
