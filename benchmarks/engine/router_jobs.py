"""What it costs to copy one topic to many: jobs for one pinned process.

Timed is the copying alone, from the first pass to the last, in processor time of the thread that owns
the engine. The append before is not part of it, as it does not know about routers: to show that, the time to
the answer is taken in turn for a topic that has them and for one that has none.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.engine.engines import opened
from benchmarks.engine.samples import WrongRecord
from benchmarks.queue.stats import NS_PER_S
from everlog.topics import Engine, NewRecord
from everlog.topics.routing.definitions import RouterConfig

Numbers = dict[str, float]
Cores = tuple[int, ...]

BATCH = 1000
ANSWERS = 400
_DATA = b'{"n":1,"text":"%b"}' % (b"x" * 80)


@contextmanager
def fan_out(path: str, dests: int, batches: int, cores: Cores) -> Iterator[Callable[[], Numbers]]:
    """Copy `batches` batches of records to `dests` topics of class disk."""
    with opened(path, cores) as engine:
        for number in range(dests):
            config = RouterConfig(source="source", dest=f"dest-{number}")
            engine.wait_for(engine.put_router(f"router-{number}", config).commit)
        yield lambda: {**_measure(engine, dests, batches), **_answers(engine)}


def _measure(engine: Engine, dests: int, batches: int) -> Numbers:
    frames_before = engine.counts().wal.frames
    elapsed_ns = 0
    for _ in range(batches):
        appended = engine.append("source", [NewRecord(_DATA) for _ in range(BATCH)])
        engine.write()
        while not appended.commit.done:
            engine.wait_for(appended.commit)
        started_ns = time.thread_time_ns()
        while engine.dirty_sources:
            engine.forward_turn()
        elapsed_ns += time.thread_time_ns() - started_ns
        engine.wait_for(engine.forward(f"dest-{dests - 1}"))
    copied = sum(state.forwarded_total for state in engine.routers(limit=dests))
    if copied != dests * batches * BATCH:
        raise WrongRecord(f"{copied} copies were made, not {dests * batches * BATCH}")
    frames = engine.counts().wal.frames - frames_before
    return {
        "router_copies_per_s": copied * NS_PER_S / max(elapsed_ns, 1),
        "router_frames_per_record": frames / (batches * BATCH),
    }


def _answers(engine: Engine) -> Numbers:
    """How long a single record waits for its answer, with routers behind its topic and without."""
    waited_ns: dict[str, list[int]] = {"source": [], "plain": []}
    for _ in range(ANSWERS):
        for topic, times in waited_ns.items():
            # Copies empty the caches, so both topics begin behind the same copies and the same append.
            for before in ("source", "between"):
                engine.wait_for(engine.append(before, [NewRecord(_DATA)]).commit)
                engine.wait_for(engine.forward("dest-0"))
            times.append(_answer_ns(engine, topic))
            engine.wait_for(engine.forward("dest-0"))
    with_routers, without = (statistics.median(times) for times in waited_ns.values())
    return {"router_answer_us": with_routers / 1000, "router_answer_ratio": with_routers / without}


def _answer_ns(engine: Engine, topic: str) -> int:
    """From an append to the moment when a server would answer; what `settle` does after that is later."""
    answered_ns: list[int] = []
    started_ns = time.perf_counter_ns()
    commit = engine.append(topic, [NewRecord(_DATA)]).commit
    commit.on_done(lambda _: answered_ns.append(time.perf_counter_ns()))
    engine.wait_for(commit)
    return answered_ns[0] - started_ns
