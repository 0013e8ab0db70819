"""What readers with a name, a filter or a pattern cost: commits, filtered scans, watches of many topics.

Jobs for one pinned process, everlog alone: the peers have no such reads, or not over the same wire.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import cycle

from benchmarks.server import watching
from benchmarks.server.load import Line, WrongAnswer, closed_loop, http_missing, http_request
from benchmarks.server.load_jobs import (
    CONNECTIONS,
    FILL_RECORDS,
    READ_ANSWER_BYTES,
    TOPIC,
    TOPIC_PATH,
    Job,
    Numbers,
    append_body,
    create_topic,
    document,
    numbers_of,
)
from benchmarks.server.servers import RunningServer

IDLE_TOPICS = 100
CHANGED_TOPICS = 100
FILTERS = {"data": ["data.number", "Lt", 0], "tag": ["tag", "Eq", "none"]}
"""By what they look at; no record matches, so that nothing but the scan is measured."""


def _filled(server: RunningServer, records: int) -> Line:
    line = create_topic(server, "disk")
    for _ in range(records // FILL_RECORDS):
        line.ask(http_request("POST", TOPIC_PATH + "?return_seqs=false", append_body(FILL_RECORDS)))
    return line


# --- Consumers -------------------------------------------------------------------------------------------


@contextmanager
def commits(server: RunningServer, requests: int) -> Job:
    """Commits of one seq after the other, by a consumer on each connection."""
    each = requests // CONNECTIONS
    line = _filled(server, each + FILL_RECORDS)
    lines = [Line(server.address, http_missing) for _ in range(CONNECTIONS)]
    for number in range(CONNECTIONS):
        line.ask(http_request("PUT", f"{TOPIC_PATH}/consumers/c{number}"))
    sources = {worker: _commit_requests(number) for number, worker in enumerate(lines)}

    def run() -> Numbers:
        cpu_s = server.cpu_s()
        load = closed_loop(lines, sources, each * CONNECTIONS)
        numbers = numbers_of("commit", load, 1, server, cpu_s)
        states = document(line.ask(http_request("GET", f"{TOPIC_PATH}/consumers")))["consumers"]
        if sum(state["cursor"] for state in states) != each * CONNECTIONS:
            raise WrongAnswer(f"{each * CONNECTIONS} commits left the cursors at {states}")
        return numbers

    yield run


def _commit_requests(number: int) -> Iterator[bytes]:
    path, seq = f"{TOPIC_PATH}/consumers/c{number}/commit", 0
    while True:
        seq += 1
        yield http_request("POST", path, b'{"seq":%d}' % seq)


@contextmanager
def idle_consumers(server: RunningServer, consumers: int, idle_s: float) -> Job:
    """The share of a core that a server takes with so many consumers of which none does anything."""
    line = Line(server.address, http_missing)
    for number in range(IDLE_TOPICS):
        line.ask(http_request("POST", f"/v0/topics/idle-{number}", append_body(1)))
    for number in range(consumers):
        line.ask(http_request("PUT", f"/v0/topics/idle-{number % IDLE_TOPICS}/consumers/c{number}"))

    def run() -> Numbers:
        cpu_s, started_s = server.cpu_s(), time.monotonic()
        time.sleep(idle_s)
        return {"idle_consumers_core": (server.cpu_s() - cpu_s) / (time.monotonic() - started_s)}

    yield run


# --- Filters ---------------------------------------------------------------------------------------------


@contextmanager
def filtered(server: RunningServer, stored: int, requests: int) -> Job:
    """Diffs with a filter that no record passes, through the whole topic each, one after the other."""
    _filled(server, stored).close()
    line = Line(server.address, http_missing, READ_ANSWER_BYTES)

    def run() -> Numbers:
        numbers: Numbers = {}
        for name, expression in FILTERS.items():
            body = json.dumps({"filter": expression}).encode()
            request = http_request("POST", TOPIC_PATH + "/diff", body)
            answer = document(line.ask(request))
            if (answer["records"], answer["next_from_seq"]) != ([], stored):
                raise WrongAnswer(f"a filter that nothing matches gave {answer}")
            cpu_s = server.cpu_s()
            load = closed_loop([line], cycle([request]), requests)
            numbers |= numbers_of(f"filter_{name}", load, stored, server, cpu_s)
        return numbers

    yield run


# --- Patterns --------------------------------------------------------------------------------------------


@contextmanager
def patterns(server: RunningServer, topics: int, rounds: int) -> Job:
    """A watch of a pattern that matches `topics` topics, and one of those that change, by their names."""
    line = Line(server.address, http_missing, READ_ANSWER_BYTES)
    names = [f"{TOPIC}.{number}" for number in range(topics)]
    for name in names:
        line.ask(http_request("PUT", f"/v0/topics/{name}", b"{}"))
    changed = names[:: max(1, topics // CHANGED_TOPICS)][:CHANGED_TOPICS]
    tail = {"tail": True}

    def cost_us(watched: dict[str, object] | None) -> float:
        """Processor time for each change: for the append, and for a watch if there is one."""
        stream = nullcontext(None) if watched is None else watching.stream_of(server.address, watched)
        with stream as reading:
            cpu_s = server.cpu_s()
            for _ in range(rounds):
                for name in changed:
                    line.ask(http_request("POST", f"/v0/topics/{name}", append_body(1)))
                    if reading is not None:
                        watching.await_text(reading, b"event: record")
            return (server.cpu_s() - cpu_s) * 1e6 / (rounds * len(changed))

    def run() -> Numbers:
        append_us = cost_us(None)
        named_us = cost_us(dict.fromkeys(changed, tail))
        pattern_us = cost_us({f"{TOPIC}.*": tail})
        return {
            "pattern_change_cpu_us": pattern_us - append_us,
            "named_change_cpu_us": named_us - append_us,
            "pattern_share": pattern_us / named_us,
        }

    yield run
