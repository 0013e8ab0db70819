"""Types of the native job module."""

from typing import Final

from everlog.native.topic_log import Sources, TopicLog

DONE: Final = 0
MISSING: Final = 1
CORRUPT: Final = 2
DELETED: Final = 3
FULL: Final = 4

def live_seqs(log: TopicLog, first_seq: int, last_seq: int, limit: int) -> list[int]: ...
def render_jobs(
    log: TopicLog,
    sources: Sources,
    seqs: list[int],
    deliveries: list[int],
    start: int,
    first_lease_id: int,
    deadline: int,
    max_bytes: int,
) -> tuple[list[bytes], int, int]: ...
