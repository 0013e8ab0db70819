"""Jobs of one append that have options: which are there already by their unique keys, and what is noted.

Owns this for the time of the append; the state is in `job_board`.
"""

from __future__ import annotations

from everlog.api_types import TopicType
from everlog.errors import NotAQueue
from everlog.topics.commits import Commit
from everlog.topics.jobs.lease_log import board_of
from everlog.topics.jobs.options import NO_OPTIONS
from everlog.topics.storage.control import JobOptions, Jobs, encode
from everlog.topics.storage.layout import FrameType
from everlog.topics.topic import Topic


def check_job_queue(topic: Topic) -> None:
    """Refuse jobs with options for a log."""
    if topic.config.type is not TopicType.QUEUE:
        error = NotAQueue(
            f"topic {topic.name!r} is a log; a record of it takes no delay_ms, run_at, priority, unique_key, "
            f"concurrency_key or max_deliveries"
        )
        error.detail = {"topic": topic.name}  # a schedule that was refused has a name of its own
        raise error


class NewJobs:
    """The records of an append, by their place in it; `hits` need not be appended."""

    def __init__(self, topic: Topic, options: dict[int, JobOptions], now_ms: int) -> None:
        self._topic = topic
        self.hits: dict[int, int] = {}
        """By place: the seq of the job that is there, or the negative place, less one, of the same key."""
        self.waits_for: list[Commit] = []
        self._options: list[tuple[int, JobOptions]] = []  # of the new ones: how many are before it
        self._has_keys = False
        first_places: dict[str, int] = {}
        for place in sorted(options):
            each = options[place]
            if each.unique_key:
                self._has_keys = True
                holder = board_of(topic).find_unique(each.unique_key, now_ms)
                if holder is not None:
                    self.hits[place] = holder.seq
                    self.waits_for += [] if holder.commit.done else [holder.commit]
                    continue
                if each.unique_key in first_places:
                    self.hits[place] = -1 - first_places[each.unique_key]
                    continue
                first_places[each.unique_key] = place
            if each != NO_OPTIONS:
                self._options.append((place - len(self.hits), each))

    def seqs(self, first_seq: int, count: int) -> tuple[int, ...]:
        """The seqs of the answer to `count`, new ones from `first_seq` on; none without unique keys."""
        if not self._has_keys:
            return ()
        seqs: list[int] = []
        next_seq = first_seq
        for place in range(count):
            hit = self.hits.get(place)
            if hit is None:
                seqs.append(next_seq)
                next_seq += 1
            else:
                seqs.append(hit if hit > 0 else seqs[-1 - hit])
        return tuple(seqs)

    def extras(self, first_seq: int) -> list[tuple[FrameType, bytes]]:
        """The entry of the log for the new ones, if they have options."""
        jobs = [(first_seq + behind, options) for behind, options in self._options]
        return [(FrameType.JOBS, encode(Jobs(jobs)))] if jobs else []

    def register(self, first_seq: int, ts: int, commit: Commit) -> None:
        """Note the new ones, which are claimable when `commit` is done."""
        board = board_of(self._topic)
        jobs = [(first_seq + behind, options) for behind, options in self._options]
        for seq, options in jobs:
            board.register(seq, options, ts, commit)

        def on_done(done: Commit) -> None:
            seqs = [seq for seq, _ in jobs]
            if done.error is None:
                board.admit(seqs)
            else:
                board.withdraw(seqs)

        commit.on_done(on_done)
