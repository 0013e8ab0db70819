"""A writer and two readers for SOAK_SECONDS, with crashes and clean restarts of all but one reader.

At the end every seq was seen exactly once by the reader that lived through it all, which has not grown,
and the reader that was killed again and again has lost nothing.
"""

import os
import random
import time
from pathlib import Path

import pytest

from everlog.queue import Queue
from tests.support.crashes import MortalReader
from tests.support.files import UnsyncedFs
from tests.support.processes import Child, eventually, fresh_seed, resources_of, shared_words
from tests.support.workloads import (
    ACKED,
    APPEND,
    OPENED,
    Payloads,
    ReaderPlan,
    WriterPlan,
    prepared_call,
    read_queue,
    write_queue,
)

pytestmark = pytest.mark.soak

SECONDS = float(os.environ.get("SOAK_SECONDS", "600"))
SETTINGS = {
    "segment_size": 65536,
    "max_segments": 64,
    "backpressure": "block",
    "block_timeout_s": 60.0,
}


def run_writer(path: str, plan: WriterPlan, rng: random.Random, found_at_least: int) -> int:
    """Let one writer write for a while and end it one way or the other; return what must be there."""
    words = shared_words(2)
    with Child(write_queue, path, plan, words) as writer:
        eventually("the writer opens the queue", lambda: words[OPENED] or writer.check())
        assert words[OPENED] - 1 >= found_at_least, f"{found_at_least} were there, {words[OPENED] - 1} are"
        time.sleep(rng.random() * 2)
        if plan.total is None:
            writer.kill()
        else:
            assert writer.receive() == plan.total
            writer.finish()
    return words[ACKED]


def test_nothing_is_lost_over_a_long_time_of_crashes_and_restarts(tmp_path: Path) -> None:
    seed = fresh_seed("soak")
    rng = random.Random(seed)
    path = str(tmp_path / "queue")
    deadline_s = time.monotonic() + SECONDS
    Queue.open_publisher(path, fs=UnsyncedFs(), **SETTINGS).close()
    reading = ReaderPlan(seed, 2000, "steady", "batch", commit_every=1000)
    mortal = MortalReader(path, ReaderPlan(seed, 2000, "mortal"), rng)
    with Child(read_queue, path, reading, shared_words(1)) as steady:
        assert steady.receive() == "open"
        written, resources = 0, None
        while time.monotonic() < deadline_s:
            total = written + rng.randrange(20_000) if rng.random() < 0.3 else None
            plan = WriterPlan(seed, 2000, rng.randrange(2**32), total=total, settings=SETTINGS)
            with mortal.living():
                written = run_writer(path, plan, rng, written)
            steady.check()
            resources = resources or resources_of(steady.pid)
        with Queue.open_publisher(path, fs=UnsyncedFs(), **SETTINGS) as writer:
            assert writer.next_seq >= written
            # One more, so that the last life has something to deliver even if all was committed before it.
            prepared_call(writer, APPEND, Payloads(seed, reading.length_max), 1)()
            total = writer.next_seq
            with mortal.living():
                eventually("the mortal reader has read everything", lambda: mortal.delivered == total)
                now = resources_of(steady.pid)
                steady.send(total)
                assert steady.receive() == total
        print(f"{total} messages, {mortal.lives} lives of a reader, resources {resources} -> {now}")
    assert resources is not None
    assert now.descriptors <= resources.descriptors
    assert now.resident_bytes <= resources.resident_bytes + 64 * 2**20
