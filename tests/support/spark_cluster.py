"""A standalone Spark cluster of real processes on this machine, and drivers that use it.

Owns starting, killing and ending them. Ends only what it started: each daemon by its own process id, and its
executors as that process's descendants.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyspark

from everlog.market.venues.simulated import SimulatedVenue
from everlog.pipeline.java import java_home
from everlog.queue import Queue
from tests.support.command_lines import Started
from tests.support.processes import eventually

SPARK_HOME = os.path.dirname(pyspark.__file__)
ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 300.0
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
DEFAULTS = f"""spark.executor.cores 1
spark.executor.memory 512m
spark.driver.memory 512m
spark.executor.extraJavaOptions {QUICK_START}
"""
FREE_PORT = {"SPARK_TESTING": "yes"}
"""The environment in which a server of Spark Connect that PySpark starts takes a free port."""
QUICK_JAVA = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}
"""The environment in which Java compiles once only: a third less processor time in runs of a minute."""

MASTER_STARTED = re.compile(r"Starting Spark master at (spark://\S+)")
EXECUTOR = b"CoarseGrainedExecutorBackend"
DRIVER_LOG = "driver.log"
WORKER_REGISTERED = "Successfully registered with master"


class _Daemon:
    """A master or a worker, with its log."""

    def __init__(self, environment: dict[str, str], log: Path, *words: str) -> None:
        self._log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [os.path.join(SPARK_HOME, "bin", "spark-class"), *words],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def said(self) -> str:
        """Everything it has logged; fails if it has ended."""
        text = self._log.read_text(errors="replace")
        assert self.process.poll() is None, f"ended with {self.process.returncode}: {text}"
        return text

    def kill(self) -> None:
        """Send SIGKILL to the process and to all that it started, and wait for its end."""
        for pid in [self.process.pid, *_descendants(self.process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


class Cluster:
    """A master and its workers, one core each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "conf").mkdir(parents=True)
        (folder / "conf" / "spark-defaults.conf").write_text(DEFAULTS)
        self.environment = {
            **os.environ,
            **QUICK_JAVA,
            "JAVA_HOME": java_home(),
            "SPARK_HOME": SPARK_HOME,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_CONF_DIR": str(folder / "conf"),
            "SPARK_LOCAL_DIRS": str(folder / "scratch"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"-Dspark.master.rest.enabled=false {QUICK_START}",
        }
        place = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self._master = _Daemon(
            self.environment, folder / "master.log", "org.apache.spark.deploy.master.Master", *place
        )
        self._workers: list[_Daemon] = []
        self.url = ""

    def await_master(self) -> None:
        """Wait until the master listens."""
        eventually("the master listens", lambda: MASTER_STARTED.search(self._master.said()), PATIENCE_S)
        found = MASTER_STARTED.search(self._master.said())
        assert found is not None
        self.url = found.group(1)

    def add_workers(self, count: int) -> None:
        """Start workers and wait until the master knows them."""
        new = [self._new_worker(len(self._workers) + number) for number in range(count)]
        self._workers += new
        for worker in new:
            eventually("the worker is known", lambda one=worker: WORKER_REGISTERED in one.said(), PATIENCE_S)

    def _new_worker(self, number: int) -> _Daemon:
        words = ["--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g"]
        words += ["--work-dir", str(self._folder / f"worker-{number}"), self.url]
        log = self._folder / f"worker-{number}.log"
        return _Daemon(self.environment, log, "org.apache.spark.deploy.worker.Worker", *words)

    def kill_worker(self) -> None:
        """Kill the oldest worker and its executor, without a warning."""
        self._workers.pop(0).kill()

    def kill_executor(self, choice: random.Random) -> None:
        """Kill one of the executors, without its worker, which starts another one."""
        _kill_one("an executor", self._executors, choice)

    def kill_python(self, choice: random.Random) -> None:
        """Kill a Python process of an executor: one that runs tasks, or the one that forks them."""
        _kill_one("a Python process of an executor", self._pythons, choice)

    def _executors(self) -> list[int]:
        """The Java processes that run tasks, of applications that still run."""
        below = [pid for one in self._workers for pid in _descendants(one.process.pid)]
        return [pid for pid in below if EXECUTOR in _command_of(pid)]

    def _pythons(self) -> list[int]:
        """The Python processes of executors."""
        return [pid for executor in self._executors() for pid in _descendants(executor)]

    def driver_log(self) -> str:
        """What the last driver has said to standard error."""
        return (self._folder / DRIVER_LOG).read_text(errors="replace")

    def stop(self) -> None:
        """End everything."""
        for daemon in [*self._workers, self._master]:
            daemon.kill()

    def run(self, *words: object) -> Any:
        """Run an `everlog` command with this master to its end; return the JSON that it prints."""
        command = [os.path.join(os.path.dirname(sys.executable), "everlog"), *map(str, words)]
        answer = subprocess.run(
            [*command, "--master", self.url, "--json"],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr
        return msgspec.json.decode(answer.stdout)

    @contextmanager
    def driver(self, module: str, *words: object) -> Iterator[Started]:
        """Run a module as a driver for as long as the block lasts; killed if it has not ended by then."""
        log = (self._folder / DRIVER_LOG).open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", module, self.url, *map(str, words)],
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        try:
            yield Started(process)
        finally:
            for pid in [*_descendants(process.pid), process.pid]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout, log):
                if pipe is not None:
                    pipe.close()


@contextmanager
def running_cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """A cluster from the moment its workers are known until the end of the block."""
    cluster = Cluster(folder)
    try:
        cluster.await_master()
        cluster.add_workers(workers)
        yield cluster
    finally:
        cluster.stop()


def write_simulated_queue(path: str, events: int, symbols: int) -> int:
    """Write books and trades of a simulated venue; return the number of messages."""
    venue = SimulatedVenue(symbols, seed=5, rate=20_000.0, kinds=("l2", "trades"), resting_orders=20)
    with Queue.open_publisher(path, segment_size=1 << 20) as writer:
        for block in venue.blocks(events):
            block.append_to(writer)
        return int(np.uint64(writer.next_seq))


def _kill_one(what: str, listed: Callable[[], list[int]], choice: random.Random) -> None:
    """Kill one of the listed processes, as soon as there is one."""

    def is_killed() -> bool:
        pids = listed()
        with suppress(ProcessLookupError):  # it may end by itself meanwhile
            if pids:
                os.kill(choice.choice(pids), signal.SIGKILL)
                return True
        return False

    eventually(f"{what} runs", is_killed, PATIENCE_S)


def _command_of(pid: int) -> bytes:
    """The command line of a process, empty if it has ended."""
    with suppress(OSError):
        return Path("/proc", str(pid), "cmdline").read_bytes()
    return b""


def _descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, directly or not."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            stat = Path("/proc", name, "stat").read_text()
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(name))
    found: list[int] = []
    open_ends = [pid]
    while open_ends:
        mine = children.get(open_ends.pop(), [])
        found += mine
        open_ends += mine
    return found
