"""One session, from the first process to the last: start, trade, kill, restart, drain, archive, audit.

Owns the order of things and the time that each may take. Reads the queues only to count; what was
lost or not is for the audit to say.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self
from urllib.request import urlopen

from everlog import Client
from everlog.bridge.state import state_path
from everlog.bus import IpcLayout, is_ready
from everlog.bus.static_feeds import ROUTER_FILE
from everlog.queue import Queue, QueueReader
from examples.demo.lake_files import PROGRESS_FILE, RESULT_FILE
from examples.demo.live_audit import live_accounts
from examples.demo.plan import Kill, Outcome, Plan, Stage
from examples.demo.processes import DemoFailed, Processes
from examples.demo.records import (
    COMMIT_EVERY,
    CONCURRENCY,
    CONFIG,
    FILLS_BRIDGE,
    JOBS_TOPIC,
    LEASE_MS,
    MARKET_BRIDGE,
    MARKET_TOPIC,
    SETTLED_STRATEGY,
    STRATEGIES,
    VENUE,
    WATCHER,
    WORKERS,
    notes_dir,
    ticks_dir,
)
from examples.demo.topic_copy import TopicCopy, read_market_topic

START_LIMIT_S = 60.0
DRAIN_LIMIT_S = 45.0
LAKE_LIMIT_S = 400.0
BUSY_LIMIT_S = 1.0
SERVED_CHECK_S = 0.2
DOWN_S = 0.5
"""How long the bridge and the worker stay dead, so that the plots show it."""

KILL_BRIDGE_AT, KILL_STRATEGY_AT, KILL_WORKER_AT = 0.3, 0.5, 0.7
VICTIM_STRATEGY, VICTIM_WORKER = STRATEGIES[0], WORKERS[0]
BRIDGE_PROCESS = "bridge"
FILLS_BRIDGE_PROCESS = "bridge-of-fills"
SERVER_PROCESS = "server"


@dataclass(frozen=True)
class Counts:
    """How many messages there are so far, at each place of the chain."""

    messages: int = 0
    orders: int = 0
    fills: int = 0
    watched: int = 0
    settled: int = 0


class Watcher(Protocol):
    """Wants to know how the run goes on."""

    def note(self, text: str) -> None:
        """Something happened."""

    def progress(self, counts: Counts) -> None:
        """Some more messages were written."""

    def stage(self, name: str) -> None:
        """Another part of the run begins."""


class Tally:
    """Counts the messages of some queues as an anonymous reader, which other processes do not notice."""

    def __init__(self, *paths: Path) -> None:
        self._readers: dict[Path, QueueReader | None] = dict.fromkeys(paths)
        self.count = 0

    def update(self) -> int:
        """Count what is new and return the sum; 0 while there is no queue."""
        for path, reader in self._readers.items():
            opened = reader or Queue.try_open_subscriber(path, None, verify=False)
            self._readers[path] = opened
            while opened is not None and (new := len(opened.read_batch())):
                self.count += new
        return self.count

    def close(self) -> None:
        """Stop counting."""
        for reader in self._readers.values():
            if reader is not None:
                reader.close()


def count_messages(path: Path) -> int:
    """Return how many messages a queue holds."""
    tally = Tally(path)
    try:
        return tally.update()
    finally:
        tally.close()


class Session:
    """One run; `outcome` grows on the way."""

    def __init__(self, root: Path, plan: Plan, watcher: Watcher) -> None:
        self.outcome = Outcome()
        self.topic: TopicCopy | None = None
        self._root = root
        self._layout = IpcLayout(root)
        self._plan = plan
        self._watcher = watcher
        self._processes = Processes(root / "logs", lambda: watcher.progress(self._counts()))
        endpoints = [self._layout.orders().strategy_endpoints(name) for name in STRATEGIES]
        self._tallies = (
            Tally(ticks_dir(self._layout)),
            Tally(*(endpoint.orders_out for endpoint in endpoints)),
            Tally(*(endpoint.orders_in for endpoint in endpoints)),
            Tally(notes_dir(self._layout, WATCHER)),
            Tally(*(notes_dir(self._layout, name) for name in WORKERS)),
        )
        self._inboxes = [endpoint.orders_in for endpoint in endpoints]
        self._settled_fills = self._layout.orders().strategy_endpoints(SETTLED_STRATEGY).orders_in
        self._signs_of_life: list[Path] = []
        self.url = ""

    def run(self) -> Outcome:
        """Run the whole chain and return what is to be known about it."""
        with self._stage("start"):
            self._start_server()
            self._start_bridges()
            self._start_readers()
        with self._stage("trade"):
            self._trade()
        with self._stage("drain"):
            self._drain()
        if self._plan.with_spark:
            self._run_lake()
        with self._stage("ask the live planes"):
            self._ask_live_planes()
            if not self._plan.is_served:
                self._processes.stop(SERVER_PROCESS)
        return self.outcome

    def serve(self) -> None:
        """Let the server run on until the first Ctrl-C, then end it in an orderly way."""
        with suppress(KeyboardInterrupt):
            while not self._processes.ended(SERVER_PROCESS):
                self._processes.check()
                time.sleep(SERVED_CHECK_S)
        self._processes.stop(SERVER_PROCESS)

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        self._watcher.stage(name)
        started_s = time.monotonic()
        yield
        self.outcome.stages.append(Stage(name, time.monotonic() - started_s))

    # -- start ---------------------------------------------------------------------------

    def _start_server(self) -> None:
        port_file = self._root / "server.port"
        self._processes.start_everlog(
            SERVER_PROCESS,
            *("serve", "--port", 0, "--port-file", port_file),
            *("--data-dir", self._root / "topics", "--bus", self._root, "--log-level", "warning"),
        )
        self._processes.until(port_file.exists, START_LIMIT_S, "listen", [SERVER_PROCESS])
        self.url = f"http://{port_file.read_text().strip()}"
        self._processes.until(self._answers, START_LIMIT_S, "answer", [SERVER_PROCESS])
        with Client(self.url) as client:
            client.put_topic(MARKET_TOPIC)
            client.put_topic(JOBS_TOPIC, {"type": "queue", "lease_ms": LEASE_MS, "max_deliveries": 20})
        self._watcher.note(f"the topics server listens on {self.url}, which is also its console")

    def _answers(self) -> bool:
        """Whether the server is ready; until it is, a client would warn of every attempt."""
        try:
            with urlopen(f"{self.url}/readyz", timeout=START_LIMIT_S):
                return True
        except OSError:
            return False

    def _start_bridges(self) -> None:
        """Start both bridges on queues that are still empty, so that nothing waits for them later."""
        places = {MARKET_BRIDGE: ticks_dir(self._layout), FILLS_BRIDGE: self._settled_fills}
        for queue in places.values():
            Queue.open_publisher(queue, CONFIG).close()
        self._start_market_bridge()
        self._start_bridge(FILLS_BRIDGE_PROCESS, self._settled_fills, JOBS_TOPIC, FILLS_BRIDGE)
        self._signs_of_life += [Path(state_path(str(queue), name)) for name, queue in places.items()]

    def _start_readers(self) -> None:
        processes = self._processes
        (self._root / ROUTER_FILE).write_text(f'[feeds]\nrequired = ["{VENUE}"]\n', encoding="utf-8")
        processes.start_module("router", "router", self._root, len(STRATEGIES))
        for name in STRATEGIES:
            processes.start_module(name, "strategy", self._root, name)
        processes.start_module(WATCHER, "watcher", self._root, self.url)
        for name in WORKERS:
            self._start_worker(name)
        processes.until(lambda: all(map(is_ready, self._inboxes)), START_LIMIT_S, "meet the router")
        self._signs_of_life += [notes_dir(self._layout, name) for name in (WATCHER, *WORKERS)]

        def at_work() -> bool:
            return all(path.exists() for path in self._signs_of_life)

        waited_for = [BRIDGE_PROCESS, FILLS_BRIDGE_PROCESS, WATCHER, *WORKERS]
        processes.until(at_work, START_LIMIT_S, "begin", waited_for)
        self._watcher.note(
            f"the router has found {' and '.join(STRATEGIES)}; bridges, a watcher and workers wait"
        )

    # -- trade ---------------------------------------------------------------------------

    def _trade(self) -> None:
        plan, processes = self._plan, self._processes
        processes.start_module("feed", "feed", self._root, plan.seconds, plan.symbols, plan.rate_per_s)
        processes.until(lambda: is_ready(ticks_dir(self._layout)), START_LIMIT_S, "open its queue", ["feed"])
        processes.until(lambda: self._counts().watched > 0, START_LIMIT_S, "bring a first record", [WATCHER])
        started_s = time.monotonic()
        self._watcher.note(
            f"the venue is open: {plan.symbols} symbols for {plan.seconds:g} s, "
            f"{plan.rate_per_s:,.0f} changes of orders a second"
        )

        def wait_for(share: float) -> None:
            until_s = started_s + share * plan.seconds
            processes.until(
                lambda: time.monotonic() >= until_s, share * plan.seconds + START_LIMIT_S, "trade"
            )

        wait_for(KILL_BRIDGE_AT)
        self._kill_and_restart(BRIDGE_PROCESS, self._start_market_bridge)
        wait_for(KILL_STRATEGY_AT)
        self._kill_strategy(VICTIM_STRATEGY)
        wait_for(KILL_WORKER_AT)
        self._wait_for_busy_workers()
        self._kill_and_restart(VICTIM_WORKER, lambda: self._start_worker(VICTIM_WORKER))
        processes.until(lambda: processes.ended("feed"), plan.seconds + START_LIMIT_S, "close", ["feed"])
        self._watcher.note(f"the venue has closed after {self._counts().messages:,} messages")

    def _start_market_bridge(self) -> int:
        return self._start_bridge(BRIDGE_PROCESS, ticks_dir(self._layout), MARKET_TOPIC, MARKET_BRIDGE)

    def _start_bridge(self, process: str, queue: Path, topic: str, name: str) -> int:
        return self._processes.start_everlog(
            process,
            *("bridge", "queue-to-topic", "--queue", queue, "--topic", topic),
            *("--url", self.url, "--name", name),
        )

    def _start_worker(self, name: str) -> int:
        return self._processes.start_module(name, "worker", self._root, self.url, name)

    def _kill_and_restart(self, name: str, start: Callable[[], int]) -> None:
        killed_ns = time.time_ns()
        pid = self._processes.kill(name)
        self._watcher.note(f"killed the {name} (pid {pid}, SIGKILL)")
        up_again_s = time.monotonic() + DOWN_S
        self._processes.until(lambda: time.monotonic() >= up_again_s, DOWN_S + START_LIMIT_S, "wait")
        new_pid = start()
        self.outcome.kills.append(Kill(name, pid, killed_ns, time.time_ns()))
        self._watcher.note(f"started the {name} again (pid {new_pid})")

    def _wait_for_busy_workers(self) -> None:
        """Wait until every worker holds a job, but not for long: a kill should find some under way."""
        until_s = time.monotonic() + BUSY_LIMIT_S
        with Client(self.url) as client:

            def are_busy() -> bool:
                jobs = client.topic(JOBS_TOPIC, touch=False).queue
                is_more_than_one_can_hold = jobs is not None and jobs.in_flight > CONCURRENCY
                return is_more_than_one_can_hold or time.monotonic() >= until_s

            self._processes.until(are_busy, BUSY_LIMIT_S + START_LIMIT_S, "work", list(WORKERS))

    def _kill_strategy(self, name: str) -> None:
        # Between two commits, so that some messages come again.
        self._processes.until(
            lambda: self._counts().messages % COMMIT_EVERY > COMMIT_EVERY // 4, START_LIMIT_S, "trade on"
        )
        killed_ns = time.time_ns()
        pid = self._processes.kill(name)
        # Under the dead strategy's name, and without a commit: just a look where it will resume.
        with Queue.open_subscriber(ticks_dir(self._layout), name) as reader:
            message = reader.next()
        if message is None:
            raise DemoFailed(f"{name} had committed everything when it was killed; raise the rate")
        self._watcher.note(
            f"killed {name} (pid {pid}, SIGKILL); it had committed up to message {message.seq:,}"
        )
        new_pid = self._processes.start_module(name, "strategy", self._root, name)
        self.outcome.kills.append(Kill(name, pid, killed_ns, time.time_ns(), message.seq))
        self._watcher.note(f"started {name} again (pid {new_pid})")

    # -- drain ---------------------------------------------------------------------------

    def _drain(self) -> None:
        """Wait until every process has everything, then end them."""
        processes = self._processes
        traders = [*STRATEGIES, "router", WATCHER]
        # What piled up while a process was dead may take as long again as the session itself.
        limit_s = DRAIN_LIMIT_S + 2 * self._plan.seconds
        processes.until(lambda: all(map(processes.ended, traders)), limit_s, "finish", traders)
        with Client(self.url) as client:
            fills = count_messages(self._settled_fills)

            def is_settled() -> bool:
                jobs = client.topic(JOBS_TOPIC, touch=False)
                return jobs.head_seq >= fills and jobs.count == 0

            consumers = [FILLS_BRIDGE_PROCESS, *WORKERS]
            processes.until(is_settled, limit_s, f"settle {fills:,} fills", consumers)
        for name in (BRIDGE_PROCESS, *consumers):
            processes.stop(name)
        self._watcher.progress(self._counts())
        self._watcher.note("every order is filled, every record watched, every fill settled")

    # -- the lake ------------------------------------------------------------------------

    def _run_lake(self) -> None:
        """Let Spark archive, replay and audit in a process of its own, and tell its stages as they end."""
        self._watcher.stage("Spark: start")
        self._processes.start_module("lake", "lake", self._root, self.url)
        progress, told = self._root / PROGRESS_FILE, 0

        def follow() -> bool:
            nonlocal told
            lines = progress.read_text().splitlines() if progress.exists() else []
            for line in lines[told:]:
                stage = Stage(**json.loads(line))
                self.outcome.stages.append(stage)
                self._watcher.note(f"{stage.name}: {stage.result} in {stage.seconds:.1f} s")
                self._watcher.stage("Spark: at work")
            told = len(lines)
            return self._processes.ended("lake")

        self._processes.until(follow, LAKE_LIMIT_S, "finish its jobs", ["lake"])
        follow()
        self.outcome.lake = json.loads((self._root / RESULT_FILE).read_text())

    # -- the live planes -----------------------------------------------------------------

    def _ask_live_planes(self) -> None:
        """Let the topics and `everlog audit` tell what they hold, while the server still runs."""
        with Client(self.url) as client:
            self.topic = read_market_topic(client)
            bridges = [
                (str(ticks_dir(self._layout)), MARKET_BRIDGE),
                (str(self._settled_fills), FILLS_BRIDGE),
            ]
            self.outcome.live_accounts = live_accounts(
                client, str(self._root), (MARKET_TOPIC, JOBS_TOPIC), bridges
            )
            for name in (MARKET_TOPIC, JOBS_TOPIC):
                state = client.topic(name, touch=False)
                self.outcome.topics[name] = {
                    "head_seq": state.head_seq,
                    "earliest_seq": state.earliest_seq,
                    "count": state.count,
                }

    # -- counting ------------------------------------------------------------------------

    def _counts(self) -> Counts:
        return Counts(*(tally.update() for tally in self._tallies))

    def close(self) -> None:
        """End what still runs, and wait until it has ended."""
        self._processes.close()
        for tally in self._tallies:
            tally.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
