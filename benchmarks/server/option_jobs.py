"""Jobs with options: how late delayed ones come, and how fast dead letters are brought back.

Jobs for one pinned process, everlog alone.
"""

from __future__ import annotations

import json
import random
import re
import time
from contextlib import contextmanager

import numpy as np

from benchmarks.engine import samples
from benchmarks.queue.stats import percentile_us
from benchmarks.server.load import WrongAnswer, http_request
from benchmarks.server.load_jobs import FILL_RECORDS, Job, Numbers, document
from benchmarks.server.queue_jobs import QUEUE_PATH, filled, work_stream
from benchmarks.server.servers import RunningServer
from benchmarks.server.watching import piece_of

MS_A_DUE_JOB = 5
FAR_MS = 3_600_000
NS_PER_MS = 1_000_000
DEAD_PATH = "/v0/topics/dead"
_RUN_AT = re.compile(rb'"run_at":(\d+)}')


@contextmanager
def delayed(server: RunningServer, scheduled: int, due: int) -> Job:
    """How late `due` jobs come to a waiting worker while `scheduled` others wait for their time."""
    far = int(time.time() * 1000) + FAR_MS
    line = filled(server, scheduled, lambda number: b',"run_at":%d' % (far + number))

    def run() -> Numbers:
        begin_ms = int(time.time() * 1000) + 1000
        chance = random.Random(scheduled)
        records = [
            {"data": number, "run_at": begin_ms + chance.randrange(MS_A_DUE_JOB * due)}
            for number in range(due)
        ]
        line.ask(http_request("POST", QUEUE_PATH, json.dumps({"records": records}).encode()))
        late_ns = np.empty(due, np.int64)
        stream = work_stream(server, f"node=worker&max={due}&lease_ms=600000")
        seen, rest = 0, b""
        while seen < due:
            rest += piece_of(stream)
            now_ns = time.time_ns()
            lines, _, rest = rest.rpartition(b"\n")
            for run_at in _RUN_AT.findall(lines):
                late_ns[seen] = max(0, now_ns - int(run_at) * NS_PER_MS)
                seen += 1
        stream.close()
        return {
            "late_p50_ms": percentile_us(late_ns, 50) / 1000,
            "late_p99_ms": percentile_us(late_ns, 99) / 1000,
        }

    yield run


@contextmanager
def redriven(server: RunningServer, letters: int) -> Job:
    """One call that brings so many dead letters back."""
    line = filled(server, 0)
    origin = json.dumps({"$dead_letter_from": QUEUE_PATH.rpartition("/")[2]}).encode()
    letter = b'{"data":%b,"meta":%b}' % (samples.payload(0), origin)
    body = b'{"records":[%b]}' % b",".join([letter] * FILL_RECORDS)
    line.ask(http_request("PUT", DEAD_PATH, b'{"type":"queue"}'))
    for _ in range(letters // FILL_RECORDS):
        line.ask(http_request("POST", DEAD_PATH + "?return_seqs=false", body))

    def run() -> Numbers:
        started_s = time.monotonic()
        answer = document(line.ask(http_request("POST", DEAD_PATH + "/redrive", b"{}")))
        if (answer["moved"], answer["left"]) != (letters, 0):
            raise WrongAnswer(f"{letters} dead letters were there, the call says {answer}")
        return {"redrive_s": time.monotonic() - started_s}

    yield run
