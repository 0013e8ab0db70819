"""The page of data paths beside what runs: each request passes the named functions in the named order.

Every Python function that a server calls is recorded while it answers. Native steps are not seen.
"""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from everlog import Client
from everlog.api_types import CaughtUp, Records
from everlog.server.auth import KeyRing
from everlog.server.serve import TopicsServer
from everlog.server.settings import ServerSettings
from everlog.topics import Engine, EngineSettings, NewRecord, TopicConfig
from tests.docs.test_data_paths import PAGE, PATHS, SOURCE, Step
from tests.support.engines import open_small

KEY = "a-key-of-sixteen-or-more"
TIMEOUT_S = 30.0
Called = list[tuple[str, str]]
"""File below `src/everlog` and function, in the order of the calls."""


class Recorder:
    """What was called since `called` was emptied, in the threads in which `note` is the profile function."""

    def __init__(self) -> None:
        self.called: Called = []
        self._source = f"{SOURCE}/"

    def note(self, frame: FrameType, event: str, _argument: object) -> None:
        """Record a call."""
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(self._source):
            self.called.append((code.co_filename.removeprefix(self._source), code.co_qualname))


@contextmanager
def recorded_server(folder: Path) -> Iterator[tuple[Recorder, Client]]:
    """A server with one key whose event loop is recorded, and a client of it."""
    keys = KeyRing.parse(f"{KEY}:read+write+admin")
    server = TopicsServer(ServerSettings(port=0, wal_shards=1, data_dir=str(folder), api_keys=keys))
    recorder, loop = Recorder(), asyncio.new_event_loop()

    def run() -> None:
        sys.setprofile(recorder.note)
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def wait(work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result(TIMEOUT_S)

    wait(server.start())
    host, port = server.address
    try:
        with Client(f"http://{host}:{port}", KEY) as client:
            yield recorder, client
    finally:
        wait(server.stop(0))
        loop.call_soon_threadsafe(loop.stop)
        thread.join(TIMEOUT_S)
        loop.close()


def calls_of(recorder: Recorder, request: Callable[[], object]) -> Called:
    """What the server called from the first byte of a request until it was answered."""
    recorder.called.clear()
    request()
    called = list(recorder.called)
    names = [name for _, name in called]
    end = len(names) - names[::-1].index("HttpConnection.answer")
    return called[names.index("HttpConnection.data_received") : end]


def is_call(called: tuple[str, str], file: str, function: str) -> bool:
    """Whether a call is one of a function, or of any method of a class."""
    parts = called[1].split(".")
    return called[0] == file and (called[1].endswith(function) or function in parts)


def missing(steps: list[Step], called: Called) -> list[str]:
    """The steps that were not called in their order."""
    at, found = 0, []
    for step in steps:
        for function in step.functions if step.file.endswith(".py") else []:
            places = [
                place for place in range(at, len(called)) if is_call(called[place], step.file, function)
            ]
            if not places:
                found.append(f"{step.file}: {function}")
            else:
                at = places[0]
    return found


def test_an_append_passes_the_named_functions_in_their_order_and_no_other_file(tmp_path: Path) -> None:
    [steps] = PATHS["2 POST to acknowledgement"]
    [asked] = re.findall("^\\| Question .*?\n\n", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    with recorded_server(tmp_path) as (recorder, client):
        client.put_topic("orders")
        client.append("orders", {"id": 1})
        called = calls_of(recorder, lambda: client.append("orders", {"id": 2}))
    assert missing(steps, called) == []
    named = {step.file for step in steps} | set(re.findall(r"`([\w/]+\.py)`", asked))
    # Whether the client sends a trace depends on what other tests of this process have set up.
    assert {file for file, _ in called} - {"tracing.py"} == named


def test_a_delivery_passes_the_named_functions_in_their_order(tmp_path: Path) -> None:
    [steps] = PATHS["3 Delivery over server-sent events"]
    with recorded_server(tmp_path) as (recorder, client):
        client.put_topic("orders")
        events = client.watch({"orders": "earliest"})
        client.append("orders", {"id": 1})
        assert [type(next(events)), type(next(events))] == [Records, CaughtUp]
        recorder.called.clear()
        client.append("orders", {"id": 2})
        assert isinstance(next(events), Records)
        called = list(recorder.called)
    assert missing(steps, called) == []


def test_a_claim_and_its_ack_pass_the_named_functions_in_their_order(tmp_path: Path) -> None:
    claim_steps, ack_steps = PATHS["4 Claim and ack"]
    with recorded_server(tmp_path) as (recorder, client):
        client.put_topic("mail", {"type": "queue", "leases_durable": True})
        client.append("mail", {"to": "ann"})
        claimed = calls_of(recorder, lambda: client.claim("mail", "w1"))
        acked = calls_of(recorder, lambda: client.ack("mail", "w1", [1]))
    assert missing(claim_steps, claimed) == []
    assert missing(ack_steps, acked) == []


def _append(engine: Engine) -> None:
    for number in range(8):
        engine.wait_for(engine.append("orders", [NewRecord(b"%d" % number)]).commit)


def test_a_recovery_passes_the_named_functions_in_their_order(tmp_path: Path) -> None:
    [steps] = PATHS["5 Recovery"]
    with open_small(tmp_path) as engine:
        _append(engine)
        engine.checkpoint()
        engine.wait_for(engine.put_topic("orders", TopicConfig(ttl_ms=3_600_000)).commit)
        _append(engine)
        engine.abandon()
    recorder = Recorder()
    sys.setprofile(recorder.note)
    try:
        engine = Engine.open(tmp_path / "data", EngineSettings(shards=1))
    finally:
        sys.setprofile(None)
    engine.close()
    assert missing(steps, recorder.called) == []


def test_a_step_in_the_wrong_order_would_be_noticed() -> None:
    called = [("fs.py", "OsFs.open"), ("fs.py", "OsFs.close")]
    assert missing([Step("fs.py", ["OsFs.open"]), Step("fs.py", ["close"])], called) == []
    assert missing([Step("fs.py", ["close"]), Step("fs.py", ["OsFs.open"])], called) == ["fs.py: OsFs.open"]
    assert missing([Step("clock.py", ["open"])], called) == ["clock.py: open"]
